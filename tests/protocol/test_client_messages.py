# SPDX-License-Identifier: Apache-2.0
"""The client core's messages: delivery, confirmations and redeliveries."""

from __future__ import annotations

import pytest

from tests.protocol.bench import READ, connected, guid, held, opened
from tests.sweeps import sweep

URI = "bmq://bmq.test.mem.priority/q"


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


def test_confirmations_are_remembered_for_five_minutes_after_a_reconnect() -> None:
    bench, queue = opened(URI)
    bench.push(queue, 1)
    bench.core.confirm(queue, guid(1))
    bench.lose()
    bench.wait(1000)  # however long it took
    bench.connect()
    bench.answer_all()
    bench.wait(299)
    bench.push(queue, 1)
    assert bench.numbers_received == [1]


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
