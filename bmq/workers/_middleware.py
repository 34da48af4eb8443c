# SPDX-License-Identifier: Apache-2.0
"""Handlers and middlewares: their names, the deadline of their calls, and functions around them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

from bmq import _checks
from bmq.client.attempt import Attempt, CallNext
from bmq.client.message import Message
from bmq.errors import UsageError

__all__ = [
    "Alarm",
    "Call",
    "Handler",
    "Middleware",
    "chained",
    "check_middleware",
    "check_middlewares",
    "is_async",
    "name_of",
    "timed",
    "too_late",
    "unless_cancelled",
]

# ---- Handlers: their names, and the deadline of their calls

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


# ---- Middlewares: functions around the attempts of handlers

P = ParamSpec("P")
T = TypeVar("T")

#: An async function of an attempt and of the rest of the attempt. The result is the result of the attempt.
Middleware: TypeAlias = Callable[[Attempt, CallNext], Awaitable[Any]]

#: The rest of an attempt.
Call: TypeAlias = Callable[[Attempt], Awaitable[Any]]


def check_middlewares(given: Iterable[Middleware] | None) -> tuple[Middleware, ...]:
    """Return the checked middlewares.

    Raises:
        UsageError: an object is not an async function of two arguments.
    """
    if given is None:
        return ()
    found: list[Middleware] = _checks.items("middlewares", given, "async functions")
    for each in found:
        check_middleware(each)
    return tuple(found)


def check_middleware(given: object) -> None:
    """Check a middleware.

    Raises:
        UsageError: the object is not an async function of two arguments.
    """
    wanted = "async def middleware(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> object"
    if isinstance(given, type):
        raise UsageError(
            f"a middleware must be an async function, not the class {given.__name__}: give an object of the "
            f"class with 'async def __call__', or {wanted}"
        )
    function: Callable[..., object] = _checks.function("a middleware", given, 2)
    if not is_async(function):
        raise UsageError(f"the middleware {name_of(function)} must be async: {wanted}")


def chained(middlewares: Sequence[Middleware], call: Call) -> Call:
    """Return a call surrounded by middlewares, the first middleware outermost."""
    for middleware in reversed(middlewares):
        call = _around(middleware, call)
    return call


def _around(middleware: Middleware, inner: Call) -> Call:
    """Return a call inside a middleware.

    A middleware that forgets ``await`` returns the coroutine of the rest, or drops it. Without a check, the
    message would be confirmed, and the handler would never have run.
    """

    async def around(attempt: Attempt) -> Any:
        latest: Awaitable[Any] | None = None

        def rest() -> Awaitable[Any]:
            nonlocal latest
            latest = call = inner(attempt)
            return call

        result = await middleware(attempt, rest)
        if getattr(latest, "cr_frame", None) is not None:
            raise _unfinished(middleware, latest)
        return result

    return around


def _unfinished(middleware: Middleware, call: Any) -> UsageError:
    """Return the error of a middleware that has not waited for the rest of an attempt."""
    if inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
        call.close()  # otherwise a RuntimeWarning, which names no middleware
        what = "called call_next() without awaiting it, so the handler has not run"
    else:
        what = "returned while the handler was running"
    return UsageError(f"the middleware {name_of(middleware)} {what}: write 'result = await call_next()'")


def timed(call: Callable[P, Awaitable[T]], seconds: float) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return a call with a deadline."""

    async def within(*arguments: P.args, **names: P.kwargs) -> T:
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                return await call(*arguments, **names)
        except TimeoutError:
            if not deadline.expired():
                raise
        raise too_late(seconds)

    return within


def unless_cancelled(call: Call, cut_off: Callable[[], bool]) -> Call:
    """Return a call that ends with a CancelledError if it was cancelled meanwhile.

    For calls whose outcome is posted: whatever a cancelled handler returns or raises is not an outcome.

    Args:
        call: the call.
        cut_off: returns whether all calls were cancelled.
    """

    async def kept(attempt: Attempt) -> Any:
        task = asyncio.current_task()
        assert task is not None
        error: BaseException | None = None
        result: Any = None
        try:
            result = await call(attempt)
        except (Exception, BaseExceptionGroup) as raised:
            if not (task.cancelling() or cut_off()):
                raise
            error = raised
        if cut_off() and not task.cancelling():
            task.cancel()  # the handler has taken the cancellation back
        if task.cancelling():
            raise asyncio.CancelledError from error
        return result

    return kept
