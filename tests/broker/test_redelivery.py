# SPDX-License-Identifier: Apache-2.0
"""Messages whose consumer disappears: redelivery, delivery attempts, suspected poison."""

from __future__ import annotations

from bmq.wire.constants import PushFlags
from tests.broker.core import FANOUT, PRIORITY, Core, CoreClient, domain, subscription

OUT_OF_ORDER = PushFlags.OUT_OF_ORDER
RDA = "bmq://bmq.test.rda.priority/q"


def producer(core: Core, uri: str = PRIORITY) -> CoreClient:
    peer = core.client()
    peer.open(uri, write=True)
    return peer


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
