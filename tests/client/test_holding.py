# SPDX-License-Identifier: Apache-2.0
"""A session holds no more messages than its limits, however they are received, and holding is cheap."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

import bmq
from bmq.events import SessionEvent, SlowConsumer, SlowConsumerRecovered, UnclaimedMessages
from bmq.protocol.client.queue import QueueState
from bmq.wire.constants import Compression, EventType, PushFlags
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.properties import encode_properties
from tests.client.bench import URI, opened
from tests.extras import TABLES
from tests.fakes.broker import Peer, guid
from tests.waiting import eventually
from tests.wire.messages import push_message

SIZE = 10_000
#: No subscription ever had this id.
UNKNOWN = 77_777

#: Returns a queue, and the id of a subscription without a consumer for its messages.
Departed = Callable[[Peer, bmq.Session], Awaitable[tuple[bmq.Queue, int]]]


async def idle(peer: Peer, session: bmq.Session) -> tuple[bmq.Queue, int]:
    return await session.open_queue(URI, read=True, write=True), UNKNOWN


async def filters(queue: bmq.Queue) -> None:
    """Two filters: a message for an unknown subscription goes to the only match."""
    for name in "ab":
        await queue.subscribe(f"exists({name})")


async def unknown(peer: Peer, session: bmq.Session) -> tuple[bmq.Queue, int]:
    queue, s_id = await idle(peer, session)
    await filters(queue)
    return queue, s_id


async def subscribed(peer: Peer, session: bmq.Session) -> tuple[bmq.Consumer, int]:
    queue, _ = await idle(peer, session)
    return await queue.subscribe(), peer.connection.s_ids[0]


async def closed(peer: Peer, session: bmq.Session) -> tuple[bmq.Queue, int]:
    consumer, s_id = await subscribed(peer, session)
    await consumer.close()
    return consumer.queue, s_id


async def paused(peer: Peer, session: bmq.Session) -> tuple[bmq.Queue, int]:
    consumer, s_id = await subscribed(peer, session)
    await consumer.pause()
    return consumer.queue, s_id


async def resting(peer: Peer, session: bmq.Session) -> tuple[bmq.Queue, int]:
    queue, _ = await idle(peer, session)
    receiving = asyncio.ensure_future(queue.receive(timeout=20))
    await eventually(lambda: peer.connection.s_ids)
    s_id = peer.connection.s_ids[0]
    peer.connection.push(0)
    (await receiving).confirm()
    await filters(queue)
    return queue, s_id


WITHOUT_CONSUMER = pytest.mark.parametrize("departed", [idle, unknown, closed, paused, resting])


def push(peer: Peer, s_id: int, *numbers: int, size: int = SIZE, **properties: Any) -> bytes:
    messages = [(guid(number + 1), b"%d" % number + b" " * size) for number in numbers]
    return peer.connection.script.push(0, messages, (s_id,), properties or None)


def take_in(session: bmq.Session, data: bytes) -> None:
    """Let a session read bytes at once."""
    connection = session._connection
    assert connection.channel is not None
    connection.channel_data(connection.channel, data)


def one_event(peer: Peer, messages: Iterable[tuple[int, int]]) -> bytes:
    """A PUSH event with messages for several subscriptions, as pairs of id and number."""
    body = b"".join(push(peer, s_id, number, size=0, x=1)[HEADER_SIZE:] for s_id, number in messages)
    return pack_event_header(HEADER_SIZE + len(body), EventType.PUSH) + body


async def flood(peer: Peer, s_id: int, count: int, most: int = 1 << 20) -> int:
    """Send messages until all are sent or the client reads no more; return how many were sent."""
    transport = peer.connection.transport
    assert transport is not None
    sent = quiet = 0
    while sent < count and quiet < 200:
        if transport.get_write_buffer_size() < most:
            peer.connection.send(push(peer, s_id, *range(sent, sent + 20)))
            sent += 20
            quiet = 0
        quiet += 1
        await asyncio.sleep(0)
    return sent


@WITHOUT_CONSUMER
async def test_messages_no_consumer_takes_count_and_pause_reading(peer: Peer, departed: Departed) -> None:
    happened: list[SessionEvent] = []
    async with bmq.connect(peer.uri, max_buffered_bytes=1_000_000, on_event=happened.append) as session:
        queue, s_id = await departed(peer, session)
        sent = await flood(peer, s_id, 8000)
        assert sent < 8000, "80 MB were read though no consumer wants them"
        slow = [event for event in happened if isinstance(event, SlowConsumer)]
        assert len(slow) == 1
        assert 100 <= queue.unclaimed < 500
        for stats in (session.stats(), queue.stats()):
            assert stats.buffered_messages == queue.unclaimed
            assert stats.buffered_bytes >= SIZE * queue.unclaimed
        assert not isinstance(happened[-1], SlowConsumerRecovered)


@WITHOUT_CONSUMER
async def test_reading_resumes_without_a_consumer_and_keeps_no_more(
    peer: Peer, departed: Departed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bmq.client.receive_limit._PATIENCE", 0.0)
    async with bmq.connect(peer.uri, max_buffered_bytes=1_000_000) as session:
        queue, s_id = await departed(peer, session)
        assert await flood(peer, s_id, 1000) == 1000
        await queue.post(b"1")  # the acknowledgement arrives behind all messages
        held = queue.unclaimed
        assert held * SIZE < 2_000_000
        assert queue.stats().received >= 1000
        lines = [record.getMessage() for record in caplog.records if "were not kept" in record.message]
        assert len(lines) == 1
        assert queue.uri in lines[0]
        # A consumer receives the kept messages in order, then all later messages.
        async with queue.subscribe(priority=1) as consumer:
            got = [int((await consumer.receive(30)).data) for _ in range(held)]
            assert got == list(range(held))
            peer.connection.push(5000)
            assert (await consumer.receive(30)).data.strip() == b"5000"


async def test_reading_pauses_though_the_broker_leaves_a_queue_unopened(peer: Peer) -> None:
    limit = 1_000_000
    async with opened(
        peer, read=True, default_subscription=True, max_buffered_bytes=limit, open_timeout=30
    ) as (session, queue):
        s_id = peer.connection.s_ids[0]
        # The connection is restored, but not the queue: an answer is pending.
        peer.hold.add("OpenQueue")
        peer.cut()
        await eventually(lambda: session.stats().reconnects == 1 and "OpenQueue" in peer.log)
        assert await flood(peer, s_id, 8000) < 8000, "the peer could send all it had"
        assert session.stats().buffered_bytes < 2 * limit + (1 << 20)
        # Taking the messages makes the answer behind them readable.
        peer.answer("OpenQueue")
        async with asyncio.timeout(20):
            while queue.state is not QueueState.OPEN:
                queue.receive_nowait()
                await asyncio.sleep(0)


async def test_loop_over_the_queue_receives_waiting_messages_before_the_brokers_answer(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue, s_id = await idle(peer, session)
        take_in(session, push(peer, s_id, 1, 2, 3, size=0))
        peer.hold.add("ConfigureStream")
        assert [(await queue.receive(30)).data for _ in range(3)] == [b"1", b"2", b"3"]
        peer.answer("ConfigureStream")


async def test_held_messages_are_dropped_with_queue_and_connection(peer: Peer) -> None:
    for end in ("close", "cut"):
        async with bmq.connect(peer.uri, max_buffered_messages=10) as session:
            queue, s_id = await idle(peer, session)
            await flood(peer, s_id, 40)
            await eventually(lambda queue=queue: queue.unclaimed)
            if end == "close":
                await queue.close()
            else:
                peer.cut()
                await queue.post(b"1")  # noticed by the next write
            assert session.stats().buffered_messages == session.stats().buffered_bytes == 0
            receive_limit = session._connection.receive_limit
            assert (receive_limit.messages, receive_limit.bytes, receive_limit.sheds) == (0, 0, False)


async def test_messages_without_a_consumer_are_counted_and_reported_once(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At arrival, after their consumer has left, and for a queue that is not open."""
    monkeypatch.setattr("bmq.client._subscriptions._MENTION_UNCLAIMED_AFTER", 0)
    happened: list[SessionEvent] = []
    async with bmq.connect(peer.uri, on_event=happened.append) as session:
        queue, s_id = await idle(peer, session)
        peer.connection.send(push(peer, s_id, 1, 2))
        await eventually(lambda: happened.count(UnclaimedMessages(queue.uri, 2)))
        await eventually(lambda: "holds 2 messages" in caplog.text)
        assert (queue.stats().unmatched, session.stats().unmatched) == (2, 2)
        async with queue.subscribe("exists(a) && a == 1"):
            assert queue.stats().unmatched == 2  # those that wait are not counted again
            peer.connection.send(push(peer, peer.connection.script.s_ids[0][-1], 3, a=1))
            await eventually(lambda: queue.stats().received == 3)
        assert queue.stats().unmatched == 3
        everything = queue.subscribe()
        assert [len((await everything.receive()).data) for _ in range(3)]
        for number in (4, 5):
            peer.connection.send(peer.connection.script.push(77, [(guid(9), b"9")], (1,)))
            await eventually(lambda expected=number: session.stats().unmatched == expected)
        assert queue.stats().unmatched == 3
        assert [each.messages for each in happened if isinstance(each, UnclaimedMessages)] == [2, 1]


