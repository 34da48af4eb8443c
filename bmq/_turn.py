# SPDX-License-Identifier: Apache-2.0
"""The share of a turn of the event loop that received messages may take.

A task that finds a buffered message has no reason to suspend. A handler that never waits would keep the
event loop for the whole backlog: confirmations would stay in memory, heartbeats would go unanswered, signals
and timers would be late. So each receiving path asks, before handing a message out, whether the share of
this turn is used up, and gives the loop back if so.

Invariants:

- At most one share begins in a turn of the loop, whatever the number of tasks: a thousand tasks woken
  together take a thousand turns. Between two turns, the loop polls its sockets.
- Tasks whose share is used up continue in the order of their arrival. The cost of waking, cancelling and
  waiting does not depend on their number.
- A task checks the share before it takes a message, so a cancellation loses no message.

The loop does not announce a new turn. A callback scheduled at the beginning of a share runs in the next turn,
and marks the turn: one callback in five milliseconds. A share may begin late in one turn and end early in the
next, so a turn has at most two shares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from bmq import _world
from bmq._waiting import WaitingLine

__all__ = ["SHARE", "Turn", "turn_of"]

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

    __slots__ = ("_free", "_waiting", "clock", "until")

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        # The function itself, because it is called for each message.
        self.clock = _world.current().monotonic if clock is None else clock
        self.until = self.clock()
        # Whether the loop has begun another turn since the start of the share, and the next share is still
        # free.
        self._free = True
        self._waiting = WaitingLine()

    async def wait(self) -> None:
        """Wait for a share; return at once if the loop has turned since the last share began.

        Cancelling the call passes the share on.
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
        """Whether the event loop has certainly not turned since a time; a share must have begun before."""
        return not self._free and self.until - SHARE <= began

    def _turned(self) -> None:
        """Give a share of the next turn to the task that has waited longest."""
        self._free = not self._waiting.wake()


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """Return the turn object shared by all receiving paths of an event loop."""
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = Turn()
    return turn
