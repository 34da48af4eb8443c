# SPDX-License-Identifier: Apache-2.0
"""Tasks that run their first step when they are made (``asyncio.eager_task_factory``, since Python 3.12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import bmq
from tests.fakes.broker import Peer

URI = "bmq://bmq.test.mem.priority/eager"


def _begin_at_once(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **{**options, "eager_start": True})


@pytest_asyncio.fixture(autouse=True)
async def _eager(_quiet_loop: None) -> AsyncIterator[None]:
    """Tasks start at once here; without eager tasks in Python, this is emulated."""
    if hasattr(asyncio, "eager_task_factory"):
        # Not that one itself: in some releases of Python it refuses an argument that uvloop passes on.
        asyncio.get_running_loop().set_task_factory(_begin_at_once)
    yield
    asyncio.get_running_loop().set_task_factory(None)


async def test_eager_tasks_post_receive_and_close(broker: bmq.broker.Broker) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        receiving = asyncio.create_task(queue.receive())
        await asyncio.gather(*(queue.post(b"%d" % number) for number in range(100)))
        report = await queue.post_many(b"%d" % number for number in range(100, 200))
        assert report.acknowledged == 100
        messages = [await receiving] + [await queue.receive() for _ in range(199)]
        assert [int(message.data) for message in messages] == list(range(200))
        async with queue.subscribe("x > 0") as consumer:
            await queue.post(b"more")
            waiting = [queue.receive(), consumer.receive()]
            done, left = await asyncio.wait(
                [asyncio.create_task(each) for each in waiting], return_when=asyncio.FIRST_COMPLETED
            )
            assert [task.result().data for task in done] == [b"more"]
            for task in left:
                task.cancel()
            await asyncio.wait(left)
    assert session.state is bmq.SessionState.CLOSED


async def test_session_stays_usable_after_an_early_cancellation(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        for begin in (
            lambda: session.open_queue(URI + "2", read=True),
            lambda: queue.receive(),
            lambda: queue.post(b"1"),
            lambda: queue.flush(),
            lambda: queue.subscribe("x == 1").open(),
            lambda: queue.close(),
        ):
            task = asyncio.create_task(begin())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        again = await session.open_queue(URI + "3", write=True)
        await again.post(b"2")
        assert 2 in peer.posted
