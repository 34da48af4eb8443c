"""Whatever is done ten thousand times leaves nothing behind: no objects, tasks or file descriptors.

Broker and client share the process, so neither of them may grow. Each test does some of it first, so that caches
are filled and bounded memories (of confirmations, of GUIDs) are full, then compares.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest_asyncio

import bmq

URI = "bmq://bmq.test.mem.priority/leaks"
DEADLINE = 60.0


@dataclass(frozen=True)
class Footprint:
    """What a process holds.

    Attributes:
        objects: that the garbage collector knows of.
        blocks: of memory: also what it does not know of, such as bytes.
        tasks: in this event loop.
        descriptors: open files and sockets.
    """

    objects: int
    blocks: int
    tasks: int
    descriptors: int

    @classmethod
    async def take(cls) -> Footprint:
        for _ in range(5):
            await asyncio.sleep(0)  # closed transports are gone a turn later
        gc.collect()
        return cls(
            len(gc.get_objects()),
            sys.getallocatedblocks(),
            len(asyncio.all_tasks()),
            len(os.listdir("/dev/fd")),
        )


async def assert_flat(work: Callable[[int], Awaitable[None]], *, times: int, warm_up: int) -> None:
    """Do something so many times, and see that less is left than one object in twenty times."""
    async with asyncio.timeout(DEADLINE):
        await work(warm_up)
        before = await Footprint.take()
        await work(times)
        after = await Footprint.take()
    assert after.descriptors == before.descriptors
    assert after.tasks == before.tasks
    assert after.objects - before.objects < times // 20, f"{before} -> {after}"
    assert after.blocks - before.blocks < times // 20, f"{before} -> {after}"


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[bmq.broker.Broker]:
    """A broker that soon remembers all the GUIDs it ever will."""
    async with bmq.broker.Broker(deduplication_history=1000) as broker:
        yield broker


async def test_opening_and_closing_a_queue(broker: bmq.broker.Broker) -> None:
    async with bmq.connect(broker.uri) as session:

        async def open_and_close(times: int) -> None:
            for _ in range(times):
                queue = await session.open_queue(URI, read=True, write=True)
                await queue.close()

        await assert_flat(open_and_close, times=10_000, warm_up=500)


async def test_reconnecting(broker: bmq.broker.Broker) -> None:
    restored = asyncio.Event()

    def note(event: bmq.events.SessionEvent) -> None:
        if isinstance(event, bmq.events.StateRestored):
            restored.set()

    async with bmq.connect(
        broker.uri, reconnect_delays=lambda: itertools.repeat(0.0), on_event=note
    ) as session:
        queue = await session.open_queue(URI, read=True, write=True)

        async def lose_and_restore(times: int) -> None:
            """With a post, a message and a confirmation under way each time."""
            for _ in range(times):
                restored.clear()
                post = queue.post_nowait(b"while it breaks")
                for connection in list(broker.connections):
                    connection.cut()
                await restored.wait()
                await post
                message = await queue.receive()
                message.confirm()

        await assert_flat(lose_and_restore, times=1_000, warm_up=200)
        assert session.stats().reconnects == 1_200


async def test_posting_and_consuming(broker: bmq.broker.Broker) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        payload = b"x" * 100

        async def consume(count: int) -> None:
            async for batch in queue.batches():
                batch.confirm()
                count -= len(batch)
                if count <= 0:
                    return

        async def post_and_consume(times: int) -> None:
            consumer = asyncio.ensure_future(consume(times))
            report = await queue.post_many(itertools.repeat(payload, times))
            assert report.acknowledged == times
            await consumer

        await assert_flat(post_and_consume, times=1_000_000, warm_up=150_000)
