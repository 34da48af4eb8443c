# SPDX-License-Identifier: Apache-2.0
"""A log with a limited rate: a handler may fail a hundred thousand times a second."""

from __future__ import annotations

from typing import Any

from bmq._logging import Log
from bmq.workers._clock import Clock

__all__ = ["Throttle"]

# Maximum number of records of each level, and the period in seconds.
_MOST = 20
_SECONDS = 10.0


class Throttle:
    """Logs the first records of each level in every ten seconds, and the number of omitted records.

    Args:
        logger: receives the records.
        clock: measures the time.
    """

    def __init__(self, logger: Log, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        # For each level: start of the period, number of logged records, number of omitted records.
        self._counted: dict[int, tuple[float, int, int]] = {}

    def log(self, level: int, message: str, *args: Any, **how: Any) -> None:
        """Log a record, unless its level has reached the limit."""
        if not self._logger.isEnabledFor(level):
            return
        now = self._clock.time()
        since, logged, left_out = self._counted.get(level, (now, 0, 0))
        if now - since >= _SECONDS:
            since, logged = now, 0
        if logged >= _MOST:
            self._counted[level] = since, logged, left_out + 1
            return
        if left_out:
            message, args = message + " (%d records like it were left out before)", (*args, left_out)
        elif logged == _MOST - 1:
            message, args = message + " (more like it are left out for %d s)", (*args, _SECONDS)
        self._counted[level] = since, logged + 1, 0
        self._logger.log(level, message, *args, **how)
