# SPDX-License-Identifier: Apache-2.0
"""Messages whose consumer disappears: redelivery, delivery attempts."""

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
    """After two of three attempts, three more lost connections are possible."""
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
