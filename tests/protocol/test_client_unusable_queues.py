# SPDX-License-Identifier: Apache-2.0
"""Queues that cannot be used for now: refused after a reconnect, or suspended on an unhealthy host."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.errors import AckStatus, RequestError, StatusCategory
from bmq.protocol.client.core import CoreOptions
from bmq.protocol.client.events import QueueReopenDelayed, QueueReopenFailed
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.wire.control import ConfigureStream, ControlBody, QueueFlags
from tests.protocol.bench import READ, WRITE, Bench, connected, opened
from tests.sweeps import sweep

URI = "bmq://bmq.test.mem.priority/q"
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
FOR_EVER = [
    (REFUSED, -1),
    (REFUSED, -205),
    (StatusCategory.E_INVALID_ARGUMENT, STOPPING),
    (StatusCategory.E_NOT_SUPPORTED, 0),
    (StatusCategory.E_UNKNOWN, -1),
]
each_step = sweep("step", ["OpenQueue", "ConfigureStream"])


def reach(bench: Bench, step: str) -> None:
    """Answer until this request of a reopening is the next one."""
    while type(bench.broker.requests[0].body).__name__ != step:
        bench.answer()


def refuse(bench: Bench, step: str, category: StatusCategory = REFUSED, code: int = STOPPING) -> None:
    reach(bench, step)
    bench.refuse(category, code)


def leave_unanswered(bench: Bench, step: str) -> list[Any]:
    reach(bench, step)
    unanswered = list(bench.broker.requests)
    bench.broker.requests.clear()
    bench.wait(TIMEOUT)
    return unanswered


def reconnected() -> tuple[Bench, QueueCore]:
    bench, queue = opened(URI, options=CoreOptions(reopen_timeout=TIMEOUT))
    bench.post(queue, 1)
    bench.lose()
    bench.connect()
    return bench, queue


def delays(bench: Bench) -> list[float]:
    return [round(event.delay, 3) for event in bench.happened if isinstance(event, QueueReopenDelayed)]


def works(bench: Bench, queue: QueueCore, *posts: int) -> None:
    assert queue.state is QueueState.OPEN
    assert bench.ack_all() == [*posts]
    assert bench.outcomes == {number: [AckStatus.SUCCESS] for number in posts}
    bench.push(queue, 7)
    assert bench.numbers_received == [7]


@each_step
@sweep("category, code", FOR_NOW)
def test_a_queue_refused_for_now_is_open_after_a_reconnect(
    step: str, category: StatusCategory, code: int
) -> None:
    bench, queue = reconnected()
    refuse(bench, step, category, code)
    assert queue.in_use
    bench.post(queue, 2)
    assert not bench.outcomes
    bench.lose()
    bench.connect()
    assert bench.answer_all() == ["OpenQueue", "ConfigureStream"]
    works(bench, queue, 1, 2)


@each_step
def test_the_pauses_grow_to_five_seconds_and_begin_anew_on_the_next_connection(step: str) -> None:
    bench, _ = reconnected()
    for _ in range(8):
        refuse(bench, step, NOT_READY)
        bench.wait(5)
    assert delays(bench) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    bench.lose()
    bench.connect()
    refuse(bench, step, NOT_READY)
    assert delays(bench)[-1] == 0.1


@each_step
@sweep("category, code", FOR_EVER)
@sweep("before", [0, 1])
def test_a_final_refusal_closes_the_queue(
    step: str, category: StatusCategory, code: int, before: int
) -> None:
    bench, queue = reconnected()
    for _ in range(before):
        refuse(bench, step)
        bench.wait(0.1)
    refuse(bench, step, category, code)
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
    queue, other = bench.open(URI, WRITE), bench.open(f"{URI}2", WRITE)
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


@sweep("sides", [READ, WRITE])
@sweep("sent_again", [False, True])
def test_a_late_answer_reopens_the_queue(sides: QueueFlags, sent_again: bool) -> None:
    bench, queue = opened(URI, sides, options=CoreOptions(reopen_timeout=TIMEOUT))
    bench.lose()
    bench.connect()
    (late,) = leave_unanswered(bench, "OpenQueue")
    if sent_again:
        bench.wait(0.1)
    bench.send(bench.broker.accept(late))
    names = bench.answer_all()
    assert queue.state is QueueState.OPEN
    # A broker counts openings: the second opening is undone.
    assert names.count("CloseQueue") == sent_again
    bench.wait(TIMEOUT)
    assert queue.state is QueueState.OPEN


def health(bench: Bench, *reports: bool) -> None:
    for healthy in reports:
        bench.core.host_health(healthy)
        bench.pump()


def asks_for_nothing(body: ControlBody) -> bool:
    assert isinstance(body, ConfigureStream)
    (only,) = body.stream_parameters.subscriptions
    return only.consumers[0].max_unconfirmed_messages == 0


def test_a_suspending_queue_leaves_and_returns_with_the_hosts_health() -> None:
    bench, queue = opened(URI, suspends=True)
    other = bench.open(f"{URI}2")
    health(bench, False)
    assert bench.names[-1] == "HostUnhealthy"
    assert asks_for_nothing(bench.answer())
    assert not bench.broker.requests  # one request, for the one queue that suspends
    assert bench.names[-1] == "QueueSuspended"
    assert (queue.suspended, other.suspended) == (True, False)
    health(bench, True)
    assert not asks_for_nothing(bench.answer())
    assert bench.names[-2:] == ["QueueResumed", "HostHealthRestored"]
    assert not queue.suspended


def test_a_writer_suspends_without_a_request() -> None:
    bench = connected()
    bench.open(URI, WRITE, suspends=True)
    health(bench, False, True)
    assert bench.names[1:] == ["HostUnhealthy", "QueueSuspended", "QueueResumed", "HostHealthRestored"]
    assert not bench.broker.requests


@pytest.mark.parametrize("healthy", [False, True])
def test_a_failed_suspend_or_resume_drops_the_connection(healthy: bool) -> None:
    bench, queue = opened(URI, suspends=True)
    health(bench, False)
    if healthy:
        bench.answer()
        health(bench, True)
    bench.refuse()
    (error,) = bench.failures
    assert ("resume" if healthy else "suspend") in str(error)
    bench.lose()
    bench.connect()
    bench.answer_all()
    assert "StateRestored" in bench.names
    assert bool(queue.subscriptions.committed) is healthy
    assert bench.names.count("QueueSuspended") == 1
    assert bench.names.count("QueueResumed") == int(healthy)


def test_closing_the_last_suspended_queue_restores_health() -> None:
    bench, queue = opened(URI, suspends=True)
    health(bench, False)
    bench.answer_all()
    bench.core.host_health(True)
    bench.close(queue)
    bench.answer_all()
    assert bench.names[-1] == "HostHealthRestored"
