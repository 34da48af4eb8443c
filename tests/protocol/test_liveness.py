# SPDX-License-Identifier: Apache-2.0
"""Liveness: a peer that is silent or answers nothing is reported, and given up; so are other stalls reported.

A stall is a live connection without progress: it is reported once, and so is its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import AckStatus, ConnectionFailed
from bmq.protocol.client.core import CoreOptions
from bmq.protocol.client.events import Stalled, StallOver
from bmq.protocol.client.queue import QueueCore
from bmq.protocol.heartbeat import Heartbeat, HeartbeatAction
from bmq.wire.constants import EventType
from bmq.wire.event import HEARTBEAT_RSP, pack_event_header
from tests.protocol.bench import WRITE, Bench, guid
from tests.sweeps import sweep

URI = "bmq://d/q"
LIMIT = 12.0
PATIENCE = LIMIT / 2
BLOCKED = 60.0


def connected(liveness: float | None = LIMIT, **welcome: int) -> Bench:
    bench = Bench(CoreOptions(liveness=liveness))
    bench.connect(**welcome)
    return bench


def opened() -> tuple[Bench, QueueCore]:
    bench = connected()
    return bench, bench.open(URI)


def stalls(bench: Bench) -> list[str]:
    """The causes of stalls, with a minus for their ends."""
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


def live(bench: Bench, seconds: float, step: float = 0.5) -> None:
    """Time passes; the broker answers heartbeats, and nothing else."""
    end = bench.now + seconds
    while bench.now < end - 1e-9:
        bench.wait(min(step, end - bench.now))
        if bench.up:
            bench.broker.pulses = 0
            bench.send(HEARTBEAT_RSP)


@sweep("max_missed", [0, 2, 10])
def test_a_silent_broker_is_asked_then_reported_then_given_up(max_missed: int) -> None:
    """Whatever the configuration of the broker is."""
    bench = connected(interval_ms=3000, max_missed=max_missed)
    events = list(course(bench))
    if max_missed == 0:
        assert events == [(4.0, "asked"), (6.0, "silence"), (12.0, "given up")]
    assert (events[0][1], events[-1][1]) == ("asked", "given up")
    assert events[-1][0] <= LIMIT
    (error,) = bench.failures
    assert isinstance(error, ConnectionFailed)
    assert "the broker has been silent" in str(error)
    assert error.retryable


def test_an_answer_ends_the_silence_at_once() -> None:
    bench = connected()
    bench.wait(7.0)
    assert stalls(bench) == ["silence"]
    assert bench.core.stalls(bench.now) == {"silence": "the broker has been silent for 7.0 s"}
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


@sweep("talk", ["byte", "ack", "push"])
def test_every_byte_of_the_broker_counts(talk: str) -> None:
    bench, queue = opened()
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


def test_a_slow_line_that_takes_bytes_is_no_stall() -> None:
    bench = connected(interval_ms=3000, max_missed=1)
    bench.post(bench.open(URI), 1)
    for _ in range(100):
        bench.wait(2.9)
        bench.core.written(bench.now)
    assert bench.failures == stalls(bench) == []
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


def test_an_answer_behind_a_backlog_is_waited_for() -> None:
    """On a slow line a full window takes minutes, and the answer is behind it."""
    bench, queue = opened()
    receive(bench, queue, 100 * LIMIT, DENSE)
    assert bench.failures == []
    assert stalls(bench) == ["answers"], "reported once, however long it takes"
    bench.send(HEARTBEAT_RSP)
    assert stalls(bench) == ["answers", "-answers"]
    assert bench.core.stalls(bench.now) == {}
    receive(bench, queue, 10 * LIMIT, DENSE)
    assert bench.failures == []
    receive(bench, queue, 3 * LIMIT, SPARSE)
    assert len(bench.failures) == 1, "behind few messages, a missing answer counts"


def test_a_request_behind_unacknowledged_posts_has_time_to_arrive() -> None:
    bench, queue = opened()
    bench.core.post(queue, guid(1), bytes(1 << 20), 1, bench.now)
    bench.pump()
    posted = bench.now
    receive(bench, queue, 1000.0, SPARSE)
    assert 120.0 <= bench.now - posted <= 150.0, "the time of 1 MiB at 8 KiB/s"
    assert len(bench.failures) == 1


@sweep("what", ["ack", "control", "pause", "write"])
def test_missing_answer_counts_only_while_it_can_arrive(what: str) -> None:
    """Any answer will do; the session may not read, or its request may wait behind its own output."""
    bench, queue = opened()
    for number in range(100):
        receive(bench, queue, LIMIT / 4, SPARSE)
        if what == "ack":
            bench.post(queue, number)
            bench.ack_all()
        elif what == "control":
            bench.configure(queue, "", token=number)
            bench.answer_all()
        elif what == "pause":
            bench.core.pause_reading(True, bench.now)
            bench.wait(LIMIT)
            bench.core.pause_reading(False, bench.now)
        else:
            bench.core.written(bench.now)
    assert bench.failures == stalls(bench) == []
    receive(bench, queue, 2 * LIMIT, SPARSE)
    assert len(bench.failures) == 1


def test_a_loop_that_is_blocked_again_and_again_convicts_no_peer_that_sends() -> None:
    """Each turn of the loop reads one chunk, and the answer is in a later chunk."""
    bench, queue = opened()
    for number in range(100):
        tick(bench, BLOCKED)
        bench.push(queue, number)
    assert bench.failures == []


def test_a_full_window_with_flowing_acknowledgements_is_no_stall() -> None:
    bench, queue = opened()
    bench.post(queue, *range(100))
    for _ in range(100):
        live(bench, PATIENCE - 1.0)
        put = bench.broker.puts.pop(0)
        bench.send(bench.broker.ack([put]))
    assert stalls(bench) == []


def test_a_stuck_queue_is_reported_beside_a_moving_queue() -> None:
    bench = connected()
    stuck, moving = bench.open(URI), bench.open("bmq://d/moving")
    bench.post(stuck, 0)
    (held,) = bench.broker.puts
    for number in range(1, 20):
        live(bench, 1.0)
        bench.broker.puts.clear()
        bench.post(moving, number)
        bench.ack_all()
    assert stalls(bench) == ["posts"]
    assert URI in bench.core.stalls(bench.now)["posts"]
    bench.send(bench.broker.ack([held], AckStatus.LIMIT_MESSAGES))
    assert stalls(bench) == ["posts", "-posts"], "a refusal is an outcome too"


@sweep("before", [each / 10 for each in range(1, 60)])
def test_a_stall_is_reported_in_time_whatever_was_examined_before(before: float) -> None:
    """At half of the limit, and a tenth later at most."""
    bench, queue = opened()
    bench.post(queue, 1)
    live(bench, before, step=0.1)
    bench.ack_all()
    bench.post(queue, 2)
    live(bench, PATIENCE, step=0.1)
    assert stalls(bench) == []
    live(bench, LIMIT / 10 + 0.1, step=0.1)
    assert stalls(bench) == ["posts"]


def test_requests_without_answer_stall_and_name_the_queue() -> None:
    bench = connected()
    bench.begin_open(URI)
    live(bench, PATIENCE + 0.1)
    assert stalls(bench) == ["requests"]
    assert bench.core.stalls(bench.now) == {
        "requests": f"the broker has not answered openQueue of {URI} for 6.1 s"
    }
    bench.answer()
    assert stalls(bench) == ["requests", "-requests"]
    live(bench, PATIENCE + 0.1)
    assert stalls(bench) == ["requests", "-requests", "requests"], "the configuration is not answered either"


def test_silence_explains_posts_without_outcome() -> None:
    bench, queue = opened()
    bench.post(queue, 1)
    bench.wait(LIMIT - 1.0)
    assert stalls(bench) == ["silence"]
    live(bench, PATIENCE)
    assert stalls(bench) == ["silence", "-silence", "posts"]


def test_a_lost_connection_ends_every_stall_and_posts_sent_again_have_time_again() -> None:
    bench = connected()
    queue = bench.open(URI, WRITE)
    bench.post(queue, 1)
    live(bench, PATIENCE + 1.0)
    assert stalls(bench) == ["posts"]
    bench.lose()
    assert bench.core.stalls(bench.now) == {}
    bench.wait(100.0)
    bench.connect()
    bench.answer_all()
    live(bench, PATIENCE - 0.5)
    assert stalls(bench) == ["posts"]
    live(bench, 1.0)
    assert stalls(bench) == ["posts", "posts"]


def test_paused_reading_is_no_stall() -> None:
    bench, queue = opened()
    bench.post(queue, 1)
    bench.begin_open("bmq://d/other")
    bench.core.pause_reading(True, bench.now)
    bench.wait(40.0)
    assert stalls(bench) == []
    assert bench.core.silence(bench.now) is None
    bench.core.pause_reading(False, bench.now)
    live(bench, PATIENCE - 0.1)
    assert stalls(bench) == []
    live(bench, 2.0)
    assert stalls(bench) == ["posts", "requests"]


NOTHING, SEND, DEAD = HeartbeatAction.NOTHING, HeartbeatAction.SEND, HeartbeatAction.GIVE_UP


def run(heartbeat: Heartbeat, heard: list[bool], interval: float = 3.0) -> list[HeartbeatAction]:
    """Poll once an interval; ``heard`` says whether an event arrived in it."""
    pulses = []
    for i, something in enumerate(heard, 1):
        if something:
            heartbeat.heard = True
        pulses.append(heartbeat.poll(i * interval))
    return pulses


@given(st.integers(1, 5), st.integers(0, 8), st.lists(st.booleans(), max_size=60))
def test_the_first_close_follows_grace_and_silence(max_missed: int, grace: int, heard: list[bool]) -> None:
    pulses = run(Heartbeat(3.0, max_missed, now=0.0, grace=grace), heard)
    for i, (something, pulse) in enumerate(zip(heard, pulses, strict=True)):
        if DEAD in pulses[:i] or something:
            assert pulse is NOTHING
        else:
            assert pulse in (SEND, DEAD)
    if DEAD in pulses:
        end = pulses.index(DEAD)
        assert end >= max_missed + (0 if any(heard[:end]) else grace)
        assert not any(heard[end - max_missed : end + 1]), "given up on a peer that was heard"
    else:
        lengths = [(something, len(list(same))) for something, same in groupby(heard)]
        for place, (something, length) in enumerate(lengths):
            assert something or length <= max_missed + (0 if place else grace)
