# SPDX-License-Identifier: Apache-2.0
"""Liveness: a silent peer is asked, reported and given up, as is a peer that sends and answers nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bmq.errors import ConnectionFailed
from bmq.protocol.client.core import CoreOptions
from bmq.protocol.client.events import Stalled, StallOver
from bmq.protocol.client.queue import QueueCore
from bmq.wire.constants import EventType
from bmq.wire.event import HEARTBEAT_RSP, pack_event_header
from tests.protocol.bench import Bench, guid
from tests.sweeps import sweep

LIMIT = 12.0
BLOCKED = 60.0


def connected(liveness: float | None = LIMIT, **welcome: int) -> Bench:
    bench = Bench(CoreOptions(liveness=liveness))
    bench.connect(**welcome)
    return bench


def stalls(bench: Bench) -> list[str]:
    return [
        event.cause if isinstance(event, Stalled) else f"-{event.cause}"
        for event in bench.happened
        if isinstance(event, Stalled | StallOver)
    ]


def tick(bench: Bench, late: float = 0.0) -> list[str]:
    """Tick once, at the next deadline or later; return what the core did: asked, reported, gave up."""
    deadline = bench.core.next_deadline()
    assert deadline is not None
    asked, reported, given_up = bench.broker.pulses, len(stalls(bench)), len(bench.failures)
    bench.now = max(bench.now, deadline) + late
    bench.core.tick(bench.now)
    bench.pump()
    done = ["asked"] * (bench.broker.pulses - asked) + stalls(bench)[reported:]
    return done + ["given up"] * (len(bench.failures) - given_up)


def course(bench: Bench) -> Iterator[tuple[float, str]]:
    """Tick at every deadline until the connection is given up; yield what the core did, and when."""
    began = bench.now
    while not bench.failures:
        for what in tick(bench):
            yield round(bench.now - began, 1), what


# a silent broker


def test_a_silent_broker_is_asked_then_reported_then_given_up() -> None:
    assert list(course(connected())) == [(4.0, "asked"), (6.0, "silence"), (12.0, "given up")]


def test_an_answer_ends_the_silence_at_once() -> None:
    bench = connected()
    bench.wait(7.0)
    assert stalls(bench) == ["silence"]
    bench.send(HEARTBEAT_RSP)
    assert stalls(bench) == ["silence", "-silence"]
    assert bench.core.silence(bench.now) == 0.0
    assert list(course(bench)) == [(5.0, "asked"), (6.2, "silence"), (12.0, "given up")]


@sweep("blocked", range(4))
def test_a_loop_that_was_blocked_reads_before_the_verdict(blocked: int) -> None:
    """After a late tick, an answer waiting in the socket is read before the broker is given up."""
    bench = connected()
    step = 0
    while "given up" not in (done := tick(bench, BLOCKED if step == blocked else 0.0)):
        if step == blocked:
            bench.send(HEARTBEAT_RSP)  # the next turn of the loop reads what came meanwhile
            tick(bench)
            assert bench.failures == []
            return
        step += 1
    assert done == ["given up"]
    assert step == blocked == 3


@sweep("limit", [0.001, 0.2, 1.0, 10.0, 3600.0])
def test_the_verdict_follows_the_limit_within_a_twentieth(limit: float) -> None:
    bench = connected(limit)
    began = bench.now
    list(course(bench))
    assert limit <= bench.now - began + 1e-9
    assert bench.now - began <= limit * 1.0500001


def test_an_answer_moves_the_next_look_back() -> None:
    bench = connected()
    began = bench.now
    assert tick(bench) == ["asked"]
    bench.now = began + 4.5
    bench.send(HEARTBEAT_RSP)
    assert bench.core.relaxed
    bench.wait(4.0 - 0.1)
    assert bench.broker.pulses == 1
    assert [(when + 3.9, what) for when, what in course(bench)] == [
        (4.0, "asked"),
        (6.0, "silence"),
        (12.0, "given up"),
    ]


@sweep("max_missed", [0, 2, 10])
def test_a_broker_that_falls_silent_is_given_up_whatever_its_configuration(max_missed: int) -> None:
    bench = connected(interval_ms=3000, max_missed=max_missed)
    bench.wait(LIMIT / 3)
    assert "HEARTBEAT_REQ" in bench.broker.log
    bench.wait(LIMIT)
    (error,) = bench.failures
    assert isinstance(error, ConnectionFailed)
    assert "the broker has been silent" in str(error)
    assert error.retryable


def test_answering_broker_is_kept_and_an_idle_session_sends_only_heartbeat_requests() -> None:
    bench = connected()
    for _ in range(1000):
        bench.wait(1.0)
        if bench.broker.pulses:
            bench.broker.pulses = 0
            bench.send(Bench.pulse(response=True))
    assert bench.failures == []
    assert set(bench.broker.log) == {"clientIdentity", "HEARTBEAT_REQ"}
    assert bench.broker.log.count("HEARTBEAT_REQ") <= 1000 / (LIMIT / 3)


@sweep("talk", ["byte", "ack", "push"])
def test_every_byte_of_the_broker_counts(talk: str) -> None:
    bench = connected()
    queue = bench.open("bmq://d/q")
    if talk == "byte":
        bench.send(pack_event_header(100_000, EventType.PUSH))
    # Without answers, only the time before their absence counts.
    for number in range(1, 40 if talk == "ack" else 4):
        bench.wait(3.9)
        if talk == "byte":
            bench.send(b"x")
        elif talk == "ack":
            bench.post(queue, number)
            bench.ack_all()
        else:
            bench.push(queue, number)
    assert bench.failures == []
    assert "silence" not in stalls(bench)
    assert talk != "ack" or "HEARTBEAT_REQ" not in bench.broker.log


@pytest.mark.parametrize("max_missed", [0, 1])
def test_silence_does_not_count_while_reading_is_paused(max_missed: int) -> None:
    bench = connected(interval_ms=3000, max_missed=max_missed)
    bench.core.pause_reading(True, bench.now)
    bench.wait(1000.0)
    assert bench.failures == []
    bench.lose()
    bench.connect(interval_ms=3000, max_missed=max_missed)  # a new connection is paused too
    bench.wait(1000.0)
    assert bench.failures == []
    bench.core.pause_reading(False, bench.now)
    bench.wait(LIMIT * 1.1)
    assert len(bench.failures) == 1


def test_a_slow_line_that_takes_bytes_is_no_silence() -> None:
    bench = connected(interval_ms=3000, max_missed=1)
    for _ in range(100):
        bench.wait(2.9)
        bench.core.written(bench.now)
    assert bench.failures == []
    bench.wait(LIMIT)
    assert len(bench.failures) == 1


def test_heartbeat_requests_of_a_deaf_broker_do_not_keep_the_connection() -> None:
    """The way to the broker is dead: it asks for heartbeats, and our own requests never arrive."""
    bench = connected(interval_ms=3000, max_missed=10)
    for _ in range(5):
        bench.wait(LIMIT / 4)
        bench.send(Bench.pulse())
    (error,) = bench.failures
    assert "the broker has been silent" in str(error)


def test_no_request_behind_a_disconnect() -> None:
    bench = connected()
    bench.core.stop("stop", bench.now, bench.now + 100.0)
    bench.pump()
    bench.wait(90.0)
    assert bench.failures == []
    assert "HEARTBEAT_REQ" not in bench.broker.log


# a peer that sends, and answers nothing


def receive(
    bench: Bench, queue: QueueCore, seconds: float, size: int, *, answers: bool = False, every: float = 0.5
) -> None:
    """Messages of ``size`` bytes arrive; the broker answers heartbeat requests if ``answers``."""
    end = bench.now + seconds
    s_ids = (bench.broker.s_ids[queue.q_id][-1],)
    while bench.now < end - 1e-9 and not bench.failures:
        bench.wait(every)
        if not bench.failures:
            bench.send(bench.broker.push(queue.q_id, [(guid(1), bytes(size))], s_ids))
        if answers and bench.broker.pulses:
            bench.broker.pulses = 0
            bench.send(HEARTBEAT_RSP)


SPARSE, DENSE = 100, 64 * 1024


def test_link_with_messages_and_without_answers_is_reported_and_dropped() -> None:
    """A middlebox acknowledges our bytes and drops them, and goes on to deliver."""
    bench = connected()
    queue = bench.open("bmq://d/q")
    receive(bench, queue, LIMIT / 2 - 0.5, SPARSE)
    assert stalls(bench) == []
    receive(bench, queue, 1.0, SPARSE)
    assert stalls(bench) == ["answers"]
    reason = bench.core.stalls(bench.now)["answers"]
    assert reason == "the broker has not answered for 6.5 s, not even a heartbeat"
    receive(bench, queue, LIMIT / 2 - 1.0, SPARSE)
    assert bench.failures == []
    receive(bench, queue, 1.0, SPARSE)
    (error,) = bench.failures
    assert isinstance(error, ConnectionFailed)
    assert error.retryable
    assert "the broker has not answered for 12 s" in str(error)


def test_an_answer_behind_a_backlog_is_waited_for() -> None:
    """On a slow line a full window takes minutes, and the answer is behind it."""
    bench = connected()
    queue = bench.open("bmq://d/q")
    receive(bench, queue, 100 * LIMIT, DENSE)
    assert bench.failures == []
    assert stalls(bench) == ["answers"], "reported once, however long it takes"
    bench.send(HEARTBEAT_RSP)
    assert stalls(bench) == ["answers", "-answers"]
    assert bench.core.stalls(bench.now) == {}


def test_once_few_messages_arrive_a_missing_answer_counts() -> None:
    bench = connected()
    queue = bench.open("bmq://d/q")
    receive(bench, queue, 10 * LIMIT, DENSE)
    assert bench.failures == []
    receive(bench, queue, 3 * LIMIT, SPARSE)
    assert len(bench.failures) == 1


def test_a_request_behind_unacknowledged_posts_has_time_to_arrive() -> None:
    bench = connected()
    queue = bench.open("bmq://d/q")
    bench.core.post(queue, guid(1), bytes(1 << 20), 1, bench.now)
    bench.pump()
    posted = bench.now
    receive(bench, queue, 1000.0, SPARSE)
    assert 120.0 <= bench.now - posted <= 150.0, "the time of 1 MiB at 8 KiB/s"
    assert len(bench.failures) == 1


@pytest.mark.parametrize("answer", ["ack", "control"])
def test_every_answer_counts(answer: str) -> None:
    bench = connected()
    queue = bench.open("bmq://d/q")
    for number in range(100):
        receive(bench, queue, LIMIT / 4, SPARSE)
        if answer == "ack":
            bench.post(queue, number)
            bench.ack_all()
        else:
            bench.configure(queue, "", token=number)
            bench.answer_all()
    assert bench.failures == []
    assert stalls(bench) == []


@pytest.mark.parametrize("kind", ["pause", "write"])
def test_missing_answer_counts_only_while_it_can_arrive(kind: str) -> None:
    """The session does not read, or its request waits behind its own output."""
    bench = connected()
    queue = bench.open("bmq://d/q")
    for _ in range(100):
        receive(bench, queue, LIMIT / 4, SPARSE)
        if kind == "pause":
            bench.core.pause_reading(True, bench.now)
            bench.wait(LIMIT)
            bench.core.pause_reading(False, bench.now)
        else:
            bench.core.written(bench.now)
    assert bench.failures == []
    receive(bench, queue, 2 * LIMIT, SPARSE)
    assert len(bench.failures) == 1


def test_a_loop_that_is_blocked_again_and_again_convicts_no_peer_that_sends() -> None:
    """Each turn of the loop reads one chunk, and the answer is in a later chunk."""
    bench = connected()
    queue = bench.open("bmq://d/q")
    for number in range(100):
        tick(bench, BLOCKED)
        bench.push(queue, number)
    assert bench.failures == []
