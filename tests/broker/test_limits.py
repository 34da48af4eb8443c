# SPDX-License-Identifier: Apache-2.0
"""Quotas, TTL, deduplication, and limits of open queues."""

from __future__ import annotations

from typing import Any

from bmq.broker.domain_config import Limits
from bmq.wire.control import OpenQueueResponse, Status
from tests.broker.core import BROADCAST, FANOUT, PRIORITY, Core, CoreClient, domain
from tests.sweeps import sweep

TTL = "bmq://bmq.test.ttl.priority/q"
SMALL = "bmq://bmq.test.small.priority/q"


def producer(core: Core, uri: str = PRIORITY) -> CoreClient:
    peer = core.client()
    peer.open(uri, write=True)
    return peer


def statuses(peer: CoreClient) -> list[int]:
    return [ack.status for ack in peer.acks]


# ---- quotas


def test_messages_are_checked_before_bytes_and_the_queue_before_the_domain() -> None:
    core = Core(domain(queue_limits=Limits(0, 0), domain_limits=Limits(100, 0)))
    sender = producer(core)
    sender.put(b"0", b"1")
    assert statuses(sender) == [0, 1]
    other = producer(core, f"{PRIORITY}2")
    other.put(b"0")
    assert statuses(other) == [2], "the domain has one byte already"


# ---- TTL


def test_messages_expire_after_more_than_the_whole_seconds_of_the_ttl() -> None:
    core = Core()
    sender, reader = producer(core, TTL), core.client()
    sender.put(b"m")
    core.advance(2.9)
    queue = core.node.queues[TTL]
    assert len(queue.store) == 1
    core.advance(0.2)
    assert len(queue.store) == 0
    reader.consume(TTL)
    assert reader.payloads == []


def test_expiry_keeps_the_places_of_applications() -> None:
    core = Core(domain("bmq.test.mem.fanout", message_ttl=10))
    sender, foo, bar = producer(core, FANOUT), core.client(), core.client()
    foo.consume(f"{FANOUT}?id=foo")
    sender.put(b"old")
    core.advance(9)
    sender.put(b"young")
    core.advance(3)
    bar.consume(f"{FANOUT}?id=bar")
    assert bar.payloads == [b"young"]
    assert foo.payloads == [b"old", b"young"]


# ---- deduplication


def test_the_window_counts_from_the_arrival() -> None:
    core = Core(domain(deduplication_time_ms=10_000))
    sender, reader = producer(core), core.client()
    reader.consume(PRIORITY)
    guids = sender.put(b"m")
    core.advance(9)
    reader.confirm(*guids)
    sender.put(b"m", guids=guids)
    assert len(reader.pushes) == 1
    core.advance(3)
    sender.put(b"m", guids=guids)
    assert len(reader.pushes) == 1
    assert statuses(sender) == [0, 0, 0]


def test_the_window_follows_the_new_configuration_of_the_domain() -> None:
    core = Core()
    sender, reader = producer(core), core.client()
    reader.consume(PRIORITY)
    core.source.configured["bmq.test.mem.priority"] = domain(deduplication_time_ms=2_000_000_000)
    assert '"success"' in core.node.admin("DOMAINS RECONFIGURE bmq.test.mem.priority", core.now)
    guids = sender.put(b"m")
    reader.confirm(*guids)
    core.advance(1_999_000)
    sender.put(b"m", guids=guids)
    assert len(reader.pushes) == 1
    core.advance(2000)
    sender.put(b"m", guids=guids)
    assert len(reader.pushes) == 1


def test_without_a_window_only_stored_messages_count() -> None:
    core = Core(domain(deduplication_time_ms=0))
    sender, reader = producer(core), core.client()
    reader.consume(PRIORITY)
    guids = sender.put(b"m")
    sender.put(b"m", guids=guids)
    assert len(reader.pushes) == 1
    reader.confirm(*guids)
    sender.put(b"m", guids=guids)
    assert len(reader.pushes) == 1


def test_a_stored_message_is_known_beyond_the_window() -> None:
    core = Core(domain(deduplication_time_ms=1000, message_ttl=1000))
    sender = producer(core)
    guids = sender.put(b"m")
    core.advance(100)
    sender.put(b"m", guids=guids)
    store = core.node.queues[PRIORITY].store
    assert len(store) == 1
    reader = core.client()
    reader.consume(PRIORITY)
    reader.confirm(*guids)
    assert guids[0] not in store, "its window was over long ago"


