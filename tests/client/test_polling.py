# SPDX-License-Identifier: Apache-2.0
"""``busy_poll``: the event loop does not sleep while an answer may be in flight."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bmq
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


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
    async with bmq.connect(peer.uri, busy_poll=3600) as session:
        queue = await session.open_queue(URI, write=True)
        await queue.post(b"1")
        await until(False, turns)
        assert not await sleeping(turns)
    # Closing the session ends the polling before its time.
    assert await sleeping(turns)


async def test_polling_ends_after_the_idle_time(peer: Peer, turns: Turns) -> None:
    async with bmq.connect(peer.uri, busy_poll=0.2) as session:
        queue = await session.open_queue(URI, write=True)
        for _ in range(2):
            await queue.post(b"1")
            await until(False, turns)
            await until(True, turns)


async def test_event_loop_sleeps_at_once_by_default(peer: Peer, turns: Turns) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)
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
