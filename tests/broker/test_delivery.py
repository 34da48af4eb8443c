# SPDX-License-Identifier: Apache-2.0
"""Delivery beyond the cases of conformance: limits, messages put aside, turns, redelivery, suspects."""

from __future__ import annotations

import pytest

from bmq.broker.domain_config import AppSubscription
from bmq.wire.control import (
    ConfigureQueueStream,
    ConfigureQueueStreamResponse,
    ConsumerInfo,
    QueueStreamParameters,
    SubQueueIdInfo,
    Subscription,
)
from bmq.wire.push import decode_pushes
from tests.broker.core import BROADCAST, FANOUT, PRIORITY, Core, CoreClient, domain, subscription
from tests.sweeps import sweep

RDA = "bmq://bmq.test.rda.priority/q"


def pair(**limits: int) -> tuple[Core, CoreClient, CoreClient]:
    core = Core()
    return core, core.consumer(**limits), core.producer()


@pytest.mark.parametrize(("size", "more"), [(120, 0), (121, 1)])
def test_new_byte_limit_counts_unconfirmed_messages(size: int, more: int) -> None:
    _, reader, writer = pair(size=1000, messages=2)
    writer.put(*[b"x" * 60] * 4)
    assert len(reader.pushes) == 2
    reader.configure(subscription(1, size=size))
    assert len(reader.pushes) == more


