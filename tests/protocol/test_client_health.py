# SPDX-License-Identifier: Apache-2.0
"""The client core on an unhealthy host: queues are suspended and resumed."""

from __future__ import annotations

import pytest

from bmq.wire.control import ConfigureStream, ControlBody
from tests.protocol.bench import WRITE, Bench, connected, opened

URI = "bmq://bmq.test.mem.priority/q"


def health(bench: Bench, *reports: bool) -> None:
    for healthy in reports:
        bench.core.host_health(healthy)
        bench.pump()


def asks_for_nothing(body: ControlBody) -> bool:
    """Whether a stream has only the placeholder subscription."""
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


def test_flickering_health_ends_in_its_last_state() -> None:
    bench, queue = opened(URI, suspends=True)
    health(bench, *[False, True] * 5)
    bench.answer_all()
    assert queue.subscriptions.committed
    assert bench.names[-1] == "HostHealthRestored"
    assert bench.names.count("QueueSuspended") == bench.names.count("QueueResumed")


def test_a_queue_unhealthy_again_never_keeps_its_messages() -> None:
    bench, queue = opened(URI, suspends=True)
    health(bench, False)
    bench.answer()
    health(bench, True)
    bench.core.host_health(False)
    bench.answer()  # the subscriptions, requested while the host was healthy
    bench.refuse()
    assert "could not restore the subscriptions" in str(bench.failures[0])
    bench.lose()
    bench.connect()
    bench.answer()  # openQueue
    assert asks_for_nothing(bench.answer())
    assert queue.suspended


def test_closing_the_last_suspended_queue_restores_health() -> None:
    bench, queue = opened(URI, suspends=True)
    health(bench, False)
    bench.answer_all()
    bench.core.host_health(True)
    bench.close(queue)
    bench.answer_all()
    assert bench.names[-1] == "HostHealthRestored"
