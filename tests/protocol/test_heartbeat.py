# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: a silent peer is queried, and given up; an active peer is left alone."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from bmq.protocol.heartbeat import Heartbeat, HeartbeatAction
from tests.sweeps import sweep

NOTHING, SEND, DEAD = HeartbeatAction.NOTHING, HeartbeatAction.SEND, HeartbeatAction.GIVE_UP


def run(heartbeat: Heartbeat, heard: list[bool], interval: float = 3.0) -> list[HeartbeatAction]:
    """Poll once an interval; ``heard`` says whether an event arrived in it."""
    pulses = []
    for i, something in enumerate(heard, 1):
        if something:
            heartbeat.heard = True
        pulses.append(heartbeat.poll(i * interval))
    return pulses


def test_a_late_poll_counts_as_one_interval() -> None:
    # A suspended process must not find its peer dead for the time it slept itself.
    heartbeat = Heartbeat(3.0, 2, now=0.0)
    assert heartbeat.poll(3600.0) is SEND
    assert heartbeat.deadline == 3603.0
    assert heartbeat.poll(3601.0) is NOTHING


@sweep("interval, max_missed", [(3.0, 0), (3.0, -1), (0.0, 10), (-1.0, 10)])
def test_zero_turns_the_timer_off(interval: float, max_missed: int) -> None:
    heartbeat = Heartbeat(interval, max_missed, now=0.0)
    assert heartbeat.deadline is None
    assert [heartbeat.poll(now) for now in (0.0, 3.0, 1e9)] == [NOTHING] * 3


@given(st.integers(1, 5), st.integers(0, 8), st.lists(st.booleans(), max_size=60))
def test_the_first_close_comes_after_the_grace_and_enough_silence(
    max_missed: int, grace: int, heard: list[bool]
) -> None:
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
