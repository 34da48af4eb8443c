# SPDX-License-Identifier: Apache-2.0
"""The cost of messages and queues in memory, and in objects of the event loop."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import bmq
from tests.performance.server import Server
from tests.waiting import eventually

COUNT = 20_000
PAYLOAD = bytes(256)
URI = "bmq://bmq.test.mem.priority/q"


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Trace memory; the value tells how much more there is than at the start."""

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        start = held()
        yield lambda: held() - start
    finally:
        tracemalloc.stop()


async def test_an_unacknowledged_message_takes_less_than_400_bytes_more_than_its_payload(
    server: Server, session: bmq.Session, queue: bmq.Queue
) -> None:
    server.keep = False
    with traced() as grown:
        # Each has a payload of its own: what the window keeps is the application's object, not a copy.
        task = asyncio.gather(queue.post_many(bytes(len(PAYLOAD)) for _ in range(COUNT)))
        await server.arrived(COUNT)
        assert grown() / COUNT < len(PAYLOAD) + 400
    await session.close(timeout=0)
    assert len((await task)[0].failures) == COUNT


async def test_acknowledged_messages_leave_no_memory(server: Server, queue: bmq.Queue) -> None:
    with traced() as grown:
        for number in range(3):
            task = asyncio.gather(queue.post_many(PAYLOAD for _ in range(COUNT)))
            await server.arrived((number + 1) * COUNT)
            server.acknowledge()
            await task
        # The window's table keeps its size: a few dozen bytes for each of the most messages it ever held.
        assert grown() < COUNT * 120


async def test_a_received_message_takes_less_than_400_bytes_more_than_its_payload(
    server: Server, queue: bmq.Queue
) -> None:
    with traced() as grown:
        server.deliver(COUNT, PAYLOAD)
        messages: list[bmq.Message] = []
        async for batch in queue.batches():
            messages += batch
            if len(messages) == COUNT:
                break
        assert grown() / COUNT < len(PAYLOAD) + 400


async def test_a_message_in_a_lane_takes_less_than_600_bytes_more_than_its_payload(
    server: Server, session: bmq.Session
) -> None:
    queue = await session.open_queue(URI, read=True, max_unconfirmed_messages=10 * COUNT)
    placed = 0
    release = asyncio.Event()

    def key(message: bmq.Message) -> int:
        nonlocal placed
        placed += 1
        return placed % 10

    async def handle(message: bmq.Message) -> None:
        await release.wait()

    with traced() as grown:
        worker = asyncio.create_task(bmq.consume(queue, handle, concurrency=2, key=key))
        await eventually(lambda: queue.consumers)
        server.deliver(COUNT, PAYLOAD)
        await eventually(lambda: placed == COUNT)
        assert grown() / COUNT < len(PAYLOAD) + 600
    release.set()
    worker.cancel()
    await asyncio.wait([worker])


def followed() -> int:
    """Return the number of objects that a full garbage collection visits.

    The collector untracks a tuple without tracked contents; a tuple around it only at the next collection.
    """
    gc.collect()
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.parametrize("item", [PAYLOAD, bmq.PutMessage(PAYLOAD, {"id": 7, "name": "n"})], ids=type)
@pytest.mark.parametrize("compression", [bmq.Compression.NONE, bmq.Compression.ZLIB])
async def test_garbage_collector_does_not_track_unacknowledged_posts(
    server: Server, item: bytes | bmq.PutMessage, compression: bmq.Compression
) -> None:
    server.keep = False
    async with bmq.connect(server.uri, max_unacked_messages=2 * COUNT, compression=compression) as session:
        queue = await session.open_queue(URI, write=True)
        before = followed()
        task = asyncio.gather(queue.post_many(item for _ in range(COUNT)))
        await server.arrived(COUNT)
        assert queue.unacked == COUNT
        assert followed() - before < COUNT / 50
        await session.close(timeout=0)
        await task


async def test_the_garbage_collector_does_not_follow_messages_that_wait(
    server: Server, queue: bmq.Queue
) -> None:
    consumer = await queue.subscribe().open()
    before = followed()
    server.deliver(COUNT, PAYLOAD, {"id": 7, "name": "n"})
    await eventually(lambda: consumer.buffered == COUNT)
    assert followed() - before < COUNT / 50


async def test_a_thousand_open_queues_take_less_than_20_megabytes(session: bmq.Session) -> None:
    with traced() as grown:
        opening = (
            session.open_queue(f"{URI}-{number}", read=True, default_subscription=True, write=True)
            for number in range(1000)
        )
        queues = await asyncio.gather(*opening)
        assert grown() < 20_000_000
    assert len(queues) == 1000
