# SPDX-License-Identifier: Apache-2.0
"""The client core's messages: delivery, confirmations and redeliveries."""

from __future__ import annotations

import pytest

from bmq.protocol.client.core import CoreOptions
from tests.protocol.bench import READ, connected, guid, held

URI = "bmq://bmq.test.mem.priority/q"


# receiving and confirming


def test_confirmations_leave_together() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.push(queue, 1, 2, 3)
    bench.core.confirm(queue, guid(1))
    bench.core.confirm_many(queue, [guid(2), guid(3)])
    bench.pump()
    assert bench.broker.log[-1] == "CONFIRM"
    assert [c.guid for c in bench.broker.confirms] == [guid(1), guid(2), guid(3)]
    assert bench.broker.log.count("CONFIRM") == 1


def test_nothing_is_confirmed_that_the_application_did_not_confirm() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.push(queue, 1, 2, 3)
    bench.lose()
    bench.connect()
    bench.answer_all()
    bench.push(queue, 1, 2, 3)
    bench.close(queue)
    bench.answer_all()
    assert bench.broker.confirms == []
    assert bench.numbers_received == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("moment", ["sent", "buffered", "lost", "reopening", "restoring"])
def test_a_confirmation_lost_with_its_connection_makes_the_redelivery_recognisable(moment: str) -> None:
    bench = connected()
    queue = bench.open(URI)
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
    bench.push(queue, 1)  # once more: that is another message now
    assert bench.numbers_received == [1, 2, 2, 1]


def test_redeliveries_can_be_wanted() -> None:
    bench = connected(CoreOptions(drop_confirmed_redeliveries=False))
    queue = bench.open(URI)
    bench.push(queue, 1)
    bench.core.confirm(queue, guid(1))
    bench.lose()
    bench.core.confirm(queue, guid(1))
    bench.connect()
    bench.answer_all()
    bench.push(queue, 1)
    assert bench.numbers_received == [1, 1]


def test_confirmations_are_remembered_for_five_minutes_after_a_reconnect() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.push(queue, 1)
    bench.core.confirm(queue, guid(1))
    bench.lose()
    bench.wait(1000)  # however long it took
    bench.connect()
    bench.answer_all()
    bench.wait(300)
    bench.push(queue, 1)
    assert bench.numbers_received == [1, 1]


def test_the_memory_of_confirmations_is_bounded() -> None:
    bench = connected()
    queue = bench.open(URI)
    for round_ in range(5):
        for number in range(60_000):
            bench.core.confirm(queue, guid(round_ * 100_000 + number))
        bench.lose()
        bench.connect()
        bench.answer_all()
    assert held(bench.core) < 140_000
    bench.push(queue, 4 * 100_000 + 1, 1)
    assert bench.numbers_received == [1]


def test_confirmations_of_a_closed_queue_go_nowhere() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.push(queue, 1)
    bench.close(queue)
    bench.core.confirm(queue, guid(1))  # handlers in flight may confirm while the queue closes
    bench.pump()
    assert bench.broker.log[-1] == "CONFIRM"
    bench.answer_all()
    before = held(bench.core)
    bench.core.confirm(queue, guid(1))
    bench.core.confirm_many(queue, [guid(1)])
    bench.pump()
    assert len(bench.broker.confirms) == 1
    assert held(bench.core) == before


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
def test_messages_for_nobody_are_dropped_and_those_without_a_known_id_find_the_only_reader() -> None:
    bench = connected()
    queue = bench.open(URI, READ)
    bench.send(bench.broker.push(999, [(guid(1), b"1")], (1,)))
    bench.send(bench.broker.push(queue.q_id, [(guid(2), b"2")], ()))
    bench.send(bench.broker.push(queue.q_id, [(guid(3), b"3")], (99,)))
    assert bench.numbers_received == [2, 3]
    bench.close(queue)
    bench.answer_all()
    bench.send(bench.broker.push(queue.q_id, [(guid(4), b"4")], (1,)))
    assert bench.numbers_received == [2, 3]


def test_messages_in_the_same_chunk_as_the_response_are_delivered() -> None:
    bench = connected()
    queue = bench.begin_open(URI, READ)
    bench.answer()
    request = bench.broker.requests.popleft()
    s_id = request.body.stream_parameters.subscriptions[0].s_id  # type: ignore[union-attr]
    push = bench.broker.push(queue.q_id, [(guid(1), b"1")], (s_id,))
    bench.send(bench.broker.accept(request) + push)
    assert bench.numbers_received == [1]


def test_a_message_is_handed_out_once_however_often_its_subscriptions_are_named() -> None:
    bench = connected()
    queue = bench.open(URI)
    (s_id,) = bench.broker.s_ids[queue.q_id]
    known, unknown = (s_id,) * 50_000, tuple(range(10**6, 10**6 + 50_000))
    for number, s_ids in enumerate((known, unknown, known + unknown, (s_id, 0, s_id, 0))):
        bench.send(bench.broker.push(queue.q_id, [(guid(number), b"%d" % number)], s_ids))
        assert bench.numbers_received == list(range(number + 1))


def test_a_message_for_two_subscriptions_comes_once_to_each() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.configure(queue, "x == 1", "y == 1")
    bench.answer_all()
    s_ids = tuple(bench.broker.s_ids[queue.q_id][-2:])
    bench.send(bench.broker.push(queue.q_id, [(guid(1), b"1")], s_ids * 1000))
    assert sorted(owner for owner, _ in bench.received) == ["x == 1", "y == 1"]


def test_what_is_confirmed_together_without_a_connection_is_recognised_when_it_comes_again() -> None:
    bench = connected()
    queue = bench.open(URI, READ)
    bench.push(queue, 1, 2, 3)
    bench.lose()
    bench.confirm_many(queue, 1, 3)
    bench.connect()
    bench.answer_all()
    bench.push(queue, 1, 2, 3)
    assert bench.numbers_received == [1, 2, 3, 2]
    assert [confirm.guid for confirm in bench.broker.confirms] == [guid(1), guid(3)]
