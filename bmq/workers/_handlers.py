# SPDX-License-Identifier: Apache-2.0
"""Calling a handler: async ones in the loop, others in threads, both with a deadline."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from bmq.client.message import Message
from bmq.errors import UsageError

__all__ = ["Handler", "Invoker", "is_async", "name_of"]

#: An async function, or one that runs in a thread.
Handler: TypeAlias = Callable[[Message], object]


def is_async(handler: Callable[..., object]) -> bool:
    """Whether a handler is a coroutine function, or an object that is called like one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def name_of(handler: Callable[..., object]) -> str:
    """What to call a handler in a log."""
    name: str = getattr(handler, "__qualname__", "") or repr(handler)
    return name.rpartition("<locals>.")[2]


class Invoker:
    """Calls one handler, up to ``concurrency`` times at once.

    Attributes:
        name: the handler's.
    """

    def __init__(self, handler: Callable[[Any], object], timeout: float | None, concurrency: int) -> None:
        self.name = name_of(handler)
        self._handler: Callable[[Any], Any] = handler
        self._timeout = timeout
        # Threads of its own: the loop's default ones are few, and shared with the rest of the program.
        self._threads = None if is_async(handler) else ThreadPoolExecutor(concurrency, self.name)

    async def __call__(self, message: Any) -> None:
        """Handle a message, or a batch.

        Raises:
            TimeoutError: the deadline has passed.
            BaseException: whatever the handler raises.

        Cancelling it cancels an async handler; a thread runs on, and its result is dropped.
        """
        call = self._handler if self._threads is None else self._in_thread
        timeout = self._timeout
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
            raise TimeoutError(f"the handler was not done within its deadline of {timeout:g} s")

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
