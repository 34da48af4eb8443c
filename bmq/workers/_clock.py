# SPDX-License-Identifier: Apache-2.0
"""The clock of the workers. Tests replace the clock, so that they need not wait."""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["Clock", "LoopClock"]


class Clock(Protocol):
    """A clock that measures time and sleeps."""

    def time(self) -> float:
        """Return the time in seconds, from any starting point."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait until this many seconds have passed on this clock.

        Cancelling the call ends the wait at once.
        """
        ...


class LoopClock:
    """The clock of the running event loop.

    Attributes:
        time: returns the loop's time in seconds.
    """

    def __init__(self) -> None:
        # The loop's own method, called once for each message.
        self.time = asyncio.get_running_loop().time

    async def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds. Cancelling the call ends the sleep at once."""
        await asyncio.sleep(seconds)
