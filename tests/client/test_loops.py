# SPDX-License-Identifier: Apache-2.0
"""The event loop of the application: ``busy_poll`` keeps it awake, and tasks may be eager."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import bmq
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer
from tests.waiting import eventually


class Turns:
    """Count the callbacks scheduled for the next turn of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        loop = asyncio.get_running_loop()
        original = loop.call_soon

        def call_soon(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(loop, "call_soon", call_soon)


@pytest.fixture
async def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


async def sleeping(turns: Turns) -> bool:
    """Return whether the idle event loop sleeps."""
    before = turns.count
    for _ in range(100):  # each turn schedules the next turn; so does busy polling
        await asyncio.sleep(0)
    return turns.count - before < 150


async def until(asleep: bool, turns: Turns) -> None:
    async with asyncio.timeout(20):
        while await sleeping(turns) is not asleep:
            pass


async def test_an_event_loop_that_is_kept_awake_keeps_turning(peer: Peer, turns: Turns) -> None:
    async with opened(peer, write=True, busy_poll=3600) as (_, queue):
        await queue.post(b"1")
        await until(False, turns)
        assert not await sleeping(turns)
    # Closing the session ends the polling before its time.
    assert await sleeping(turns)


async def test_polling_ends_after_the_idle_time(peer: Peer, turns: Turns) -> None:
    async with opened(peer, write=True, busy_poll=0.2) as (_, queue):
        for _ in range(2):
            await queue.post(b"1")
            await until(False, turns)
            await until(True, turns)


async def test_event_loop_sleeps_at_once_by_default(peer: Peer, turns: Turns) -> None:
    async with opened(peer, write=True) as (_, queue):
        await queue.post(b"1")
        assert await sleeping(turns)


async def test_lost_connection_ends_polling(peer: Peer, turns: Turns) -> None:
    async with bmq.connect(
        peer.uri, busy_poll=3600, reconnect_delays=lambda: iter([3600.0]), disconnect_timeout=1
    ) as session:
        await session.open_queue(URI, write=True)
        peer.cut()
        await eventually(lambda: session.state is bmq.SessionState.RECONNECTING)
        assert await sleeping(turns)


@pytest_asyncio.fixture
async def eager_tasks(_quiet_loop: None) -> AsyncIterator[None]:
    """Tasks run their first step when they are made, where Python can do that (since 3.12)."""

    def begin_at_once(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        # Not asyncio.eager_task_factory: in some releases it refuses an argument that uvloop passes on.
        return asyncio.Task(coroutine, loop=loop, **{**options, "eager_start": True})

    if hasattr(asyncio, "eager_task_factory"):
        asyncio.get_running_loop().set_task_factory(begin_at_once)
    yield
    asyncio.get_running_loop().set_task_factory(None)


@pytest.mark.usefixtures("eager_tasks")
async def test_eager_tasks_post_receive_and_close(broker: bmq.broker.Broker) -> None:
    async with opened(broker, read=True, write=True) as (session, queue):
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
