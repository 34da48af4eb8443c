# SPDX-License-Identifier: Apache-2.0
"""Later work of an embedded broker: in a later turn of the event loop, or at a time of the broker's clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from bmq.broker.clock import Clock, JumpingClock, ManualClock
from bmq.protocol.deadlines import Deadlines

if TYPE_CHECKING:
    from bmq.broker._connection import BrokerConnection
    from bmq.broker._node import BrokerNode

__all__ = ["Scheduler"]


class Scheduler:
    """One timer for all timed work, and the order of work within the turns of the event loop.

    The broker works between :meth:`begin` and :meth:`end`. Work of a turn continues while the broker stops.

    Args:
        clock: the source of time.
        node: the broker's node, which has timed work too.

    Attributes:
        clock: the source of time.
        working: whether the broker works.
    """

    def __init__(self, clock: Clock, node: BrokerNode) -> None:
        self.clock = clock
        self._node = node
        self._loop: asyncio.AbstractEventLoop | None = None
        self.working = False
        # By the broker's clock: actions, and the deadlines of connections.
        self._actions: Deadlines[Callable[[], None]] = Deadlines()
        self.timeouts: Deadlines[BrokerConnection] = Deadlines()
        # By turns of the event loop: actions, and the connections with output.
        self._postponed: deque[Callable[[], None]] = deque()
        self._dirty: list[BrokerConnection] = []
        # Set for the earliest deadline.
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at: float | None = None
        self._change: asyncio.Event | None = None

    # ---- life

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start work in an event loop; actions of an earlier start are dropped."""
        self._loop = loop
        self._postponed.clear()
        self._actions.clear()
        self._dirty.clear()
        self.working = True
        if isinstance(self.clock, ManualClock):
            self.clock._listeners[self._catch_up] = None
        self.update()

    def end(self) -> None:
        """Stop timed work; output is still written."""
        self.working = False
        if isinstance(self.clock, ManualClock):
            self.clock._listeners.pop(self._catch_up, None)
        self.update()

    def abandon(self) -> None:
        """Drop all work, as the end of a process does."""
        self._loop = None
        self.end()
        self.timeouts.clear()

    # ---- turns of the event loop

    def next_turn(self, action: Callable[[], None]) -> None:
        """Call ``action`` in the next turn of the event loop."""
        if self._loop is not None:
            self._loop.call_soon(action)

    def soon(self, action: Callable[[], None]) -> None:
        """Call ``action`` after other clients: one such action in each turn of the event loop."""
        if not self._postponed:
            self.next_turn(self._do_postponed)
        self._postponed.append(action)

    def _do_postponed(self) -> None:
        if not self._postponed:
            return  # stopped and started meanwhile
        action = self._postponed.popleft()
        if self._postponed:
            self.next_turn(self._do_postponed)
        action()

    def flush_later(self, connection: BrokerConnection) -> None:
        """Write a connection's output at the end of this turn of the event loop."""
        if not self._dirty:
            self.next_turn(self._flush)
        self._dirty.append(connection)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    # ---- time

    def do_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` after ``seconds`` of the broker's clock, if the broker is still running."""
        self._actions.set(action, self.clock() + seconds)
        self.update()

    def update(self) -> None:
        """Set the timer to the earliest deadline; call after every change."""
        if self._change is not None:
            self._change.set()
            self._change = None
        deadline = self._next_deadline() if self.working else None
        if deadline == self._wake_at:
            return
        if isinstance(self.clock, ManualClock) and not isinstance(self.clock, JumpingClock):
            return
        self._wake_at = deadline
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None and self._loop is not None:
            self._timer = self._loop.call_later(max(0.0, deadline - self.clock()), self._wake)

    async def change(self) -> None:
        """Wait until the state of the broker may have changed."""
        if self._change is None:
            self._change = asyncio.Event()
        await self._change.wait()

    def _next_deadline(self) -> float | None:
        deadlines = self._node.deadlines.first, self.timeouts.first, self._actions.first
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def _wake(self) -> None:
        self._timer = self._wake_at = None
        self._tick()
        self.update()

    def _catch_up(self) -> None:
        """Do all due work after the clock was moved."""
        while (deadline := self._next_deadline()) is not None and deadline <= self.clock():
            self._tick()
        self._wake_at = None  # the timer was set before the move
        self.update()

    def _tick(self) -> None:
        """Do the due work."""
        now = self.clock()
        for action in self._actions.due(now):
            action()
        self._node.tick(now)
        for connection in self.timeouts.due(now):
            connection.tick(now)
