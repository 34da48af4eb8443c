# SPDX-License-Identifier: Apache-2.0
"""Messages for a removed subscription, and the public view of routing."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header
from tests.fakes.broker import Peer, guid
from tests.waiting import eventually
from tests.wire.messages import push_message

URI = "bmq://bmq.test.mem.priority/q"


def one_event(*pushed: bytes) -> bytes:
    """One PUSH event with the messages of several."""
    body = b"".join(event[HEADER_SIZE:] for event in pushed)
    return pack_event_header(HEADER_SIZE + len(body), EventType.PUSH) + body


async def test_drained_messages_keep_their_order(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True)
        consumer = await queue.subscribe("exists(a) && a == 1", discard_unmatched=True)
        wanted, drained = peer.connection.script.s_ids[0][-2:]
        push = peer.connection.script.push
        s_ids = (wanted, drained, wanted)
        peer.connection.send(
            one_event(
                *(push(0, [(guid(at), b"%d" % at)], (s_id,), {"a": 1}) for at, s_id in enumerate(s_ids))
            )
        )
        assert b"".join([(await consumer.receive(30)).data for _ in range(3)]) == b"012"
        assert consumer.stats().received == queue.stats().received == 3
        assert consumer.stats().unconfirmed == queue.stats().unconfirmed == 3


async def test_receiver_gets_the_refusal_and_may_retry(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True)
        peer.refuse.add("ConfigureStream")
        with pytest.raises(bmq.ConfigureQueueError, match="not here"):
            await queue.receive(timeout=20)
        peer.refuse.clear()
        receiving = asyncio.ensure_future(queue.receive(timeout=20))
        await eventually(lambda: peer.connection.s_ids)
        peer.connection.push(7)
        assert (await receiving).data == b"7"


async def test_message_has_the_brokers_remaining_attempts(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, subscriptions=[None])
        [consumer] = queue.consumers
        s_id = peer.connection.s_ids[0].to_bytes(4, "big")
        for number, attempts in ((1, b"\x02"), (2, b"\x80")):
            option = bytes.fromhex("0c400003") + s_id + attempts + bytes(3)
            message = push_message(0, guid(number), b"%d" % number, option)
            peer.connection.send(pack_event_header(HEADER_SIZE + len(message), EventType.PUSH) + message)
        assert [(await consumer.receive(30)).delivery_attempts_left for _ in range(2)] == [2, None]
