# SPDX-License-Identifier: Apache-2.0
"""Threads for plain functions as handlers.

Threads cannot be stopped: a call continues after the deadline. Three rules hold meanwhile.

- The deadline starts with the call of the function. Each worker has its own thread: no call waits for a free
  thread.
- A worker whose thread is still running takes no message, and the lane stays closed. Two messages of a key
  are never handled at once, and a message is never handled twice at once. After a while another worker takes
  its place, but for one worker: the number of threads has a bound, and a single worker stays the only one.
- The threads do not keep the process alive. After the grace period the process may end in the middle of a
  call. The message is unconfirmed, and the broker delivers the message again.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from bmq import _world

__all__ = ["Call", "Threads"]


class Call:
    """One call of a function in a thread.

    Attributes:
        began: when the function began, by the monotonic clock; None before.
        ended: done when the function has ended.
        error: the exception of the function, or None.
        result: the return value of the function.
        closing: closes the dependencies of the function after its end, if the call ended late.
    """

    __slots__ = ("_context", "_loop", "_now", "_run", "began", "closing", "ended", "error", "result")

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._now = _world.current().monotonic
        self.began: float | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.error: BaseException | None = None
        self.result: object = None
        self.closing: asyncio.Task[None] | None = None

    def run(self, after: Callable[[], None]) -> None:
        """Call the function, in a thread; then ``after``, in the event loop."""
        self.began = self._now()
        try:
            self.result = self._context.run(self._run)
        except BaseException as error:
            self.error = error
        try:
            self._loop.call_soon_threadsafe(self._end, after)
        except RuntimeError:
            pass  # the event loop is closed

    def _end(self, after: Callable[[], None]) -> None:
        after()
        if not self.ended.done():
            self.ended.set_result(None)

    def left(self, seconds: float) -> float:
        """Return the remaining time of the call, out of ``seconds``; all before the call begins."""
        return seconds if self.began is None else self.began + seconds - self._now()


class Threads:
    """Threads that start on demand and are reused.

    Args:
        name: the beginning of each thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[SimpleQueue[tuple[Call, Callable[[], None]] | None]] = []
        self._count = 0
        self._closed = False

    def start(self, run: Callable[[], Any]) -> Call:
        """Begin to call a function in an idle or new thread."""
        call = Call(run)
        if _world.current().simulated:
            asyncio.get_running_loop().run_in_executor(None, call.run, lambda: None)
            return call
        jobs: SimpleQueue[tuple[Call, Callable[[], None]] | None]
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
        """End each thread after its present call, without waiting."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)


def _work(jobs: SimpleQueue[tuple[Call, Callable[[], None]] | None]) -> None:
    while (job := jobs.get()) is not None:
        call, after = job
        call.run(after)
        del job, call, after  # an idle thread keeps no message
