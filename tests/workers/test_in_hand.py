# SPDX-License-Identifier: Apache-2.0
"""A broker redelivers messages that are in the hands of handlers: no message is handled twice.

The broker does not mark redeliveries, so only the GUID identifies a redelivered message.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

import bmq
from bmq.conventions import delay_queue_of
from tests.sweeps import sweep
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/held"
COUNT = 8


class Held:
    """Handlers that wait for a signal, and a record of their calls.

    Attributes:
        broker: delivers the messages.
        most: maximum number of handlers with the same message at the same time.
        effects: number of finished handlers, by payload.
    """

    def __init__(self, broker: bmq.broker.Broker) -> None:
        self.broker = broker
        self.most = 0
        self.entered = 0
        self.effects: Counter[bytes] = Counter()
        self.go = asyncio.Event()
        #: Posts the message of a number, where a plain post does not do.
        self.post: Callable[[int], Awaitable[object]] | None = None
        self._at_work: Counter[bytes] = Counter()

    async def handle(self, *data: bytes) -> None:
        """Work on messages."""
        self.enter(*data)
        await self.go.wait()
        self.leave(*data)

    def enter(self, *data: bytes) -> None:
        self.entered += 1
        self._at_work.update(data)
        self.most = max(self.most, *self._at_work.values())

    def leave(self, *data: bytes) -> None:
        self._at_work.subtract(data)
        self.effects.update(data)

    def options(self) -> dict[str, Any]:
        return {"reconnect_delays": lambda: itertools.repeat(0.005)}


#: Runs handlers, and yields their session.
Recipe = Callable[[Held], AbstractAsyncContextManager[bmq.Session]]
HANDLERS: dict[str, Recipe] = {}


def recipe(name: str) -> Callable[[Callable[[Held], AsyncIterator[bmq.Session]]], Recipe]:
    def register(make: Callable[[Held], AsyncIterator[bmq.Session]]) -> Recipe:
        HANDLERS[name] = asynccontextmanager(make)
        return HANDLERS[name]

    return register


def app_of(name: str, register: Callable[[bmq.App, Held], object]) -> None:
    async def run(held: Held) -> AsyncIterator[bmq.Session]:
        app = bmq.App(held.broker.uri, grace=5, **held.options())
        register(app, held)
        async with app:
            yield app.session

    recipe(name)(run)


def _each(**options: Any) -> Callable[[bmq.App, Held], object]:
    def register(app: bmq.App, held: Held) -> None:
        @app.consumer(URI, **options)
        async def handle(message: bmq.Message) -> None:
            await held.handle(message.data)

    return register


def _two_consumers(app: bmq.App, held: Held) -> None:
    for _ in range(2):
        _each(concurrency=2)(app, held)


def _values(app: bmq.App, held: Held) -> None:
    @app.consumer(URI, concurrency=4)
    async def handle(value: int) -> None:
        await held.handle(b"%d" % value)


def _in_threads(app: bmq.App, held: Held) -> None:
    loop = asyncio.get_running_loop()
    released = threading.Event()
    waiting = loop.create_task(held.go.wait())
    waiting.add_done_callback(lambda _: released.set())

    @app.consumer(URI, concurrency=4)
    def handle(message: bmq.Message) -> None:
        loop.call_soon_threadsafe(held.enter, message.data)
        released.wait(20)
        loop.call_soon_threadsafe(held.leave, message.data)


def _batches(app: bmq.App, held: Held) -> None:
    @app.batch_consumer(URI, max_messages=3, max_wait=0.01, concurrency=2)
    async def handle(messages: list[bmq.Message]) -> None:
        await held.handle(*[message.data for message in messages])


def _later(app: bmq.App, held: Held) -> None:
    """The handler passes the messages to a task for confirmation."""
    tasks: set[asyncio.Task[None]] = set()

    async def work(message: bmq.Message) -> None:
        await held.handle(message.data)
        message.confirm()

    @app.consumer(URI, ack=bmq.AckPolicy.MANUAL, concurrency=4)
    async def handle(message: bmq.Message) -> None:
        tasks.add(asyncio.create_task(work(message)))


def _responder(app: bmq.App, held: Held) -> None:
    @app.responder(URI, concurrency=4)
    async def answer(message: bmq.Message) -> None:
        await held.handle(message.data)


app_of("one worker", _each())
app_of("workers", _each(concurrency=4))
app_of("workers with a deadline", _each(concurrency=4, timeout=60))
app_of("workers with a rate", _each(concurrency=4, rate=1000))
app_of("workers with durable retries", _each(concurrency=4, retry=bmq.Backoff(1, durable=True)))
app_of("workers with a quarantine", _each(concurrency=4, quarantine=bmq.DeadLetter(f"{URI}.dead"), after=2))
app_of("workers that confirm first", _each(concurrency=4, ack=bmq.AckPolicy.ON_RECEIPT))
app_of("lanes", _each(concurrency=4, key=lambda message: int(message.data) % 3))
app_of("two consumers", _two_consumers)
app_of("values", _values)
app_of("threads", _in_threads)
app_of("batches", _batches)
app_of("confirmed later", _later)
app_of("a responder", _responder)


@recipe("consume")
async def _consume(held: Held) -> AsyncIterator[bmq.Session]:
    async with bmq.connect(held.broker.uri, **held.options()) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=False)

        async def handle(message: bmq.Message) -> None:
            await held.handle(message.data)

        working = asyncio.create_task(bmq.consume(queue, handle, concurrency=4))
        yield session
        working.cancel()
        await asyncio.wait([working])


@recipe("between attempts")
async def _between_attempts(held: Held) -> AsyncIterator[bmq.Session]:
    """Every first attempt fails; the second attempt follows after the pause."""
    failed: set[bytes] = set()

    class Paused:
        def time(self) -> float:
            return 0.0

        async def sleep(self, seconds: float) -> None:
            await held.go.wait()

    async with bmq.connect(held.broker.uri, **held.options()) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=False)

        async def handle(message: bmq.Message) -> None:
            held.entered += 1
            if message.data not in failed:
                failed.add(message.data)
                raise ConnectionError("away")
            held.effects[message.data] += 1

        retry = bmq.Backoff(every=1, retries=1)
        working = asyncio.create_task(
            bmq.consume(queue, handle, concurrency=COUNT, retry=retry, clock=Paused())
        )
        yield session
        working.cancel()
        await asyncio.wait([working])
        assert held.entered == 2 * COUNT, "a failed attempt counts once"


@recipe("taskiq")
async def _taskiq(held: Held) -> AsyncIterator[bmq.Session]:
    from taskiq.api import run_receiver_task

    from bmq.taskiq import BmqBroker

    broker = BmqBroker(held.broker.uri, URI, mover=False, **held.options())
    broker.is_worker_process = True

    @broker.task(task_name="work")
    async def work(number: int) -> None:
        await held.handle(b"%d" % number)

    await broker.startup()
    held.post = work.kiq
    running = asyncio.create_task(run_receiver_task(broker))
    yield broker.session
    running.cancel()
    await asyncio.wait([running])
    await broker.shutdown()


async def _restart(held: Held, session: bmq.Session) -> None:
    """The broker restarts without a record of deliveries, and redelivers all messages unmarked."""
    before = session.stats().reconnects
    await held.broker.restart(graceful=False)
    await eventually(lambda: session.stats().reconnects > before, timeout=20)
    async with bmq.connect(held.broker.uri) as other:
        queue = await other.open_queue(f"{URI}.other", write=True)
        await queue.post(b"the broker is in order")
    await eventually(lambda: session.state is bmq.SessionState.STARTED, timeout=20)
    delivered = held.broker.queues[URI].apps["__default"].unconfirmed
    await eventually(lambda: delivered, timeout=20)


async def _twice(held: Held, session: bmq.Session) -> None:
    """The messages were delivered twice over one connection."""


@sweep("again", [_restart, _twice], ids=lambda each: each.__name__.strip("_"))
@sweep("name", HANDLERS)
async def test_no_message_is_handled_beside_itself_or_once_more(
    name: str, again: Callable[[Held, bmq.Session], Awaitable[None]]
) -> None:
    if name == "taskiq":
        pytest.importorskip("taskiq")
    async with bmq.broker.Broker() as broker, bmq.connect(broker.uri) as posting:
        held = Held(broker)
        queue = await posting.open_queue(URI, write=True)
        if again is _twice:
            broker.faults.duplicate_pushes()
        async with HANDLERS[name](held) as session:
            for number in range(COUNT):
                await (queue.post(b"%d" % number) if held.post is None else held.post(number))
            await eventually(lambda: held.entered)
            await eventually(lambda: session.stats().received >= COUNT or name == "a responder")
            await again(held, session)
            held.go.set()
            await broker.drained(URI)
            assert held.effects == {b"%d" % number: 1 for number in range(COUNT)}
            assert held.most <= 1
            await eventually(lambda: session.stats().unconfirmed == 0)


@pytest.mark.parametrize("service", ["mover", "sweeper"])
async def test_services_pass_each_message_on_once(service: str, caplog: pytest.LogCaptureFixture) -> None:
    source = delay_queue_of(URI) if service == "mover" else URI
    target = URI if service == "mover" else f"{URI}.aside"
    async with bmq.broker.Broker() as broker, bmq.connect(broker.uri) as posting:
        queue = await posting.open_queue(source, write=True)
        held = Held(broker)
        app = bmq.App(broker.uri, grace=5, **held.options())
        if service == "mover":
            app.mover(source)
        else:
            app.sweeper(source, put_aside=target)
        broker.faults.duplicate_pushes()
        async with app:
            for number in range(COUNT):
                properties = {"bmq_due": 1, "bmq_destination": URI} if service == "mover" else None
                await queue.post(b"%d" % number, properties=properties)
            await broker.drained(source)
        assert len(broker.queues[target]) == COUNT
        assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