@pytest.mark.parametrize("seed", range(6))
async def test_line_is_in_order_of_delivery_for_messages_of_all_consumers(peer: Peer, seed: int) -> None:
    chance = random.Random(seed)
    async with opened(peer, read=True) as (session, queue):
        leaving = await queue.subscribe("exists(a)")
        stale = peer.connection.s_ids[0]
        consumer = await queue.subscribe()
        own = peer.connection.s_ids[0]
        await leaving.close()
        expected: list[int] = []
        number = 0
        for _ in range(200):
            match chance.randrange(4):
                case 0 | 1:
                    to = [chance.choice((own, stale)) for _ in range(chance.randrange(1, 6))]
                    some = range(number, number + len(to))
                    take_in(session, one_event(peer, zip(to, some, strict=True)))
                    expected += some
                    number += len(to)
                case 2:
                    count = chance.randrange(1, 5)
                    got = [m for m in (consumer.receive_nowait() for _ in range(count)) if m is not None]
                    assert [int(message.data) for message in got] == expected[:count]
                    back = chance.randrange(len(got) + 1)
                    consumer.put_back(got[back:])
                    expected = expected[back:] if len(got) else expected
                case _:
                    count = chance.randrange(1, 9)
                    if expected:
                        batch = await consumer.receive_many(count)
                        assert [int(message.data) for message in batch] == expected[:count]
                        del expected[:count]
            assert consumer.buffered == len(expected)
        assert [int((await consumer.receive(30)).data) for _ in expected] == expected
        receive_limit = session._connection.receive_limit
        assert (receive_limit.messages, receive_limit.bytes) == (0, 0)


