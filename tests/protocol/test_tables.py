"""The state machines as graphs: nothing is unreachable, nothing is a trap, every action exists."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from bmq.errors import StateError
from bmq.protocol.client.core import ClientCore
from bmq.protocol.client.queue_steps import QueueSteps
from bmq.protocol.client.tables import (
    HANDSHAKE_TRANSITIONS,
    QUEUE_TRANSITIONS,
    SESSION_TRANSITIONS,
    HandshakeState,
    QueueInput,
    QueueState,
    SessionInput,
    SessionState,
    Transition,
    step,
)

Table = Mapping[tuple[Any, Any], Transition]

MACHINES: list[tuple[Table, Enum, Enum]] = [
    (HANDSHAKE_TRANSITIONS, HandshakeState.IDLE, HandshakeState.IDLE),
    (SESSION_TRANSITIONS, SessionState.STOPPED, SessionState.CLOSED),
    (QUEUE_TRANSITIONS, QueueState.CLOSED, QueueState.CLOSED),
]


def reachable(table: Table, start: Enum, *, backwards: bool = False) -> set[Enum]:
    found, new = {start}, {start}
    while new:
        edges = [(a, t.next_state) for (a, _), t in table.items()]
        if backwards:
            edges = [(b, a) for a, b in edges]
        new = {b for a, b in edges if a in new} - found
        found |= new
    return found


@pytest.mark.parametrize(("table", "start", "end"), MACHINES, ids=["handshake", "session", "queue"])
def test_every_state_can_be_reached_and_left_for_the_end(table: Table, start: Enum, end: Enum) -> None:
    states = set(type(start))
    assert reachable(table, start) == states
    assert reachable(table, end, backwards=True) == states


def test_every_action_is_a_method_of_the_class_that_runs_the_table() -> None:
    for owner, table in ((ClientCore, SESSION_TRANSITIONS), (QueueSteps, QUEUE_TRANSITIONS)):
        for action in {transition.action for transition in table.values()} - {""}:
            assert callable(getattr(owner, f"_{action}")), action


def test_the_end_of_the_session_and_of_the_connection_is_possible_in_every_state() -> None:
    for state in SessionState:
        assert (state, SessionInput.STOP) in SESSION_TRANSITIONS
        assert (state, SessionInput.GIVE_UP) in SESSION_TRANSITIONS
        if state is not SessionState.STOPPED:
            assert (state, SessionInput.CHANNEL_DOWN) in SESSION_TRANSITIONS
    for queue_state in QueueState:
        assert QUEUE_TRANSITIONS[queue_state, QueueInput.STOP].next_state is QueueState.CLOSED
        if queue_state not in (QueueState.CLOSED, QueueState.LOST):
            assert (queue_state, QueueInput.CHANNEL_DOWN) in QUEUE_TRANSITIONS


def test_whatever_waits_for_an_answer_can_be_answered_in_three_ways() -> None:
    waiting = {
        state
        for (state, event), transition in QUEUE_TRANSITIONS.items()
        if event is QueueInput.REFUSED and transition
    }
    assert waiting == set(QueueState) - {
        QueueState.CLOSED,
        QueueState.WAITING,
        QueueState.OPEN,
        QueueState.LOST,
    }
    for state in waiting:
        assert (state, QueueInput.ACCEPTED) in QUEUE_TRANSITIONS
        assert (state, QueueInput.TIMEOUT) in QUEUE_TRANSITIONS


def test_a_missing_key_says_what_was_tried_where() -> None:
    with pytest.raises(StateError, match=r"CHANNEL_UP is not possible in state SessionState\.STOPPED"):
        step(SESSION_TRANSITIONS, SessionState.STOPPED, SessionInput.CHANNEL_UP)
