# SPDX-License-Identifier: Apache-2.0
"""Liveness: a silent peer is asked, reported and given up, as is a peer that sends and answers nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import ConnectionFailed
from bmq.protocol.client.core import CoreOptions
from bmq.protocol.client.events import Stalled, StallOver
from bmq.protocol.client.queue import QueueCore
from bmq.protocol.heartbeat import Pulse
from bmq.protocol.liveness import Answers, Liveness
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, HEARTBEAT_RSP, pack_event_header
from tests.protocol.bench import Bench, guid

LIMIT = 12.0
KIB = 1024
BLOCKED = 60.0


def run(liveness: Liveness, until: float) -> list[tuple[float, Pulse]]:
    """Poll at every deadline; return what was asked for, and when."""
    asked: list[tuple[float, Pulse]] = []
    while liveness.deadline is not None and liveness.deadline <= until:
        now = liveness.deadline
        pulse = liveness.poll(now)
        if pulse is not Pulse.NOTHING:
            asked.append((round(now, 1), pulse))
    return asked


def test_a_silent_peer_is_probed_then_reported_then_given_up() -> None:
    expected = [(104.0, Pulse.SEND), (106.0, Pulse.QUIET), (112.0, Pulse.DEAD)]
    assert run(Liveness(LIMIT, 100.0), 1000.0) == expected


def test_a_peer_that_answers_is_asked_once_a_third_of_the_limit() -> None:
    liveness = Liveness(LIMIT, 0.0)
    for _ in range(100):
        assert liveness.deadline is not None
        now = liveness.deadline
        if liveness.poll(now) is Pulse.SEND:
            liveness.heard = now + 0.001
    assert liveness.deadline is not None
    assert liveness.deadline == pytest.approx(50 * (LIMIT / 3 + 0.001), rel=0.05)
    assert not liveness.quiet


def test_an_answer_ends_the_quiet_at_once() -> None:
    liveness = Liveness(LIMIT, 0.0)
    assert run(liveness, 7.0)[-1] == (6.0, Pulse.QUIET)
    assert liveness.quiet
    liveness.heard = 7.0
    assert not liveness.quiet
    assert run(liveness, 1000.0)[-1] == (19.0, Pulse.DEAD)


def test_a_paused_connection_may_be_silent_for_ever() -> None:
    liveness = Liveness(LIMIT, 0.0)
    run(liveness, 7.0)
    liveness.pause()
    assert (liveness.deadline, liveness.quiet) == (None, False)
    assert liveness.poll(1e9) is Pulse.NOTHING
    liveness.resume(1000.0)
    assert run(liveness, 2000.0)[-1] == (1012.0, Pulse.DEAD)


@pytest.mark.parametrize("stalled", range(4))
def test_a_loop_that_was_blocked_reads_before_the_verdict(stalled: int) -> None:
    """After a late poll, an answer waiting in the socket is read before the peer is given up."""
    liveness = Liveness(LIMIT, 0.0)
    for step in itertools.count():
        assert liveness.deadline is not None
        late = BLOCKED if step == stalled else 0.0
        now = liveness.deadline + late
        assert liveness.poll(now) is not Pulse.DEAD or step == stalled == 3
        if late and stalled < 3:
            liveness.heard = now  # the next turn of the loop reads what came meanwhile
            break
        if step == 3:
            break
    if stalled < 3:
        assert liveness.deadline is not None
        assert liveness.poll(liveness.deadline) is not Pulse.DEAD
        assert not liveness.quiet


def test_after_a_blocked_loop_the_peer_has_half_of_the_limit_to_answer() -> None:
    liveness = Liveness(LIMIT, 0.0)
    assert liveness.poll(BLOCKED) is Pulse.SEND
    assert run(liveness, 1000.0)[-1] == (BLOCKED + LIMIT / 2, Pulse.DEAD)


@given(heard=st.lists(st.floats(0.01, LIMIT * 0.95), max_size=20))
def test_the_verdict_follows_the_last_byte_within_a_twentieth_of_the_limit(
    heard: list[float],
) -> None:
    liveness = Liveness(LIMIT, 0.0)
    last = 0.0
    for pause in heard:
        last += pause
        assert all(pulse is not Pulse.DEAD for _, pulse in run(liveness, last))
        liveness.heard = last
    ended = run(liveness, last + 2 * LIMIT)[-1]
    assert ended[1] is Pulse.DEAD
    assert LIMIT - 0.1 <= ended[0] - last <= LIMIT * 1.05 + 0.1


def test_a_loop_that_is_blocked_again_and_again_still_reaches_the_verdict() -> None:
    liveness = Liveness(LIMIT, 0.0)
    pulses = [liveness.poll(now) for now in (20.0, 40.0, 60.0, 80.0)]
    assert pulses == [Pulse.SEND, Pulse.QUIET, Pulse.NOTHING, Pulse.DEAD]


@pytest.mark.parametrize("limit", [0.001, 0.2, 1.0, 10.0, 3600.0])
def test_the_verdict_follows_the_limit_within_a_twentieth(limit: float) -> None:
    liveness = Liveness(limit, 0.0)
    now = 0.0
    while liveness.deadline is not None:
        now = liveness.deadline
        liveness.poll(now)
    assert limit <= now <= limit * 1.0500001


# in the session


def connected(liveness: float | None = LIMIT, **welcome: int) -> Bench:
    bench = Bench(CoreOptions(liveness=liveness))
    bench.connect(**welcome)
    return bench


@pytest.mark.parametrize("max_missed", [0, 2, 10])
def test_a_broker_that_falls_silent_is_given_up_whatever_its_configuration(max_missed: int) -> None:
    bench = connected(interval_ms=3000, max_missed=max_missed)
    bench.wait(LIMIT / 3)
    assert "HEARTBEAT_REQ" in bench.broker.log
    bench.wait(LIMIT)
    (error,) = bench.failures
    assert isinstance(error, ConnectionFailed)
    assert "the broker has been silent" in str(error)
    assert error.retryable


def test_without_a_limit_only_the_configuration_of_the_broker_counts() -> None:
    bench = connected(None)
    bench.wait(100_000)
    assert bench.failures == []
    assert "HEARTBEAT_REQ" not in bench.broker.log


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


@pytest.mark.parametrize("talk", ["byte", "ack", "push"])
def test_every_byte_of_the_broker_counts(talk: str) -> None:
    bench = connected()
    queue = bench.open("bmq://d/q")
    if talk == "byte":
        bench.send(pack_event_header(100_000, EventType.PUSH))
    for number in range(1, 40):
        bench.wait(3.9)
        if talk in ("byte", "push"):
            assert bench.core._answers is not None
            answers = bench.core._answers  # as if an answer were among the bytes
            answers.answered, answers.received = bench.now, 0
        if talk == "byte":
            bench.send(b"x")
        elif talk == "ack":
            bench.post(queue, number)
            bench.ack_all()
        else:
            bench.push(queue, number)
    assert bench.failures == []
    assert "HEARTBEAT_REQ" not in bench.broker.log


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


def test_the_next_connection_begins_with_a_fresh_clock() -> None:
    bench = connected()
    bench.wait(LIMIT * 0.9)
    bench.lose()
    bench.wait(1000.0)
    assert bench.failures == []
    bench.connect()
    bench.wait(LIMIT * 0.9)
    assert bench.failures == []
    bench.wait(LIMIT * 0.2)
    assert len(bench.failures) == 1


def test_no_request_behind_a_disconnect() -> None:
    bench = connected()
    bench.core.stop("stop", bench.now, bench.now + 100.0)
    bench.pump()
    bench.wait(90.0)
    assert bench.failures == []
    assert "HEARTBEAT_REQ" not in bench.broker.log


def test_garbage_that_ends_the_connection_leaves_no_deadline() -> None:
    bench = connected()
    bench.send(b"\xff" * HEADER_SIZE)
    assert len(bench.failures) == 1
    bench.wait(1000.0)
    assert len(bench.failures) == 1


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


def stalls(bench: Bench) -> list[str]:
    return [
        event.cause if isinstance(event, Stalled) else f"-{event.cause}"
        for event in bench.happened
        if isinstance(event, Stalled | StallOver)
    ]


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


@pytest.mark.parametrize("size", [SPARSE, DENSE])
def test_a_delivering_and_answering_broker_is_kept(size: int) -> None:
    bench = connected()
    queue = bench.open("bmq://d/q")
    receive(bench, queue, 1000.0, size, answers=True)
    assert bench.failures == []
    assert stalls(bench) == []
    assert bench.broker.log.count("HEARTBEAT_REQ") <= 1000 / (LIMIT / 3)


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
    answers = Answers(LIMIT, 0.0)
    now = 0.0
    for _ in range(100):
        now += BLOCKED
        answers.received += KIB
        assert answers.poll(now) is not Pulse.DEAD


@given(
    rate=st.floats(2 * 8 * KIB, 1e7),
    backlog=st.integers(0, 50_000_000),
    latency=st.floats(0.0, 1.0),
    chunk=st.integers(100, 16 * KIB),
)
def test_a_line_that_is_never_idle_with_a_backlog_is_never_convicted(
    rate: float, backlog: int, latency: float, chunk: int
) -> None:
    """Answers queue behind the backlog of a slow line, which is full at first and later idle."""
    answers = Answers(LIMIT, 0.0)
    now, behind = 0.0, float(backlog)
    due: list[tuple[float, float]] = []  # bytes that go before an answer, and the earliest time
    sent = 0.0
    for _ in range(4000):
        step = chunk / rate if behind > 0 else 0.1
        now += step
        if behind > 0:
            behind -= chunk
            sent += chunk
            answers.received += chunk
        while due and due[0][0] <= sent and due[0][1] <= now:
            due.pop(0)
            answers.answered, answers.received = now, 0
        while answers.deadline is not None and answers.deadline <= now:
            pulse = answers.poll(answers.deadline)
            assert pulse is not Pulse.DEAD
            if pulse is Pulse.SEND:
                due.append((sent + max(behind, 0.0), now + latency))


def test_an_answer_moves_the_next_look_back() -> None:
    liveness = Liveness(LIMIT, 0.0)
    assert liveness.poll(4.0) is Pulse.SEND
    assert liveness.deadline == 6.0
    liveness.relax(4.5)
    assert liveness.deadline == 4.5 + LIMIT / 3
    assert liveness.poll(6.0) is Pulse.NOTHING
    assert run(liveness, 100.0) == [(8.5, Pulse.SEND), (10.5, Pulse.QUIET), (16.5, Pulse.DEAD)]


def test_an_answer_without_a_request_moves_nothing() -> None:
    """An unsolicited answer must not put off the request: the peer could otherwise hide a dead direction."""
    liveness = Liveness(LIMIT, 0.0)
    liveness.relax(3.0)
    assert liveness.deadline == LIMIT / 3


def test_an_answer_after_the_report_leaves_the_rest_to_the_poll() -> None:
    liveness = Liveness(LIMIT, 0.0)
    assert run(liveness, 6.0)[-1] == (6.0, Pulse.QUIET)
    liveness.heard = 7.0
    liveness.relax(7.0)
    assert not liveness.quiet
    assert liveness.deadline == 12.0
