# SPDX-License-Identifier: Apache-2.0
"""Threads for handlers that are plain functions.

Nothing stops a thread. So a call whose deadline has passed goes on, and the rules are about what happens
meanwhile:

- The deadline starts when the function does. A call never waits for a free thread: each worker has its own.
- A worker whose thread is still at work takes nothing else, and its lane stays closed. So two messages of a
  key are never handled at once, nor is a message handled twice at once. Replacing such a thread by another
  would break both, and add up to any number of threads.
- The threads do not keep the process alive. After the grace period the process may end with a function in the
  middle; the message is unconfirmed, and is delivered again.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

__all__ = ["Call", "Threads"]


class Call:
    """One call of a function in a thread.

    Attributes:
        began: when the function began, by the monotonic clock; None before.
        ended: done when the function has ended.
        error: what the function raised.
        result: what the function returned.
    """

    __slots__ = ("_context", "_loop", "_run", "began", "ended", "error", "result")

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self.began: float | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.error: BaseException | None = None
        self.result: object = None

    def run(self, after: Callable[[], None]) -> None:
        """Call the function, in a thread; then ``after``, in the event loop."""
        self.began = time.monotonic()
        try:
            self.result = self._context.run(self._run)
        except BaseException as error:
            self.error = error
        try:
            self._loop.call_soon_threadsafe(self._end, after)
        except RuntimeError:
            pass  # the event loop is closed: nobody waits

    def _end(self, after: Callable[[], None]) -> None:
        after()
        if not self.ended.done():
            self.ended.set_result(None)

    def left(self, seconds: float) -> float:
        """Return how many of these seconds are left of the call; all of them before it has begun."""
        return seconds if self.began is None else self.began + seconds - time.monotonic()


class Threads:
    """Threads that are started when they are needed, and used again.

    Args:
        name: what they are called.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[SimpleQueue[tuple[Call, Callable[[], None]] | None]] = []
        self._count = 0
        self._closed = False

    def start(self, run: Callable[[], Any]) -> Call:
        """Begin to call a function in a thread that is idle, or in a new one."""
        call = Call(run)
        if self._idle:
            jobs = self._idle.pop()
        else:
            jobs = SimpleQueue()
            self._count += 1
            name = f"{self._name}_{self._count}"
            threading.Thread(target=_work, args=(jobs,), name=name, daemon=True).start()
        jobs.put((call, lambda: self._ended(jobs)))
        return call

    def _ended(self, jobs: SimpleQueue[Any]) -> None:
        if self._closed:
            jobs.put(None)
        else:
            self._idle.append(jobs)

    def close(self) -> None:
        """End the threads, each once its function has ended; that is not waited for."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)


def _work(jobs: SimpleQueue[tuple[Call, Callable[[], None]] | None]) -> None:
    while (job := jobs.get()) is not None:
        call, after = job
        call.run(after)
        del job, call, after  # the message is not kept until the next one
