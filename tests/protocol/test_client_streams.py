# SPDX-License-Identifier: Apache-2.0
"""The upkeep of subscriptions: stable ids, and the revival of quiet subscriptions."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.protocol.client.core import CoreOptions
from bmq.protocol.client.events import ClientDeprecated, DeliveryRevived
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.protocol.client.subscription import SubscriptionCore, SubscriptionOptions
from bmq.wire.control import BrokerResponse, Codec, ConfigureStream, Status, encode_event
from tests.protocol.bench import READ, Bench, connected

URI = "bmq://bmq.test.mem.priority/q"


def s_ids(request: Any) -> dict[str, int]:
    """The subscription ids that a configureStream gives, by expression."""
    assert isinstance(request, ConfigureStream)
    return {each.expression.text: each.s_id for each in request.stream_parameters.subscriptions}


def quiet(bench: Bench, seconds: float) -> list[dict[str, int]]:
    """Let time pass; return and answer the requests of this time."""
    asked: list[dict[str, int]] = []
    for _ in range(round(seconds * 10)):
        bench.wait(0.1)
        while bench.broker.requests:
            asked.append(s_ids(bench.answer()))
    return asked


def reader(bench: Bench, *expressions: str) -> QueueCore:
    return bench.open(URI, READ, subscriptions=expressions)


def test_a_subscription_keeps_its_number_while_others_change() -> None:
    bench = connected()
    stays, goes, comes = bench.subscriptions(["x == 1", "x == 2", "x == 3"])
    queue = bench.open(URI, READ, subscriptions=[])
    asked = []
    for wanted in ([stays, goes], [stays], [comes, stays], [stays]):
        bench.core.configure_queue(queue, wanted, object(), bench.now + 60)
        bench.pump()
        asked.append(s_ids(bench.answer()))
    assert len({each["x == 1"] for each in asked}) == 1
    numbers = [number for each in asked for text, number in each.items() if text != "x == 1"]
    assert len(set(numbers)) == 2


def test_a_number_is_not_used_again_on_another_connection() -> None:
    bench = connected()
    queue = reader(bench, "x == 1")
    before = bench.broker.s_ids[queue.q_id][-1]
    bench.lose()
    bench.connect()
    bench.answer_all()
    assert bench.broker.s_ids[queue.q_id][-1] != before


def test_a_quiet_subscription_is_repeated_with_growing_pauses() -> None:
    bench = connected(CoreOptions(repeat_after=1, repeat_every=8))
    queue = reader(bench, "x == 1", "x == 2")
    first = bench.broker.s_ids[queue.q_id][-2:]
    asked = quiet(bench, 31.5)  # after 1, 3, 7, 15, 23, 31 seconds
    assert len(asked) == 6
    assert all(list(each.values()) == first for each in asked)
    assert queue.repeated == 6
    assert queue.revived == 0
    assert queue.state is QueueState.OPEN


def test_revived_messages_are_counted_reported_once_and_soon_requested_again() -> None:
    bench = connected(CoreOptions(repeat_after=1, repeat_every=60))
    queue = reader(bench, "x == 1")
    assert len(quiet(bench, 7.1)) == 3
    bench.push(queue, *range(1, 101))
    assert queue.revived == 100
    assert bench.happened.count(DeliveryRevived(URI)) == 1
    assert len(quiet(bench, 1.2)) == 1  # not after eight seconds
    bench.push(queue, *range(101, 201))
    assert queue.revived == 200
    assert bench.happened.count(DeliveryRevived(URI)) == 1


def test_postponed_messages_are_requested_again_at_once() -> None:
    bench = connected(CoreOptions(repeat_after=1, repeat_every=60))
    queue = reader(bench, "x == 1", "x == 2")
    assert len(quiet(bench, 1.1)) == 1
    for number in range(1, 11):
        bench.push(queue, number, out_of_order=True)
        bench.wait(0.11)
        bench.answer()
    assert queue.repeated == 11


@pytest.mark.parametrize("answered_first", [True, False])
def test_a_slow_broker_receives_the_next_repetition_as_soon(answered_first: bool) -> None:
    """A broker looks at each message of a deep backlog before it answers, or delivers."""
    bench = connected(CoreOptions(repeat_after=10, repeat_every=60))
    queue = reader(bench, "x == 1")
    bench.wait(10)
    bench.wait(3)
    if answered_first:
        bench.answer()
    bench.push(queue, 1, out_of_order=True)
    if not answered_first:
        bench.answer()
    assert queue.revived == 1
    assert quiet(bench, 2.9) == []
    assert len(quiet(bench, 0.2)) == 1


def test_a_broker_that_worked_long_for_a_change_rests_four_times_as_long() -> None:
    """A real broker evaluates the expressions of a large backlog, and delivers nothing meanwhile."""
    bench = connected(CoreOptions(repeat_after=1, repeat_every=60))
    queue = reader(bench, "x == 1")
    bench.configure(queue, "x == 2", timeout=30)
    bench.wait(5)
    bench.answer()
    assert quiet(bench, 19.8) == []
    assert len(quiet(bench, 0.4)) == 1
    bench.configure(queue, "x == 3", timeout=30)
    bench.answer()
    assert len(quiet(bench, 1.2)) == 1  # the backlog is gone


def test_pauses_grow_again_after_the_last_postponed_message() -> None:
    bench = connected(CoreOptions(repeat_after=1, repeat_every=60))
    queue = reader(bench, "x == 1")
    assert len(quiet(bench, 1.1)) == 1
    bench.push(queue, 1, out_of_order=True)
    asked = quiet(bench, 30)  # 0.1, 0.2, 0.4, ... 12.8 seconds apart
    assert 7 <= len(asked) <= 9


@pytest.mark.parametrize(("arrived", "repeated"), [(19, 0), (20, 1)])
def test_a_full_window_after_a_long_silence_is_watched_closely_again(arrived: int, repeated: int) -> None:
    bench = connected(CoreOptions(repeat_after=1, repeat_every=60))
    subscription = SubscriptionCore("x == 1", SubscriptionOptions(20, 1 << 20, 0), object())
    queue = bench.open(URI, READ, subscriptions=[])
    bench.core.configure_queue(queue, [subscription], object(), bench.now + 60)
    bench.pump()
    bench.answer()
    assert len(quiet(bench, 70)) == 6
    for number in range(1, arrived + 1):
        bench.push(queue, number)
    assert len(quiet(bench, 1.1)) == repeated


@pytest.mark.parametrize("answered", [True, False])
def test_a_subscription_is_repeated_after_a_failed_change(answered: bool) -> None:
    bench = connected(CoreOptions(repeat_after=1, repeat_every=60))
    queue = reader(bench, "x == 1")
    bench.configure(queue, "x == 2", timeout=3)
    bench.wait(2)  # the time of the first repetition passes while the change is outstanding
    if answered:
        bench.refuse()
    else:
        bench.broker.requests.clear()
        bench.wait(1)
    assert [list(each) for each in quiet(bench, 1.2)] == [["x == 1"]]


def test_an_active_subscription_is_not_repeated() -> None:
    bench = connected(CoreOptions(repeat_after=1, repeat_every=60))
    queue = reader(bench, "x == 1")
    for number in range(1, 20):
        assert quiet(bench, 0.9) == []
        bench.push(queue, number)
    assert queue.repeated == queue.revived == 0


@pytest.mark.parametrize(("after", "expression"), [(0.0, "x == 1"), (1.0, "")])
def test_subscriptions_are_not_repeated_without_expressions_or_when_disabled(
    after: float, expression: str
) -> None:
    bench = connected(CoreOptions(repeat_after=after))
    reader(bench, expression)
    assert quiet(bench, 10) == []
    assert bench.core.next_deadline() is None


def test_refused_repetition_changes_no_state() -> None:
    bench = connected(CoreOptions(repeat_after=1))
    queue = reader(bench, "x == 1")
    bench.wait(1)
    bench.refuse()
    assert queue.state is QueueState.OPEN
    assert [each.expression for each in queue.subscriptions.wanted] == ["x == 1"]
    bench.push(queue, 1)
    assert bench.numbers_received == [1]


@pytest.mark.statement("4.17")
def test_a_deprecation_of_the_client_is_reported() -> None:
    bench = Bench()
    bench.open_channel()
    bench.send(
        encode_event(BrokerResponse(result=Status(), protocol_version=1, is_deprecated_sdk=True), Codec.JSON)
    )
    assert [event for event in bench.happened if isinstance(event, ClientDeprecated)]


def test_unclaimed_messages_are_reported() -> None:
    bench = connected()
    bench.send(bench.broker.push(77, [(bytes(16), b"1"), (bytes(15) + b"1", b"2")], (5,)))
    assert bench.astray == 2
