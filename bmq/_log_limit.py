# SPDX-License-Identifier: Apache-2.0
"""Rate-limited log lines: the first lines of each kind at once, later lines with a count of the others."""

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
    """Logs the first line of each kind, and afterwards at most a line, or ``most``, per kind and interval.

    Suppressed lines are counted; the next line of the kind ends with the count. The number of remembered
    kinds is limited, because a peer could invent kinds without limit. Further kinds share an entry.

    Args:
        logger: receives the lines.
        every: minimum time between two lines of one kind, in seconds.
        clock: a monotonic clock in seconds.
        most: maximum number of lines of one kind in an interval.
    """

    __slots__ = ("_clock", "_every", "_kinds", "_logger", "_most")

    def __init__(
        self,
        logger: Log,
        every: float = 60.0,
        clock: Callable[[], float] = _world.monotonic,
        *,
        most: int = 1,
    ) -> None:
        self._logger = logger
        self._every = every
        self._clock = clock
        self._most = most
        # kind -> [beginning of the interval, lines logged in it, lines suppressed since the last line]
        self._kinds: dict[Hashable, list[float]] = {}

    def log(
        self,
        level: int,
        kind: Hashable,
        message: str,
        *args: object,
        exc_info: BaseException | bool | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> bool:
        """Log a line unless the kind was logged within the interval; return whether the line was logged."""
        if not self._logger.isEnabledFor(level):
            return False
        if kind not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            kind = None
        now = self._clock()
        seen = self._kinds.setdefault(kind, [now, 0, 0])
        if now - seen[0] >= self._every:
            seen[:2] = now, 0
        if seen[1] >= self._most:
            seen[2] += 1
            return False
        seen[1] += 1
        if suppressed := int(seen[2]):
            message, args = message + " (and %d more like this since)", (*args, suppressed)
        elif seen[1] == self._most > 1:
            message, args = message + " (more like this are left out for %d s)", (*args, self._every)
        seen[2] = 0
        self._logger.log(level, message, *args, exc_info=exc_info, extra=extra)
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
