# SPDX-License-Identifier: Apache-2.0
"""The share of a turn of the event loop that received messages may take.

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
from collections.abc import Callable
from math import inf
from typing import Final
from weakref import WeakKeyDictionary

from bmq import _world
from bmq._waiting import WaitingLine

__all__ = ["SHARE", "Turn", "turn_of"]

# Tasks woken in one turn of the event loop.
_MOST: Final = 1024
# Turns without a share, for a cancellation to pass from task to task.
_HELD: Final = 16

#: Seconds of a turn of the event loop for received messages. A longer handler is not interrupted: the loop
#: runs after that handler.
SHARE: Final = 0.005


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
