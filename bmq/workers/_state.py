# SPDX-License-Identifier: Apache-2.0
"""The objects shared by an app's handlers: a namespace, or an object of the application's own class."""

from __future__ import annotations

import difflib
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from bmq.errors import UsageError

__all__ = ["S", "State", "checked_state"]


class State(SimpleNamespace):
    """Objects shared by the handlers of an app, by name. Created by :class:`bmq.App`.

    Every name can be set and read. Type checkers do not check the names; for checked names and types, give
    :class:`bmq.App` an object of a class of your own.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = sorted(vars(self))
        close = difflib.get_close_matches(name, known, 1)
        meant = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known) or 'nothing yet'}."
        raise AttributeError(
            f"app.state has no {name!r}: {meant} Set the names in a function of app.on_startup; with "
            "bmq.App(state=...) and a class of your own, type checkers find such names",
            name=name,
            obj=self,
        )


# For type checkers, an App without a state is an App[State]. At run time such defaults need Python 3.13.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", default=State)
else:
    from typing import TypeVar

    S = TypeVar("S")


def checked_state(state: Any) -> Any:
    """Return the state of an app.

    Raises:
        UsageError: the state is a class.
    """
    if state is None:
        return State()
    if inspect.isclass(state):
        raise UsageError(
            f"state is an object, not the class {state.__name__}: App(state={state.__name__}(...))"
        )
    return state
