# SPDX-License-Identifier: Apache-2.0
"""The clock of the workers. Tests replace the clock to avoid waiting."""

from __future__ import annotations

import asyncio
from typing import Protocol

from bmq import _checks
from bmq.errors import UsageError

__all__ = ["Clock", "LoopClock", "checked_clock"]


class Clock(Protocol):
    """A clock: measures time and sleeps."""

    def time(self) -> float:
        """Return the time in seconds, from any starting point."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds on this clock.

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
        """Sleep for a number of seconds. Cancelling the call ends the sleep at once."""
        await asyncio.sleep(seconds)


def checked_clock(clock: Clock | None) -> Clock | None:
    """Return the clock for pauses, or None.

    Raises:
        UsageError: the object has no ``time()`` and ``sleep()``.
    """
    if clock is not None and not (
        callable(getattr(type(clock), "time", None)) and callable(getattr(type(clock), "sleep", None))
    ):
        raise UsageError(f"clock must have the methods time and sleep, and {_checks.shown(clock)} does not")
    return clock
