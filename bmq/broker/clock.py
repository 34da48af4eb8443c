# SPDX-License-Identifier: Apache-2.0
"""Where an embedded broker's time comes from."""

from __future__ import annotations

from collections.abc import Callable

from bmq import _checks, _world

__all__ = ["Clock", "JumpingClock", "ManualClock"]

#: Returns seconds of a clock that does not go backwards, such as :func:`time.monotonic`.
Clock = Callable[[], float]


class ManualClock:
    """A clock that moves only on request, for tests of timed behaviour.

    ::

        clock = ManualClock()
        async with Broker(clock=clock) as broker:
            ...
            clock.advance(301)    # all work due by then is done on return

    Args:
        start: the first time in seconds; by default the time of :func:`time.monotonic`.
    """

    def __init__(self, start: float | None = None) -> None:
        self._now = _world.monotonic() if start is None else _checks.seconds("start", start)
        # Called after each move: brokers with this clock.
        self._listeners: dict[Callable[[], None], None] = {}

    def __call__(self) -> float:
        """Return the present time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward; brokers with this clock do the due work at once.

        Raises:
            UsageError: the seconds are negative or no number: a clock does not go backwards.
        """
        self._now += _checks.seconds("seconds", seconds)
        for listener in list(self._listeners):
            listener()


class JumpingClock(ManualClock):
    """A clock that runs, and can be moved forward in addition."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self._running = _world.current().monotonic

    def __call__(self) -> float:
        """Return the present time."""
        return self._running() + self._now
