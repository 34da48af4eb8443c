# SPDX-License-Identifier: Apache-2.0
"""The share of a turn of the event loop that received messages may take.

A task that finds a buffered message has no reason to suspend. A handler that never waits would keep the
event loop for the whole backlog: confirmations would stay in memory, heartbeats would go unanswered, signals
and timers would be late. So each receiving path asks, before handing a message out, whether the share of
this turn is used up, and gives the loop back if so.

Invariants:

- At most one share begins in a turn of the loop, whatever the number of tasks: a thousand tasks that were
  woken together take a thousand turns. The loop polls its sockets between two of them.
- Tasks that found the share used up continue first come, first served. Waking, cancelling and waiting cost
  the same for each of them, however many there are.
- A task asks before it takes a message, so cancelling loses no message.

The loop does not report a new turn. A callback that is scheduled at the beginning of a share runs in the
next turn and reports the turn: one callback in five milliseconds. A share may begin late in one turn and end
early in the next turn, so a turn has two shares at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from bmq import _world
from bmq._waiting import WaitingLine

__all__ = ["SHARE", "Turn", "turn_of"]

#: Seconds of a turn of the event loop that received messages may take. A handler that runs for longer is not
#: interrupted: the loop has its turn after that handler.
SHARE: Final = 0.005


class Turn:
    """The share of received messages in the turns of one event loop.

    Every receiving path begins with ::

        if turn.clock() >= turn.until:
            await turn.wait()

    Args:
        clock: a monotonic clock in seconds. It has to advance while callbacks run; uvloop's own does not.

    Attributes:
        clock: the clock.
        until: the time at which the present share ends.
    """

    __slots__ = ("_free", "_waiting", "clock", "until")

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        # The function itself: it is called for every message.
        self.clock = _world.current().monotonic if clock is None else clock
        self.until = self.clock()
        # Whether the loop has begun another turn since the share began, and no task was given the next one.
        self._free = True
        self._waiting = WaitingLine()

    async def wait(self) -> None:
        """Return once the caller may have a share; at once if the loop has turned since the last one began.

        Cancelling it passes the share on.
        """
        if not self._free:
            waiter = self._waiting.join()
            try:
                await waiter
            except asyncio.CancelledError:
                if self._waiting.leave(waiter):
                    self._turned()
                raise
        self._free = False
        self.until = self.clock() + SHARE
        asyncio.get_running_loop().call_soon(self._turned)

    def kept_since(self, began: float) -> bool:
        """Whether the event loop has surely had no turn since a time; a share had begun before."""
        return not self._free and self.until - SHARE <= began

    def _turned(self) -> None:
        """Give a share of the next turn to the task that has waited longest."""
        self._free = not self._waiting.wake()


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """Return the object that all receiving paths of an event loop share."""
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = Turn()
    return turn
