# SPDX-License-Identifier: Apache-2.0
"""Bytes of memory for each held message, in each state: a budget for each, beside ``benchmarks/memory.py``.

``tracemalloc`` counts objects, so the load of the machine does not matter. A message has a payload of 256
bytes, two properties and a GUID. The numbers differ between versions of the interpreter (a waiting task takes
1,435 to 1,678 bytes), and by up to a fifth with the tests that ran before in the same process. A budget is
above the largest number seen. In a free-threaded interpreter, each object has a header of 16 bytes more.
"""

from __future__ import annotations

import asyncio
import gc
import sysconfig
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

import bmq
import bmq.delays
from tests.performance.server import Server
from tests.waiting import eventually

COUNT = 300
#: Messages in the same state before: caches and tables of the process are made then.
FIRST = 300
#: Part of a budget for the larger headers of a free-threaded interpreter.
MORE = 1.15 if sysconfig.get_config_var("Py_GIL_DISABLED") else 1.0
PAYLOAD = bytes(256)
PROPERTIES: dict[str, int | str] = {"number": 7, "CustomerId": "a customer"}
DUE = {"number": 7, "bmq_due": 4_000_000_000_000}

Post: TypeAlias = Callable[[bmq.Queue, int], list[asyncio.Future[Any]]]


class Held:
    """The bytes for each of :data:`COUNT` messages, above the memory at the creation of the object."""

    def __init__(self) -> None:
        tracemalloc.start()
        self._start = tracemalloc.get_traced_memory()[0]

    def check(self, budget: int) -> None:
        """Compare with the largest number of bytes for each message."""
        gc.collect(1)
        grown = tracemalloc.get_traced_memory()[0] - self._start
        tracemalloc.stop()
        assert grown / COUNT <= budget * MORE, "benchmarks/memory.py measures the parts"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    one = Server()
    one.keep = False
    async with one:
        yield one


@pytest_asyncio.fixture
async def session(server: Server) -> AsyncIterator[bmq.Session]:
    async with bmq.connect(server.uri) as session:
        yield session
        await session.close(timeout=0)


async def open_queue(session: bmq.Session, **options: Any) -> bmq.Queue:
    return await session.open_queue(
        "bmq://bmq.test.mem.priority/q", read=True, max_unconfirmed_messages=10 * COUNT, **options
    )


# received


async def test_in_the_line_of_a_consumer(server: Server, session: bmq.Session) -> None:
    consumer = (await open_queue(session)).subscribe()
    await consumer.open()
    server.deliver(FIRST, PAYLOAD, PROPERTIES)
    await eventually(lambda: consumer.buffered == FIRST)
    memory = Held()
    server.deliver(COUNT, PAYLOAD, PROPERTIES)
    await eventually(lambda: consumer.buffered == FIRST + COUNT)
    memory.check(525)


@pytest.mark.parametrize("batches", [False, True])
async def test_unconfirmed(server: Server, session: bmq.Session, batches: bool) -> None:
    queue = await open_queue(session, default_subscription=True)
    messages: list[bmq.Message] = []

    async def receive(count: int) -> None:
        server.deliver(count, PAYLOAD, PROPERTIES)
        count += len(messages)
        while len(messages) < count:
            if batches:
                messages.extend(await queue.receive_many())
            else:
                messages.append(await queue.receive())

    await receive(FIRST)
    memory = Held()
    await receive(COUNT)
    memory.check(620)


async def test_in_a_lane(server: Server, session: bmq.Session) -> None:
    queue = await open_queue(session)
    placed = 0
    release = asyncio.Event()

    def key(message: bmq.Message) -> int:
        nonlocal placed
        placed += 1
        return placed % 10

    async def handle(message: bmq.Message) -> None:
        await release.wait()

    worker = asyncio.create_task(bmq.consume(queue, handle, concurrency=2, key=key))
    await eventually(lambda: queue.consumers)
    server.deliver(FIRST, PAYLOAD, PROPERTIES)
    await eventually(lambda: placed == FIRST)
    memory = Held()
    server.deliver(COUNT, PAYLOAD, PROPERTIES)
    await eventually(lambda: placed == FIRST + COUNT)
    memory.check(730)
    release.set()
    worker.cancel()
    await asyncio.wait([worker])


async def test_held_for_the_due_time(server: Server, session: bmq.Session) -> None:
    queue = await open_queue(session, default_subscription=False)
    messages = bmq.delays.DueMessages(queue, max_held=10 * COUNT)
    await messages.open()
    reader = asyncio.create_task(messages.batch())
    server.deliver(FIRST, PAYLOAD, DUE)
    await eventually(lambda: messages.held == FIRST)
    memory = Held()
    server.deliver(COUNT, PAYLOAD, DUE)
    await eventually(lambda: messages.held == FIRST + COUNT)
    memory.check(720)
    reader.cancel()
    await asyncio.wait([reader])


# posted


def many(queue: bmq.Queue, count: int) -> list[asyncio.Future[Any]]:
    items = (bmq.PutMessage(PAYLOAD, PROPERTIES) for _ in range(count))
    return [asyncio.ensure_future(queue.post_many(items))]


def nowait(queue: bmq.Queue, count: int) -> list[asyncio.Future[Any]]:
    return [queue.post_nowait(PAYLOAD, properties=PROPERTIES) for _ in range(count)]


def tasks(queue: bmq.Queue, count: int) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(queue.post(PAYLOAD, properties=PROPERTIES)) for _ in range(count)]


@pytest.mark.parametrize(
    ("post", "budget"),
    [
        pytest.param(many, 640, id="post_many"),
        pytest.param(nowait, 645, id="post_nowait"),
        pytest.param(tasks, 1900, id="tasks in post"),
    ],
)
async def test_unacknowledged(server: Server, session: bmq.Session, post: Post, budget: int) -> None:
    queue = await open_queue(session, write=True)
    waiting = post(queue, FIRST)
    await server.until(lambda: server.post_count == FIRST)
    memory = Held()
    waiting += post(queue, COUNT)
    await server.until(lambda: server.post_count == FIRST + COUNT)
    try:
        memory.check(budget)
    finally:
        # Otherwise the next test would count the log of futures whose errors nobody took.
        await session.close(timeout=0)
        await asyncio.gather(*waiting, return_exceptions=True)