def test_bulk_output_is_divided_into_events_of_a_megabyte() -> None:
    _, reader, writer = pair()
    payloads = [bytes([number]) * 100_000 for number in range(25)]
    writer.put(*payloads)
    events = reader.receive()
    assert [len(event.data) // 100_000 for event in events] == [11, 11, 3]
    arrived = [push.data for event in events for push in decode_pushes(event.data, event.body)]
    assert [data[:100_000] for data in arrived] == payloads


def test_a_client_that_does_not_read_gets_no_more_than_the_high_water_mark() -> None:
    core = Core()
    slow = core.connect(high_water=100_000)
    slow.negotiate()
    slow.consume(PRIORITY, messages=10_000, size=10**9)
    core.producer().put(*[b"x" * 1000] * 300)
    for _ in range(2):
        assert 90 < len(slow.pushes) < 110
        slow.output.accept(True)  # what the transport does when the client has read
        core.node.deliver(core.now)


def test_delivery_resumes_when_both_counters_have_fallen() -> None:
    _, reader, writer = pair(messages=10, size=100)
    guids = writer.put(b"x" * 90, b"x" * 10, b"z")
    assert len(reader.pushes) == 2
    reader.confirm(guids[1])
    assert reader.pushes == [], "90 bytes left: above 80 % of 100"
    reader.confirm(guids[0])
    assert len(reader.pushes) == 1


def test_any_change_of_consumers_resumes_delivery_below_the_limit() -> None:
    """Above 80 % but below the limit: a configure of somebody else makes room (seen in a real broker)."""
    core, reader, writer = pair(messages=10, priority=1)
    guids = writer.put(*[b"m"] * 20)
    assert len(reader.pushes) == 10
    reader.confirm(guids[0])
    assert len(reader.pushes) == 0
    core.consumer(priority=0)
    assert len(reader.pushes) == 1


def test_a_message_put_aside_goes_before_newer_ones_to_each_group_that_was_full() -> None:
    core = Core()
    sender, consumer = core.producer(), core.client()
    consumer.open(PRIORITY, read=True)
    consumer.configure(
        subscription(1, "x == 9", priority=3),
        subscription(2, "x == 1", priority=2, messages=1),
        subscription(3, "", priority=1, messages=0),
    )
    guids = [guid for number in range(5) for guid in sender.put(b"%d" % number, properties={"x": 1})]
    for number in range(5):
        assert consumer.payloads == [b"%d" % number]
        consumer.confirm(guids[number])


def test_equal_means_byte_equal_and_evaluation_is_greedy() -> None:
    """Two of `x == 1` share; `x==1` is another expression and gets nothing, as measured."""
    core = Core()
    peers = [core.consumer(text=text) for text in ("x == 1", "x == 1", "x==1")]
    core.producer().put(*[b"m"] * 12, properties={"x": 1})
    assert [len(peer.payloads) for peer in peers] == [6, 6, 0]


def test_a_broadcast_message_comes_once_to_a_consumer_with_two_subscriptions() -> None:
    core = Core()
    reader = core.client()
    reader.open(BROADCAST, read=True)
    reader.configure(subscription(1, "x == 1"), subscription(2, "x > 0"))
    core.producer(BROADCAST).put(b"m", properties={"x": 1})
    assert reader.payloads == [b"m"]


def test_only_the_consumers_of_the_highest_priority_count_for_turns() -> None:
    """One subscription with two consumers of priority 5 and seven of priority 1: two messages a turn."""
    core = Core()
    one, limits = core.client(), {"max_unconfirmed_messages": 1000, "max_unconfirmed_bytes": 10**6}
    one.open(PRIORITY, read=True)
    consumers = (
        ConsumerInfo(**limits, consumer_priority=1, consumer_priority_count=7),
        ConsumerInfo(**limits, consumer_priority=5, consumer_priority_count=2),
    )
    one.configure(Subscription(s_id=1, consumers=consumers))
    two = core.consumer(priority=5)
    core.producer().put(*[b"m"] * 9)
    assert (len(one.pushes), len(two.pushes)) == (6, 3)


def test_the_older_configure_request_makes_one_subscription_numbered_like_the_sub_queue() -> None:
    core = Core()
    peer = core.client()
    peer.open(f"{FANOUT}?id=foo", read=True, sub_id=3)
    request = ConfigureQueueStream(
        q_id=0,
        stream_parameters=QueueStreamParameters(
            sub_id_info=SubQueueIdInfo(sub_id=3, app_id="foo"),
            max_unconfirmed_messages=10,
            max_unconfirmed_bytes=1000,
            consumer_priority=0,
            consumer_priority_count=1,
        ),
    )
    assert peer.ask(request) == ConfigureQueueStreamResponse(request=request)
    core.producer(FANOUT).put(b"m")
    assert [push.sub_ids for push in peer.pushes] == [(3,)]


@pytest.mark.statement("1.25")
def test_the_last_subscription_of_an_application_counts() -> None:
    entries = (AppSubscription("foo", "x == 1"), AppSubscription("foo", "x == 2"))
    core = Core(domain("bmq.test.mem.fanout", subscriptions=entries))
    sender, reader = core.producer(FANOUT), core.consumer(f"{FANOUT}?id=foo")
    for x in (1, 2):
        sender.put(b"%d" % x, properties={"x": x})
    assert reader.payloads == [b"2"]


def suspected(count: int, **changes: int) -> tuple[Core, CoreClient, list[bytes]]:
    """Messages of a lost consumer, and the next consumer, which has the first."""
    core = Core(domain("bmq.test.rda.priority", message_ttl=300, **changes))
    sender, lost = core.producer(RDA), core.consumer(RDA)
    guids = sender.put(*[b"%d" % number for number in range(count)])
    lost.crash()
    reader = core.consumer(RDA)
    sender.put(b"new")
    return core, reader, guids


def test_the_stall_ends_when_the_message_expires_or_is_purged() -> None:
    for end in ("expire", "purge"):
        core = Core(domain(message_ttl=10))
        one, two = core.consumer(text="x == 1"), core.consumer(text="x == 2")
        sender = core.producer()
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
    foo, bar = core.consumer(f"{FANOUT}?id=foo"), core.consumer(f"{FANOUT}?id=bar")
    core.producer(FANOUT).put(b"m")
    foo.crash()
    assert core.consumer(f"{FANOUT}?id=foo").payloads == []
    assert bar.payloads == [b"m"]
    assert core.stored(FANOUT) == 1


@sweep("attempts, interval", [(6, 0.0), (5, 1.0), (4, 1.0), (3, 3.0)])
def test_suspects_come_one_at_a_time_to_one_consumer(attempts: int, interval: float) -> None:
    """The fewer attempts are left, the later; new messages wait."""
    core, reader, _ = suspected(3, max_delivery_attempts=attempts)
    if not interval:
        assert reader.payloads == [b"0", b"1", b"2", b"new"]
        return
    assert reader.payloads == [b"0"]
    core.advance(interval - 0.1)
    assert reader.payloads == []
    core.advance(0.2)
    assert reader.payloads == [b"1"]
    core.advance(interval + 0.1)
    assert reader.payloads == [b"2", b"new"]


def test_a_confirmation_or_a_change_of_the_consumers_ends_the_wait() -> None:
    """A real broker forgets at a change when the last suspect was sent."""
    core, reader, guids = suspected(6)
    assert reader.payloads == [b"0"]
    reader.confirm(guids[0])
    assert reader.payloads == [b"1"]
    reader.configure(subscription(9))
    assert reader.payloads == [b"2"]
    other = core.consumer(RDA)
    assert (reader.payloads, other.payloads) == ([b"3"], [b"4"]), "each may have one"


def test_a_stream_opened_twice_needs_two_closes() -> None:
    core = Core()
    peer = core.consumer()
    peer.open(PRIORITY, read=True)
    core.producer().put(b"m")
    other = core.consumer()
    peer.close(PRIORITY, read=True, final=False)
    assert other.payloads == []
    peer.close(PRIORITY, read=True, final=False)
    assert other.payloads == [b"m"]


def test_a_final_close_releases_every_application() -> None:
    core = Core()
    peer = core.client()
    for number, app in enumerate(("foo", "bar"), 1):
        peer.open(f"{FANOUT}?id={app}", read=True, sub_id=number)
        peer.configure(subscription(number), app_id=app)
    peer.open(FANOUT, write=True)
    peer.put(b"m")
    peer.close(FANOUT, write=True)
    assert core.consumer(f"{FANOUT}?id=bar").payloads == [b"m"]
    assert core.consumer(f"{FANOUT}?id=foo").payloads == [b"m"]


def test_the_end_of_a_broker_is_no_failed_delivery() -> None:
    core = Core(domain("bmq.test.rda.priority", max_delivery_attempts=1))
    core.producer(RDA).put(b"m")
    core.consumer(RDA).session.shut_down(core.now)
    assert core.stored(RDA) == 1


def test_after_a_restart_a_message_has_all_its_attempts_again() -> None:
    core = Core()
    core.producer(RDA).put(b"suspect")
    for attempt in range(5):
        if attempt == 2:
            core.node.recover()
        peer = core.consumer(RDA)
        assert peer.payloads == [b"suspect"]
        peer.crash()
    assert core.stored(RDA) == 0