@sweep(
    "uri, guids, expected",
    [
        (PRIORITY, "aa", ["a0", "a0"]),
        (PRIORITY, "aaaaa", ["a0"] * 5),
        (PRIORITY, "abab", ["a0", "a0", "b0", "b0"]),
        (FANOUT, "aa", ["a0", "a0"]),
        (BROADCAST, "aa", ["a0", "a0"]),
        ("bmq://bmq.test.mem.priority/never-opened", "aa", ["a5", "a5"]),
        (SMALL, "abcdefghijkla", [*(f"{each}0" for each in "aabcdefghijk"), "l1"]),
        (SMALL, "abcdefghijkll", [*(f"{each}0" for each in "abcdefghijk"), "l1", "l1"]),
    ],
)
def test_each_post_of_a_guid_is_answered(uri: str, guids: str, expected: list[str]) -> None:
    core = Core()
    sender = core.client()
    if "never" not in uri:
        sender.open(uri, write=True)
    sender.put(*[b"m"] * len(guids), guids=[each.encode() * 16 for each in guids])
    acks = [f"{ack.guid[:1].decode()}{ack.status}" for ack in sender.acks]
    assert sorted(acks) == sorted(expected)


def test_queue_is_checked_after_changes_and_on_expiry() -> None:
    core = Core()
    sender, reader = producer(core), core.client()
    reader.consume(PRIORITY)
    assert core.node.deadlines.first is None
    guids = sender.put(b"m")
    assert core.node.deadlines.first == core.now + 1
    core.advance(1)
    assert core.node.deadlines.first == core.now + 300, "the message expires"
    reader.confirm(*guids)
    assert core.node.deadlines.first == core.now + 1
    core.advance(1)
    assert core.node.deadlines.first == core.now + 300, "its GUID is forgotten"
    core.advance(300)
    assert core.node.deadlines.first is None
    sender.disconnect()
    reader.disconnect()
    core.advance(1)
    assert core.node.deadlines.first == core.now + 1799, "the queue is forgotten"
    core.advance(1799)
    assert not core.node.queues
    assert core.node.deadlines.first is None


def test_shorter_ttl_applies_to_stored_messages() -> None:
    core = Core()
    producer(core).put(b"m")
    core.advance(10)
    core.node.configure(core.node.domains["bmq.test.mem.priority"], domain(message_ttl=5))
    core.node.deliver(core.now)
    core.advance(1)
    assert len(core.node.queues[PRIORITY].store) == 0


def test_purging_the_queue_forgets_guids() -> None:
    core = Core()
    sender = producer(core)
    guids = sender.put(b"m")
    core.node.queues[PRIORITY].purge()
    sender.put(b"m", guids=guids)
    assert len(core.node.queues[PRIORITY].store) == 1


# ---- who may open


def refused(peer: CoreClient, uri: str, **options: Any) -> Status:
    answer = peer.open(uri, **options)
    assert isinstance(answer, Status)
    return answer


def test_max_consumers_limits_each_application() -> None:
    core = Core(domain("bmq.test.mem.fanout", max_consumers=1))
    core.client().consume(f"{FANOUT}?id=foo")
    core.client().consume(f"{FANOUT}?id=bar")
    answer = refused(core.client(), f"{FANOUT}?id=foo", read=True)
    assert answer.message == "Client would exceed the limit of 1 consumer(s)"


def test_unopened_empty_queues_are_forgotten_after_half_an_hour() -> None:
    core = Core(domain(max_queues=1))
    producer(core).disconnect()
    core.advance(1700)
    refused(core.client(), f"{PRIORITY}2", write=True)
    core.advance(102)
    assert isinstance(core.client().open(f"{PRIORITY}2", write=True), OpenQueueResponse)


def test_quotas_of_a_domain_follow_its_new_configuration() -> None:
    """The queue's own limits stay unchanged: only the domain's limits change."""
    core = Core(domain(queue_limits=Limits(100, 10**6), domain_limits=Limits(100, 10**6)))
    sender = producer(core)
    sender.open(f"{PRIORITY}2", 1, write=True)
    sender.put(b"m")
    sender.put(b"m", q_id=1)
    name = "bmq.test.mem.priority"
    core.source.configured[name] = domain(queue_limits=Limits(100, 10**6), domain_limits=Limits(1, 10**6))
    assert '"success"' in core.node.admin(f"DOMAINS RECONFIGURE {name}", core.now)
    sender.put(b"m")
    sender.put(b"m", q_id=1)
    assert [ack.status for ack in sender.acks] == [0, 0, 1, 1]
    core.source.configured[name] = domain(queue_limits=Limits(100, 10**6), domain_limits=Limits(3, 10**6))
    assert '"success"' in core.node.admin(f"DOMAINS RECONFIGURE {name}", core.now)
    sender.put(b"m", b"m", b"m")
    assert [ack.status for ack in sender.acks] == [0, 0, 1]
