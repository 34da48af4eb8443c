# SPDX-License-Identifier: Apache-2.0
"""The client core's queues: closing them, and returning delivered messages, in every state."""

from __future__ import annotations

import pytest

from bmq.errors import (
    QueueClosed,
    RequestTimeout,
)
from bmq.protocol.client.queue import QueueState
from bmq.wire.control import CloseQueue, ConfigureStream
from tests.protocol.bench import READ, connected, held

URI = "bmq://bmq.test.mem.priority/q"


# closing


@pytest.mark.statement("4.13")
def test_a_reader_is_deconfigured_before_it_is_closed() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.close(queue)
    body = bench.broker.requests[0].body
    assert isinstance(body, ConfigureStream)
    assert body.stream_parameters.subscriptions == ()
    bench.answer()
    body = bench.broker.requests[0].body
    assert isinstance(body, CloseQueue)
    assert body.is_final
    bench.answer()
    assert bench.completed["close"] == [None]
    assert queue.state is QueueState.CLOSED


@pytest.mark.statement("4.30")
def test_only_the_last_application_sends_the_final_close() -> None:
    bench = connected()
    queues = [bench.open(f"bmq://d/q?id={app}", READ) for app in ("foo", "bar", "baz")]
    final = []
    for queue in queues:
        bench.close(queue, token=queue)
        bench.answer()
        body = bench.answer()
        assert isinstance(body, CloseQueue)
        final.append(body.is_final)
    assert final == [False, False, True]


@pytest.mark.parametrize("answered", [0, 1])
def test_a_close_that_is_not_answered_ends_at_its_deadline(answered: int) -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.close(queue, timeout=5)
    for _ in range(answered):
        bench.answer()
    bench.wait(5)
    assert isinstance(bench.completed["close"][0], RequestTimeout)
    assert queue.state is QueueState.CLOSED
    bench.answer_all()  # late
    # The broker may have it open still: the same id means the same queue to it.
    assert bench.open(URI, token="again").q_id == queue.q_id


def test_closed_queue_leaves_no_state() -> None:
    bench = connected()
    before = held(bench.core)
    ids = set()
    for number in range(300):
        queue = bench.open(f"bmq://d/q{number}")
        ids.add(queue.q_id)
        bench.close(queue, token=number)
        bench.answer_all()
    assert len(ids) == 300  # an id is never used for another queue: late messages find nobody
    assert held(bench.core) < before + 20


@pytest.mark.statement("4.35")
def test_ended_session_leaves_no_state() -> None:
    bench = connected()
    before = held(bench.core)
    for number in range(50):
        bench.open(f"bmq://d/q{number}")
        bench.close(bench.open(f"bmq://d/other{number}"), token=number, timeout=1)
    queue = bench.open(URI)
    bench.wait(1)  # the closes end without an answer: the ids stay with the broker
    bench.core.confirm_many(queue, [bytes([number] * 16) for number in range(100)])
    bench.core.give_up("", bench.now)
    bench.lose()  # with confirmations that were never written
    assert held(bench.core) < before + 20


@pytest.mark.parametrize("answered", [0, 1])
def test_closing_while_reopening_closes_the_brokers_queue(answered: int) -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.lose()
    bench.connect()
    for _ in range(answered):
        bench.answer()
    bench.close(queue)
    names = bench.answer_all()
    assert names[-1] == "CloseQueue"
    assert bench.completed["close"] == [None]
    assert queue.state is QueueState.CLOSED
    assert "QueueReopened" not in bench.names
    assert bench.names[-1] == "StateRestored"


def test_closing_ends_the_changes_that_wait() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.configure(queue, "a > 1")
    bench.configure(queue, "b > 1")
    bench.close(queue)
    assert isinstance(bench.completed[("a > 1",)][0], QueueClosed)
    assert isinstance(bench.completed[("b > 1",)][0], QueueClosed)
    assert bench.answer_all() == ["ConfigureStream", "ConfigureStream", "CloseQueue"]


def test_a_closing_queue_refuses_every_call() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.close(queue)
    for call in (bench.close, bench.configure):
        with pytest.raises(QueueClosed):
            call(queue)
    with pytest.raises(QueueClosed):
        bench.post(queue, 1)
    bench.answer_all()
    with pytest.raises(QueueClosed):
        bench.close(queue)
