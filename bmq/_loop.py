# SPDX-License-Identifier: Apache-2.0
"""The event loop of bmq's programs and threads."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["LoopThread", "gathers", "new_event_loop"]

T = TypeVar("T")

logger = logging.getLogger("bmq")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if installed, otherwise asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def gathers(transport: asyncio.BaseTransport) -> bool:
    """Whether a transport's ``writelines()`` sends the pieces unjoined and works correctly.

    Only uvloop's does. Before Python 3.12, asyncio's joins the pieces. In some later releases it never pauses
    the protocol, and fails after the connection is lost.
    """
    return type(transport).__module__.startswith("uvloop")


class LoopThread:
    """An event loop in a daemon thread.

    Blocking sessions, Spark's tasks, Arrow's sources and the background broker run on these threads. A fork
    has no copy of the thread, and must leave the thread's sockets alone.

    Args:
        name: name of the thread.
        log: logger for errors of callbacks.

    Attributes:
        loop: event loop; the thread closes the loop at its end.
        over: whether the thread is ending.
        forked: whether the current process is a fork.
    """

    def __init__(self, name: str, log: logging.Logger = logger) -> None:
        self._log = log
        self.loop = new_event_loop()
        self.over = False
        self.forked = False
        _threads[self] = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self.over:
                try:
                    self.loop.run_forever()
                except BaseException:
                    # SystemExit in a callback ends run_forever; the loop must continue.
                    self._log.exception("a callback ended the event loop; the loop continues")
        finally:
            self.loop.close()

    @property
    def current(self) -> bool:
        """Whether the caller runs in the thread."""
        return threading.current_thread() is self._thread

    def soon(self, function: Callable[..., object], *args: object) -> None:
        """Schedule a function in the event loop, from any thread; no effect after the loop was closed."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            pass

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the event loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine in the event loop and wait for the result, from another thread.

        Args:
            work: the coroutine; cancelled if the wait ends early.
            timeout: seconds to wait; None for no limit.

        Raises:
            TimeoutError: the coroutine took longer.
            BaseException: raised by the coroutine.
        """
        future = self.submit(work)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Begin to end the thread. Called in the event loop."""
        self.over = True
        self.loop.stop()

    def end(self, timeout: float | None) -> None:
        """End the thread and wait for its end. Called in another thread.

        Args:
            timeout: seconds to wait; None for no limit.
        """
        self.soon(self.stop)
        self.join(timeout)

    def join(self, timeout: float | None) -> None:
        """Wait for the end of the thread. Called in another thread."""
        self._thread.join(timeout)


# Used as an ordered set, in the order of creation.
_threads: WeakKeyDictionary[LoopThread, None] = WeakKeyDictionary()


def _note_fork() -> None:
    for each in _threads:
        each.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
