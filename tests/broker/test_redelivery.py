# SPDX-License-Identifier: Apache-2.0
"""Messages whose consumer disappears: redelivery, delivery attempts, suspected poison."""

from __future__ import annotations

import pytest

from bmq.wire.constants import PushFlags
from tests.broker.core import FANOUT, PRIORITY, Core, CoreClient, domain, subscription
from tests.transcripts import probes

OUT_OF_ORDER = PushFlags.OUT_OF_ORDER
RDA = "bmq://bmq.test.rda.priority/q"


def producer(core: Core, uri: str = PRIORITY) -> CoreClient:
    peer = core.client()
    peer.open(uri, write=True)
    return peer


@pytest.mark.parametrize("way", ["disconnect", "crash", "close", "close without deconfigure"])
def test_unconfirmed_messages_go_to_the_next_consumer_in_order(way: str) -> None:
    core = Core()
    first, second = core.client(), core.client()
    first.consume(PRIORITY, messages=3)
    guids = producer(core).put(b"0", b"1", b"2", b"3")
    assert first.payloads == [b"0", b"1", b"2"]
    second.consume(PRIORITY)
    assert second.payloads == [b"3"]
    match way:
        case "disconnect":
            first.disconnect()
        case "crash":
            first.crash()
        case "close":
            first.configure()
            first.close(PRIORITY, read=True)
        case _:
            first.close(PRIORITY, read=True)
    pushes = second.pushes
    assert [push.data for push in pushes] == [b"0", b"1", b"2"]
    assert [push.guid for push in pushes] == guids[:3]
    assert all(push.flags & OUT_OF_ORDER for push in pushes)


def test_unclaimed_redelivery_blocks_the_queue() -> None:
    """Measured: new messages wait until a consumer takes the redelivered one."""
    measured = probes()["redelivered_unmatched_stalls"]
    core = Core()
    one, two = core.client(), core.client()
    for peer, text in ((one, "x == 1"), (two, "x == 2")):
        peer.open(PRIORITY, read=True)
        peer.configure(subscription(1, text))
    sender = producer(core)
    sender.put(b"one", properties={"x": 1})
    assert one.payloads == [b"one"]
    one.disconnect()
    sender.put(b"two", properties={"x": 2})
    assert [p.decode() for p in two.payloads] == measured["after the x==1 consumer left, x==2 gets"] == []
    three = core.client()
    three.open(PRIORITY, read=True)
    three.configure(subscription(1, "x == 1"))
    assert [p.decode() for p in three.payloads] == measured["a new x==1 consumer gets"] == ["one"]
    assert [p.decode() for p in two.payloads] == measured["then x==2 has"] == ["two"]


def test_the_stall_ends_when_the_message_expires_or_is_purged() -> None:
    for end in ("expire", "purge"):
        core = Core(domain(message_ttl=10))
        one, two = core.client(), core.client()
        for peer, text in ((one, "x == 1"), (two, "x == 2")):
            peer.open(PRIORITY, read=True)
            peer.configure(subscription(1, text))
        sender = producer(core)
        sender.put(b"one", properties={"x": 1})
        one.crash()
        core.advance(8)
        sender.put(b"two", properties={"x": 2})
        assert two.payloads == []
        if end == "expire":
            core.advance(3)
            assert two.payloads == [b"two"]
        else:
            core.node.queues[PRIORITY].purge()
            sender.put(b"three", properties={"x": 2})
            assert two.payloads == [b"three"]


def test_only_lost_connections_use_up_attempts() -> None:
    """With 3 attempts, measured: delivered three times, then gone; graceful closes do not count."""
    measured = probes()["crash_redelivery"]
    for graceful, deliveries in ((False, 3), (True, 5)):
        core = Core()
        producer(core, RDA).put(b"poison")
        seen = []
        for _ in range(5):
            peer = core.client()
            peer.consume(RDA)
            seen.append([(push.data.decode(), push.flags) for push in peer.pushes])
            if graceful:
                peer.disconnect()
            else:
                peer.crash()
        assert sum(map(len, seen)) == deliveries
        if not graceful:
            assert seen == [[(data, flags) for data, flags, _ in each] for each in measured]
            assert len(core.node.queues[RDA].store) == 0


