# SPDX-License-Identifier: Apache-2.0
"""Subscriptions and their messages: ids, the revival of quiet subscriptions, confirmations, redeliveries."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.protocol.client.core import CoreOptions
from bmq.protocol.client.events import ClientDeprecated, DeliveryRevived
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.protocol.client.subscription import SubscriptionCore, SubscriptionOptions
from bmq.wire.control import BrokerResponse, Codec, ConfigureStream, Status
from bmq.wire.control_event import encode_event
from tests.protocol.bench import READ, Bench, connected, guid, held, opened
from tests.sweeps import sweep

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


def windowed(window: int, *expressions: str, repeat_after: float | None = None) -> tuple[Bench, QueueCore]:
    """Open a queue with subscriptions of a window each; one if no expressions are given."""
    options = None if repeat_after is None else CoreOptions(repeat_after=repeat_after)
    bench, queue = opened(URI, READ, options, subscriptions=[])
    subscriptions = [
        SubscriptionCore(text, SubscriptionOptions(window, 1 << 20, 0), object())
        for text in expressions or ("x == 1",)
    ]
    bench.core.configure_queue(queue, subscriptions, object(), bench.now + 60)
    bench.pump()
    bench.answer()
    return bench, queue


def test_a_quiet_subscription_is_repeated_with_growing_pauses() -> None:
    bench = connected(CoreOptions(repeat_after=1))
    queue = reader(bench, "x == 1", "x == 2")
    first = bench.broker.s_ids[queue.q_id][-2:]
    asked = quiet(bench, 90)  # after 1, 5, 21 and 81 seconds
    assert len(asked) == 4
    assert all(list(each.values()) == first for each in asked)
    assert bench.core.repeated == (4, 0)
    assert queue.state is QueueState.OPEN
    assert len(quiet(bench, 600)) == 10  # once a minute


def test_each_repetition_differs_from_the_last_request() -> None:
    """A proxy does not ask the primary if nothing changes; the primary has to look at the queue."""
    bench, queue = windowed(100, repeat_after=1)
    limits: list[int] = []
    while len(limits) < 3:
        bench.wait(1)
        while bench.broker.requests:
            request = bench.answer()
            assert isinstance(request, ConfigureStream)
            limits.append(request.stream_parameters.subscriptions[0].consumers[0].max_unconfirmed_bytes)
    assert limits == [(1 << 20) - 1, 1 << 20, (1 << 20) - 1]
    assert queue.state is QueueState.OPEN


def test_a_flow_that_stops_is_repeated_at_once_and_reported() -> None:
    bench, queue = windowed(100, repeat_after=1)
    for first in range(1, 201, 20):
        bench.push(queue, *range(first, first + 20))
        bench.confirm_many(queue, *range(first, first + 20))
        bench.wait(0.002)
        bench.answer()  # the broker looks at the queue again
    assert bench.core.repeated == (10, 180)
    assert bench.happened.count(DeliveryRevived(URI)) == 1


@sweep("window", [1, 2, 5, 20])
def test_a_repetition_that_releases_one_window_of_two_is_a_result(window: int) -> None:
    bench, queue = windowed(window, "x == 1", "x == 2", repeat_after=1)
    released, waited = 0, 0.0
    while released < 50 * window:
        bench.wait(0.005)
        waited += 0.005
        if bench.broker.requests:
            bench.answer()
            numbers = range(released + 1, released + window + 1)
            bench.push(queue, *numbers)
            bench.confirm_many(queue, *numbers)
            released += window
    assert waited < 10


@sweep("pause, most", [(0.001, 0), (0.003, 5), (0.006, 5), (0.01, 5), (0.05, 5)])
def test_a_steady_flow_is_rarely_repeated(pause: float, most: int) -> None:
    """Messages that follow a repetition by chance are no evidence of a standstill."""
    bench, queue = windowed(100, repeat_after=1)
    for number in range(1, 1001):
        bench.push(queue, number)
        bench.confirm_many(queue, number)
        bench.wait(pause)
        bench.answer_all()
    assert bench.core.repeated[0] <= most
    assert bench.core.repeated[1] == 0


def test_a_full_window_owes_nothing_until_a_fifth_of_it_is_confirmed() -> None:
    bench, queue = windowed(20, repeat_after=1)
    bench.push(queue, *range(1, 21))
    assert quiet(bench, 50) == []
    bench.confirm_many(queue, 1, 2, 3)
    assert quiet(bench, 5) == []
    bench.confirm_many(queue, 4)
    bench.wait(0.006)
    assert bench.answer()


def test_repetitions_without_a_message_become_rare() -> None:
    """One message a second is no flow that has stopped."""
    bench, queue = windowed(1000, repeat_after=0.1)
    asked = 0
    for number in range(1, 101):
        bench.push(queue, number)
        bench.confirm_many(queue, number)
        asked += len(quiet(bench, 1))
    assert asked <= 2 * 100
    bench.push(queue, *range(1000, 1100))
    bench.confirm_many(queue, *range(1000, 1100))
    assert len(quiet(bench, 60)) <= 8


def test_a_message_after_a_long_silence_is_watched_closely_again() -> None:
    """A limited broker may deliver one message in a second."""
    bench, queue = windowed(100, repeat_after=0.1)
    quiet(bench, 1000)  # the pause is a minute
    before = bench.core.repeated[0]
    for number in range(1, 4):
        bench.push(queue, number)
        bench.confirm_many(queue, number)
        assert len(quiet(bench, 1)) == (number == 3)
    assert bench.core.repeated[0] == before + 1


@pytest.mark.parametrize("answered_first", [True, False])
def test_a_broker_that_worked_long_for_a_repetition_rests_four_times_as_long(answered_first: bool) -> None:
    """A real broker evaluates the expressions of a large backlog before it answers, or delivers."""
    bench = connected(CoreOptions(repeat_after=10))
    queue = reader(bench, "x == 1")
    bench.wait(10)
    bench.wait(3)
    if answered_first:
        bench.answer()
    bench.push(queue, *range(10))
    if not answered_first:
        bench.answer()
    assert bench.core.repeated == (1, 10)
    assert quiet(bench, 11.8) == []
    assert len(quiet(bench, 0.4)) == 1


def test_a_fifth_of_the_window_is_confirmed_before_as_many_messages_arrive() -> None:
    bench, queue = windowed(100)
    bench.push(queue, *range(1, 101))
    bench.confirm_many(queue, *range(1, 101))
    assert len(bench.broker.confirms) == 20
    bench.push(queue, *range(101, 111))
    assert len(bench.broker.confirms) == 20
    bench.push(queue, *range(111, 121))
    assert len(bench.broker.confirms) == 40
    bench.push(queue, *range(121, 131))
    bench.confirm_many(queue, *range(101, 131))
    assert len(bench.broker.confirms) == 40
    bench.wait(0.0025)  # nothing arrives: as many as lead to the mark, where the broker looks again
    assert len(bench.broker.confirms) == 50
    bench.wait(0.0025)  # nothing arrives, and no confirmation makes the broker look
    assert len(bench.broker.confirms) == 130
    assert bench.broker.confirms == sorted(bench.broker.confirms)


def test_confirmations_wait_while_a_broker_goes_through_a_backlog_and_there_is_room() -> None:
    """Each waits in the dispatcher queue of the broker, which stops if ten wait."""
    bench, queue = windowed(1000)

    def come(first: int, last: int) -> int:
        for number in range(first, last):
            bench.push(queue, number)
            bench.confirm_many(queue, number)
            bench.wait(0.003)
        return len(bench.broker.confirms)

    assert come(1, 31) == 10
    bench.wait(0.02)  # nothing arrives: the broker has gone through its messages
    assert len(bench.broker.confirms) == 30
    bench.answer_all()
    assert come(31, 51) == 30 + 10
    assert come(51, 91) > 51  # none waits longer than a tenth of a second
    bench.wait(0.1)
    bench.answer_all()
    assert len(bench.broker.confirms) == 90
    bench.push(queue, *range(200, 1000))
    bench.confirm_many(queue, *range(200, 1000))
    assert len(bench.broker.confirms) == 100
    bench.push(queue, *range(1000, 1150))
    assert len(bench.broker.confirms) == 100 + 140  # the window is filled up to the mark


def test_confirmations_of_rare_messages_are_sent_at_once() -> None:
    bench, queue = windowed(1000)
    for number in range(1, 31):
        bench.push(queue, number)
        bench.confirm_many(queue, number)
        assert len(bench.broker.confirms) == number
        bench.wait(0.05)


def test_confirmations_without_an_expression_are_sent_at_once() -> None:
    bench, queue = windowed(20, "")
    bench.push(queue, *range(1, 21))
    bench.confirm_many(queue, *range(1, 21))
    assert len(bench.broker.confirms) == 20


@sweep("end", ["close", "configure", "stop"])
def test_all_confirmations_precede_a_request(end: str) -> None:
    bench, queue = windowed(100)
    bench.push(queue, *range(1, 101))
    bench.confirm_many(queue, *range(1, 101))
    if end == "close":
        bench.close(queue)
    elif end == "configure":
        bench.configure(queue, "x == 2")
    else:
        bench.core.stop(object(), bench.now, bench.now + 60)
        bench.pump()
    assert len(bench.broker.confirms) == 100


def test_confirmations_held_back_when_the_connection_is_lost_are_repeated_for_redeliveries() -> None:
    bench, queue = windowed(100)
    bench.push(queue, *range(1, 101))
    bench.confirm_many(queue, *range(1, 101))
    assert len(bench.broker.confirms) == 20
    bench.lose()
    bench.connect()
    bench.answer_all()
    bench.push(queue, *range(21, 101))
    assert bench.numbers_received == [*range(1, 101)]  # no message a second time
    bench.wait(0.01)
    assert len(bench.broker.confirms) == 80


@pytest.mark.parametrize("answered", [True, False])
def test_a_subscription_is_repeated_after_a_failed_change(answered: bool) -> None:
    bench = connected(CoreOptions(repeat_after=1))
    queue = reader(bench, "x == 1")
    bench.configure(queue, "x == 2", timeout=3)
    bench.wait(2)  # the time of the first repetition passes while the change is outstanding
    if answered:
        bench.refuse()
    else:
        bench.broker.requests.clear()
        bench.wait(1)
    assert [list(each) for each in quiet(bench, 1.2)] == [["x == 1"]]


@pytest.mark.parametrize(("after", "expression"), [(0.0, "x == 1"), (1.0, "")])
def test_subscriptions_are_not_repeated_without_expressions_or_if_off(after: float, expression: str) -> None:
    bench = connected(CoreOptions(repeat_after=after))
    reader(bench, expression)
    assert quiet(bench, 10) == []
    assert bench.core.next_deadline() is None


@pytest.mark.statement("4.17")
def test_a_deprecation_of_the_client_is_reported() -> None:
    bench = Bench()
    bench.open_channel()
    bench.send(
        encode_event(BrokerResponse(result=Status(), protocol_version=1, is_deprecated_sdk=True), Codec.JSON)
    )
    assert [event for event in bench.happened if isinstance(event, ClientDeprecated)]


@sweep("cause", ["a suspension of the process", "a new subscription"])
def test_messages_of_another_cause_are_not_the_result_of_a_repetition(cause: str) -> None:
    """They were on their way before the subscriptions were repeated, or are those of a group's new bucket."""
    bench, queue = windowed(100, repeat_after=1)
    for first in range(1, 401, 20):
        if cause == "a suspension of the process":
            bench.now += 100
            bench.core.tick(bench.now)
        else:
            bench.wait(2)
            wanted = bench.subscriptions([f"x == {first}"])
            bench.core.configure_queue(queue, wanted, object(), bench.now + 60)
        bench.pump()
        bench.answer_all()
        bench.push(queue, *range(first, first + 20))
        bench.confirm_many(queue, *range(first, first + 20))
    assert bench.core.repeated[0] > 10
    assert bench.core.repeated[1] == 0
    assert DeliveryRevived(URI) not in bench.happened


