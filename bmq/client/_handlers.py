# SPDX-License-Identifier: Apache-2.0
"""Handlers in progress: the tasks inside ``async with message`` while a queue closes."""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

__all__ = ["Handlers"]

_Task: TypeAlias = asyncio.Task[object]

# Minimum number of entries at which entries of ended tasks are removed; and growth since the last removal.
_SOME = 64


class Handlers:
    """The messages of one queue in the hands of handlers, with their tasks.

    Messages handled outside of ``async with`` are not tracked, but confirmed in time or redelivered. An ended
    task handles no message, even if the task never left the block.
    """

    __slots__ = ("_held", "_many", "_waiters")

    def __init__(self) -> None:
        self._held: dict[object, weakref.ref[_Task] | None] = {}
        self._many = _SOME
        self._waiters: list[_Waiter] = []

    def enter(self, held: object) -> None:
        """Record the start of a message or a batch in the current task."""
        task = asyncio.current_task()
        self._held[held] = weakref.ref(task) if task is not None else None
        if len(self._held) > self._many:
            self._held = {held: by for held, by in self._held.items() if _at_work(by)}
            self._many = max(_SOME, 2 * len(self._held))

    def leave(self, held: object) -> None:
        """Mark the message as handled. May run in another task: asyncio closes abandoned generators."""
        self._held.pop(held, None)
        for waiter in self._waiters:
            waiter.ended(1)

    def busy(self, closer: _Task | None) -> int:
        """Return the number of messages in progress, except for the closing task's own."""
        return sum(1 for task in self._tasks() if task is None or task is not closer)

    async def idle(self, closer: _Task | None) -> None:
        """Wait until only the closing task has messages in progress.

        The check runs again when half of the messages may be finished. A check after each message would take
        time proportional to the square of their number.
        """
        while busy := self.busy(closer):
            waiter = _Waiter((busy + 1) // 2)
            self._waiters.append(waiter)
            tasks: dict[_Task, Callable[[object], None]] = {}
            for task, count in Counter(self._tasks()).items():
                if task is not None and task is not closer:
                    tasks[task] = partial(waiter.ended, count)
                    task.add_done_callback(tasks[task])
            try:
                await waiter.future
            finally:
                self._waiters.remove(waiter)
                for task, done in tasks.items():
                    task.remove_done_callback(done)

    def _tasks(self) -> Iterator[_Task | None]:
        """The task of each message in progress; None for a message outside of tasks."""
        for by in self._held.values():
            if _at_work(by):
                yield by() if by is not None else None


class _Waiter:
    """A waiter for a number of finished messages.

    A confirmed message whose task then ends counts twice: the waiter checks too early once.
    """

    __slots__ = ("_left", "future")

    def __init__(self, count: int) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = count

    def ended(self, count: int, _: object = None) -> None:
        """Count finished messages."""
        self._left -= count
        if self._left <= 0 and not self.future.done():
            self.future.set_result(None)


def _at_work(by: weakref.ref[_Task] | None) -> bool:
    if by is None:
        return True
    task = by()
    return task is not None and not task.done()
