# SPDX-License-Identifier: Apache-2.0
"""Tasks waiting for a turn, or together for an event, at constant cost for each task."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["WaitingLine", "ended"]


class WaitingLine:
    """Tasks waiting for a turn, in the order of arrival.

    Joining, leaving and waking a task take constant time, for any length of the line. ::

        waiter = line.join()
        try:
            await waiter
        finally:
            if line.leave(waiter):
                line.wake()  # the turn was this task's, and goes to the next one

    The places are an ``OrderedDict``, since a task may leave from the middle. In a deque with dead entries,
    the dead entries would add up while no task is woken. A plain dict searches through all removed entries
    for the first live entry.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiters)

    def join(self) -> asyncio.Future[None]:
        """Join at the end; return a future, done when the task's turn has come."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        return waiter

    def leave(self, waiter: asyncio.Future[None]) -> bool:
        """Leave the line; return whether the turn had already come. Leaving twice is harmless."""
        self._waiters.pop(waiter, None)
        return waiter.done() and not waiter.cancelled()

    def wake(self, count: int = 1) -> int:
        """Wake the first tasks; return the number of woken tasks."""
        woken = 0
        waiters = self._waiters
        while woken < count and waiters:
            waiter, _ = waiters.popitem(last=False)
            if not waiter.done():  # otherwise the task is cancelled, and has not run since
                waiter.set_result(None)
                woken += 1
        return woken


# The callers of ended(), for each future that is not done.
_crowds: WeakKeyDictionary[asyncio.Future[Any], WaitingLine] = WeakKeyDictionary()


async def ended(future: asyncio.Future[Any]) -> None:
    """Wait until a future is done, with any number of other callers; the caller asks for the result.

    asyncio keeps the waiting tasks of a future in a list. A leaving task searches the whole list, so the
    cancellation of 50,000 tasks that wait for one subscription took 20 seconds.

    The call always suspends: callbacks of a done future run before the caller continues.

    Cancelling the call does not cancel the future.
    """
    if future.done():
        await asyncio.sleep(0)
        return
    crowd = _crowds.get(future)
    if crowd is None:
        crowd = _crowds[future] = WaitingLine()
        future.add_done_callback(_disperse)
    waiter = crowd.join()
    try:
        await waiter
    finally:
        crowd.leave(waiter)


def _disperse(future: asyncio.Future[Any]) -> None:
    crowd = _crowds.pop(future)
    crowd.wake(len(crowd))
