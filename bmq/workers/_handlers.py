# SPDX-License-Identifier: Apache-2.0
"""Calls of a handler, with a deadline: async handlers in the event loop, others in threads."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias, cast

from bmq.client.message import Message
from bmq.errors import UsageError
from bmq.workers._blocking import BlockingCalls, Steps
from bmq.workers._threads import Call, Threads

__all__ = ["Alarm", "Handler", "Invoker", "is_async", "name_of", "too_late"]

logger = logging.getLogger("bmq.workers")

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


class Invoker:
    """Calls a handler. Each task makes one call at a time.

    Attributes:
        name: name of the handler.
        direct: the handler, if it is async.
        timeout: seconds for a call; None for no limit.
        blocking: logs blocking of the event loop.
    """

    def __init__(self, handler: Callable[[Any], object], timeout: float | None) -> None:
        self.name = name_of(handler)
        self._handler: Callable[[Any], Any] = handler
        self.timeout = timeout
        self.blocking = BlockingCalls(logger, self.name)
        self.direct: Callable[[Any], Awaitable[object]] | None = (
            cast("Callable[[Any], Awaitable[object]]", handler) if is_async(handler) else None
        )
        # Separate threads: the loop's default threads are few, and shared with the rest of the program.
        self._threads = None if self.direct is not None else Threads(self.name)
        # Calls in threads still running after the deadline, by calling task.
        self._late: dict[asyncio.Task[Any] | None, Call] = {}

    async def __call__(self, message: Any) -> None:
        """Call the handler with a message or a batch.

        Raises:
            TimeoutError: the deadline has passed.
            BaseException: any exception of the handler.

        Cancelling the call cancels an async handler. A thread continues, and its result is dropped.
        """
        if self.direct is None:
            await self._in_thread(message)
            return
        timeout = self.timeout
        if timeout is None:
            await Steps(self.direct(message), self.blocking)
            return
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                await Steps(self.direct(message), self.blocking)
        except TimeoutError:
            if not deadline.expired():
                raise
        if deadline.expired():
            raise too_late(timeout)

    async def _in_thread(self, message: Any) -> None:
        assert self._threads is not None
        call = self._threads.start(partial(self._handler, message))
        timeout = self.timeout
        if timeout is None:
            await call.ended
        else:
            # The deadline starts with the function, whose start a busy process may delay.
            while not call.ended.done():
                left = call.left(timeout)
                if left <= 0:
                    self._late[asyncio.current_task()] = call
                    raise too_late(timeout)
                await asyncio.wait((call.ended,), timeout=left)
        if call.error is not None:
            raise call.error
        if inspect.isawaitable(call.result):
            if inspect.iscoroutine(call.result):
                call.result.close()
            raise UsageError(f"{self.name} ran in a thread and returned an awaitable: make it 'async def'")

    def late(self) -> Call | None:
        """Return, and forget, the current task's late call, if the thread still runs."""
        call = self._late.pop(asyncio.current_task(), None) if self._late else None
        return None if call is None or call.ended.done() else call

    def close(self) -> None:
        """Start no more threads; running threads are not waited for."""
        if self._threads is not None:
            self._threads.close()
