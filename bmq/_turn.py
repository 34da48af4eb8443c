# SPDX-License-Identifier: Apache-2.0
"""The share of a turn of the event loop that received messages may take, and lines of waiting tasks.

A task that finds a buffered message has no reason to suspend. A handler that never waits would keep the
event loop for the whole backlog: confirmations would stay in memory, heartbeats would go unanswered, signals
and timers would be late. Each receiving path therefore asks, before handing out a message, whether the
share of the turn is used up. If so, the path gives the event loop back.

Invariants:

- At most one share begins in a turn of the loop, whatever the number of tasks. Between two turns, the loop
  polls its sockets.
- Tasks without a share continue in the order of arrival. The cost of waking, cancelling and waiting does not
  depend on the number of tasks.
- Waiting tasks continue together while the share lasts: the number of tasks woken in a turn doubles if time
  was left over, and halves otherwise. A task woken too early keeps the place in line.
- A task checks the share before taking a message: a cancellation loses no message.
- After a request to stop, and after a handler has blocked the loop, no share begins for some turns: a request
  that arrived meanwhile takes effect before any further message is handed out.

The loop does not announce a new turn. A callback scheduled at the beginning of a share runs in the next turn,
and marks the turn: one callback in five milliseconds. A share may begin late in one turn and end early in the
next, so a turn has at most two shares.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import Any, Final
from weakref import WeakKeyDictionary

from bmq import _world

__all__ = ["SHARE", "Turn", "WaitingLine", "look_at", "turn_of", "wait_done"]

# Tasks woken in one turn of the event loop.
_MOST: Final = 1024
# Turns without a share, for a cancellation to pass from task to task.
_HELD: Final = 16

#: Seconds of a turn of the event loop for received messages. A longer handler is not interrupted: the loop
#: runs after that handler.
SHARE: Final = 0.005


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


# The callers of wait_done(), for each future that is not done.
_crowds: WeakKeyDictionary[asyncio.Future[Any], WaitingLine] = WeakKeyDictionary()


async def wait_done(future: asyncio.Future[Any]) -> None:
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


def look_at(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a done future: asyncio logs the error if nobody waits for the future."""
    if not future.cancelled():
        future.exception()


def _disperse(future: asyncio.Future[Any]) -> None:
    crowd = _crowds.pop(future)
    crowd.wake(len(crowd))


class Turn:
    """The share of received messages in the turns of one event loop.

    Every receiving path begins with ::

        if turn.clock() >= turn.until:
            await turn.wait()

    Args:
        clock: monotonic clock in seconds. The clock must advance while callbacks run; uvloop's own clock does
            not.

    Attributes:
        clock: the clock.
        until: end of the present share.
    """

    __slots__ = (
        "_begun",
        "_early",
        "_free",
        "_held",
        "_next",
        "_size",
        "_waiting",
        "_woken",
        "clock",
        "until",
    )

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        # The function, not a method around the function: called for each message.
        self.clock = _world.current().monotonic if clock is None else clock
        self.until = self.clock()
        # Whether the loop has begun another turn since the start of the share, and the next share is still
        # free.
        self._free = True
        # Number of turns without a share from now on.
        self._held = 0
        self._waiting = WaitingLine()
        # Tasks woken too early, by their places in the line, and the place of the next task.
        self._early: list[tuple[int, asyncio.Future[None]]] = []
        self._next = 0
        # Tasks to wake in a turn, the woken tasks still to run, and whether a woken task began a share.
        self._size = 1
        self._woken = 0
        self._begun = False

    async def wait(self) -> None:
        """Wait for a share; return at once if the loop has turned since the last share began.

        Cancelling the call passes the share on.
        """
        if not self._free:
            self._next += 1
            await self._woken_in_time(self._next)
            if self._begun:
                return
        self._free = False
        self._begun = True
        self.until = self.clock() + SHARE
        asyncio.get_running_loop().call_soon(self._turned)

    async def _woken_in_time(self, place: int) -> None:
        """Wait until this task is the first of the woken tasks, or time is left in their share."""
        waiter = self._waiting.join()
        while True:
            try:
                await waiter
            except asyncio.CancelledError:
                if self._waiting.leave(waiter):
                    self._woken -= 1
                    if not self._woken and not self._begun:
                        self._turned()
                raise
            self._woken -= 1
            if not self._held and (not self._begun or self.clock() < self.until):
                return
            waiter = asyncio.get_running_loop().create_future()
            heapq.heappush(self._early, (place, waiter))

    def hold(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the present share, and begin no share for some turns.

        May be called by a signal handler, in the thread of the event loop.

        Args:
            loop: the event loop.
        """
        self.until = -inf
        self._free = False
        held, self._held = self._held, _HELD
        if not held:
            loop.call_soon_threadsafe(self._pass)

    def _pass(self) -> None:
        """Count a turn without a share."""
        self._held -= 1
        if self._held:
            asyncio.get_running_loop().call_soon(self._pass)
        else:
            self._turned()

    def _turned(self) -> None:
        """Give a share of the next turn to the tasks that have waited longest."""
        if self._held:
            return
        self._size = min(2 * self._size, _MOST) if self.clock() < self.until else max(1, self._size // 2)
        self._begun = False
        while self._early and self._woken < self._size:
            _, waiter = heapq.heappop(self._early)
            if not waiter.done():  # otherwise the task is cancelled
                waiter.set_result(None)
                self._woken += 1
        self._woken += self._waiting.wake(self._size - self._woken)
        self._free = not self._woken


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """Return the turn object shared by all receiving paths of an event loop."""
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = Turn()
    return turn
