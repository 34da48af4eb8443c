"""A hundred thousand random steps through the client core, and the transitions they must have taken."""

from __future__ import annotations

import os
from collections import Counter
from enum import Enum
from typing import Any

import pytest

from bmq.protocol.client import core as client
from bmq.protocol.client import queue_steps
from bmq.protocol.client.tables import QUEUE_TRANSITIONS, SESSION_TRANSITIONS, Transition, step
from tests.protocol.walk import Walk

#: BMQ_WALK_SEED replays one walk; BMQ_WALK_STEPS takes another number of steps.
STEPS = int(os.environ.get("BMQ_WALK_STEPS", "100000"))
SEED = os.environ.get("BMQ_WALK_SEED")


def test_no_random_walk_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: Counter[tuple[Enum, Enum]] = Counter()

    def counting(table: Any, state: Enum, event: Enum) -> Transition:
        taken[state, event] += 1
        return step(table, state, event)

    monkeypatch.setattr(client, "step", counting)
    monkeypatch.setattr(queue_steps, "step", counting)
    steps, seed = 0, int(SEED or 0)
    while steps < STEPS:
        walk = Walk(seed)
        try:
            walk.run(2000)
        except BaseException as error:
            error.add_note(f"replay it with BMQ_WALK_SEED={seed}: it was at step {walk.steps}")
            raise
        steps += walk.steps
        seed += 1
        if SEED:
            return
    # Of what happens rarely some is missed in a hundred thousand steps; tests of their own see to each of it.
    table = {key for key in {**QUEUE_TRANSITIONS, **SESSION_TRANSITIONS} if key[0].name != "STOPPED"}
    missed = sorted(f"{state.name}+{event.name}" for state, event in table - set(taken))
    assert len(missed) < 0.1 * len(table), f"transitions never taken in {steps} steps: {missed}"
