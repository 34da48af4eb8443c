# SPDX-License-Identifier: Apache-2.0
"""Queues temporarily refused after a reconnect stay open, and the client tries again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bmq.errors import AckStatus, RequestError, StatusCategory
from bmq.protocol.client.core import CoreOptions
from bmq.protocol.client.events import QueueReopenDelayed, QueueReopenFailed
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.wire.control import QueueFlags
from tests.protocol.bench import READ, WRITE, Bench, connected
from tests.sweeps import sweep

URI = "bmq://bmq.test.mem.priority/q"
OTHER = "bmq://bmq.test.mem.priority/other"
REFUSED = StatusCategory.E_REFUSED
NOT_READY = StatusCategory.E_NOT_READY
STOPPING = -11
#: Seconds to wait for an answer.
TIMEOUT = 60
FOR_NOW = [
    (REFUSED, STOPPING),
    (StatusCategory.E_CANCELED, STOPPING),
    (NOT_READY, 0),
    (StatusCategory.E_NOT_CONNECTED, -1),
    (StatusCategory.E_TIMEOUT, -1),
]


def refuse_opening(bench: Bench, category: StatusCategory = REFUSED, code: int = STOPPING) -> None:
    bench.refuse(category, code)


def refuse_configuring(bench: Bench, category: StatusCategory = REFUSED, code: int = STOPPING) -> None:
    if "OpenQueue" in type(bench.broker.requests[0].body).__name__:
        bench.answer()
    bench.refuse(category, code)


both_steps = pytest.mark.parametrize("refuse", [refuse_opening, refuse_configuring])


def reconnected() -> tuple[Bench, QueueCore]:
    """A session reopening a queue with a pending post."""
    bench = connected(CoreOptions(reopen_timeout=TIMEOUT))
    queue = bench.open(URI)
    bench.post(queue, 1)
    bench.lose()
    bench.connect()
    return bench, queue


def delays(bench: Bench) -> list[float]:
    return [round(event.delay, 3) for event in bench.happened if isinstance(event, QueueReopenDelayed)]


@both_steps
@pytest.mark.parametrize(("category", "code"), FOR_NOW)
def test_a_queue_refused_for_now_is_reopened_on_the_next_connection(
    refuse: Callable[..., None], category: StatusCategory, code: int
) -> None:
    bench, queue = reconnected()
    refuse(bench, category, code)
    assert queue.in_use
    bench.post(queue, 2)
    assert not bench.outcomes
    bench.lose()
    bench.connect()
    assert bench.answer_all() == ["OpenQueue", "ConfigureStream"]
    assert queue.state is QueueState.OPEN
    assert bench.ack_all() == [1, 2]
    assert bench.outcomes == {1: [AckStatus.SUCCESS], 2: [AckStatus.SUCCESS]}
    bench.push(queue, 7)
    assert bench.numbers_received == [7]


@both_steps
def test_a_queue_not_ready_twice_is_reopened_on_the_same_connection(refuse: Callable[..., None]) -> None:
    bench, queue = reconnected()
    refuse(bench, NOT_READY)
    bench.wait(0.09)
    assert not bench.broker.requests
    bench.wait(0.01)
    refuse(bench, NOT_READY)
    bench.wait(0.19)
    assert not bench.broker.requests
    bench.wait(0.01)
    bench.answer_all()
    assert delays(bench) == [0.1, 0.2]
    assert queue.state is QueueState.OPEN
    bench.wait(0.1)
    assert bench.ack_all() == [1]
    bench.push(queue, 7)
    assert bench.numbers_received == [7]
    opened = bench.broker.log.count("OpenQueue") - bench.broker.log.count("CloseQueue")
    assert opened == (3 if refuse is refuse_opening else 1)  # a refused openQueue opens no queue


@both_steps
def test_the_pauses_grow_to_five_seconds_and_begin_anew_on_the_next_connection(
    refuse: Callable[..., None],
) -> None:
    bench, _ = reconnected()
    for _ in range(8):
        refuse(bench, NOT_READY)
        bench.wait(5)
    assert delays(bench) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    bench.lose()
    bench.connect()
    refuse(bench, NOT_READY)
    assert delays(bench)[-1] == 0.1


@both_steps
@pytest.mark.parametrize(
    ("category", "code"),
    [
        (REFUSED, -1),
        (REFUSED, -205),
        (StatusCategory.E_INVALID_ARGUMENT, STOPPING),
        (StatusCategory.E_NOT_SUPPORTED, 0),
        (StatusCategory.E_UNKNOWN, -1),
    ],
)
@pytest.mark.parametrize("before", [0, 1])
def test_a_final_refusal_closes_the_queue_with_its_cause(
    refuse: Callable[..., None], category: StatusCategory, code: int, before: int
) -> None:
    bench, queue = reconnected()
    for _ in range(before):
        refuse(bench)
        bench.wait(0.1)
    refuse(bench, category, code)
    assert not queue.in_use
    assert bench.outcomes == {1: [AckStatus.CANCELED]}
    (failed,) = [event for event in bench.happened if isinstance(event, QueueReopenFailed)]
    assert isinstance(failed.error, RequestError)
    assert (failed.error.category, failed.error.code) == (category, code)
    bench.answer_all()
    assert queue.state is QueueState.CLOSED
    assert len(bench.core.delayed) == 0


def test_other_queues_do_not_wait_for_a_delayed_queue() -> None:
    bench = connected()
    queue, other = bench.open(URI, WRITE), bench.open(OTHER, WRITE)
    bench.post(queue, 1)
    bench.post(other, 2)
    bench.lose()
    bench.connect()
    bench.refuse(REFUSED, STOPPING)
    bench.answer()
    assert bench.names[-1] == "StateRestored"
    assert not bench.core.restored
    assert bench.ack_all() == [2]
    bench.wait(0.1)
    bench.answer()
    assert bench.core.restored
    assert bench.ack_all() == [1]
    assert bench.names.count("StateRestored") == 1


# Not answered in time.


def not_answer_opening(bench: Bench) -> list[Any]:
    """Return an openQueue without an answer in time."""
    unanswered = list(bench.broker.requests)
    bench.broker.requests.clear()
    bench.wait(TIMEOUT)
    return unanswered


def not_answer_configuring(bench: Bench) -> list[Any]:
    if "OpenQueue" in type(bench.broker.requests[0].body).__name__:
        bench.answer()
    return not_answer_opening(bench)


either_step = pytest.mark.parametrize("ignore", [not_answer_opening, not_answer_configuring])


@either_step
def test_a_queue_whose_reopening_is_not_answered_is_tried_again(ignore: Callable[[Bench], list[Any]]) -> None:
    bench, queue = reconnected()
    for pause in (0.1, 0.2):
        ignore(bench)
        assert queue.in_use
        assert not bench.outcomes
        assert delays(bench)[-1] == pause
        bench.wait(pause)
    assert bench.answer_all()[-1] == "ConfigureStream"
    assert queue.state is QueueState.OPEN
    assert bench.ack_all() == [1]
    assert bench.outcomes == {1: [AckStatus.SUCCESS]}
    bench.push(queue, 7)
    assert bench.numbers_received == [7]
    assert not any(isinstance(event, QueueReopenFailed) for event in bench.happened)


@sweep("sides", [READ, WRITE])
@sweep("sent_again", [False, True])
def test_a_late_answer_reopens_the_queue(sides: QueueFlags, sent_again: bool) -> None:
    bench = connected(CoreOptions(reopen_timeout=TIMEOUT))
    queue = bench.open(URI, sides)
    bench.lose()
    bench.connect()
    (late,) = not_answer_opening(bench)
    if sent_again:
        bench.wait(0.1)
    bench.send(bench.broker.accept(late))
    names = bench.answer_all()
    assert queue.state is QueueState.OPEN
    # A broker counts openings: the second opening is undone.
    assert names.count("CloseQueue") == sent_again
    bench.wait(TIMEOUT)
    assert queue.state is QueueState.OPEN
