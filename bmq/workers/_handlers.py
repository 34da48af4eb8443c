# SPDX-License-Identifier: Apache-2.0
"""Handlers: their names, and the deadline of their calls."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from bmq.client.message import Message

__all__ = ["Alarm", "Handler", "is_async", "name_of", "too_late"]

#: An async function, or a function to run in a thread.
Handler: TypeAlias = Callable[[Message], object]


def is_async(handler: Callable[..., object]) -> bool:
    """Whether a handler is a coroutine function, or an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def name_of(handler: Callable[..., object]) -> str:
    """Return the name of a handler for logs."""
    name: str = getattr(handler, "__qualname__", "") or repr(handler)
    return name.rpartition("<locals>.")[2]


class Alarm:
    """Cancels a task that exceeds a deadline, as ``asyncio.timeout`` does.

    A single timer serves many short calls: a call ending in time needs no timer.

    Args:
        task: the task.
        seconds: time limit of each call.
    """

    __slots__ = ("_began", "_loop", "_rang", "_seconds", "_task", "_timer")

    def __init__(self, task: asyncio.Task[Any], seconds: float) -> None:
        self._task = task
        self._seconds = seconds
        self._loop = task.get_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._began: float | None = None
        self._rang = False

    def begin(self) -> None:
        """Start the time of a call."""
        self._began = began = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(began + self._seconds, self._ring)

    def end(self) -> bool:
        """End the time of a call; return whether the alarm cancelled the task."""
        self._began = None
        if self._rang:
            self._rang = False
            self._task.uncancel()
            return True
        return False

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        if self._began is None:
            return
        due = self._began + self._seconds
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._ring)
        else:
            self._rang = True
            self._task.cancel()


def too_late(seconds: float) -> TimeoutError:
    """Return the error of an attempt beyond the deadline."""
    return TimeoutError(f"the handler was not done within its deadline of {seconds:g} s")
