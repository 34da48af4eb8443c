# SPDX-License-Identifier: Apache-2.0
"""Confirmations in one turn of the event loop: the second and later ones join the first, on equal terms."""

from __future__ import annotations

import pytest

import bmq
from tests.fakes.broker import Peer, guid
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


def confirmed(peer: Peer) -> list[bytes]:
    return [confirm.guid for confirm in peer.connection.script.confirms]


async def test_consumers_with_messages_of_one_event_count_their_own(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True)
        async with queue.subscribe("kind == 1") as ones, queue.subscribe("kind == 2") as twos:
            connection = peer.connection
            some = [(guid(1), b"one"), (guid(2), b"one")]
            more = [(guid(3), b"two")]
            one, two = connection.script.s_ids[0][-2:]
            whole = connection.script.push(0, some, (one,))[8:] + connection.script.push(0, more, (two,))[8:]
            connection.send((8 + len(whole)).to_bytes(4, "big") + b"\x44\x02\0\0" + whole)
            await eventually(lambda: ones.buffered == 2 and twos.buffered == 1)
            first, third, second = ones.receive_nowait(), twos.receive_nowait(), ones.receive_nowait()
            for message in (first, third, second):
                assert message is not None
                message.confirm()
                message.confirm()
            assert (ones.stats().confirmed, ones.stats().unconfirmed) == (2, 0)
            assert (twos.stats().confirmed, twos.stats().unconfirmed) == (1, 0)
            assert (queue.stats().confirmed, queue.stats().confirm_seconds.count) == (3, 3)
            await eventually(lambda: confirmed(peer) == [guid(1), guid(3), guid(2)])


async def test_a_confirmation_after_the_close_has_no_effect(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        peer.connection.push(1, 2, 3)
        first, second, third = [await queue.receive() for _ in range(3)]
        first.confirm()
        second.confirm()
        await queue.close()
        third.confirm()
        assert not third.confirmed
        assert third.stale
        assert confirmed(peer) == [guid(1), guid(2)]
        assert queue.stats().confirmed == 2


@pytest.mark.parametrize("batch", [False, True])
async def test_the_time_of_a_confirmation_is_its_own_while_nothing_can_be_sent(
    peer: Peer, batch: bool
) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        peer.connection.push(1, 2)
        first, second = await queue.receive_many()
        connection = queue._connection
        connection.writable = False
        first.confirm()
        await eventually(lambda: second.age >= 0.06)
        if batch:
            queue.confirm(second)
        else:
            second.confirm()
        times = queue.stats().confirm_seconds
        assert sum(times.counts) == 2
        below = sum(n for bound, n in zip(times.bounds, times.counts, strict=False) if bound <= 0.05)
        assert below == 1
        assert confirmed(peer) == []
        connection.writable = True
        connection.transmit()
        await eventually(lambda: confirmed(peer) == [guid(1), guid(2)])
