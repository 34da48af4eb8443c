# SPDX-License-Identifier: Apache-2.0
"""The requests of a short program: each of them costs a round trip to the broker."""

from __future__ import annotations

import bmq
from tests.fakes.broker import Peer

URI = "bmq://bmq.test.mem.priority/orders"


async def test_connect_to_first_ack_takes_three_round_trips(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)
        await queue.post(b"first")
        assert peer.log == ["clientIdentity", "OpenQueue", "PUT"]
    assert peer.log[3:] == ["CloseQueue", "Disconnect"]


async def test_posts_at_once_take_one_round_trip(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)
        await queue.post_many([b"post"] * 100)
        assert peer.log == ["clientIdentity", "OpenQueue", "PUT"]
