"""Handlers in flight: who is inside ``async with message`` while a queue closes."""

from __future__ import annotations

import asyncio

__all__ = ["Handlers"]


class Handlers:
    """The tasks that handle messages of one queue.

    What is handled outside of ``async with`` is not known here: such a message is either confirmed in time,
    or delivered again.
    """

    __slots__ = ("_tasks", "_waiters")

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[object] | None, int] = {}
        self._waiters: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return sum(self._tasks.values())

    def enter(self) -> None:
        """The current task begins to handle a message."""
        task = asyncio.current_task()
        self._tasks[task] = self._tasks.get(task, 0) + 1

    def leave(self) -> None:
        """It is done with it."""
        task = asyncio.current_task()
        left = self._tasks.get(task, 1) - 1
        if left:
            self._tasks[task] = left
            return
        self._tasks.pop(task, None)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def busy(self, closer: asyncio.Task[object] | None) -> int:
        """Return how many messages are being handled, not counting those of the task that closes."""
        return sum(count for task, count in self._tasks.items() if task is not closer)

    async def idle(self, closer: asyncio.Task[object] | None) -> None:
        """Wait until nobody but the task that closes handles a message."""
        while self.busy(closer):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
