# SPDX-License-Identifier: Apache-2.0
"""The state machines as graphs: no unreachable states, no traps, and an error for what cannot be."""

from __future__ import annotations

from enum import Enum

import pytest

from bmq.errors import StateError
from bmq.protocol.client.core import ClientCore, SessionInput, SessionState
from bmq.protocol.client.handshake import Handshake, HandshakeState
from bmq.protocol.client.queue import QueueCore, QueueInput, QueueState
from bmq.protocol.machine import Machine
from bmq.wire.control import ClientIdentity, ClientType
from tests.sweeps import sweep


def reachable(machine: type[Machine], start: Enum, *, backwards: bool = False) -> set[Enum]:
    found, new = {start}, {start}
    while new:
        edges = [(a, transition.next_state) for (a, _), transition in machine.TRANSITIONS.items()]
        if backwards:
            edges = [(b, a) for a, b in edges]
        new = {b for a, b in edges if a in new} - found
        found |= new
    return found


@sweep(
    "machine, start, end",
    [
        (Handshake, HandshakeState.IDLE, HandshakeState.DONE),
        (ClientCore, SessionState.STARTING, SessionState.CLOSED),
        (QueueCore, QueueState.CLOSED, QueueState.CLOSED),
    ],
)
@pytest.mark.statement("7.2")
def test_every_state_can_be_reached_and_left_for_the_end(
    machine: type[Machine], start: Enum, end: Enum
) -> None:
    states = set(type(start))
    assert reachable(machine, start) == states
    assert reachable(machine, end, backwards=True) == states


def test_the_end_of_the_session_and_of_the_connection_is_possible_in_every_state() -> None:
    for state in SessionState:
        for event in (SessionInput.STOP, SessionInput.GIVE_UP, SessionInput.CHANNEL_DOWN):
            assert (state, event) in ClientCore.TRANSITIONS
    for queue_state in QueueState:
        assert QueueCore.TRANSITIONS[queue_state, QueueInput.STOP].next_state is QueueState.CLOSED
        # A queue behind a closing queue continues once the first is closed, possibly by the loss.
        if queue_state not in (QueueState.CLOSED, QueueState.LOST, QueueState.BEHIND):
            down = QueueCore.TRANSITIONS[queue_state, QueueInput.CHANNEL_DOWN]
            # No answer of the old connection is awaited on the next connection.
            assert down.next_state in (QueueState.CLOSED, QueueState.WAITING, QueueState.LOST)


def test_impossible_input_is_an_error_with_state_and_input_and_no_change() -> None:
    core = ClientCore(ClientIdentity(client_type=ClientType.E_TCPCLIENT))
    with pytest.raises(StateError, match=r"DISCONNECTED is not possible in state SessionState\.STARTING"):
        core.fire(SessionInput.DISCONNECTED, 0.0)
    assert core.state is SessionState.STARTING
