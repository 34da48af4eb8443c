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
from tests.workers.conftest import Standstill
from tests.workers.kinds import register, register_in_thread
from tests.workers.stage import consuming

URI = "bmq://bmq.test.mem.priority/held"
COUNT = 8
OPTIONS: dict[str, Any] = {"reconnect_delays": lambda: itertools.repeat(0.005)}


class Held:
    """Handlers that wait for a signal, and a record of their calls.

    Attributes:
        broker: delivers the messages.
        most: maximum number of handlers with the same message at the same time.
        effects: number of finished handlers, by payload.
        post: posts the message of a number, where a plain post does not do.
    """

    def __init__(self, broker: bmq.broker.Broker) -> None:
        self.broker = broker
        self.most = 0
        self.entered = 0
        self.effects: Counter[bytes] = Counter()
        self.go = asyncio.Event()
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


#: Runs handlers, and yields their session.
Recipe = Callable[[Held], AbstractAsyncContextManager[bmq.Session]]
HANDLERS: dict[str, Recipe] = {}


def recipe(name: str) -> Callable[[Callable[[Held], AsyncIterator[bmq.Session]]], Recipe]:
    def add(make: Callable[[Held], AsyncIterator[bmq.Session]]) -> Recipe:
        HANDLERS[name] = asynccontextmanager(make)
        return HANDLERS[name]

    return add


def app_of(name: str, registering: Callable[[bmq.App, Held], object]) -> None:
    async def run(held: Held) -> AsyncIterator[bmq.Session]:
        app = bmq.App(held.broker.uri, grace=5, **OPTIONS)
        registering(app, held)
        async with app:
            yield app.session

    recipe(name)(run)


def of_kind(kind: str, **options: Any) -> Callable[[bmq.App, Held], None]:
    def registering(app: bmq.App, held: Held) -> None:
        async def work(*messages: bmq.Message) -> None:
            await held.handle(*[message.data for message in messages])

        register(app, URI, kind, work, **options)

    return registering


def _two_consumers(app: bmq.App, held: Held) -> None:
    for _ in range(2):
        of_kind("single", concurrency=2)(app, held)


def _in_threads(app: bmq.App, held: Held) -> None:
    loop = asyncio.get_running_loop()
    released = threading.Event()
    waiting = loop.create_task(held.go.wait())
    waiting.add_done_callback(lambda _: released.set())

    def work(message: bmq.Message) -> None:
        loop.call_soon_threadsafe(held.enter, message.data)
        released.wait(20)
        loop.call_soon_threadsafe(held.leave, message.data)

    register_in_thread(app, URI, "single", work, concurrency=4)


def _later(app: bmq.App, held: Held) -> None:
    """The handler passes the messages to a task for confirmation."""
    tasks: set[asyncio.Task[None]] = set()

    async def finish(message: bmq.Message) -> None:
        await held.handle(message.data)
        message.confirm()

    async def work(message: bmq.Message) -> None:
        tasks.add(asyncio.create_task(finish(message)))

    register(app, URI, "manual", work, concurrency=4)


app_of("one worker", of_kind("single"))
for each in ("concurrent", "deadline", "rate", "on receipt", "durable", "values", "requests"):
    app_of(each, of_kind(each, concurrency=4))
app_of("quarantine", of_kind("concurrent", quarantine=bmq.DeadLetter(f"{URI}.dead"), after=2))
app_of("lanes", of_kind("lanes", concurrency=4, key=lambda message: int(message.data) % 3))
app_of("batches", of_kind("batches", concurrency=2, max_messages=3, max_wait=0.01))
app_of("two consumers", _two_consumers)
app_of("threads", _in_threads)
app_of("confirmed later", _later)


@recipe("consume")
async def _consume(held: Held) -> AsyncIterator[bmq.Session]:
    async def handle(message: bmq.Message) -> None:
        await held.handle(message.data)

    async with bmq.connect(held.broker.uri, **OPTIONS) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=False)
        async with consuming(queue, handle, concurrency=4):
            yield session


@recipe("between attempts")
async def _between_attempts(held: Held) -> AsyncIterator[bmq.Session]:
    """Every first attempt fails; the second attempt follows after the pause."""
    failed: set[bytes] = set()
    clock = Standstill()
    clock.go_on = held.go

    async def handle(message: bmq.Message) -> None:
        held.entered += 1
        if message.data not in failed:
            failed.add(message.data)
            raise ConnectionError("away")
        held.effects[message.data] += 1

    async with bmq.connect(held.broker.uri, **OPTIONS) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=False)
        retry = bmq.Backoff(every=1, retries=1)
        async with consuming(queue, handle, concurrency=COUNT, retry=retry, clock=clock):
            yield session
        assert held.entered == 2 * COUNT, "a failed attempt counts once"


@recipe("taskiq")
async def _taskiq(held: Held) -> AsyncIterator[bmq.Session]:
    from taskiq.api import run_receiver_task

    from bmq.taskiq import BmqBroker

    broker = BmqBroker(held.broker.uri, URI, mover=False, **OPTIONS)
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
            await eventually(lambda: session.stats().received >= COUNT or name == "requests")
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
        app = bmq.App(broker.uri, grace=5, **OPTIONS)
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