def test_the_last_attempt_removes_the_message_for_that_application_only() -> None:
    core = Core(domain("bmq.test.mem.fanout", max_delivery_attempts=1))
    foo, bar = core.client(), core.client()
    foo.consume(f"{FANOUT}?id=foo")
    bar.consume(f"{FANOUT}?id=bar")
    producer(core, FANOUT).put(b"m")
    foo.crash()
    again = core.client()
    again.consume(f"{FANOUT}?id=foo")
    assert again.payloads == []
    assert bar.payloads == [b"m"]
    assert len(core.node.queues[FANOUT].store) == 1


def test_suspects_come_one_at_a_time_to_one_consumer() -> None:
    """A fresh consumer gets the first at once and the next after an interval: 3 s with two attempts left."""
    core = Core(domain("bmq.test.rda.priority", message_ttl=300))
    sender = producer(core, RDA)
    first = core.client()
    first.consume(RDA)
    sender.put(b"0", b"1", b"2")
    first.crash()
    second = core.client()
    second.consume(RDA)
    sender.put(b"new")
    assert second.payloads == [b"0"]
    core.advance(2.9)
    assert second.payloads == []
    core.advance(0.2)
    assert second.payloads == [b"1"]
    core.advance(3.1)
    assert second.payloads == [b"2", b"new"]


def test_confirming_the_suspect_ends_the_wait() -> None:
    core = Core()
    sender = producer(core, RDA)
    first = core.client()
    first.consume(RDA)
    guids = sender.put(b"0", b"1")
    first.crash()
    second = core.client()
    second.consume(RDA)
    assert second.payloads == [b"0"]
    second.confirm(guids[0])
    assert second.payloads == [b"1"]


def test_the_interval_is_shorter_with_more_attempts_left() -> None:
    """Above 4 attempts left no delay, above 2 one second, else three."""
    for attempts, interval in ((6, 0.0), (5, 1.0), (4, 1.0), (3, 3.0)):
        core = Core(domain("bmq.test.rda.priority", max_delivery_attempts=attempts))
        first, second = core.client(), core.client()
        first.consume(RDA)
        producer(core, RDA).put(b"0", b"1")
        first.crash()
        second.consume(RDA)
        if not interval:
            assert second.payloads == [b"0", b"1"]
            continue
        assert second.payloads == [b"0"]
        core.advance(interval - 0.1)
        assert second.payloads == []
        core.advance(0.2)
        assert second.payloads == [b"1"]


def test_any_change_of_the_consumers_ends_the_wait() -> None:
    """Seen in a real broker: a reconfigure forgets when the last suspect was sent."""
    core = Core()
    first, second = core.client(), core.client()
    first.consume(RDA)
    producer(core, RDA).put(b"0", b"1")
    first.crash()
    second.consume(RDA)
    assert second.payloads == [b"0"]
    second.configure(subscription(9))
    assert second.payloads == [b"1"]


def test_message_is_not_sent_twice_to_the_same_consumer() -> None:
    core = Core()
    first, second = core.client(), core.client()
    first.consume(PRIORITY)
    producer(core).put(b"m")
    second.consume(PRIORITY)
    first.configure(subscription(9))
    assert first.payloads == [b"m"]


def test_a_stream_opened_twice_needs_two_closes() -> None:
    core = Core()
    peer, other = core.client(), core.client()
    peer.open(PRIORITY, read=True)
    peer.open(PRIORITY, read=True)
    peer.configure(subscription(1))
    producer(core).put(b"m")
    other.consume(PRIORITY)
    peer.close(PRIORITY, read=True, final=False)
    assert other.payloads == []
    peer.close(PRIORITY, read=True, final=False)
    assert other.payloads == [b"m"]


def test_after_a_restart_a_message_has_all_its_attempts_again() -> None:
    """After two of three attempts, three more lost connections are possible, without pauses between them."""
    core = Core()
    producer(core, RDA).put(b"suspect")
    for _ in range(2):
        peer = core.client()
        peer.consume(RDA)
        assert peer.payloads == [b"suspect"]
        peer.crash()
    core.node.recover()
    for _ in range(3):
        peer = core.client()
        peer.consume(RDA)
        assert peer.payloads == [b"suspect"]
        peer.crash()
    assert len(core.node.queues[RDA].store) == 0
