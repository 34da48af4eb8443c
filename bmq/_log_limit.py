# SPDX-License-Identifier: Apache-2.0
"""Rate-limited log lines: the first line of each kind at once, then a line per interval with a count."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager
from typing import Final

from bmq import _world
from bmq._logging import Log

__all__ = ["LogLimit"]

_MOST_KINDS: Final = 256


class LogLimit:
    """Logs the first line of each kind, and afterwards at most a line per kind and interval.

    Suppressed lines are counted; the next line of the kind ends with the count. The number of remembered
    kinds is limited, because a peer could invent kinds without limit. Further kinds share an entry.

    Args:
        logger: receives the lines.
        every: minimum time between two lines of one kind, in seconds.
        clock: a monotonic clock in seconds.
    """

    __slots__ = ("_clock", "_every", "_kinds", "_logger")

    def __init__(
        self, logger: Log, every: float = 60.0, clock: Callable[[], float] = _world.monotonic
    ) -> None:
        self._logger = logger
        self._every = every
        self._clock = clock
        # kind -> [time of the last line, lines suppressed since]
        self._kinds: dict[Hashable, list[float]] = {}

    def log(
        self,
        level: int,
        kind: Hashable,
        message: str,
        *args: object,
        extra: Mapping[str, object] | None = None,
    ) -> bool:
        """Log a line unless the kind was logged within the interval; return whether the line was logged."""
        if kind not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            kind = None
        now = self._clock()
        seen = self._kinds.get(kind)
        if seen is not None and now - seen[0] < self._every:
            seen[1] += 1
            return False
        suppressed = int(seen[1]) if seen is not None else 0
        self._kinds[kind] = [now, 0]
        if suppressed:
            message, args = message + " (and %d more like this since)", (*args, suppressed)
        self._logger.log(level, message, *args, extra=extra)
        return True

    def warning(
        self, kind: Hashable, message: str, *args: object, extra: Mapping[str, object] | None = None
    ) -> bool:
        """Log a warning; see :meth:`log`."""
        return self.log(logging.WARNING, kind, message, *args, extra=extra)

    def error(
        self, kind: Hashable, message: str, *args: object, extra: Mapping[str, object] | None = None
    ) -> bool:
        """Log an error; see :meth:`log`."""
        return self.log(logging.ERROR, kind, message, *args, extra=extra)

    @contextmanager
    def surviving(self, what: str, *, but: type[Exception] | tuple[()] = ()) -> Generator[None]:
        """Keep any exception in the block from ending a loop that runs as long as its program.

        The exception is logged as one line; cancellation passes.

        Args:
            what: the round, as the subject of a sentence.
            but: errors that pass too.
        """
        try:
            yield
        except but:
            raise
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            self.error((what, type(error)), "%s failed: %r, at %s:%s", what, error, at.filename, at.lineno)
