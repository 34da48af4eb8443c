# SPDX-License-Identifier: Apache-2.0
"""The event loop of this process's blocking sessions, in a separate thread, and calls from other threads."""

from __future__ import annotations

import asyncio
import sys
import threading
from _thread import TIMEOUT_MAX, allocate_lock
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from bmq import _checks, _world
from bmq._logging import Log
from bmq._loop import LoopThread, has_running_loop, replaced_threads
from bmq._turn import look_at
from bmq.errors import SessionClosed, TimedOut, UsageError

__all__ = ["FOR_THE_END", "Portal", "current_portal", "forget_portal"]

T = TypeVar("T")

logger = Log("bmq.blocking")

# Windows does not interrupt a thread while the thread waits for a lock. On Windows, check for Ctrl-C at this
# interval in seconds.
_SLICE = 0.05 if sys.platform == "win32" else -1.0
# A waiting thread ends its wait this many seconds after the deadline that the event loop should have kept.
_MARGIN = 0.5
# Closing may take this many seconds longer than its deadline, for the last answer and the last bytes.
FOR_THE_END = 2.0


class _Reply(Generic[T]):
    """The answer of the event loop to a waiting thread. A lock is the fastest way to wait."""

    __slots__ = ("_answered", "_error", "_task", "_value")

    _value: T

    def __init__(self) -> None:
        self._answered = allocate_lock()
        self._answered.acquire()
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    # in the waiting thread

    def wait(self, timeout: float | None) -> bool:
        """Wait for the answer, and return whether it came; otherwise only a signal handler can raise here."""
        if timeout is None:
            while not self._answered.acquire(timeout=_SLICE):
                pass
            return True
        deadline = _world.monotonic() + timeout
        while True:
            left = max(0.0, deadline - _world.monotonic())
            if self._answered.acquire(timeout=min(left, _SLICE) if _SLICE > 0 else min(left, TIMEOUT_MAX)):
                return True
            if _world.monotonic() >= deadline:
                return False

    def result(self) -> T:
        """Return the answer of the event loop, or raise the exception."""
        if self._error is None:
            return self._value
        error, self._error = self._error, None
        try:
            if isinstance(error, asyncio.CancelledError):
                raise SessionClosed("the session is closed: the process ends") from error
            raise error
        finally:
            del error  # the traceback refers to this frame

    # in the event loop

    def call(self, function: Callable[[], T]) -> None:
        """Answer with the result of a function."""
        try:
            self._value = function()
        except BaseException as error:
            self._error = error
        self._answered.release()

    def begin(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Answer with the result of a coroutine."""
        self._task = asyncio.get_running_loop().create_task(self._run(function))

    async def _run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        # Not in a callback of the task: callbacks run a turn of the event loop later.
        try:
            self._value = await function()
        except BaseException as error:
            self._error = error
        self._answered.release()

    def cancel(self, undo: Callable[[T], object] | None) -> None:
        """Cancel the coroutine: the thread no longer waits."""

        def ended(_: object) -> None:
            if undo is not None and hasattr(self, "_value"):
                undo(self._value)

        if self._task is not None:  # otherwise the interruption came before the call was handed over
            self._task.cancel()
            self._task.add_done_callback(ended)


class Portal(LoopThread):
    """The thread with the event loop shared by all blocking sessions of a process."""

    def __init__(self) -> None:
        super().__init__("bmq", logger)
        self._kept: dict[asyncio.Task[Any], None] = {}
        # Whether the warning about a running event loop was given.
        self._warned = False

    def check(self) -> None:
        """Raise an error if this thread must not wait for the event loop.

        Raises:
            UsageError: the thread must not wait.
        """
        if self.forked:
            raise UsageError(
                "a session belongs to the process that connected it, and this process is a fork: call "
                "bmq.blocking.connect() again here"
            )
        if self.current:
            raise UsageError(
                "this call came from the session's own thread (from on_event or an interceptor), which "
                "would wait for itself: call from another thread"
            )
        if self.over:
            raise SessionClosed("the session is closed: the process ends")
        if self._warned or not has_running_loop() or "ipykernel" in sys.modules:
            return
        if not replaced_threads():  # with greenlets it is the portal's own event loop, which runs meanwhile
            self._warned = True
            logger.warning(
                "bmq.blocking is used in a thread with a running event loop, which stands still during each "
                "call: use bmq.connect(), or call in another thread (asyncio.to_thread)"
            )

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the event loop, and return the result.

        Raises:
            UsageError: as for :meth:`check`.
            BaseException: any exception of the function.
        """
        self.check()
        reply: _Reply[T] = _Reply()
        self.loop.call_soon_threadsafe(reply.call, function)
        reply.wait(None)
        return reply.result()

    def wait(
        self,
        function: Callable[[], Coroutine[Any, Any, T]],
        *,
        timeout: float | None = None,
        undo: Callable[[T], object] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> T:
        """Run a coroutine in the event loop, and return the result.

        If a signal handler raises an exception, as for Ctrl-C, the wait ends at once, and the coroutine is
        cancelled. The same happens soon after the deadline, which the coroutine keeps itself as long as
        nothing blocks the event loop.

        Args:
            function: creates the coroutine, in the event loop.
            timeout: seconds for the coroutine; None for no limit.
            undo: called in the event loop with a result available at the interruption of the wait.
            meanwhile: called in this thread before the wait.

        Raises:
            UsageError: as for :meth:`check`, or the timeout is not a duration.
            TimedOut: the event loop did not answer in time.
            BaseException: any exception of the coroutine.
        """
        self.check()
        timeout = _checks.timeout(timeout)
        reply: _Reply[T] = _Reply()
        try:
            self.loop.call_soon_threadsafe(reply.begin, function)
            if meanwhile is not None:
                meanwhile()
            if not reply.wait(None if timeout is None else timeout + _MARGIN):
                raise TimedOut(
                    f"no answer from the session's thread within {timeout:g} s: something blocks the thread, "
                    "for example on_event or an interceptor"
                )
        except BaseException:
            self.soon(reply.cancel, undo)
            raise
        return reply.result()

    def finish(
        self, function: Callable[[], Coroutine[Any, Any, object]], timeout: float | None = None
    ) -> None:
        """Run a coroutine that closes; no effect in a fork and at the end of the process."""
        if not (self.forked or self.over):
            self.wait(function, timeout=timeout)

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Finish a task before the end of the process. Called in the event loop."""
        self._kept[task] = None
        task.add_done_callback(look_at)
        task.add_done_callback(self._kept.pop)

    def stop(self) -> None:
        """Begin to end the thread, after the tasks of :meth:`watch`. Called in the event loop."""
        self.over = True
        if self._kept:
            asyncio.gather(*self._kept, return_exceptions=True).add_done_callback(lambda _: self.loop.stop())
        else:
            self.loop.stop()


_portal: Portal | None = None
_making = threading.Lock()


def current_portal() -> Portal:
    """Return the portal of this process; the first call creates it."""
    global _portal
    with _making:
        if _portal is None:
            _portal = Portal()
        return _portal


def forget_portal() -> Portal | None:
    """Return the portal, if any, and forget the portal: the next use creates a new portal."""
    global _portal, _making
    _making = threading.Lock()  # after a fork, a thread of the parent process may hold the old lock
    portal, _portal = _portal, None
    return portal
