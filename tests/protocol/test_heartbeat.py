# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: a silent peer is queried, and given up; an active peer is left alone."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from bmq.protocol.heartbeat import Heartbeat, HeartbeatAction

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
