# SPDX-License-Identifier: Apache-2.0
"""Posts are written at once if made one at a time, otherwise at the end of the turn."""

from __future__ import annotations

import itertools

import pytest

import bmq
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


async def test_single_posts_are_written_at_once_and_many_posts_together(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)

        def sent_at_once(count: int) -> list[bool]:
            """Make posts in one turn of the event loop; return the posts that were written at once."""
            written: list[bool] = []
            for _ in range(count):
                before = session.stats().bytes_sent
                queue.post_nowait(b"x")
                written.append(session.stats().bytes_sent > before)
            return written

        assert sent_at_once(1) == [False], "nothing is known of it yet"
        await queue.flush()
        for _ in range(3):
            assert sent_at_once(1) == [True]
            await queue.flush()
        assert sent_at_once(4) == [True, False, False, False]
        await queue.flush()
        for _ in range(3):
            assert sent_at_once(4) == [False] * 4
            await queue.flush()
        assert sent_at_once(1) == [False]
        await queue.flush()
        assert sent_at_once(1) == [True]
        await queue.flush()
    assert len(peer.posted) == 1 + 3 + 4 + 12 + 2


@pytest.mark.statement("4.31")
async def test_posts_without_a_connection_are_sent_later(peer: Peer) -> None:
    async with bmq.connect(peer.uri, reconnect_delays=lambda: itertools.repeat(0.0)) as session:
        queue = await session.open_queue(URI, write=True)
        for _ in range(3):
            await queue.post(b"one at a time")
        peer.hold.add("clientIdentity")
        peer.cut()
        await eventually(lambda: session.state is not bmq.SessionState.STARTED)
        later = queue.post_nowait(b"later")
        await eventually(lambda: len(peer.connections) > 1 and peer.connection.script.identity)
        assert not later.done()
        peer.answer("clientIdentity")
        await later
    assert len(peer.posted) == 4