@sweep("moment", ["sent", "closing", "lost"])
def test_guids_appended_to_the_pending_ones_are_confirmed_until_they_are_taken(moment: str) -> None:
    bench, queue = opened(URI)
    bench.push(queue, 1, 2)
    taken: list[int] = []
    bench.core.before_confirms_change(lambda: taken.append(len(pending or ())))
    pending = bench.core.confirm(queue, guid(1))
    assert pending == [guid(1)]
    pending.append(guid(2))
    if moment == "sent":
        bench.pump()
    elif moment == "closing":
        bench.close(queue)
        assert bench.broker.log[-2:] == ["CONFIRM", "ConfigureStream"]
    else:
        bench.lose()
        assert bench.core.confirm(queue, guid(3)) is None
    assert taken == [2]
    assert [c.guid for c in bench.broker.confirms] == ([] if moment == "lost" else [guid(1), guid(2)])
    if moment == "lost":
        bench.connect()
        bench.answer_all()
        bench.push(queue, 2)  # remembered like the first one
        assert bench.numbers_received == [1, 2]


@sweep("moment", ["sent", "buffered", "lost", "reopening", "restoring"])
def test_a_confirmation_lost_with_its_connection_makes_the_redelivery_recognisable(moment: str) -> None:
    bench, queue = opened(URI)
    bench.push(queue, 1, 2)

    def confirm_at(here: str) -> None:
        if here == moment:
            bench.core.confirm(queue, guid(1))
            if moment != "buffered":
                bench.pump()

    confirm_at("sent")
    confirm_at("buffered")
    bench.lose()
    confirm_at("lost")
    bench.connect()
    confirm_at("reopening")
    bench.answer()
    confirm_at("restoring")
    assert bench.broker.confirms == []  # the broker would not know what to do with it yet
    bench.answer_all()
    bench.push(queue, 1, 2)
    assert bench.numbers_received == [1, 2, 2]
    assert [c.guid for c in bench.broker.confirms] == [guid(1)]
    bench.push(queue, 1)  # the second confirmation can be lost too
    assert bench.numbers_received == [1, 2, 2]
    assert [c.guid for c in bench.broker.confirms] == [guid(1)] * 2


