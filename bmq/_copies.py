# SPDX-License-Identifier: Apache-2.0
"""The number of the running copy of an app.

``bmq run --threads`` runs one app in several threads. Handlers name the app by a global variable: behind the
same object, each thread needs a separate session, state and life. The number of the thread is a context
variable: tasks, callbacks and the threads of plain handlers inherit the number, and code without a number has
number 0.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Final, TypeVar

__all__ = ["current", "enter", "for_each"]

T = TypeVar("T")

_number: Final[ContextVar[int]] = ContextVar("bmq_copy", default=0)
#: Returns the number of the copy of the running code; 0 without copies.
current: Final[Callable[[], int]] = _number.get
# The numbers so far, in the order of calls of enter().
_numbers: dict[int, None] = {}


def enter(number: int) -> None:
    """Make the present context a context of this copy."""
    _number.set(number)
    _numbers[number] = None


def for_each(function: Callable[[], T]) -> list[T]:
    """Call a function in the present context and once for each copy; return the results."""
    results = [function()]
    for number in list(_numbers):
        if number != current():
            context = copy_context()
            context.run(_number.set, number)
            results.append(context.run(function))
    return results
