"""Where messages go that name a subscription which is not there any more, and what is public of it all."""

from __future__ import annotations

import bmq
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header
from tests.fakes.broker import Peer, guid
from tests.waiting import eventually
from tests.wire.messages import push_message

URI = "bmq://bmq.test.mem.priority/q"


async def test_a_message_of_a_forgotten_subscription_goes_to_whom_it_is_for(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True)
        first = await queue.subscribe("exists(a)")
        stale = peer.connection.s_ids[0]
        anything = await queue.subscribe()
        for number in range(5):
            await first.configure(f"exists(a{number})")
        peer.connection.send(peer.connection.script.push(0, [(guid(1), b"plain")], (stale,)))
        message = await anything.receive(5)
        assert message.data == b"plain"
        assert first.buffered == 0


async def test_a_message_for_a_queue_without_subscriptions_waits_for_one(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True)
        peer.connection.send(peer.connection.script.push(0, [(guid(1), b"early")], (7,)))
        await eventually(lambda: queue.unclaimed == 1)
        async with queue.subscribe() as consumer:
            assert (await consumer.receive(5)).data == b"early"


def test_the_public_names_of_a_queue_and_a_consumer() -> None:
    def public(cls: type) -> set[str]:
        return {name for name in dir(cls) if not name.startswith("_")}

    receiving = {"receive", "receive_nowait", "receive_many", "batches"}
    assert public(bmq.Consumer) == receiving | {
        *("buffered", "close", "closed", "configure", "expressions", "open", "options", "selector")
    }
    assert public(bmq.Queue) == receiving | {
        *("close", "closed", "configure", "confirm", "flush", "post", "post_many", "post_nowait", "readable"),
        *("state", "subscribe", "subscriptions", "unacked", "unclaimed", "uri", "writable"),
    }


async def test_a_message_knows_how_many_attempts_are_left_where_the_broker_says(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, subscriptions=[None])
        [consumer] = queue.subscriptions
        s_id = peer.connection.s_ids[0].to_bytes(4, "big")
        for number, attempts in ((1, b"\x02"), (2, b"\x80")):
            option = bytes.fromhex("0c400003") + s_id + attempts + bytes(3)
            message = push_message(0, guid(number), b"%d" % number, option)
            peer.connection.send(pack_event_header(HEADER_SIZE + len(message), EventType.PUSH) + message)
        assert [(await consumer.receive(5)).delivery_attempts_left for _ in range(2)] == [2, None]
