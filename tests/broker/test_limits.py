# SPDX-License-Identifier: Apache-2.0
"""Quotas, TTL, deduplication, and limits of open queues."""

from __future__ import annotations

from bmq.broker.domain_config import Limits
from bmq.wire.control import OpenQueueResponse, Status
from tests.broker.core import BROADCAST, FANOUT, PRIORITY, Core, domain
from tests.sweeps import sweep

NAME = "bmq.test.mem.priority"
TTL = "bmq://bmq.test.ttl.priority/q"
SMALL = "bmq://bmq.test.small.priority/q"


def reconfigure(core: Core, **changes: object) -> None:
    core.source.configured[NAME] = domain(**changes)
    assert '"success"' in core.node.admin(f"DOMAINS RECONFIGURE {NAME}", core.now)


def test_messages_are_checked_before_bytes_and_the_queue_before_the_domain() -> None:
    core = Core(domain(queue_limits=Limits(0, 0), domain_limits=Limits(100, 0)))
    sender, other = core.producer(), core.producer(f"{PRIORITY}2")
    sender.put(b"0", b"1")
    assert sender.statuses == [0, 1]
    other.put(b"0")
    assert other.statuses == [2], "the domain has one byte already"


def test_quotas_of_a_domain_follow_its_new_configuration() -> None:
    core = Core(domain(domain_limits=Limits(100, 10**6)))
    sender = core.producer()
    sender.open(f"{PRIORITY}2", 1, write=True)
    for most, statuses in ((100, [0, 0]), (1, [1, 1]), (2, [0, 1])):
        reconfigure(core, domain_limits=Limits(most, 10**6))
        for q_id in (0, 1):
            sender.put(b"m", q_id=q_id)
        assert sender.statuses == statuses


def test_messages_expire_after_more_than_the_whole_seconds_of_the_ttl() -> None:
    core = Core()
    core.producer(TTL).put(b"m")
    core.advance(2.9)
    assert core.stored(TTL) == 1
    core.advance(0.2)
    assert core.stored(TTL) == 0
    assert core.consumer(TTL).payloads == []


def test_expiry_keeps_the_places_of_applications() -> None:
    core = Core(domain("bmq.test.mem.fanout", message_ttl=10))
    sender, foo = core.producer(FANOUT), core.consumer(f"{FANOUT}?id=foo")
    sender.put(b"old")
    core.advance(9)
    sender.put(b"young")
    core.advance(3)
    assert core.consumer(f"{FANOUT}?id=bar").payloads == [b"young"]
    assert foo.payloads == [b"old", b"young"]


def test_shorter_ttl_applies_to_stored_messages() -> None:
    core = Core()
    core.producer().put(b"m")
    core.advance(10)
    reconfigure(core, message_ttl=5)
    core.advance(1)
    assert core.stored() == 0


@sweep(
    "window, wait, again, known",
    [
        (10_000, 9, 0, True),
        (10_000, 9, 3, False),  # from the arrival, not from the confirmation
        (1000, 100, 0, False),  # confirmed after its window
        (0, 0, 0, False),
    ],
)
def test_a_guid_is_known_for_the_window_from_its_arrival(
    window: int, wait: float, again: float, known: bool
) -> None:
    """While the message is stored, its GUID is known anyhow."""
    core = Core(domain(deduplication_time_ms=window, message_ttl=1000))
    sender, reader = core.producer(), core.consumer()
    guids = sender.put(b"m")
    core.advance(wait)
    sender.put(b"m", guids=guids)
    reader.confirm(*guids)
    assert len(reader.pushes) == 1
    core.advance(again)
    sender.put(b"m", guids=guids)
    assert len(reader.pushes) == (not known)
    assert sender.statuses == [0, 0, 0]


def test_the_window_follows_the_new_configuration_of_the_domain() -> None:
    core = Core()
    sender, reader = core.producer(), core.consumer()
    reconfigure(core, deduplication_time_ms=2_000_000_000)
    guids = sender.put(b"m")
    reader.confirm(*guids)
    assert len(reader.pushes) == 1
    for wait, delivered in ((1_999_000, 0), (2000, 1)):
        core.advance(wait)
        sender.put(b"m", guids=guids)
        assert len(reader.pushes) == delivered


def test_of_too_many_guids_the_oldest_are_forgotten() -> None:
    core = Core(history_limit=3)
    sender, reader = core.producer(), core.consumer()
    guids = []
    for number in range(6):
        guids += sender.put(b"%d" % number)
        core.advance(0.7)
    reader.confirm(*reversed(guids))  # the arrival counts
    core.advance(1)
    assert reader.payloads
    sender.put(*[b"%d" % number for number in range(6)], guids=guids)
    assert reader.payloads == [b"0", b"1", b"2"]


def test_purging_the_queue_forgets_guids() -> None:
    core = Core()
    sender = core.producer()
    guids = sender.put(b"m")
    core.node.queues[PRIORITY].purge()
    sender.put(b"m", guids=guids)
    assert core.stored() == 1


@sweep(
    "uri, guids, expected",
    [
        (PRIORITY, "abab", "a0 a0 b0 b0"),
        (FANOUT, "aa", "a0 a0"),
        (BROADCAST, "aa", "a0 a0"),
        (SMALL, "abcdefghijkla", "a0 a0 b0 c0 d0 e0 f0 g0 h0 i0 j0 k0 l1"),
        (SMALL, "abcdefghijkll", "a0 b0 c0 d0 e0 f0 g0 h0 i0 j0 k0 l1 l1"),
    ],
)
def test_each_post_of_a_guid_is_answered(uri: str, guids: str, expected: str) -> None:
    sender = Core().producer(uri)
    sender.put(*[b"m"] * len(guids), guids=[each.encode() * 16 for each in guids])
    assert " ".join(sorted(f"{ack.guid[:1].decode()}{ack.status}" for ack in sender.acks)) == expected


def test_max_consumers_limits_each_application() -> None:
    core = Core(domain("bmq.test.mem.fanout", max_consumers=1))
    core.consumer(f"{FANOUT}?id=foo")
    core.consumer(f"{FANOUT}?id=bar")
    answer = core.client().open(f"{FANOUT}?id=foo", read=True)
    assert isinstance(answer, Status)
    assert answer.message == "Client would exceed the limit of 1 consumer(s)"


def test_unopened_empty_queues_are_forgotten_after_half_an_hour() -> None:
    core = Core(domain(max_queues=1))
    core.producer().disconnect()
    core.advance(1700)
    assert isinstance(core.client().open(f"{PRIORITY}2", write=True), Status)
    core.advance(102)
    assert isinstance(core.client().open(f"{PRIORITY}2", write=True), OpenQueueResponse)


def test_a_stopping_broker_refuses() -> None:
    core = Core()
    peer = core.client()
    core.node.stopping = True
    answer = peer.open(PRIORITY, write=True)
    assert isinstance(answer, Status)
    assert (answer.code, answer.message) == (-11, "Node is stopping")
