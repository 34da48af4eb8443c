# SPDX-License-Identifier: Apache-2.0
"""Each consumer of bmq, as a target for poison messages before a good message."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import bmq
from bmq.conventions import delay_queue_of
from bmq.delays import DueMessages, Mover
from bmq.workers import Sweeper
from tests.extras import TABLES
from tests.poison.poisons import Poisonous, flood

__all__ = ["CONSUMERS", "LIMIT", "Flooded", "Order", "Scene", "beside", "swallow"]

#: How many messages each consumer may have unconfirmed.
LIMIT = 20
GOOD = b'{"amount": 1}'


@dataclass
class Order:
    """The value of typed consumers."""

    amount: int


@dataclass
class Scene:
    """The environment of a consumer.

    Attributes:
        address: address of the broker.
        session: session for posting, and for consumers without a session.
        uri: unused queue.
        letters: a second unused queue.
    """

    address: str
    session: bmq.Session
    uri: str
    letters: str
    good: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    async def open(self, uri: str | None = None, **options: Any) -> bmq.Queue:
        """Open the queue."""
        options.setdefault("default_subscription", False)
        return await self.session.open_queue(
            uri or self.uri, read=True, write=True, max_unconfirmed_messages=LIMIT, **options
        )

    def see(self, data: bytes) -> None:
        """Record a handed-out payload."""
        if data == GOOD:
            self.good.put_nowait(None)

    def take(self, message: bmq.Message) -> None:
        """Act like a program that confirms unreadable messages."""
        try:
            self.see(message.data)
        except bmq.ProtocolError:
            pass
        message.confirm()


@dataclass
class Flooded:
    """A running consumer.

    Attributes:
        queue: its queue, open for writing.
        post: posts a good message to the queue.
    """

    queue: bmq.Queue
    post: Callable[[], Awaitable[object]]


Recipe = Callable[[Scene], AbstractAsyncContextManager[Flooded]]
#: The consumers by name.
CONSUMERS: dict[str, Recipe] = {}


def consumer(name: str) -> Callable[[Callable[[Scene], AsyncIterator[Flooded]]], Recipe]:
    """Register a consumer."""

    def register(make: Callable[[Scene], AsyncIterator[Flooded]]) -> Recipe:
        CONSUMERS[name] = asynccontextmanager(make)
        return CONSUMERS[name]

    return register


def posts_good(queue: bmq.Queue, **properties: Any) -> Flooded:
    """A consumer with plain good messages."""
    return Flooded(queue, lambda: queue.post(GOOD, properties={"customer": "c", **properties}))


@asynccontextmanager
async def beside(work: Awaitable[Any]) -> AsyncIterator[None]:
    """Run a coroutine beside the block; raise its exception."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def swallow(scene: Scene, flooded: Flooded, poison: Poisonous, count: int) -> None:
    """Post poison followed by a good message; wait for the good message."""
    await flood(flooded.queue, [poison] * count)
    await flooded.post()
    await scene.good.get()


# ---- programs that receive directly


def loops(name: str, receive: Callable[[bmq.Queue, Scene], Awaitable[None]]) -> None:
    async def looping(scene: Scene) -> AsyncIterator[Flooded]:
        queue = await scene.open(default_subscription=None)
        async with beside(receive(queue, scene)):
            yield posts_good(queue)

    consumer(name)(looping)


async def _iterate(queue: bmq.Queue, scene: Scene) -> None:
    async for message in queue:
        scene.take(message)


async def _batches(queue: bmq.Queue, scene: Scene) -> None:
    async for batch in queue.batches(7):
        for message in batch:
            scene.take(message)


async def _values(queue: bmq.Queue, scene: Scene) -> None:
    async for message in queue.typed(Order).subscribe():
        _see_value(message, scene)


async def _batches_of_values(queue: bmq.Queue, scene: Scene) -> None:
    async for batch in queue.typed(Order).batches(7):
        for message in batch:
            _see_value(message, scene)


def _see_value(message: bmq.TypedMessage[Order], scene: Scene) -> None:
    try:
        scene.see(GOOD if message.value == Order(1) else b"")
    except bmq.Undecodable:
        pass
    message.confirm()


async def _due(queue: bmq.Queue, scene: Scene) -> None:
    async with DueMessages(queue) as due:
        async for message in due:
            scene.take(message)


loops("a loop", _iterate)
loops("a loop over batches", _batches)
loops("a loop over values", _values)
loops("a loop over batches of values", _batches_of_values)
loops("a loop over due messages", _due)


@consumer("a group")
async def _group(scene: Scene) -> AsyncIterator[Flooded]:
    queue = await scene.open()

    async def receive() -> None:
        async for message in queue.group(buckets=2):
            scene.take(message)

    async with beside(receive()):
        yield Flooded(queue, lambda: queue.post(GOOD, key="customer"))


# ---- handlers


def handles(name: str, register: Callable[[bmq.App, Scene], object]) -> None:
    async def handling(scene: Scene) -> AsyncIterator[Flooded]:
        queue = await scene.session.open_queue(scene.uri, write=True)
        app = bmq.App(scene.address, grace=1)
        register(app, scene)
        async with app:
            yield posts_good(queue)

    consumer(name)(handling)


def _plain(**options: Any) -> Callable[[bmq.App, Scene], object]:
    def register(app: bmq.App, scene: Scene) -> None:
        @app.consumer(scene.uri, max_unconfirmed_messages=LIMIT, **options)
        async def handle(order: Order) -> None:
            scene.good.put_nowait(None)

    return register