def test_the_memory_of_confirmations_is_bounded() -> None:
    bench, queue = opened(URI)
    for round_ in range(5):
        for number in range(60_000):
            bench.core.confirm(queue, guid(round_ * 100_000 + number))
        bench.lose()
        bench.connect()
        bench.answer_all()
    assert held(bench.core) < 140_000
    bench.push(queue, 4 * 100_000 + 30_000, 1)
    assert bench.numbers_received == [1]


def test_confirmation_lost_with_the_primary_is_repeated_without_a_second_delivery() -> None:
    bench, queue = opened(URI)
    bench.push(queue, 1, 2, 3)
    bench.core.confirm(queue, guid(1))
    bench.confirm_many(queue, 3)
    bench.wait(30)
    bench.push(queue, 1, 3, 4)  # the next primary does not know of the confirmations
    assert bench.numbers_received == [1, 2, 3, 4]
    assert [each.guid for each in bench.broker.confirms] == [guid(1), guid(3)] * 2
    assert bench.again == [("default", 2)]
    bench.lose()
    bench.wait(1000)  # however long it takes
    bench.connect()
    bench.answer_all()
    bench.wait(299)  # they are remembered for five minutes after a reconnect
    bench.push(queue, 1)
    assert bench.numbers_received == [1, 2, 3, 4]


