# SPDX-License-Identifier: Apache-2.0
"""A queue's subscriptions: order of drained messages, refused changes, and attempts left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bmq
from bmq.wire.constants import EventType
from bmq.wire.control import ConfigureStream
from bmq.wire.event import HEADER_SIZE, pack_event_header
from tests.extras import TABLES
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


def asked(peer: Peer) -> list[list[str]]:
    """The expressions of each configureStream that is held."""
    return [
        [each.expression.text for each in request.body.stream_parameters.subscriptions]
        for request in peer.connection.script.requests
        if isinstance(request.body, ConfigureStream)
    ]


def refuse_what_is_held(peer: Peer) -> None:
    """Answer held requests with a failure; later requests are held again."""
    peer.refuse.add("ConfigureStream")
    peer.answer("ConfigureStream")
    peer.refuse.discard("ConfigureStream")
    peer.hold.add("ConfigureStream")


async def test_refusal_with_several_pending_changes_keeps_the_accepted_configuration(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True)
        standing = await queue.subscribe("a > 1", priority=3)
        changed = await queue.subscribe("b > 1")
        before = [consumer.options for consumer in (standing, changed)]
        peer.hold.add("ConfigureStream")
        new = queue.subscribe("c > 1")
        changes = [
            asyncio.ensure_future(changed.configure(priority=7)),
            asyncio.ensure_future(new.open()),
        ]
        await eventually(lambda: asked(peer))
        changes.append(asyncio.ensure_future(standing.configure(max_unconfirmed_messages=5)))
        changes.append(asyncio.ensure_future(queue.subscribe("d > 1").open()))
        await asyncio.sleep(0)
        refuse_what_is_held(peer)
        outcomes = await asyncio.gather(*changes, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [bmq.ConfigureQueueError] * 4
        assert queue.consumers == [standing, changed]
        assert [consumer.options for consumer in (standing, changed)] == before
        assert asked(peer) == []
        # So it is restored on the next connection.
        peer.cut()
        await eventually(lambda: len(peer.connections) == 2 and asked(peer))
        assert asked(peer) == [["a > 1", "b > 1"]]
        peer.answer("ConfigureStream")
        await new.open()
        assert queue.consumers == [standing, changed, new]


async def test_a_consumer_closed_during_a_refusal_stays_closed(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True)
        standing = await queue.subscribe("a > 1")
        leaving = await queue.subscribe("b > 1")
        peer.hold.add("ConfigureStream")
        refused = asyncio.ensure_future(queue.subscribe("c > 1").open())
        await eventually(lambda: asked(peer))
        closing = asyncio.ensure_future(leaving.close())
        await asyncio.sleep(0)
        assert asked(peer) == [["a > 1", "b > 1", "c > 1"]]
        refuse_what_is_held(peer)
        with pytest.raises(bmq.ConfigureQueueError):
            await refused
        await closing
        assert queue.consumers == [standing]
        # The broker still has it: it is told.
        await eventually(lambda: asked(peer))
        assert asked(peer) == [["a > 1"]]
        peer.answer("ConfigureStream")
        await standing.configure(priority=2)
        assert queue.consumers == [standing]


TEXTS = {"a NUL": 'x == "\0"', "half of a surrogate pair": 'x == "\udc80"', "the other half": 'x == "\ud800"'}
WAYS: dict[str, Any] = {
    "subscribe": lambda _, queue, text: queue.subscribe(text, strict=False),
    "an expression": lambda _, queue, text: queue.subscribe(bmq.Expression(text, strict=False)),
    "discarding": lambda _, queue, text: queue.subscribe(text, discard_unmatched=True),
    "consume": lambda _, queue, text: bmq.consume(queue, print, expression=text),
    "open_queue": lambda session, _, text: session.open_queue(
        f"{URI}-2", read=True, subscriptions=[bmq.Subscription(bmq.Expression(text, strict=False))]
    ),
}
if TABLES:
    WAYS["tables"] = lambda _, queue, text: queue.tables(bmq.Expression(text, strict=False))


@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.parametrize("way", WAYS)
async def test_text_that_would_arrive_changed_is_never_sent(peer: Peer, what: str, way: str) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        sent = len(peer.log)
        with pytest.raises(bmq.InvalidExpression):
            await WAYS[way](session, queue, TEXTS[what])
        await queue.post(b"1")
        assert peer.log[sent:] == ["PUT"]
