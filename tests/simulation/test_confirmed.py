# SPDX-License-Identifier: Apache-2.0
"""How long confirmations are remembered, in virtual time: a primary is replaced on a lasting connection."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from bmq.testing import Simulation
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"
COUNT = 300


@pytest.mark.parametrize("at_once", [1, 100, COUNT])
@pytest.mark.parametrize("seconds", [5.0, 65.0, 110.0])
def test_messages_confirmed_within_two_minutes_are_not_handed_out_again(seconds: float, at_once: int) -> None:
    async def main() -> None:
        async with Peer() as peer, bmq.connect(peer.uri) as session:
            queue = await session.open_queue(URI, read=True, default_subscription=True)
            numbers = range(1, COUNT + 1)
            peer.connection.push(*numbers)
            await eventually(lambda: queue.stats().buffered_messages == COUNT)
            for _ in range(0, COUNT, at_once):
                (await queue.receive_many(at_once)).confirm()
                await asyncio.sleep(0)  # a CONFIRM event each
            confirms = peer.connection.script.confirms
            await eventually(lambda: len(confirms) == COUNT)
            await asyncio.sleep(seconds)
            peer.connection.push(*numbers)  # the next primary knows no confirmation
            await eventually(lambda: queue.stats().confirmed_again + queue.stats().received >= 2 * COUNT)
            stats = queue.stats()
            assert (stats.received, stats.confirmed_again) == (COUNT, COUNT)
            assert queue.receive_nowait() is None
            await eventually(lambda: len(confirms) == 2 * COUNT)

    Simulation(1).run(main)
