# SPDX-License-Identifier: Apache-2.0
"""The base of all state machines: a table maps a state and an input to an action and the next state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from bmq.errors import StateError

__all__ = ["Machine", "Transition"]


class Transition(NamedTuple):
    """The effect of an input in a state: the action, if any, and the next state."""

    action: Callable[..., Any] | None
    next_state: Any


class Machine:
    """An object with states. A subclass has a table; an input absent from the table is an error.

    Attributes:
        TRANSITIONS: (state, input) -> :class:`Transition`. The actions are functions of the subclass. They
            run in the new state, with the arguments of :meth:`fire` after the input.
        state: the current state; only :meth:`fire` changes it.
    """

    __slots__ = ("state",)

    TRANSITIONS: ClassVar[Mapping[tuple[Any, Any], Transition]]
    state: Any

    def fire(self, event: Enum, *arguments: Any) -> Any:
        """Make the transition for an input; return the result of the action.

        Raises:
            StateError: the table has no transition for this input in this state.
        """
        transition = self.TRANSITIONS.get((self.state, event))
        if transition is None:
            raise StateError(
                f"{event.name} is not possible in state {type(self.state).__name__}.{self.state.name}"
            )
        action, self.state = transition
        return None if action is None else action(self, *arguments)
