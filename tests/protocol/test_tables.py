# SPDX-License-Identifier: Apache-2.0
"""The state machines as graphs: no unreachable states, no traps, and every action can run."""

from __future__ import annotations

import inspect
from enum import Enum

import pytest

from bmq.errors import StateError
from bmq.protocol.client.core import ClientCore, SessionInput, SessionState
from bmq.protocol.client.handshake import Handshake, HandshakeInput, HandshakeState
from bmq.protocol.client.queue import QueueCore, QueueInput, QueueState
from bmq.protocol.machine import Machine
from bmq.wire.control import ClientIdentity, ClientType

#: Each machine with its inputs, its first state and its last state.
MACHINES: list[tuple[type[Machine], type[Enum], Enum, Enum]] = [
    (Handshake, HandshakeInput, HandshakeState.IDLE, HandshakeState.IDLE),
    (ClientCore, SessionInput, SessionState.STARTING, SessionState.CLOSED),
    (QueueCore, QueueInput, QueueState.CLOSED, QueueState.CLOSED),
]
every_machine = pytest.mark.parametrize(
    ("machine", "inputs", "start", "end"), MACHINES, ids=[machine.__name__ for machine, *_ in MACHINES]
)


def reachable(machine: type[Machine], start: Enum, *, backwards: bool = False) -> set[Enum]:
    found, new = {start}, {start}
    while new:
        edges = [(a, transition.next_state) for (a, _), transition in machine.TRANSITIONS.items()]
        if backwards:
            edges = [(b, a) for a, b in edges]
        new = {b for a, b in edges if a in new} - found
        found |= new
    return found


@every_machine
@pytest.mark.statement("7.2")
def test_every_state_can_be_reached_and_left_for_the_end(
    machine: type[Machine], inputs: type[Enum], start: Enum, end: Enum
) -> None:
    states = set(type(start))
    assert reachable(machine, start) == states
    assert reachable(machine, end, backwards=True) == states


@every_machine
def test_the_tables_use_exactly_the_declared_inputs(
    machine: type[Machine], inputs: type[Enum], start: Enum, end: Enum
) -> None:
    assert {event for _, event in machine.TRANSITIONS} == set(inputs)
    assert {state for state, _ in machine.TRANSITIONS} == set(type(start))


@every_machine
def test_every_action_is_a_function_of_the_class_and_all_for_one_input_take_the_same(
    machine: type[Machine], inputs: type[Enum], start: Enum, end: Enum
) -> None:
    for event in inputs:
        actions = {t.action for (_, on), t in machine.TRANSITIONS.items() if on is event and t.action}
        for action in actions:
            assert getattr(machine, action.__name__) is action
        required = [
            [p for p in inspect.signature(action).parameters.values() if p.default is p.empty]
            for action in actions
        ]
        accepted = [len(inspect.signature(action).parameters) for action in actions]
        # All actions accept the same number of arguments.
        assert max(map(len, required), default=0) <= min(accepted, default=0), event


def test_the_end_of_the_session_and_of_the_connection_is_possible_in_every_state() -> None:
    for state in SessionState:
        for event in (SessionInput.STOP, SessionInput.GIVE_UP, SessionInput.CHANNEL_DOWN):
            assert (state, event) in ClientCore.TRANSITIONS
    for handshake_state in HandshakeState:
        down = Handshake.TRANSITIONS[handshake_state, HandshakeInput.CHANNEL_DOWN]
        assert down.next_state is HandshakeState.IDLE
    for queue_state in QueueState:
        assert QueueCore.TRANSITIONS[queue_state, QueueInput.STOP].next_state is QueueState.CLOSED
        # A queue behind a closing queue continues once the first is closed, possibly by the loss.
        if queue_state not in (QueueState.CLOSED, QueueState.LOST, QueueState.BEHIND):
            down = QueueCore.TRANSITIONS[queue_state, QueueInput.CHANNEL_DOWN]
            # No answer of the old connection is awaited on the next connection.
            assert down.next_state in (QueueState.CLOSED, QueueState.WAITING, QueueState.LOST)


def test_every_waiting_state_handles_three_kinds_of_answer() -> None:
    waiting = {state for state, event in QueueCore.TRANSITIONS if event is QueueInput.REFUSED}
    assert waiting == set(QueueState) - {
        QueueState.CLOSED,
        QueueState.BEHIND,
        QueueState.WAITING,
        QueueState.OPEN,
        QueueState.LOST,
        QueueState.REOPEN_DELAYED,
        QueueState.RESTORE_DELAYED,
        QueueState.REOPENED,
    }
    for state in waiting:
        assert (state, QueueInput.ACCEPTED) in QueueCore.TRANSITIONS
        overdue = state in (QueueState.OVERDUE, QueueState.REOPEN_OVERDUE)
        assert overdue is not ((state, QueueInput.TIMEOUT) in QueueCore.TRANSITIONS)


def test_queue_can_be_reconfigured_and_closed_in_every_public_state() -> None:
    for state in (
        QueueState.OPEN,
        QueueState.RECONFIGURING,
        QueueState.LOST,
        QueueState.REOPENING,
        QueueState.RESTORING,
        QueueState.REOPEN_DELAYED,
        QueueState.REOPEN_OVERDUE,
        QueueState.RESTORE_DELAYED,
        QueueState.REOPENED,
    ):
        assert (state, QueueInput.CONFIGURE) in QueueCore.TRANSITIONS
        assert (state, QueueInput.CLOSE) in QueueCore.TRANSITIONS
        streams = QueueState.RECONFIGURING, QueueState.RESTORING, QueueState.RESTORE_DELAYED
        if state not in streams:  # a writer has no stream
            assert (state, QueueInput.CLOSE_PLAIN) in QueueCore.TRANSITIONS


def test_impossible_input_is_an_error_with_state_and_input_and_no_change() -> None:
    core = ClientCore(ClientIdentity(client_type=ClientType.E_TCPCLIENT))
    with pytest.raises(StateError, match=r"DISCONNECTED is not possible in state SessionState\.STARTING"):
        core.fire(SessionInput.DISCONNECTED, 0.0)
    assert core.state is SessionState.STARTING
