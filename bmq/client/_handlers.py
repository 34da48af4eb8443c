# SPDX-License-Identifier: Apache-2.0
"""Handlers in flight: who is inside ``async with message`` while a queue closes."""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

__all__ = ["Handlers"]

_Task: TypeAlias = asyncio.Task[object]

# Entries of tasks that have ended are removed when there are more than these, and twice as many as after the
# last time.
_SOME = 64


class Handlers:
    """The messages of one queue that are being handled, and the tasks that do it.

    What is handled outside of ``async with`` is not known here: such a message is either confirmed in time,
    or delivered again. A task that has ended handles nothing any more, even if it never left its block.
    """

    __slots__ = ("_held", "_many", "_waiters")

    def __init__(self) -> None:
        self._held: dict[object, weakref.ref[_Task] | None] = {}
        self._many = _SOME
        self._waiters: list[_Waiter] = []

    def __len__(self) -> int:
        return sum(1 for _ in self._tasks())

    def enter(self, held: object) -> None:
        """The current task begins to handle a message or a batch."""
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
        """Return how many messages are being handled, not counting those of the task that closes."""
        return sum(1 for task in self._tasks() if task is None or task is not closer)

    async def idle(self, closer: _Task | None) -> None:
        """Wait until nobody but the task that closes handles a message.

        It looks again when half of them may be done: to look at all of them each time one is done would take
        a time that grows with the square of their number.
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
        """The task of each message that is being handled; None if that is not in a task."""
        for by in self._held.values():
            if _at_work(by):
                yield by() if by is not None else None


class _Waiter:
    """One who waits until so many messages are done.

    A message that is confirmed, and whose task ends then, counts twice: the waiter looks once too early.
    """

    __slots__ = ("_left", "future")

    def __init__(self, count: int) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = count

    def ended(self, count: int, _: object = None) -> None:
        """So many messages are not handled any more."""
        self._left -= count
        if self._left <= 0 and not self.future.done():
            self.future.set_result(None)


def _at_work(by: weakref.ref[_Task] | None) -> bool:
    if by is None:
        return True
    task = by()
    return task is not None and not task.done()
