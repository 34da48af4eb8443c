# SPDX-License-Identifier: Apache-2.0
"""The paths of a message through the client, by the names of ``docs/performance.md``.

Each path first handles a few hundred messages, to load modules and to fill caches and schemas. The counted
messages follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import Any, Final, TypeVar

import bmq
import bmq.blocking
from bmq.testing._memory import MemoryBroker
from tests.budgets.bench import URI, Bench
from tests.budgets.measures import MEASURES
from tests.budgets.partitions import batches_of, in_this_thread, settings_for

__all__ = ["COUNT", "PATHS", "runs_here"]

#: Counted messages of a path.
COUNT: Final = 200
#: Counted messages of a path that awaits each message before the next.
ALONE: Final = 20
#: Counted rows of a partition of Spark, and rows of one of Spark's batches.
ROWS: Final = 4000
_BATCH = 1000
_WARM = 200
PAYLOAD = bytes(256)
PROPERTIES = {"CustomerId": 1234, "OrderType": "EXPRESS"}

Path = Callable[[Bench], Awaitable[None] | None]
P = TypeVar("P", bound=Path)
#: The function of each path by name, with the number of counted messages, and the measures.
PATHS: Final[dict[str, tuple[Path, int, tuple[str, ...]]]] = {}
#: The paths of Spark need pyspark and pyarrow, which environments for the client alone do not have.
SPARK: Final = "Spark: "
#: With several threads, the remaining measures depend on the order in which the threads run.
_IN_THREADS = "calls", "writes"


def path(name: str, count: int = COUNT, measures: tuple[str, ...] = tuple(MEASURES)) -> Callable[[P], P]:
    def add(function: P) -> P:
        PATHS[name] = function, count, measures
        return function

    return add


def runs_here(name: str) -> bool:
    """Whether this environment has all modules that a path needs."""
    return not name.startswith(SPARK) or find_spec("pyspark") is not None


@asynccontextmanager
async def opened(bench: Bench, **options: Any) -> AsyncGenerator[bmq.Queue]:
    """A queue of a new session, open for reading and writing."""
    async with bmq.connect(bench.uri, **options) as session:
        yield await session.open_queue(URI, read=True, write=True, default_subscription=True)


# posting


@path("post alone", ALONE)
async def post_alone(bench: Bench) -> None:
    async with opened(bench) as queue:
        for _ in range(20):
            await queue.post(PAYLOAD)
        with bench.counted():
            for _ in range(ALONE):
                await queue.post(PAYLOAD)


@path("post_many")
async def post_many(bench: Bench, item: bytes | bmq.PutMessage = PAYLOAD, **options: Any) -> None:
    async with opened(bench, **options) as queue:
        items = [item] * COUNT
        await queue.post_many(items)
        with bench.counted():
            await queue.post_many(items)


@path("post_many, two properties")
async def post_many_properties(bench: Bench) -> None:
    await post_many(bench, bmq.PutMessage(PAYLOAD, PROPERTIES))


@path("post_many, zlib")
async def post_many_zlib(bench: Bench) -> None:
    await post_many(bench, bytes(2048), compression=bmq.Compression.ZLIB)


@path("post_nowait")
async def post_nowait(bench: Bench) -> None:
    async with opened(bench) as queue:
        for counting in (bench.warming, bench.counted):
            with counting():
                futures = [queue.post_nowait(PAYLOAD) for _ in range(COUNT)]
                for future in futures:
                    await future
                futures.clear()


@path("200 tasks in post", 400)
async def tasks(bench: Bench) -> None:
    async with opened(bench) as queue:

        async def posting(count: int) -> None:
            for _ in range(count):
                await queue.post(PAYLOAD)

        async def all_of(count: int) -> None:
            await asyncio.gather(*(posting(count) for _ in range(200)))

        await all_of(2)
        with bench.counted():
            await all_of(2)


# receiving


async def iterating(
    bench: Bench, queue: bmq.Queue, count: int, properties: dict[str, Any] | None = None
) -> None:
    bench.server.confirm_count = 0
    bench.server.deliver(count, PAYLOAD, properties)
    left = count
    async for message in queue:
        if properties:
            assert message.properties["CustomerId"] == 1234
            assert message.properties["OrderType"] == "EXPRESS"
        assert message.data == PAYLOAD
        message.confirm()
        left -= 1
        if not left:
            break
    await bench.server.until(lambda: bench.server.confirm_count == count)


@path("async for + confirm")
async def async_for(bench: Bench, properties: dict[str, Any] | None = None) -> None:
    async with opened(bench) as queue:
        await iterating(bench, queue, _WARM, properties)
        with bench.counted():
            await iterating(bench, queue, COUNT, properties)


@path("async for, two properties read")
async def async_for_properties(bench: Bench) -> None:
    await async_for(bench, PROPERTIES)


async def in_batches(
    bench: Bench, queue: bmq.Queue, count: int, look: Callable[[bmq.MessageBatch], object], **properties: Any
) -> None:
    bench.server.confirm_count = 0
    bench.server.deliver(count, PAYLOAD, properties)
    left = count
    async for batch in queue.batches():
        look(batch)
        batch.confirm()
        left -= len(batch)
        if not left:
            break
    await bench.server.until(lambda: bench.server.confirm_count == count)


@path("batches + confirm")
async def batches(bench: Bench) -> None:
    def look(batch: bmq.MessageBatch) -> None:
        for message in batch:
            assert message.data == PAYLOAD

    async with opened(bench) as queue:
        await in_batches(bench, queue, _WARM, look)
        with bench.counted():
            await in_batches(bench, queue, COUNT, look)


@path("batches, two columns read")
async def columns(bench: Bench) -> None:
    def look(batch: bmq.MessageBatch) -> None:
        assert batch.column("CustomerId") == [1234] * len(batch)
        assert batch.column("OrderType") == ["EXPRESS"] * len(batch)

    async with opened(bench) as queue:
        await in_batches(bench, queue, _WARM, look, **PROPERTIES)
        with bench.counted():
            await in_batches(bench, queue, COUNT, look, **PROPERTIES)


@path("receive alone + confirm", ALONE)
async def receive_alone(bench: Bench) -> None:
    """The line holds one message at a time: each message takes a read, a wake-up and a write."""

    async def receive(queue: bmq.Queue) -> None:
        bench.server.deliver(1, PAYLOAD)
        message = await queue.receive()
        assert message.data == PAYLOAD
        message.confirm()

    async with opened(bench) as queue:
        for _ in range(20):
            await receive(queue)
        with bench.counted():
            for _ in range(ALONE):
                await receive(queue)


class Handling:
    """A handler that counts, and deliveries that wait until the handler has had all messages."""

    def __init__(self, bench: Bench) -> None:
        self._server = bench.server
        self._left = 0
        self._done = asyncio.Event()

    async def handle(self, message: bmq.Message) -> None:
        self._left -= 1
        if not self._left:
            self._done.set()

    async def deliver(self, count: int) -> None:
        self._left = count
        self._done.clear()
        self._server.confirm_count = 0
        self._server.deliver(count, PAYLOAD)
        await self._done.wait()
        await self._server.until(lambda: self._server.confirm_count == count)


async def consuming(bench: Bench, **options: Any) -> None:
    handling = Handling(bench)
    async with opened(bench) as queue:
        working = asyncio.ensure_future(bmq.consume(queue, handling.handle, **options))
        await asyncio.sleep(1)  # virtual: the subscription is open afterwards
        await handling.deliver(_WARM)
        with bench.counted():
            await handling.deliver(COUNT)
        working.cancel()
        await asyncio.wait([working])


@path("consume(concurrency=1)")
async def consume(bench: Bench) -> None:
    await consuming(bench, concurrency=1)


@path("consume(concurrency=100)")
async def consume_many(bench: Bench) -> None:
    await consuming(bench, concurrency=100)


def _lane(message: bmq.Message) -> str:
    return message.guid[-2:]


@path("consume(concurrency=100, key=...)")
async def consume_lanes(bench: Bench) -> None:
    await consuming(bench, concurrency=100, key=_lane)


@path("consume(concurrency=1, timeout=30)")
async def consume_timeout(bench: Bench) -> None:
    await consuming(bench, concurrency=1, timeout=30)


@path("a worker of an App")
async def app(bench: Bench) -> None:
    service = bmq.App(bench.uri)
    handling = Handling(bench)
    service.consumer(URI, concurrency=10)(handling.handle)
    async with service:
        await handling.deliver(_WARM)
        with bench.counted():
            await handling.deliver(COUNT)


@path("an exclusive group + confirm")
async def group(bench: Bench) -> None:
    """The group needs a whole broker: control queue, elections and subscriptions."""
    bench.broker = MemoryBroker()
    async with bench.broker, bmq.connect(bench.uri) as session, bmq.connect(bench.uri) as other:
        producer = await other.open_queue(URI, write=True)
        queue = await session.open_queue(URI, read=True, default_subscription=False)
        async with queue.group() as group:
            await asyncio.sleep(5)  # virtual: the member owns all buckets afterwards

            async def receive(count: int, counting: AbstractContextManager[object]) -> None:
                reading = bench.sides[0]
                reading.pause_reading()
                await producer.post_many(bmq.PutMessage(PAYLOAD, key=str(n % 50)) for n in range(count))
                with counting:
                    reading.resume_reading()
                    for _ in range(count):
                        message = await group.receive()
                        assert message.data == PAYLOAD
                        message.confirm()
                    await asyncio.sleep(0)

            await receive(_WARM, bench.warming())
            await asyncio.sleep(5)  # virtual: the buckets are in bundles afterwards
            await receive(COUNT, bench.counted())


# sessions


@path("an idle session, a heartbeat", 30)
async def idle(bench: Bench) -> None:
    """A heartbeat is due every 3.3 seconds: a write for the request, and a read for the answer."""
    async with opened(bench) as queue:
        await queue.post(PAYLOAD)
        await asyncio.sleep(400)  # the deadlines of the post are over
        with bench.counted():
            await asyncio.sleep(100)


@path("connect, open a queue, close", 10, tuple(each for each in MEASURES if each != "left"))
async def connect(bench: Bench) -> None:
    for counting in (bench.warming, bench.counted):
        with counting():
            for _ in range(10):
                async with opened(bench):
                    pass
        await asyncio.sleep(10)


# threads


@contextmanager
def blocking(bench: Bench) -> Generator[bmq.blocking.Queue]:
    with bmq.blocking.connect(bench.uri) as session:
        yield session.open_queue(URI, read=True, write=True, default_subscription=True)


@path("blocking: post alone", ALONE, _IN_THREADS)
def blocking_post(bench: Bench) -> None:
    with blocking(bench) as queue:
        for counting in (bench.warming, bench.counted):
            with counting():
                for _ in range(ALONE):
                    queue.post(PAYLOAD)


@path("blocking: post_many", COUNT, _IN_THREADS)
def blocking_post_many(bench: Bench) -> None:
    with blocking(bench) as queue:
        for counting in (bench.warming, bench.counted):
            with counting():
                queue.post_many([PAYLOAD] * COUNT)


@path("blocking: for + confirm", COUNT, ("calls",))
def blocking_for(bench: Bench) -> None:
    with blocking(bench) as queue:
        for counting in (bench.warming, bench.counted):
            bench.in_loop(lambda: bench.server.deliver(COUNT, PAYLOAD))
            left = COUNT
            with counting():
                for message in queue:
                    assert message.data == PAYLOAD
                    message.confirm()
                    left -= 1
                    if not left:
                        break


# Spark


@path(f"{SPARK}rows of a partition", ROWS)
def partition(bench: Bench) -> None:
    write_partitions(bench, 1, ROWS)


@path(f"{SPARK}a partition of one row", ALONE, tuple(each for each in MEASURES if each != "left"))
def partitions(bench: Bench) -> None:
    write_partitions(bench, ALONE, 1)


def write_partitions(bench: Bench, count: int, rows: int) -> None:
    """Write partitions as the tasks of one worker do."""
    from bmq.spark._posting import Scope, post_partition

    settings = settings_for(bench.uri, URI)
    size = min(rows, _BATCH)
    with in_this_thread(bench.loop):
        for counting in (bench.warming, bench.counted):
            parts = [list(batches_of(rows, size, number)) for number in range(count)]
            with counting():
                for number, each in enumerate(parts):
                    post_partition(iter(each), settings, Scope(counting.__name__, number))
