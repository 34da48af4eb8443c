# SPDX-License-Identifier: Apache-2.0
"""The time of a test: real time, and in addition the pauses that the test has skipped.

A test runs on an ordinary event loop. User code keeps real time: ``asyncio.sleep(1)`` in a handler takes a
second, and timeouts of calls are real, too. Only pauses of the library take no time: pauses between two
attempts, and delays of messages. The clock jumps to the end of the next pause as soon as the app is idle. The
clock never stops, so a pause that is not skipped ends after its real time: a wrong guess about idleness costs
time, and blocks nothing.

The app is idle after several turns of the event loop without a call of a handler and without data on a
connection. Between two of these signs, each step of the library takes one or two turns. Time never jumps for
routine work alone, such as a mover's look at an empty queue.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bmq import _world
from bmq.broker.clock import JumpingClock

__all__ = ["TestTime"]

#: Turns of the event loop without a sign of work, after which the app is idle.
_QUIET_TURNS: Final = 16
#: Seconds between two looks at the calls of handlers.
_LOOK_AGAIN: Final = 0.001


@dataclass(order=True, slots=True)
class _Alarm:
    due: float
    number: int
    function: Callable[[], object] = field(compare=False)
    routine: bool = field(compare=False)
    over: bool = field(compare=False, default=False)


class TestTime:
    """The clock of a test, and its pauses.

    Args:
        skip: whether the clock jumps over pauses.

    Attributes:
        clock: the clock, shared with the brokers of the test.
        calls: returns the number of handler calls in progress.
        delayed: returns whether a delayed message waits.
    """

    __test__ = False

    def __init__(self, *, skip: bool) -> None:
        self.clock = JumpingClock()
        self.time: Callable[[], float] = self.clock
        self.calls: Callable[[], int] = int
        self.delayed: Callable[[], bool] = bool
        self._skip = skip
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alarms: list[_Alarm] = []
        self._number = 0
        self._skipped = 0.0
        self._quiet = 0
        # The next look at the signs of work; None while nothing waits for idleness.
        self._looking: asyncio.Handle | None = None
        # Set for the first alarm, in real time.
        self._timer: asyncio.TimerHandle | None = None
        self._settling: list[asyncio.Future[None]] = []

    # ---- life

    def begin(self) -> None:
        """Belong to the running event loop."""
        self._loop = asyncio.get_running_loop()

    def end(self) -> None:
        """Drop all pauses."""
        self._alarms.clear()
        for handle in (self._looking, self._timer):
            if handle is not None:
                handle.cancel()
        self._looking = self._timer = None
        for each in self._settling:
            each.cancel()
        self._settling.clear()

    def world(self, create_connection: Callable[..., Awaitable[tuple[Any, Any]]]) -> _world.World:
        """Return the world of the app: with this clock's time of day, and connections of the test."""
        real = _world.current()
        return replace(
            real,
            time=lambda: real.time() + self._skipped,
            time_ns=lambda: real.time_ns() + round(self._skipped * 1e9),
            create_connection=create_connection,
            after=self.after,
        )

    # ---- pauses

    def after(self, seconds: float, function: Callable[[], object], routine: bool) -> Callable[[], None]:
        """Call a function after some seconds by this clock; return a function that cancels the call.

        Args:
            seconds: seconds.
            function: the function.
            routine: whether the call matters only while a delayed message waits.
        """
        self._number += 1
        alarm = _Alarm(self.time() + max(0.0, seconds), self._number, function, routine)
        heapq.heappush(self._alarms, alarm)
        self._arm()
        self.stir()

        def cancel() -> None:
            alarm.over = True

        return cancel

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds on this clock. Cancelling the call ends the wait at once."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        cancel = self.after(seconds, lambda: _finish(over), False)
        try:
            await over
        finally:
            cancel()

    def _first(self) -> _Alarm | None:
        while self._alarms and self._alarms[0].over:
            heapq.heappop(self._alarms)
        return self._alarms[0] if self._alarms else None

    def _arm(self) -> None:
        """Set the timer for the first pause, in case that the clock does not jump."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        first = self._first()
        if first is not None and self._loop is not None:
            self._timer = self._loop.call_later(max(0.0, first.due - self.time()), self._ring)

    def _ring(self) -> None:
        now = self.time()
        while (first := self._first()) is not None and first.due <= now:
            heapq.heappop(self._alarms)
            first.over = True
            first.function()
        self._arm()
        self.stir()

    def _jump(self, seconds: float) -> None:
        self._skipped += seconds
        self.clock.advance(seconds)
        self._ring()

    # ---- idleness

    def stir(self) -> None:
        """Note a sign of work."""
        self._quiet = 0
        if self._looking is None and (self._settling or (self._skip and self._alarms)):
            self._look_soon()

    def _look_soon(self) -> None:
        assert self._loop is not None
        self._looking = self._loop.call_soon(self._look)

    def _look(self) -> None:
        assert self._loop is not None
        self._looking = None
        if self.calls():
            self._quiet = 0
            self._looking = self._loop.call_later(_LOOK_AGAIN, self._look)
            return
        self._quiet += 1
        if self._quiet < _QUIET_TURNS:
            self._look_soon()
            return
        if self._settling:
            settled, self._settling = self._settling, []
            for each in settled:
                _finish(each)
            self._quiet = 0
            if self._skip and self._alarms:
                self._look_soon()
            return
        self._skip_pause()

    def _skip_pause(self) -> None:
        first = self._first()
        if not self._skip or first is None:
            return
        if all(each.routine for each in self._alarms if not each.over) and not self.delayed():
            return
        self._jump(max(0.0, first.due - self.time()))

    async def settle(self) -> None:
        """Wait until the app is idle."""
        idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settling.append(idle)
        self.stir()
        await idle

    async def advance(self, seconds: float) -> None:
        """Move the clock forward, from pause to pause, and wait each time until the app is idle."""
        await self.settle()  # messages that were posted before have begun their pauses
        target = self.time() + seconds
        while (first := self._first()) is not None and first.due <= target:
            self._jump(max(0.0, first.due - self.time()))
            await self.settle()
        self._jump(max(0.0, target - self.time()))
        await self.settle()


def _finish(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
