# SPDX-License-Identifier: Apache-2.0
"""Stalls: a live connection without progress is reported once, and so is the end of the stall."""

from __future__ import annotations

import pytest

from bmq.errors import AckStatus
from bmq.protocol.client.core import CoreOptions
from bmq.protocol.client.events import Stalled, StallOver
from bmq.protocol.client.queue import QueueCore
from bmq.wire.event import HEARTBEAT_RSP
from tests.protocol.bench import WRITE, Bench, held
from tests.sweeps import sweep

LIMIT = 12.0
PATIENCE = LIMIT / 2
URI = "bmq://d/q"


def connected(liveness: float | None = LIMIT, **options: float) -> Bench:
    bench = Bench(CoreOptions(liveness=liveness, **options))  # type: ignore[arg-type]
    bench.connect()
    return bench


def live(bench: Bench, seconds: float, step: float = 0.5) -> None:
    """Time passes; the broker answers heartbeats, and nothing else."""
    end = bench.now + seconds
    while bench.now < end - 1e-9:
        bench.wait(min(step, end - bench.now))
        if bench.up:
            bench.broker.pulses = 0
            bench.send(HEARTBEAT_RSP)


def stalls(bench: Bench) -> list[str]:
    """The causes of stalls, with a minus for their ends."""
    return [
        event.cause if isinstance(event, Stalled) else f"-{event.cause}"
        for event in bench.happened
        if isinstance(event, Stalled | StallOver)
    ]


@sweep("how", ["post", "many", "event"])
def test_posts_without_outcome_stall_after_half_of_the_limit(how: str) -> None:
    bench = connected()
    queue = bench.open(URI)
    live(bench, 100.0)
    post(bench, queue, how)
    live(bench, PATIENCE - 0.5)
    assert stalls(bench) == []
    live(bench, 0.6)
    assert stalls(bench) == ["posts"]
    live(bench, 100.0)
    assert stalls(bench) == ["posts"], "one event, however long it takes"
    assert bench.core.stalls(bench.now)["posts"].endswith("for 106 s")
    bench.ack_all()
    assert stalls(bench) == ["posts", "-posts"]
    assert bench.core.stalls(bench.now) == {}
    post(bench, queue, how, 100)
    live(bench, PATIENCE + 0.1)
    assert stalls(bench) == ["posts", "-posts", "posts"]


def post(bench: Bench, queue: QueueCore, how: str, first: int = 1) -> None:
    if how == "post":
        bench.post(queue, first)
    elif how == "many":
        bench.post_many(queue, first, first + 1)
    else:
        bench.post_event(queue, first, first + 1)


def test_a_full_window_with_flowing_acknowledgements_is_no_stall() -> None:
    bench = connected()
    queue = bench.open(URI)
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


def test_silence_is_a_stall_until_a_byte_arrives() -> None:
    bench = connected()
    bench.wait(PATIENCE + 0.1)
    assert stalls(bench) == ["silence"]
    assert bench.core.stalls(bench.now) == {"silence": "the broker has been silent for 6.1 s"}
    bench.send(HEARTBEAT_RSP)
    assert stalls(bench) == ["silence", "-silence"]
    assert bench.core.silence(bench.now) == 0.0


def test_silence_explains_posts_without_outcome() -> None:
    bench = connected()
    queue = bench.open(URI)
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
    bench = connected()
    queue = bench.open(URI)
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


def test_bytes_that_leave_on_a_slow_line_are_no_stall() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.post(queue, 1)
    for _ in range(30):
        bench.wait(1.0)
        bench.core.written(bench.now)
    assert stalls(bench) == []


def test_only_heartbeats_wake_an_idle_session() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.post(queue, 1)
    bench.ack_all()
    live(bench, 2 * LIMIT)
    woken = 0
    end = bench.now + 100 * LIMIT
    while (deadline := bench.core.next_deadline()) is not None and deadline <= end:
        bench.now = deadline
        bench.core.tick(deadline)
        bench.pump()
        woken += 1
        if bench.broker.pulses:
            bench.broker.pulses = 0
            bench.send(HEARTBEAT_RSP)
    # A request every third of the limit, and a look at the clock behind each.
    assert woken <= 100 * 3 * 2


@pytest.mark.parametrize("ending", ["stop", "lost"])
def test_session_ended_during_stalls_keeps_no_reference(ending: str) -> None:
    def left(queues: int) -> int:
        bench = connected()
        for number in range(queues):
            queue = bench.open(f"bmq://d/q{number}")
            bench.post(queue, number)
            bench.begin_open(f"bmq://d/other{number}")
        live(bench, 2 * PATIENCE)
        assert stalls(bench) == ["posts", "requests"]
        if ending == "lost":
            bench.lose()
            bench.core.give_up("enough", bench.now)
        else:
            bench.core.stop("stop", bench.now, bench.now + 5)
            bench.pump()
            bench.wait(5)
            bench.lose()
        bench.pump()
        assert bench.core.next_deadline() is None
        return held(bench.core)

    assert left(100) < left(1) + 10
