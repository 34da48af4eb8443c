# SPDX-License-Identifier: Apache-2.0
"""The cost of messages and queues in memory, and in objects of the event loop."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import bmq
from tests.performance.server import Server
from tests.waiting import eventually

COUNT = 20_000
PAYLOAD = bytes(256)


class Traced:
    """How much more memory there is than at the start."""

    def __init__(self) -> None:
        gc.collect()
        self._start = tracemalloc.get_traced_memory()[0]

    def grown(self) -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - self._start


@contextmanager
def traced() -> Iterator[Traced]:
    tracemalloc.start()
    try:
        yield Traced()
    finally:
        tracemalloc.stop()


async def test_an_unacknowledged_message_takes_less_than_400_bytes_more_than_its_payload(
    server: Server, session: bmq.Session, queue: bmq.Queue
) -> None:
    server.keep = False
    with traced() as memory:
        # Each has a payload of its own: what the window keeps is the application's object, not a copy.
        task = asyncio.gather(queue.post_many(bytes(len(PAYLOAD)) for _ in range(COUNT)))
        await server.until(lambda: server.post_count == COUNT)
        assert memory.grown() / COUNT < len(PAYLOAD) + 400
    await session.close(timeout=0)
    assert len((await task)[0].failures) == COUNT


async def test_acknowledged_messages_leave_no_memory(server: Server, queue: bmq.Queue) -> None:
    with traced() as memory:
        for _ in range(3):
            task = asyncio.gather(queue.post_many(PAYLOAD for _ in range(COUNT)))
            await server.until(lambda: not server.post_count % COUNT and server.post_count > 0)
            server.post_count = 0
            server.acknowledge()
            await task
        # The window's table keeps its size: a few dozen bytes for each of the most messages it ever held.
        assert memory.grown() < COUNT * 120


async def test_a_received_message_takes_less_than_400_bytes_more_than_its_payload(
    server: Server, queue: bmq.Queue
) -> None:
    with traced() as memory:
        server.deliver(COUNT, PAYLOAD)
        messages: list[bmq.Message] = []
        async for batch in queue.batches():
            messages += batch
            if len(messages) == COUNT:
                break
        assert memory.grown() / COUNT < len(PAYLOAD) + 400


async def test_a_message_in_a_lane_takes_less_than_600_bytes_more_than_its_payload(
    server: Server, session: bmq.Session
) -> None:
    uri, limit = "bmq://bmq.test.mem.priority/q", 10 * COUNT
    queue = await session.open_queue(uri, read=True, max_unconfirmed_messages=limit)
    placed = 0
    release = asyncio.Event()

    def key(message: bmq.Message) -> int:
        nonlocal placed
        placed += 1
        return placed % 10

    async def handle(message: bmq.Message) -> None:
        await release.wait()

    with traced() as memory:
        worker = asyncio.create_task(bmq.consume(queue, handle, concurrency=2, key=key))
        await eventually(lambda: queue.consumers)
        server.deliver(COUNT, PAYLOAD)
        await eventually(lambda: placed == COUNT)
        assert memory.grown() / COUNT < len(PAYLOAD) + 600
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


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(PAYLOAD, id="payload"),
        pytest.param(bmq.PutMessage(PAYLOAD, {"id": 7, "name": "n"}), id="properties"),
    ],
)
@pytest.mark.parametrize("compression", [bmq.Compression.NONE, bmq.Compression.ZLIB])
async def test_garbage_collector_does_not_track_unacknowledged_posts(
    server: Server, item: bytes | bmq.PutMessage, compression: bmq.Compression
) -> None:
    server.keep = False
    uri = server.uri
    async with bmq.connect(uri, max_unacked_messages=2 * COUNT, compression=compression) as session:
        queue = await session.open_queue("bmq://bmq.test.mem.priority/q", write=True)
        before = followed()
        task = asyncio.gather(queue.post_many(item for _ in range(COUNT)))
        await server.until(lambda: server.post_count == COUNT)
        assert queue.unacked == COUNT
        assert followed() - before < COUNT / 50
        await session.close(timeout=0)
        await task


async def test_the_garbage_collector_does_not_follow_messages_that_wait(
    server: Server, queue: bmq.Queue
) -> None:
    consumer = queue.subscribe()
    await consumer.open()
    before = followed()
    server.deliver(COUNT, PAYLOAD, {"id": 7, "name": "n"})
    await eventually(lambda: consumer.buffered == COUNT)
    assert followed() - before < COUNT / 50


async def test_a_thousand_open_queues_take_less_than_20_megabytes(session: bmq.Session) -> None:
    uris = [f"bmq://bmq.test.mem.priority/queue-{number}" for number in range(1000)]
    with traced() as memory:
        queues = await asyncio.gather(
            *(session.open_queue(uri, read=True, default_subscription=True, write=True) for uri in uris)
        )
        assert memory.grown() < 20_000_000
    assert len(queues) == 1000


async def test_no_task_future_or_handle_is_made_for_a_received_message(
    server: Server, queue: bmq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    made = 0

    def counting(method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal made
            made += 1
            return method(*args, **kwargs)

        return call

    for name in ("create_task", "create_future", "call_soon", "call_later", "call_at"):
        monkeypatch.setattr(loop, name, counting(getattr(loop, name)))
    server.deliver(COUNT, PAYLOAD)
    left = COUNT
    async for message in queue:
        message.confirm()
        left -= 1
        if not left:
            break
    await server.until(lambda: server.confirm_count == COUNT)
    # What there is comes with each read of the socket, some hundreds of messages.
    assert made < COUNT / 20