async def test_filters_after_a_left_loop_receive_the_held_messages(peer: Peer) -> None:
    async with opened(peer, read=True, default_subscription=True) as (session, queue):
        s_id = peer.connection.s_ids[0]
        take_in(session, b"".join(push(peer, s_id, n, size=0, x=n % 2) for n in range(1000)))
        async for message in queue:
            assert message.data == b"0"
            break
        async with queue.subscribe("x == 1") as odd, queue.subscribe("x == 0") as even:
            assert queue.consumers == [odd, even]
            assert [int((await odd.receive(30)).data) for _ in range(500)] == list(range(1, 1000, 2))
            assert [int((await even.receive(30)).data) for _ in range(499)] == list(range(2, 1000, 2))
            assert queue.unclaimed == queue.stats().buffered_messages == 0
            # Messages in flight to the default subscription go to the filters too.
            take_in(session, push(peer, s_id, 1001, size=0, x=1))
            assert (await odd.receive(30)).data == b"1001"


async def test_a_loop_that_waits_keeps_the_default_subscription(peer: Peer) -> None:
    async with opened(peer, read=True) as (session, queue):
        receiving = asyncio.ensure_future(queue.receive(30))
        await eventually(lambda: queue.consumers)
        s_id = peer.connection.s_ids[0]
        async with queue.subscribe("x == 1"):
            assert len(queue.consumers) == 2
            take_in(session, push(peer, s_id, 1, size=0, x=1))
            assert (await receiving).data == b"1"


async def test_refused_filter_leaves_the_queue_unchanged(peer: Peer) -> None:
    async with opened(peer, read=True, default_subscription=True) as (session, queue):
        s_id = peer.connection.s_ids[0]
        take_in(session, push(peer, s_id, 0, 1, 2, size=0, x=1))
        assert (await queue.receive(30)).data == b"0"
        peer.refuse.add("ConfigureStream")
        with pytest.raises(bmq.ConfigureQueueError):
            await queue.subscribe("x == 1")
        await session.open_queue(f"{URI}2", write=True)  # later requests are answered too
        peer.refuse.clear()
        assert queue.unclaimed == 2
        take_in(session, push(peer, s_id, 3, size=0, x=1))
        async with queue.subscribe("x == 1") as consumer:
            assert [int((await consumer.receive(30)).data) for _ in range(3)] == [1, 2, 3]


def compressed(number: int, s_id: int, size: int) -> bytes:
    """A PUSH event with properties in the old encoding, inflating to the given number of bytes."""
    data = zlib.compress(encode_properties({"x": 1, "y": bytes(size)}, new=False) + b"payload", 9)
    message = push_message(
        0,
        guid(number),
        data,
        encode_sub_queue_ids((s_id,)),
        flags=PushFlags.MESSAGE_PROPERTIES,
        compression=Compression.ZLIB,
    )
    return pack_event_header(HEADER_SIZE + len(message), EventType.PUSH) + message


@WITHOUT_CONSUMER
async def test_routing_decompresses_a_small_multiple_of_what_came(peer: Peer, departed: Departed) -> None:
    async with bmq.connect(peer.uri) as session:
        queue, s_id = await departed(peer, session)
        bombs = [compressed(number, s_id, 8 << 20) for number in range(1, 6)]
        tracemalloc.start()
        try:
            for bomb in bombs:
                take_in(session, bomb)
            assert tracemalloc.get_traced_memory()[1] < 500_000
        finally:
            tracemalloc.stop()
        assert queue.unclaimed == len(bombs)


