# SPDX-License-Identifier: Apache-2.0
"""Thousands of repetitions leave nothing behind: no objects, memory, tasks or file descriptors.

Each test first fills bounded caches with some repetitions, and compares after further repetitions.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import pytest

import bmq
from bmq._caches import clear_caches
from bmq.protocol.client import confirmations
from bmq.testing import FaultProxy

FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
OPENED_AND_CLOSED = 2_000
RECONNECTS = 1_000
#: Number of repetitions after which the interpreter's own blocks no longer increase. Without a GIL, freed
#: blocks return later.
LEVELLED_OPENED = 4_000 if FREE_THREADED else 500
LEVELLED = 4_000 if FREE_THREADED else 1_500
MESSAGES = 250_000
#: Number of messages posted and consumed at a time.
SOME = 10_000

URI = "bmq://bmq.test.mem.priority/leaks"
#: Seconds for one of the many steps; the total time depends on the machine.
DEADLINE = 60.0
pytestmark = pytest.mark.timeout(900)
#: Tolerated difference in objects or blocks of memory: asyncio keeps about 100 cancelled timers, with some
#: blocks each.
CHANCE = 800


class Footprint(NamedTuple):
    """The resources of a process; blocks are of memory, including untracked objects such as bytes."""

    objects: int
    blocks: int
    tasks: int
    descriptors: int

    @classmethod
    async def take(cls) -> Footprint:
        for _ in range(5):
            await asyncio.sleep(0)  # a closed transport is removed in the next turn
        # Caches have bounds; reconnects fill one cache with new subscription ids.
        clear_caches()
        gc.collect()
        tasks, descriptors = len(asyncio.all_tasks()), len(os.listdir("/dev/fd"))
        return cls(len(gc.get_objects()), sys.getallocatedblocks(), tasks, descriptors)


async def assert_flat(work: Callable[[], Awaitable[None]], *, times: int, warm_up: int) -> None:

    async def repeat(count: int) -> Footprint:
        for _ in range(count):
            async with asyncio.timeout(DEADLINE):
                await work()
        return await Footprint.take()

    before = await repeat(warm_up)
    after = await repeat(times)
    if FREE_THREADED and after.blocks - before.blocks >= CHANCE:
        # Without a GIL, the interpreter's own blocks also change in rare steps; a leak increases again.
        before, after = after, await repeat(times)
    assert (after.descriptors, after.tasks) == (before.descriptors, before.tasks)
    assert after.objects - before.objects < CHANCE, f"{before} -> {after}"
    assert after.blocks - before.blocks < CHANCE, f"{before} -> {after}"


@pytest.fixture
def broker_uri() -> Iterator[str]:
    """A broker in a separate process, whose memory does not count."""
    command = [sys.executable, "-m", "bmq", "broker", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


async def post_and_consume(queue: bmq.Queue, times: int) -> None:
    async def consume(count: int) -> None:
        async for batch in queue.batches():
            batch.confirm()
            count -= len(batch)
            if count <= 0:
                return

    consumer = asyncio.ensure_future(consume(times))
    report = await queue.post_many(itertools.repeat(b"x" * 100, times))
    assert report.acknowledged == times
    await consumer


async def test_opening_and_closing_queues_leaks_no_memory(broker_uri: str) -> None:
    async with bmq.connect(broker_uri) as session:

        async def open_and_close() -> None:
            queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
            await queue.close()

        await assert_flat(open_and_close, times=OPENED_AND_CLOSED, warm_up=LEVELLED_OPENED)


async def test_reconnecting_leaks_no_memory(
    broker_uri: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR, "bmq")  # pytest keeps every line
    # The memory of confirmations is small here, so that it is full from the beginning.
    monkeypatch.setattr(confirmations, "_CAPACITY", 32)
    restored = asyncio.Event()

    def note(event: bmq.events.SessionEvent) -> None:
        if isinstance(event, bmq.events.StateRestored):
            restored.set()

    async with (
        FaultProxy(broker_uri) as proxy,
        bmq.connect(proxy.uri, reconnect_delays=lambda: itertools.repeat(0.0), on_event=note) as session,
    ):
        queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)

        async def lose() -> None:
            restored.clear()
            proxy.cut()
            await restored.wait()

        async def lose_and_restore() -> None:
            post = queue.post_nowait(b"while it breaks")
            await lose()
            await post
            message = await queue.receive()
            message.confirm()

        await assert_flat(lose_and_restore, times=RECONNECTS, warm_up=LEVELLED)
        assert session.stats().reconnects >= RECONNECTS + LEVELLED


async def test_posting_and_receiving_leaks_nothing(broker_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A session remembers confirmations in two generations. Single messages fill both at the end of each step:
    # otherwise the number of remembered ones depends on the sizes of the batches.
    monkeypatch.setattr(confirmations, "_CAPACITY", 32)
    async with bmq.connect(broker_uri) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)

        async def work() -> None:
            await post_and_consume(queue, SOME)
            for _ in range(64):
                await post_and_consume(queue, 1)

        await assert_flat(work, times=MESSAGES // SOME, warm_up=150_000 // SOME)
