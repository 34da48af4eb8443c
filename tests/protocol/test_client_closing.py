# SPDX-License-Identifier: Apache-2.0
"""The client core's queues: closing them, and returning delivered messages, in every state."""

from __future__ import annotations

import pytest

from bmq.errors import (
    CloseQueueError,
    QueueClosed,
    RequestTimeout,
    SessionClosed,
    StatusCategory,
)
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.wire.control import CloseQueue, ConfigureStream
from tests.protocol.bench import READ, WRITE, Bench, connected, held
from tests.sweeps import sweep

URI = "bmq://bmq.test.mem.priority/q"
OTHER = "bmq://bmq.test.mem.priority/other"


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


def test_refused_close_closes_nevertheless() -> None:
    bench = connected()
    queue = bench.open(URI, WRITE)
    bench.close(queue)
    bench.refuse()
    assert isinstance(bench.completed["close"][0], CloseQueueError)
    assert queue.state is QueueState.CLOSED


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


@sweep("answered", [None, 0, 1])
def test_closing_while_disconnected_ends_at_once(answered: int | None) -> None:
    bench = connected()
    queue = bench.open(URI)
    if answered is None:
        bench.lose()
        bench.close(queue)
    else:
        bench.close(queue)
        for _ in range(answered):
            bench.answer()
        bench.lose()
    assert bench.completed["close"] == [None]
    assert queue.state is QueueState.CLOSED
    bench.connect()
    assert not bench.broker.requests


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


@sweep("state", [s for s in QueueState if s is not QueueState.CLOSED])
def test_stopping_the_session_ends_a_queue_in_every_state(state: QueueState) -> None:
    bench = connected()
    queue = _in_state(bench, state)
    bench.core.stop("stop", bench.now, bench.now + 5)
    bench.pump()
    assert queue.state is QueueState.CLOSED
    for token, outcomes in bench.completed.items():
        assert len(outcomes) == 1, token
    for token in ("opening", ("a > 1",)):
        if token in bench.completed:
            ended = RequestTimeout if state is QueueState.OVERDUE else SessionClosed
            assert isinstance(bench.completed[token][0], ended)
    bench.wait(10)
    assert bench.completed["stop"] == [None]
    assert bench.core.next_deadline() is None


@sweep("state", [s for s in QueueState if s is not QueueState.CLOSED])
def test_losing_the_connection_in_every_state_leaves_a_queue_usable_or_closed(state: QueueState) -> None:
    bench = connected()
    queue = _in_state(bench, state)
    if bench.up:
        bench.lose()
    assert queue.state in (QueueState.CLOSED, QueueState.WAITING, QueueState.LOST)
    bench.connect()
    bench.answer_all()
    assert queue.state in (QueueState.CLOSED, QueueState.OPEN)
    for token, outcomes in bench.completed.items():
        assert len(outcomes) == 1, token
    if queue.state is QueueState.CLOSED:
        bench.open(URI, token="again")
    else:
        bench.close(queue, token="close at last")
        bench.answer_all()
        assert bench.completed["close at last"] == [None]


def _in_state(bench: Bench, state: QueueState) -> QueueCore:
    """Bring a queue into a state."""
    if state is QueueState.WAITING:
        bench.lose()
        return bench.begin_open(URI, token="opening")
    if state is QueueState.BEHIND:
        bench.close(bench.open(URI))
        return bench.begin_open(URI, token="opening")
    opening = (QueueState.OPENING, QueueState.CONFIGURING, QueueState.ABANDONED, QueueState.OVERDUE)
    if state in opening:
        queue = bench.begin_open(URI, token="opening", timeout=5)
        if state is QueueState.CONFIGURING:
            bench.answer()
        elif state is QueueState.OVERDUE:
            bench.wait(5)
        elif state is QueueState.ABANDONED:
            bench.core.abandon_queue(queue, bench.now, bench.now + 60)
    else:
        queue = bench.open(URI)
        if state is QueueState.REOPENED:
            bench.open(OTHER)
            bench.lose()
            bench.connect()
            bench.answer_queue(queue)
        elif state in (QueueState.LOST, QueueState.REOPENING, QueueState.RESTORING):
            bench.lose()
            if state is not QueueState.LOST:
                bench.connect()
                if state is QueueState.RESTORING:
                    bench.answer()
        elif state in (QueueState.REOPEN_DELAYED, QueueState.RESTORE_DELAYED):
            bench.lose()
            bench.connect()
            if state is QueueState.RESTORE_DELAYED:
                bench.answer()
            bench.refuse(StatusCategory.E_NOT_READY, 0)
        elif state is QueueState.REOPEN_OVERDUE:
            bench.lose()
            bench.connect()
            bench.wait(bench.core.options.reopen_timeout)
        elif state is QueueState.RECONFIGURING:
            bench.configure(queue, "a > 1")
        elif state in (QueueState.DECONFIGURING, QueueState.CLOSING):
            bench.close(queue)
            if state is QueueState.CLOSING:
                bench.answer()
    assert queue.state is state
    return queue