async def test_message_with_too_many_properties_goes_to_the_consumer_of_all_messages(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue, s_id = await closed(peer, session)
        await filters(queue)
        async with queue.subscribe("x == 1") as some:
            take_in(session, compressed(1, s_id, 100))
            take_in(session, compressed(2, s_id, 1 << 20))
            assert (some.buffered, queue.unclaimed) == (1, 1)
            async with queue.subscribe() as everything:
                message = await everything.receive(30)
                assert message.properties["x"] == 1


async def test_a_message_with_too_many_properties_is_never_discarded(peer: Peer) -> None:
    async with opened(peer, read=True) as (session, queue):
        consumer = await queue.subscribe("x == 2", discard_unmatched=True)
        drained = peer.connection.script.s_ids[0][-1]
        take_in(session, compressed(1, drained, 1 << 20))
        take_in(session, compressed(2, drained, 100))
        assert consumer.buffered == 1
        assert consumer.stats().confirmed == queue.stats().confirmed - 1


async def flushes(output: bmq.Queue) -> None:
    output.post_nowait(b"1")
    await output.flush()


async def opens(output: bmq.Queue) -> None:
    await (await output.session.open_queue(f"{output.uri}-{random.random()}", write=True)).close()


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param(lambda output: output.post(b"1"), id="post"),
        pytest.param(lambda output: output.post_many([b"1", b"2"]), id="post_many"),
        pytest.param(lambda output: output.request(b"1"), id="request"),
        *(opens, flushes),
    ],
)
async def test_waiting_handler_receives_its_answer_behind_any_number_of_messages(
    bmq_broker: bmq.broker.Broker,
    waits: Callable[[bmq.Queue], Awaitable[object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bmq.client.receive_limit._STANDSTILL", 0.01)
    app = bmq.App(bmq_broker.uri)

    @app.responder(f"{URI}-output")
    async def answer(message: bmq.Message) -> bytes:
        return message.data

    async with app, bmq.connect(bmq_broker.uri) as producer:
        queue = await producer.open_queue(URI, write=True)
        await queue.post_many(b"%d" % number for number in range(200))
        async with bmq.connect(bmq_broker.uri, max_buffered_messages=1) as session:
            inbox = await session.open_queue(URI, read=True)
            output = await session.open_queue(f"{URI}-output", write=True)
            for _ in range(200):
                async with asyncio.timeout(20), await inbox.receive() as message:
                    await waits(output)
            assert message.data == b"199"
            assert session.stats().reconnects == 0


LIMITS = {"max_unconfirmed_messages": 10, "max_unconfirmed_bytes": 20 * SIZE}


async def _never(_message: bmq.Message) -> None:
    await asyncio.Event().wait()


async def _subscribed(queue: bmq.Queue) -> None:
    async with queue.subscribe(**LIMITS):
        await asyncio.Event().wait()


async def _tables(queue: bmq.Queue) -> None:
    async with queue.tables(**LIMITS) as tables:
        await tables.receive(timeout=20)
        await asyncio.Event().wait()


async def _typed(queue: bmq.Queue) -> None:
    async for _ in queue.typed(dict, codec="application/json"):
        await asyncio.Event().wait()


def handled(**options: Any) -> Callable[[bmq.Queue], Awaitable[None]]:
    return lambda queue: bmq.consume(queue, _never, grace=0.0, concurrency=8, **options, **LIMITS)


TAKERS: dict[str, Callable[[bmq.Queue], Awaitable[None]]] = {
    "a consumer": _subscribed,
    "handlers": handled(),
    "lanes": handled(key=lambda message: message.guid),
    "values": _typed,
} | ({"tables": _tables} if TABLES else {})


@pytest.mark.parametrize("taker", TAKERS)
async def test_a_broker_that_ignores_the_limits_cannot_fill_the_memory(peer: Peer, taker: str) -> None:
    limit = 500_000
    async with opened(peer, read=True, max_buffered_bytes=limit) as (session, queue):
        taking = asyncio.ensure_future(TAKERS[taker](queue))
        try:
            await eventually(lambda: peer.connection.s_ids)
            assert await flood(peer, peer.connection.s_ids[0], 2000, 1 << 18) < 2000, "all 20 MB were read"
            stats = session.stats()
        finally:
            taking.cancel()
            await asyncio.wait([taking])
        assert limit // 2 < stats.buffered_bytes < 3 * limit
        assert stats.bytes_received < 3 * limit + LIMITS["max_unconfirmed_bytes"]
