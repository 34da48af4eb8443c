# SPDX-License-Identifier: Apache-2.0
"""Subscriptions and their consumers: pauses, waiting, refused changes, discarded messages, and values."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

import bmq
from bmq.testing import FaultProxy
from bmq.wire.constants import EventType
from bmq.wire.control import ConfigureStream
from bmq.wire.event import HEADER_SIZE, pack_event_header
from tests.client.bench import URI, opened
from tests.extras import TABLES
from tests.fakes.broker import Peer, guid
from tests.waiting import eventually
from tests.wire.messages import push_message


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)


def one_event(*pushed: bytes) -> bytes:
    body = b"".join(event[HEADER_SIZE:] for event in pushed)
    return pack_event_header(HEADER_SIZE + len(body), EventType.PUSH) + body


async def test_drained_messages_keep_their_order(peer: Peer) -> None:
    async with opened(peer, read=True) as (_, queue):
        consumer = await queue.subscribe("exists(a) && a == 1", discard_unmatched=True)
        wanted, drained = peer.connection.script.s_ids[0][-2:]
        push = peer.connection.script.push
        s_ids = (wanted, drained, wanted)
        pushed = [push(0, [(guid(at), b"%d" % at)], (s_id,), {"a": 1}) for at, s_id in enumerate(s_ids)]
        peer.connection.send(one_event(*pushed))
        assert b"".join([(await consumer.receive(30)).data for _ in range(3)]) == b"012"
        assert consumer.stats().received == queue.stats().received == 3
        assert consumer.stats().unconfirmed == queue.stats().unconfirmed == 3


async def test_receiver_gets_the_refusal_and_may_retry(peer: Peer) -> None:
    async with opened(peer, read=True) as (_, queue):
        peer.refuse.add("ConfigureStream")
        with pytest.raises(bmq.ConfigureQueueError, match="not here"):
            await queue.receive(timeout=20)
        peer.refuse.clear()
        receiving = asyncio.ensure_future(queue.receive(timeout=20))
        await eventually(lambda: peer.connection.s_ids)
        peer.connection.push(7)
        assert (await receiving).data == b"7"


async def test_message_has_the_brokers_remaining_attempts(peer: Peer) -> None:
    async with opened(peer, read=True, subscriptions=[None]) as (_, queue):
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
    async with opened(peer, read=True) as (_, queue):
        standing = await queue.subscribe("a > 1", priority=3)
        changed = await queue.subscribe("b > 1")
        before = [consumer.options for consumer in (standing, changed)]
        peer.hold.add("ConfigureStream")
        new = queue.subscribe("c > 1")
        changes = [asyncio.ensure_future(each) for each in (changed.configure(priority=7), new.open())]
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
    async with opened(peer, read=True) as (_, queue):
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
    async with opened(peer, read=True, write=True) as (session, queue):
        sent = len(peer.log)
        with pytest.raises(bmq.InvalidExpression):
            await WAYS[way](session, queue, TEXTS[what])
        await queue.post(b"1")
        assert peer.log[sent:] == ["PUT"]


async def test_a_consumer_paused_and_resumed_while_disconnected_receives(broker: bmq.broker.Broker) -> None:
    async with FaultProxy(broker.uri) as proxy, bmq.connect(proxy.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        consumer = await queue.subscribe()
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: session.state is bmq.SessionState.RECONNECTING)
        await consumer.pause()
        assert consumer.paused
        await consumer.resume()
        assert not consumer.paused
        await proxy.accept()
        await queue.post(b"1")
        message = await consumer.receive(timeout=30)
        assert message.data == b"1"


async def test_a_consumer_paused_while_it_opens_opens_when_it_is_resumed(broker: bmq.broker.Broker) -> None:
    async with opened(broker, read=True, write=True) as (_, queue):
        consumer = queue.subscribe()
        opening = asyncio.create_task(consumer.open())
        await asyncio.sleep(0)
        pausing = asyncio.create_task(consumer.pause())
        await asyncio.sleep(0)
        await consumer.resume()
        await asyncio.gather(opening, pausing)
        assert queue.consumers == [consumer]
        await queue.post(b"1")
        assert (await consumer.receive(timeout=30)).data == b"1"


async def test_waiting_takes_no_message(queue: bmq.Queue) -> None:
    async with queue.subscribe() as consumer:
        with pytest.raises(bmq.TimedOut, match="arrived"):
            await consumer.wait(timeout=0.001)
        await queue.post(b"1")
        await consumer.wait()
        await consumer.wait(timeout=0)
        assert consumer.buffered == 1
        assert (await consumer.receive()).data == b"1"


@pytest.mark.parametrize("cancel", [False, True])
async def test_message_wakes_receivers_and_waiters(queue: bmq.Queue, cancel: bool) -> None:
    consumer = await queue.subscribe()
    waiting = [asyncio.create_task(consumer.wait()) for _ in range(3)]
    taking = asyncio.create_task(consumer.receive())
    for _ in range(3):
        await asyncio.sleep(0)
    if cancel:
        waiting[0].cancel()
    await queue.post(b"1")
    assert (await taking).data == b"1"
    await queue.post(b"2")
    await asyncio.gather(*waiting, return_exceptions=True)
    assert consumer.buffered == 1
    (await consumer.receive()).confirm()
    ended = asyncio.create_task(consumer.wait())
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(bmq.QueueClosed):
        await ended


URGENT, LATE = bmq.TagFilter(any_of={"urgent"}), bmq.TagFilter(any_of={"late"})


CLASH = "would confirm each other's messages unseen"


@pytest.mark.parametrize("other", ["this session", "another session"])
async def test_consumers_that_would_discard_the_messages_of_each_other_are_refused(
    broker: bmq.broker.Broker, other: str
) -> None:
    """Each would confirm what the other one wants, without a word."""
    async with bmq.connect(broker.uri) as session, bmq.connect(broker.uri) as second:
        queue = await session.open_queue(URI, read=True, write=True)
        theirs = queue if other == "this session" else await second.open_queue(URI, read=True)
        first = await queue.subscribe(URGENT, discard_unmatched=True)
        with pytest.raises(bmq.UsageError, match=CLASH) as caught:
            await theirs.subscribe(LATE, discard_unmatched=True)
        assert "exists(t.urgent)" in str(caught.value)
        assert "exists(t.late)" in str(caught.value)
        with pytest.raises(bmq.UsageError, match=CLASH):
            await asyncio.to_thread(subscribe_in_a_thread, broker.uri)
        # The same filter is the purpose of the option, and other applications and queues are apart.
        same = await theirs.subscribe(bmq.TagFilter(any_of=["urgent"]), discard_unmatched=True)
        async with await second.open_queue(f"{URI}-other", read=True) as apart:
            await apart.subscribe(LATE, discard_unmatched=True)
        with pytest.raises(bmq.UsageError, match=CLASH):
            await same.configure(LATE)
        await same.close()
        await first.close()
        async with theirs.subscribe(LATE, discard_unmatched=True) as late:
            await queue.post_many([bmq.PutMessage(b"x", tags=[tag]) for tag in ("late", "urgent", "late")])
            assert [message.tags for message in await late.receive_many(2, 20)] == [{"late"}] * 2
        both = [bmq.Subscription(each, discard_unmatched=True) for each in (URGENT, LATE)]
        with pytest.raises(bmq.UsageError, match=CLASH):
            await session.open_queue(f"{URI}-3", read=True, subscriptions=both)
        once = await session.open_queue(f"{URI}-3", read=True, subscriptions=both[1:])
        assert len(once.consumers) == 1


def subscribe_in_a_thread(broker_uri: str) -> None:
    with bmq.blocking.connect(broker_uri) as session:
        reader = session.open_queue(URI, read=True)
        with reader.subscribe(LATE, discard_unmatched=True):
            pass


async def test_discarded_messages_are_not_decompressed(broker: bmq.broker.Broker) -> None:
    async with (
        bmq.connect(broker.uri, compression=bmq.Compression.ZLIB) as producing,
        bmq.connect(broker.uri) as consuming,
    ):
        producer = await producing.open_queue(URI, write=True)
        await producer.post_many([bmq.PutMessage(bytes(30_000_000), {"x": 2})] * 3)
        await producer.post(b"last", properties={"x": 1})
        queue = await consuming.open_queue(URI, read=True)
        tracemalloc.start()
        try:
            async with queue.subscribe("exists(x) && x == 1", discard_unmatched=True) as consumer:
                assert (await consumer.receive(20)).data == b"last"
                await eventually(lambda: queue.stats().confirmed == 3)
                assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


@dataclass
class Order:
    number: Annotated[int, bmq.Property]


async def test_values_arrive_in_batches_with_their_values(queue: bmq.Queue) -> None:
    orders = queue.typed(Order)
    await orders.post_many([Order(number) for number in range(4)])
    assert orders.receive_nowait() is None
    batch = await orders.receive_many(2, timeout=20)
    assert batch.values == [Order(0), Order(1)]
    assert [message.value for message in batch[1:]] == [Order(1)]
    batch.confirm()
    async for more in orders.batches(2):
        assert [message.value for message in more] == [Order(2), Order(3)]
        more.confirm()
        break
    await orders.flush()
    assert orders.stats().confirmed == 4


async def test_a_value_waits_until_it_is_due(queue: bmq.Queue) -> None:
    orders = queue.typed(Order)
    waiting = await queue.session.open_queue(queue.delay_queue_uri, read=True)
    await orders.post(Order(1), delay=3600, properties={"x": 1}, key="k")
    message = await waiting.receive(20)
    assert message.properties["x"] == 1
    assert message.properties["bmq_destination"] == queue.uri
    with pytest.raises(bmq.UsageError, match="one of the two"):
        await orders.post(Order(1), delay=1, not_before=1.0)


async def test_a_consumer_of_values_pauses_and_changes_its_filter(queue: bmq.Queue) -> None:
    orders = queue.typed(Order)
    async with orders.subscribe() as consumer:
        await consumer.pause()
        assert consumer.consumer.paused
        await consumer.resume()
        await consumer.configure("number > 1", priority=3)
        assert str(consumer.consumer.expression) == "number > 1"
        with pytest.raises(bmq.InvalidExpression):
            await consumer.configure('number == "one"')
        await orders.post(Order(5))
        message = await consumer.receive(20)
        consumer.put_back([message])
        assert (await consumer.receive(20)).value == Order(5)
        assert consumer.stats().received == 1
