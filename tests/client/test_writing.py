# SPDX-License-Identifier: Apache-2.0
"""Posts are written together at the end of the turn of the event loop."""

from __future__ import annotations

import itertools

import pytest

import bmq
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


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
