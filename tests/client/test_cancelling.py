# SPDX-License-Identifier: Apache-2.0
"""Cancelled calls: what opens again in the same turn, what was received, and cancellations from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

import bmq
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer
from tests.sweeps import sweep

WAYS: dict[str, Callable[[Coroutine[Any, Any, bmq.Queue]], Awaitable[object]]] = {
    "directly": lambda opening: opening,
    "in wait_for": lambda opening: asyncio.wait_for(opening, 60),
    "in another task": asyncio.ensure_future,
    "gathered": asyncio.gather,
}


async def _awaited(opening: Awaitable[object]) -> None:
    await opening


@pytest.mark.parametrize("how", WAYS)
@sweep("turns", range(1, 20))
async def test_a_queue_can_be_opened_in_the_turn_in_which_its_opening_is_cancelled(
    broker: bmq.broker.Broker, how: str, turns: int
) -> None:
    async with bmq.connect(broker.uri) as session:
        opened: list[bmq.Queue] = []

        async def opening() -> bmq.Queue:
            opened.append(await session.open_queue(URI, read=True, write=True))
            return opened[0]

        task = asyncio.ensure_future(_awaited(WAYS[how](opening())))
        for _ in range(turns):
            await asyncio.sleep(0)
        if not task.cancel():
            return
        try:
            queue = await session.open_queue(URI, read=True, write=True)
        except bmq.StateError:
            # The call has returned: the waiter was cancelled too late.
            assert how != "directly"
            (queue,) = opened
        await queue.post(b"1")
        (await queue.receive()).confirm()
        assert session.queues == [queue]
        await asyncio.wait([task])


@sweep("turns", range(10))
async def test_receives_are_atomic(peer: Peer, turns: int) -> None:
    """A cancelled receiver either has the message, or leaves the message in line."""
    async with opened(peer, read=True, default_subscription=True) as (_, queue):
        got: list[bytes] = []

        async def take() -> None:
            got.append((await queue.receive(timeout=60)).data)

        for number in range(5):
            task = asyncio.ensure_future(take())
            other = asyncio.ensure_future(take())
            await asyncio.sleep(0)
            peer.connection.push(number)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if task.cancelled():
                async with asyncio.timeout(20):
                    await other  # the receiver was woken instead
            else:
                other.cancel()
                await asyncio.gather(other, return_exceptions=True)
        assert sorted(got) == [b"0", b"1", b"2", b"3", b"4"]


async def test_cancelled_calls_raise_it_and_tasks_cancelled_from_outside_hang_no_caller(peer: Peer) -> None:
    """Some libraries cancel all tasks of asyncio.all_tasks()."""
    async with opened(peer, read=True, default_subscription=True, write=True) as (session, queue):
        peer.hold = {"PUT", "OpenQueue"}
        calls = (
            queue.receive(timeout=60),
            queue.post(b"1", timeout=60),
            queue.flush(timeout=60),
            session.open_queue(f"{URI}2", write=True, timeout=60),
        )
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)  # the calls wait now
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        for each in tasks:
            with pytest.raises(asyncio.CancelledError):
                await each
        peer.answer("PUT", "OpenQueue")
        await queue.post(b"2")
        peer.connection.push(3)
        assert (await queue.receive(timeout=20)).data == b"3"
        await (await session.open_queue(f"{URI}2", write=True)).close()
