# SPDX-License-Identifier: Apache-2.0
"""The one runner of state machines: a table says what an input does in a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from bmq.errors import StateError

__all__ = ["Machine", "Transition"]


class Transition(NamedTuple):
    """What an input does in a state: the action to run, if any, and the state that follows."""

    action: Callable[..., Any] | None
    next_state: Any


class Machine:
    """An object with states. A subclass has a table; an input that the table does not have is an error.

    Attributes:
        TRANSITIONS: (state, input) -> :class:`Transition`. The actions are functions of the subclass. They
            run in the new state, and get the arguments of :meth:`fire` that follow the input.
        state: where it is; only :meth:`fire` changes it.
    """

    __slots__ = ("state",)

    TRANSITIONS: ClassVar[Mapping[tuple[Any, Any], Transition]]
    state: Any

    def fire(self, event: Enum, *arguments: Any) -> Any:
        """Make the transition that an input asks for; return what its action returns.

        Raises:
            StateError: the table has none for this input in this state.
        """
        transition = self.TRANSITIONS.get((self.state, event))
        if transition is None:
            raise StateError(
                f"{event.name} is not possible in state {type(self.state).__name__}.{self.state.name}"
            )
        action, self.state = transition
        return None if action is None else action(self, *arguments)