@sweep("how", ["after a pause of the broker", "after reading was paused", "in the order of confirmations"])
def test_many_redeliveries_are_recognised(how: str) -> None:
    bench, queue = opened(URI)
    bench.push(queue, *range(1000))
    step = 100 if "order" in how else 1000
    for first in range(0, 1000, step):
        bench.confirm_many(queue, *range(first, first + step))
    if "broker" in how:
        bench.wait(0.02)
    elif "reading" in how:
        bench.core.pause_reading(True, bench.now)
        bench.core.pause_reading(False, bench.now)
    bench.push(queue, *range(300, 1300))
    assert bench.numbers_received == list(range(1300))
    assert bench.again == [("default", 700)]


def test_confirmations_on_a_living_connection_are_forgotten_after_one_to_two_minutes() -> None:
    bench, queue = opened(URI)
    bench.push(queue, 1, 2)
    bench.confirm_many(queue, 1)
    bench.wait(59)
    bench.confirm_many(queue, 2)
    bench.wait(60)
    before = held(bench.core)
    bench.push(queue, 2)
    bench.wait(121)
    bench.push(queue, 1, 2)
    assert bench.numbers_received == [1, 2, 1, 2]
    assert held(bench.core) < before
    assert bench.core.next_deadline() is None, "nothing is left to forget"


def test_at_most_once_queues_are_not_confirmed() -> None:
    bench = connected()
    queue = bench.begin_open(URI)
    bench.answer_all(routing=7)
    bench.push(queue, 1)
    bench.core.confirm(queue, guid(1))
    bench.core.confirm_many(queue, [guid(1)])
    bench.pump()
    bench.lose()
    bench.core.confirm(queue, guid(1))
    assert bench.broker.confirms == []
    bench.connect()
    bench.answer_all(routing=7)
    bench.push(queue, 1)
    assert bench.numbers_received == [1, 1]


@pytest.mark.statement("4.23")
def test_unclaimed_messages_are_dropped_and_unknown_ids_go_to_the_only_reader() -> None:
    bench, queue = opened(URI, READ)
    bench.send(bench.broker.push(999, [(guid(1), b"1")], (1,)))
    bench.send(bench.broker.push(queue.q_id, [(guid(2), b"2")], ()))
    bench.send(bench.broker.push(queue.q_id, [(guid(3), b"3")], (99,)))
    assert bench.numbers_received == [2, 3]
    bench.close(queue)
    bench.answer_all()
    bench.send(bench.broker.push(queue.q_id, [(guid(4), b"4")], (1,)))
    assert bench.numbers_received == [2, 3]


def test_message_is_delivered_once_for_repeated_subscription_ids() -> None:
    bench, queue = opened(URI)
    (s_id,) = bench.broker.s_ids[queue.q_id]
    known, unknown = (s_id,) * 50_000, tuple(range(10**6, 10**6 + 50_000))
    for number, s_ids in enumerate((known, unknown, known + unknown, (s_id, 0, s_id, 0))):
        bench.send(bench.broker.push(queue.q_id, [(guid(number), b"%d" % number)], s_ids))
        assert bench.numbers_received == list(range(number + 1))