def _thread(app: bmq.App, scene: Scene) -> None:
    call = asyncio.get_running_loop().call_soon_threadsafe

    @app.consumer(scene.uri, max_unconfirmed_messages=LIMIT)
    def handle(order: Order) -> None:
        call(scene.good.put_nowait, None)


def _of_batches(app: bmq.App, scene: Scene) -> None:
    @app.batch_consumer(scene.uri, max_messages=10, max_wait=0.001, max_unconfirmed_messages=LIMIT)
    async def handle(orders: list[Order]) -> None:
        for _ in orders:
            scene.good.put_nowait(None)


handles("a worker", _plain())
handles("four workers", _plain(concurrency=4))
handles("lanes", _plain(concurrency=4, key="customer"))
handles("a worker with a deadline", _plain(timeout=60))
handles("a worker with durable retries", _plain(retry=bmq.Backoff(1000, no_retry=(), durable=True)))
handles("a worker in a thread", _thread)
handles("a worker of batches", _of_batches)


@consumer("a responder")
async def _responder(scene: Scene) -> AsyncIterator[Flooded]:
    async def answer(message: bmq.Message) -> bytes:
        scene.see(message.data)
        return b"done"

    queue = await scene.session.open_queue(scene.uri, write=True)
    app = bmq.App(scene.address, grace=1)
    app.responder(scene.uri, max_unconfirmed_messages=LIMIT)(answer)
    async with app:
        yield Flooded(queue, lambda: queue.request(GOOD, timeout=60))


@consumer("a requester")
async def _requester(scene: Scene) -> AsyncIterator[Flooded]:
    """The reply queue is flooded."""
    queue = await scene.open(default_subscription=None)

    async def ask() -> bmq.Message:
        asking.append(asyncio.ensure_future(queue.request(b"question", timeout=60)))
        request = await queue.receive(60)
        request.confirm()
        return request

    async def post() -> None:
        request = await ask()
        await replies.post(GOOD, properties={"bmq_request": request.guid})
        scene.see((await asking[-1]).data)

    asking: list[asyncio.Future[bmq.Message]] = []
    first = await ask()
    replies = await scene.session.open_queue(str(first.properties["bmq_reply_to"]), write=True)
    await replies.post(b"first", properties={"bmq_request": first.guid})
    await asking[0]
    yield Flooded(replies, post)


@consumer("taskiq")
async def _taskiq(scene: Scene) -> AsyncIterator[Flooded]:
    from taskiq.api import run_receiver_task

    from bmq.taskiq import BmqBroker

    broker = BmqBroker(scene.address, scene.uri, max_unconfirmed_messages=LIMIT)
    broker.is_worker_process = True

    @broker.task(task_name="good")
    async def good() -> None:
        scene.good.put_nowait(None)

    queue = await scene.session.open_queue(scene.uri, write=True)
    await broker.startup()
    async with beside(run_receiver_task(broker)):
        yield Flooded(queue, good.kiq)
    await broker.shutdown()


# ---- services


@consumer("a mover")
async def _mover(scene: Scene) -> AsyncIterator[Flooded]:
    queue = await scene.open(default_subscription=None)
    waiting = await scene.open(delay_queue_of(scene.uri))
    mover = Mover(waiting, max_held=LIMIT)

    def post() -> Awaitable[object]:
        due = {"bmq_due": int(time.time() * 1000), "bmq_destination": scene.uri}
        return waiting.post(GOOD, properties=due)

    async with beside(mover.run()), beside(_iterate(queue, scene)):
        yield Flooded(waiting, post)


@consumer("a sweeper")
async def _sweeper(scene: Scene) -> AsyncIterator[Flooded]:
    queue = await scene.session.open_queue(scene.uri, write=True)
    letters = await scene.open(scene.letters, default_subscription=None)
    sweeper = Sweeper(scene.uri, put_aside=scene.letters, max_unconfirmed_messages=LIMIT)
    async with (
        bmq.connect(scene.address) as session,
        beside(sweeper.run(session)),
        beside(_iterate(letters, scene)),
    ):
        yield posts_good(queue)


# ---- tables


def tables_of(name: str) -> Callable[[Callable[[Scene], AsyncIterator[Flooded]]], object]:
    """Register a consumer that needs PyArrow."""
    return consumer(name) if TABLES else lambda make: make


@tables_of("tables")
async def _tables(scene: Scene) -> AsyncIterator[Flooded]:
    queue = await scene.open()

    async def receive() -> None:
        async with queue.tables(max_rows=LIMIT, max_unconfirmed_messages=LIMIT) as tables:
            async for batch in tables:
                tables.confirm()
                for value in batch.column("value").to_pylist():
                    scene.see(value)

    async with beside(receive()):
        yield posts_good(queue)


@tables_of("a reader of Arrow")
async def _reader(scene: Scene) -> AsyncIterator[Flooded]:
    call = asyncio.get_running_loop().call_soon_threadsafe
    queue = await scene.session.open_queue(scene.uri, write=True)

    def read() -> None:
        for batch in bmq.arrow.reader(
            scene.address, scene.uri, max_rows=LIMIT, max_unconfirmed_messages=LIMIT, idle_timeout=None
        ):
            for value in batch.column("value").to_pylist():
                call(scene.see, value)
            if ended.is_set():
                break

    ended = threading.Event()
    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield posts_good(queue)
    finally:
        ended.set()
        await queue.post(b"the last one")
        await asyncio.to_thread(thread.join)
