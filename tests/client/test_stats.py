# SPDX-License-Identifier: Apache-2.0
"""Statistics: they match the events, continue over reconnects, and can be subtracted."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import bmq
from bmq.stats import SessionStats
from bmq.wire.constants import EventType
from bmq.wire.event import pack_event_header
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer, guid
from tests.waiting import eventually


async def test_posts_are_counted_when_they_are_made_and_when_they_are_acknowledged(peer: Peer) -> None:
    peer.hold.add("PUT")
    async with opened(peer, write=True) as (session, queue):
        waiting = asyncio.ensure_future(queue.post_many([b"12345", b"123"]))
        single = queue.post_nowait(b"1")
        await eventually(lambda: len(peer.connection.script.puts) == 3)
        stats = queue.stats()
        assert (stats.posted, stats.posted_bytes) == (3, 9)
        assert (stats.unacked_messages, stats.unacked_bytes) == (3, 9)
        assert stats.acknowledged == stats.ack_seconds.count == 0
        peer.answer("PUT")
        await asyncio.gather(waiting, single)
        stats = queue.stats()
        assert (stats.posted, stats.posted_bytes, stats.acknowledged) == (3, 9, 3)
        assert stats.unacked_messages == stats.unacked_bytes == 0
        assert stats.ack_seconds.count == 3
        assert stats.refused == {}
        whole = session.stats()
        assert (whole.posted, whole.posted_bytes, whole.acknowledged) == (3, 9, 3)
        assert whole.ack_seconds == stats.ack_seconds


async def test_messages_are_counted_on_their_way_to_a_confirmation(peer: Peer) -> None:
    async with opened(peer, read=True, default_subscription=True) as (session, queue):
        consumer = queue.consumers[0]

        def check(confirmed: int, buffered: int) -> None:
            for stats in (consumer.stats(), queue.stats(), session.stats()):
                assert (stats.received, stats.received_bytes, stats.redelivered) == (3, 33, 0)
                assert (stats.confirmed, stats.unconfirmed) == (confirmed, 3 - confirmed)
                assert stats.confirm_seconds.count == confirmed
                assert (stats.buffered_messages, stats.buffered_bytes) == (buffered, 11 * buffered)

        peer.connection.push(1, 2, 3, size=10)
        await eventually(lambda: consumer.buffered == 3)
        check(0, 3)
        first = await queue.receive()
        first.confirm()
        check(1, 2)
        batch = await queue.receive_many()
        batch.confirm()
        batch.confirm()
        first.confirm()
        check(3, 0)


async def test_counters_continue_after_a_reconnect(peer: Peer) -> None:
    async with opened(peer, read=True, write=True, default_subscription=True) as (session, queue):
        consumer = queue.consumers[0]
        peer.connection.push(1, 2)
        await eventually(lambda: consumer.buffered == 2)
        held = await queue.receive()
        peer.hold.add("PUT")
        sent = queue.post_nowait(b"1")
        await eventually(lambda: peer.connection.script.puts)
        before = session.stats()
        assert (before.retransmitted, before.reconnects, before.seconds_disconnected) == (0, 0, 0.0)
        peer.hold.add("clientIdentity")
        peer.cut()
        await eventually(lambda: session.state is bmq.SessionState.RECONNECTING)
        late = queue.post_nowait(b"2")
        assert session.stats().unconfirmed == queue.stats().unconfirmed == consumer.stats().unconfirmed == 0
        await eventually(lambda: session.stats().seconds_disconnected > 0)
        peer.answer("clientIdentity", "PUT")
        await asyncio.gather(sent, late)
        peer.connection.push(1, 2)
        await eventually(lambda: consumer.buffered == 2)
        held.confirm()  # of the connection before: the message that came again stays to be confirmed
        after = session.stats()
        assert (after.reconnects, after.retransmitted) == (1, 1)  # the second was never sent before
        assert after.seconds_disconnected == session.stats().seconds_disconnected > 0
        assert after.bytes_sent > before.bytes_sent
        assert after.bytes_received > before.bytes_received
        assert (after.received, after.confirmed, after.unconfirmed) == (4, 1, 2)
        assert (after.posted, after.acknowledged) == (2, 2)
        assert queue.stats().retransmitted == 1


async def test_messages_moved_to_another_consumer_are_counted_once(broker: bmq.broker.Broker) -> None:
    async with opened(broker, read=True, write=True) as (_, queue):
        first = await queue.subscribe(priority=2)
        await queue.post_many([b"1", b"2", b"3"])
        await eventually(lambda: first.buffered == 3)
        (await first.receive()).confirm()
        second = await queue.subscribe()
        await first.close()
        assert first.stats().unconfirmed == 0
        assert (second.stats().received, second.stats().unconfirmed) == (2, 2)
        assert (queue.stats().received, queue.stats().unconfirmed) == (3, 2)
        (await second.receive_many()).confirm()
        assert (queue.stats().confirmed, queue.stats().unconfirmed) == (3, 0)
        assert queue.stats().confirm_seconds.count == 3


async def test_statistics_are_subtracted(peer: Peer) -> None:
    async with opened(peer, write=True) as (session, queue):
        peer.status = bmq.AckStatus.LIMIT_BYTES
        await queue.post_many([b"1"])
        before, whole = queue.stats(), session.stats()
        peer.status = bmq.AckStatus.NOT_READY
        await queue.post_many([b"2", b"3"])
        peer.hold.add("PUT")
        pending = queue.post_nowait(b"4")
        change = queue.stats() - before
        assert (change.posted, change.posted_bytes, change.acknowledged) == (3, 3, 0)
        assert change.refused == {bmq.AckStatus.NOT_READY: 2}
        assert change.ack_seconds.count == 2
        assert change.unacked_messages == 1  # as it is now
        assert (session.stats() - whole).posted == 3
        assert (session.stats() - whole).state is bmq.SessionState.STARTED
        peer.status = bmq.AckStatus.SUCCESS
        peer.answer("PUT")
        await pending


def test_a_histogram_estimates_quantiles() -> None:
    times = bmq.stats.Histogram((1.0, 2.0, 4.0), (0, 4, 4, 0), 18.0)
    assert times.count == 8
    assert times.mean == 2.25
    assert times.quantile(0.25) == 1.5
    assert times.quantile(0.5) == 2.0
    assert times.quantile(0.75) == 3.0
    assert times.quantile(1) == 4.0
    assert bmq.stats.Histogram((1.0,), (0, 2), 10.0).quantile(0.5) == 1.0
    assert bmq.stats.Histogram().quantile(0.5) is bmq.stats.Histogram().mean is None
    with pytest.raises(bmq.UsageError, match="at least 0 and at most 1, not 2"):
        times.quantile(2)
    with pytest.raises(bmq.UsageError, match="different buckets"):
        times - bmq.stats.Histogram()


FIELDS = [
    *("queues", "posted", "acknowledged", "refused", "retransmitted", "unacked"),
    *("received", "confirmed", "redelivered", "unconfirmed", "buffered"),
    *("bytes_sent", "bytes_received", "reconnects", "seconds_disconnected", "ack_seconds_p50"),
]


def records(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [each for each in caplog.records if each.name == "bmq.stats"]


def values(record: logging.LogRecord) -> dict[str, str]:
    pairs = record.getMessage().rpartition(": ")[2].split(" ")
    return dict(pair.split("=") for pair in pairs)


async def test_statistics_are_logged_at_the_interval_and_at_the_end(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bmq.stats")
    async with opened(peer, write=True, log_stats_every=0.01) as (_, queue):
        await queue.post_many([b"x"] * 3)
        await eventually(lambda: records(caplog) and values(records(caplog)[-1])["acknowledged"] == "3")
    first, last = records(caplog)[0], records(caplog)[-1]
    assert first.getMessage().startswith(f"statistics of the session with {peer.uri}: queues=")
    assert last.getMessage().startswith(
        f"final statistics of the session with {peer.uri}: queues=0 posted=3 "
    )
    assert sum(each.getMessage().startswith("final") for each in records(caplog)) == 1
    assert {each.levelno for each in records(caplog)} == {logging.INFO}
    assert [list(values(each)) for each in (first, last)] == [FIELDS, FIELDS]
    assert isinstance(last.statistics, SessionStats)
    assert last.broker == peer.uri


async def test_statistics_end_with_a_lost_session(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bmq.stats")
    session = await bmq.connect(peer.uri, log_stats_every=0.01, reconnect_delays=lambda: iter([0.0] * 3))
    peer.cut()
    await eventually(lambda: records(caplog) and values(records(caplog)[-1])["reconnects"] == "1")
    await peer.stop()
    await eventually(lambda: session.state is bmq.SessionState.CLOSED)
    # The record is written in the turn after the transition.
    await eventually(lambda: records(caplog)[-1].getMessage().startswith("final "))
    await session.close()
    assert sum(each.getMessage().startswith("final") for each in records(caplog)) == 1


def confirmed(peer: Peer) -> list[bytes]:
    return [confirm.guid for confirm in peer.connection.script.confirms]


async def test_consumers_with_messages_of_one_event_count_their_own(peer: Peer) -> None:
    async with opened(peer, read=True) as (_, queue):
        ones, twos = await queue.subscribe("kind == 1"), await queue.subscribe("kind == 2")
        push = peer.connection.script.push
        one, two = peer.connection.script.s_ids[0][-2:]
        whole = push(0, [(guid(1), b"one"), (guid(2), b"one")], (one,))[8:]
        whole += push(0, [(guid(3), b"two")], (two,))[8:]
        peer.connection.send(pack_event_header(8 + len(whole), EventType.PUSH) + whole)
        await eventually(lambda: ones.buffered == 2 and twos.buffered == 1)
        for consumer in (ones, twos, ones):
            message = await consumer.receive()
            message.confirm()
            message.confirm()
        assert (ones.stats().confirmed, ones.stats().unconfirmed) == (2, 0)
        assert (twos.stats().confirmed, twos.stats().unconfirmed) == (1, 0)
        assert (queue.stats().confirmed, queue.stats().confirm_seconds.count) == (3, 3)
        await eventually(lambda: confirmed(peer) == [guid(1), guid(3), guid(2)])


async def test_a_confirmation_after_the_close_has_no_effect(peer: Peer) -> None:
    async with opened(peer, read=True, default_subscription=True) as (_, queue):
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


BROADCAST = "bmq://bmq.test.mem.broadcast/q"


async def test_a_closed_queue_still_counts_in_the_session(broker: bmq.broker.Broker) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post_many([b"1", b"2"])
        (await queue.receive(timeout=30)).confirm()
        await queue.close()
        assert queue.stats().unconfirmed == 0
        again = await session.open_queue(URI, read=True, write=True)
        await again.post(b"3")
        stats = session.stats()
        assert (stats.posted, stats.acknowledged, stats.received, stats.confirmed) == (3, 3, 2, 1)
        assert stats.unconfirmed == 0
        assert again.stats().posted == 1


async def test_discarded_messages_count_as_received_and_confirmed(broker: bmq.broker.Broker) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        async with queue.subscribe("kind == 1", discard_unmatched=True) as ones:
            await queue.post_many([bmq.PutMessage(b"x", {"kind": n % 2}) for n in range(4)])
            await eventually(lambda: ones.buffered == 2 and queue.stats().confirmed == 2)
            assert ones.stats().received == 2
            assert (queue.stats().received, queue.stats().unconfirmed) == (4, 2)


async def test_redelivered_messages_are_counted(broker: bmq.broker.Broker) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post_many([b"1", b"2"])
        await queue.receive(timeout=30)
        await queue.close()
        again = await session.open_queue(URI, read=True)
        message = await again.receive(timeout=30)
        assert message.redelivered
        await eventually(lambda: again.stats().received == 2)
        assert again.stats().redelivered == 2
        assert session.stats().redelivered == 2


async def test_broadcast_queue_has_no_unconfirmed_messages(broker: bmq.broker.Broker) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(BROADCAST, read=True, write=True, default_subscription=True)
        await queue.post(b"1")
        message = await queue.receive(timeout=30)
        assert (queue.stats().received, queue.stats().unconfirmed) == (1, 0)
        message.confirm()
        assert (queue.stats().confirmed, queue.stats().unconfirmed) == (0, 0)
