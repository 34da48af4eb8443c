# SPDX-License-Identifier: Apache-2.0
"""Distribution: priorities, round robin, subscriptions, applications. Values from broker semantics 2.2."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bmq.wire.constants import PushFlags
from bmq.wire.control import (
    ConfigureQueueStream,
    ConfigureQueueStreamResponse,
    ConfigureStreamResponse,
    ConsumerInfo,
    QueueStreamParameters,
    SubQueueIdInfo,
    Subscription,
)
from tests.broker.core import BROADCAST, FANOUT, PRIORITY, Core, CoreClient, subscription
from tests.transcripts import probes

OUT_OF_ORDER = PushFlags.OUT_OF_ORDER


def producer(core: Core, uri: str = PRIORITY) -> CoreClient:
    peer = core.client()
    peer.open(uri, write=True)
    return peer


def numbers(peer: CoreClient) -> list[int]:
    return [int(data) for data in peer.payloads]


def texts(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


def test_equal_priorities_take_turns_by_their_counts() -> None:
    core = Core()
    one, two = core.client(), core.client()
    one.consume(PRIORITY)
    two.consume(PRIORITY, count=2)
    producer(core).put(*texts(*range(9)))
    assert len(one.payloads) == 3
    assert len(two.payloads) == 6


def test_no_message_spills_over_to_a_lower_priority() -> None:
    """For ten messages, with the same expression and with another matching one (measured)."""
    recorded = probes()["spillover"]
    for high_text, low_text in (("x >= 0", "x >= 0"), ("x >= 0", "x > -1")):
        core = Core()
        high, low = core.client(), core.client()
        for peer, text, priority in ((high, high_text, 10), (low, low_text, 1)):
            peer.open(PRIORITY, read=True)
            peer.configure(subscription(1, text, priority=priority, messages=1 if priority > 1 else 100))
        sender = producer(core)
        for number in range(10):
            sender.put(b"%d" % number, properties={"x": number})
        assert numbers(high) == [0]
        assert numbers(low) == []
    assert recorded["same expression"] == recorded["different expression"] == {"high": ["0"], "low": []}


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


A, B = ("A", "x >= 0", 10, 1), ("B", "x > -1", 5, 100)
ONE, TWO = ("A", "x == 1", 10, 1), ("B", "x == 2", 10, 100)


@pytest.mark.parametrize(
    ("subscriptions", "posts", "delivered", "confirmed"),
    [
        ([A, B], range(6), {"A": [0]}, {"A": [1]}),
        ([("C", "x == 100", 10, 9), A, B], range(6), {"A": [0], "B": [2, 3, 4, 5]}, {"A": [1]}),
        ([A, B, ("C", "x == 100", 10, 9)], range(6), {"A": [0], "B": [2, 3, 4, 5]}, {"A": [1]}),
        ([A, B, ("C", "x == 100", 20, 9)], range(6), {"A": [0], "B": [2, 3, 4, 5]}, {"A": [1]}),
        ([A, B, ("C", "x == 100", 7, 9)], range(6), {"A": [0]}, {"A": [1]}),
        ([A, B, ("C", "x == 100", 1, 9)], range(6), {"A": [0]}, {"A": [1]}),
        ([A, ("B", "x > -1", 10, 100)], range(6), {"A": [0], "B": [1, 2, 3, 4, 5]}, {}),
        ([ONE, ("B", "x == 2", 5, 100)], [1, 1, 2, 2, 1, 2], {"A": [0]}, {"A": [1], "B": [2, 3]}),
        (
            [ONE, ("B", "x == 2", 5, 100)],
            [2, 1, 2, 1, 2, 2],
            {"A": [1], "B": [0, 2]},
            {"A": [3], "B": [4, 5]},
        ),
        ([ONE, TWO], [1, 1, 2, 2, 1, 2], {"A": [0], "B": [2, 3, 5]}, {"A": [1]}),
        ([TWO, ONE], [1, 1, 2, 2, 1, 2], {"A": [0], "B": [2, 3, 5]}, {"A": [1]}),
        ([("A", "x == 1", 5, 1), TWO], [1, 1, 2, 2, 1, 2], {"A": [0], "B": [2, 3, 5]}, {"A": [1]}),
        ([A, ("B", "x >= 0", 5, 100), ("C", "x == 100", 10, 9)], range(6), {"A": [0]}, {"A": [1]}),
        ([("A", "x >= 0", 0, 1), ("S", "", -100, 100)], range(6), {"A": [0]}, {"A": [1]}),
        (
            [ONE, TWO, ("S", "", -100, 100)],
            [1, 1, 1, 2, 3, 1, 2],
            {"A": [0], "B": [3, 6], "S": [2, 4, 5]},
            {"A": [1]},
        ),
        (
            [("A", "x == 0", 10, 1), ("B", "y == 1", 10, 9), ("C", "x >= 0", 1, 100)],
            [0] * 5,
            {"A": [0], "C": [2, 3, 4]},
            {"A": [1]},
        ),
    ],
)
def test_full_consumer_spills_to_lower_priorities(
    subscriptions: list[tuple[str, str, int, int]],
    posts: Iterable[int],
    delivered: dict[str, list[int]],
    confirmed: dict[str, list[int]],
) -> None:
    """Deliveries of a real broker before and after the confirmation of consumer A (measured)."""
    core = Core()
    peers: dict[str, CoreClient] = {}
    for name, text, priority, messages in subscriptions:
        peer = peers[name] = core.client()
        peer.open(PRIORITY, read=True)
        peer.configure(subscription(1, text, priority=priority, messages=messages))
    sender = producer(core)
    guids: list[bytes] = []
    for number, x in enumerate(posts):
        guids += sender.put(b"%d" % number, properties={"x": x})
    assert {name: got for name, peer in peers.items() if (got := numbers(peer))} == delivered
    peers["A"].confirm(guids[delivered["A"][0]])
    assert {name: got for name, peer in peers.items() if (got := numbers(peer))} == confirmed


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


def test_a_message_goes_once_to_a_consumer_with_several_matching_subscriptions() -> None:
    core = Core()
    peer = core.client()
    peer.open(PRIORITY, read=True)
    peer.configure(subscription(1, "x >= 0"), subscription(2, "x == 1"))
    producer(core).put(b"m", properties={"x": 1})
    assert len(peer.pushes) == 1


def test_a_lower_priority_subscription_with_the_same_expression_sleeps() -> None:
    core = Core()
    high, low = core.client(), core.client()
    high.open(PRIORITY, read=True)
    high.configure(subscription(1, "x == 1", priority=2))
    low.open(PRIORITY, read=True)
    low.configure(subscription(1, "x == 1", priority=1), subscription(2, "x == 2", priority=1))
    sender = producer(core)
    sender.put(b"1", properties={"x": 1})
    sender.put(b"2", properties={"x": 2})
    assert numbers(high) == [1]
    assert numbers(low) == [2]
    high.disconnect()
    sender.put(b"3", properties={"x": 1})
    assert numbers(low) == [1, 3]


def test_invalid_expression_matches_all_messages() -> None:
    core = Core()
    peer = core.client()
    peer.open(PRIORITY, read=True)
    answer = peer.configure(subscription(7, "x >"))
    assert isinstance(answer, ConfigureStreamResponse)
    sender = producer(core)
    sender.put(b"no props")
    sender.put(b"props", properties={"x": 1})
    assert [push.sub_ids for push in peer.pushes] == [(7,), (7,)]


def test_fanout_delivers_a_copy_to_each_application() -> None:
    core = Core()
    sender = producer(core, FANOUT)
    readers = {app: core.client() for app in ("foo", "bar", "baz")}
    for app, peer in readers.items():
        peer.consume(f"{FANOUT}?id={app}")
    guids = sender.put(*texts(0, 1))
    for peer in readers.values():
        assert numbers(peer) == [0, 1]
    queue = core.node.queues[FANOUT]
    for done, peer in enumerate(readers.values(), 1):
        peer.confirm(*guids, sub_id=1)
        assert len(queue.store) == (0 if done == 3 else 2)


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


def test_two_applications_in_one_session_share_a_push() -> None:
    core = Core()
    peer = core.client()
    peer.open(FANOUT, write=True)
    for number, app in enumerate(("foo", "bar"), 1):
        peer.open(f"{FANOUT}?id={app}", read=True, sub_id=number)
        peer.configure(subscription(10 * number), app_id=app)
    peer.put(b"m")
    (push,) = peer.pushes
    assert push.sub_ids == (10, 20)


def test_broadcast_reaches_each_consumer_once_and_is_not_stored() -> None:
    core = Core()
    readers = [core.client() for _ in range(3)]
    for peer in readers:
        peer.consume(BROADCAST)
    sender = producer(core, BROADCAST)
    guids = sender.put(*texts(0, 1))
    assert [ack.status for ack in sender.acks] == [0, 0]
    for peer in readers:
        assert numbers(peer) == [0, 1]
    readers[0].confirm(*guids)
    late = core.client()
    late.consume(BROADCAST)
    assert late.payloads == []
    assert len(core.node.queues[BROADCAST].store) == 0


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
