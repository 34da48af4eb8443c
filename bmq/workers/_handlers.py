# SPDX-License-Identifier: Apache-2.0
"""Calling a handler: async ones in the loop, others in threads, both with a deadline."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, cast

from bmq.client.message import Message
from bmq.errors import UsageError

__all__ = ["Alarm", "Handler", "Invoker", "is_async", "name_of", "too_late"]

#: An async function, or one that runs in a thread.
Handler: TypeAlias = Callable[[Message], object]


def is_async(handler: Callable[..., object]) -> bool:
    """Whether a handler is a coroutine function, or an object that is called like one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def name_of(handler: Callable[..., object]) -> str:
    """What to call a handler in a log."""
    name: str = getattr(handler, "__qualname__", "") or repr(handler)
    return name.rpartition("<locals>.")[2]


class Alarm:
    """Cancels a task when what it is at takes too long, as ``asyncio.timeout`` does.

    It has one timer for many short times: what is done in time costs no timer of its own.

    Args:
        task: the task.
        seconds: how long it may take.
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
        """The task begins with something."""
        self._began = began = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(began + self._seconds, self._ring)

    def end(self) -> bool:
        """The task is done with it, or has failed; return whether it was cancelled from here."""
        self._began = None
        if self._rang:
            self._rang = False
            self._task.uncancel()
            return True
        return False

    def close(self) -> None:
        """Leave nothing behind in the event loop."""
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
    """Return the error of an attempt that took too long."""
    return TimeoutError(f"the handler was not done within its deadline of {seconds:g} s")


class Invoker:
    """Calls one handler, up to ``concurrency`` times at once.

    Attributes:
        name: the handler's.
        direct: the handler, if it is async.
        timeout: seconds that it may take; None for no limit.
    """

    def __init__(self, handler: Callable[[Any], object], timeout: float | None, concurrency: int) -> None:
        self.name = name_of(handler)
        self._handler: Callable[[Any], Any] = handler
        self.timeout = timeout
        self.direct: Callable[[Any], Awaitable[object]] | None = (
            cast("Callable[[Any], Awaitable[object]]", handler) if is_async(handler) else None
        )
        # Threads of its own: the loop's default ones are few, and shared with the rest of the program.
        self._threads = None if self.direct is not None else ThreadPoolExecutor(concurrency, self.name)

    async def __call__(self, message: Any) -> None:
        """Handle a message, or a batch.

        Raises:
            TimeoutError: the deadline has passed.
            BaseException: whatever the handler raises.

        Cancelling it cancels an async handler; a thread runs on, and its result is dropped.
        """
        call = self._handler if self._threads is None else self._in_thread
        timeout = self.timeout
        if timeout is None:
            await call(message)
            return
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                await call(message)
        except TimeoutError:
            if not deadline.expired():
                raise
        if deadline.expired():
            raise too_late(timeout)

    async def _in_thread(self, message: Any) -> None:
        assert self._threads is not None
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        result = await loop.run_in_executor(self._threads, lambda: context.run(self._handler, message))
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise UsageError(f"{self.name} ran in a thread and returned an awaitable: make it 'async def'")

    def close(self) -> None:
        """Start no more threads; those that run are not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
