# SPDX-License-Identifier: Apache-2.0
"""Distribution: priorities, round robin, subscriptions, applications. Values from broker semantics 2.2."""

from __future__ import annotations

from bmq.wire.constants import PushFlags
from bmq.wire.control import (
    ConfigureQueueStream,
    ConfigureQueueStreamResponse,
    ConsumerInfo,
    QueueStreamParameters,
    SubQueueIdInfo,
    Subscription,
)
from tests.broker.core import FANOUT, PRIORITY, Core, CoreClient, subscription

OUT_OF_ORDER = PushFlags.OUT_OF_ORDER


def producer(core: Core, uri: str = PRIORITY) -> CoreClient:
    peer = core.client()
    peer.open(uri, write=True)
    return peer


def numbers(peer: CoreClient) -> list[int]:
    return [int(data) for data in peer.payloads]


def texts(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


def test_a_message_put_aside_goes_before_newer_ones_to_each_group_that_was_full() -> None:
    """The third message finds the first group full already, and fills another one."""
    core = Core()
    sender, consumer = producer(core), core.client()
    consumer.open(PRIORITY, read=True)
    consumer.configure(
        subscription(1, "x == 9", priority=3),
        subscription(2, "x == 1", priority=2, messages=1),
        subscription(3, "", priority=1, messages=0),
    )
    guids = [guid for number in range(5) for guid in sender.put(b"%d" % number, properties={"x": 1})]
    for number in range(5):
        assert numbers(consumer) == [number]
        consumer.confirm(guids[number])


def test_equal_means_byte_equal_and_evaluation_is_greedy() -> None:
    """Two of `x == 1` share; `x==1` is another expression and gets nothing (one of the measured runs)."""
    core = Core()
    peers = [core.client() for _ in range(3)]
    for peer, text in zip(peers, ("x == 1", "x == 1", "x==1"), strict=True):
        peer.open(PRIORITY, read=True)
        peer.configure(subscription(1, text))
    sender = producer(core)
    for number in range(12):
        sender.put(b"%d" % number, properties={"x": 1})
    assert [len(peer.payloads) for peer in peers] == [6, 6, 0]


def test_late_application_receives_all_messages_out_of_order() -> None:
    """Recorded in official-fanout: the queue had moved on with the other applications."""
    core = Core()
    sender = producer(core, FANOUT)
    first, late = core.client(), core.client()
    first.consume(f"{FANOUT}?id=foo")
    sender.put(*texts(0, 1, 2))
    assert numbers(first) == [0, 1, 2]
    late.consume(f"{FANOUT}?id=baz")
    pushes = late.pushes
    assert [int(push.data) for push in pushes] == [0, 1, 2]
    assert all(push.flags & OUT_OF_ORDER for push in pushes)


def test_the_older_configure_request_makes_one_subscription_numbered_like_the_sub_queue() -> None:
    core = Core()
    peer = core.client()
    peer.open(PRIORITY, read=True)
    request = ConfigureQueueStream(
        q_id=0,
        stream_parameters=QueueStreamParameters(
            max_unconfirmed_messages=10,
            max_unconfirmed_bytes=1000,
            consumer_priority=0,
            consumer_priority_count=1,
        ),
    )
    assert peer.ask(request) == ConfigureQueueStreamResponse(request=request)
    producer(core).put(b"m")
    assert [push.sub_ids for push in peer.pushes] == [(0,)]


def test_the_older_configure_request_names_the_application() -> None:
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
    producer(core, FANOUT).put(b"m")
    assert [push.sub_ids for push in peer.pushes] == [(3,)]


def test_only_the_consumers_of_the_highest_priority_count_for_turns() -> None:
    """One subscription with two consumers of priority 5 and seven of priority 1: two messages a turn."""
    core = Core()
    one, two = core.client(), core.client()
    one.open(PRIORITY, read=True)
    limits = {"max_unconfirmed_messages": 1000, "max_unconfirmed_bytes": 10**6}
    consumers = (
        ConsumerInfo(**limits, consumer_priority=1, consumer_priority_count=7),
        ConsumerInfo(**limits, consumer_priority=5, consumer_priority_count=2),
    )
    one.configure(Subscription(s_id=1, consumers=consumers))
    two.consume(PRIORITY, priority=5)
    sender = core.client()
    sender.open(PRIORITY, write=True)
    sender.put(*[b"m"] * 9)
    assert (len(one.pushes), len(two.pushes)) == (6, 3)
