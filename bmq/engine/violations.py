# SPDX-License-Identifier: Apache-2.0
"""Connections ended by the peer's violations of the protocol: growing pauses, and an end.

After a cut the client reconnects at once: the cause is usually gone. After a violation the broker usually
sends the same bytes again, because the broker delivers unconfirmed messages again, and each lost connection
counts as a delivery attempt of every message in flight. The pauses grow, and :data:`MOST` violations in a row
end the session with the error. A connection of :data:`USEFUL` seconds ends the row.
"""

from __future__ import annotations

from bmq._backoff import backoff
from bmq.errors import ConnectionFailed, ProtocolError

__all__ = ["MOST", "USEFUL", "Violations", "violation_in"]

#: Maximum number of consecutive connections ended by a violation.
MOST = 10
#: A connection of at least this many seconds was useful.
USEFUL = 60.0
# The second pause in seconds, and the longest; the random delay of the session's options is added.
_BASE = 0.5
_CAP = 30.0
_FACTOR = 2.0


def violation_in(error: BaseException | None) -> ProtocolError | None:
    """Return the peer's violation behind an error, or None."""
    while error is not None:
        if isinstance(error, ProtocolError):
            return error
        error = error.__cause__
    return None


class Violations:
    """Counts the violations of one session.

    Args:
        target: addresses of the broker, for the error.

    Attributes:
        count: number of consecutive violations.
    """

    __slots__ = ("_target", "count")

    def __init__(self, target: str) -> None:
        self._target = target
        self.count = 0

    def lasted(self, seconds: float) -> None:
        """Record the end of a connection, for any reason."""
        if seconds >= USEFUL:
            self.count = 0

    def note(self, error: BaseException | None) -> bool:
        """Record the end of a connection or an attempt; return whether the peer violated the protocol.

        Raises:
            ConnectionFailed: too many violations.
        """
        violation = violation_in(error)
        if violation is None:
            return False
        self.count += 1
        if self.count >= MOST:
            raise ConnectionFailed(
                f"{self._target}: {self.count} connections in a row ended because of invalid data from the "
                f"broker; the last error: {violation}"
            ) from violation
        return True

    def pause(self, delay: float) -> float:
        """Return the pause before the next attempt, given the ``delay`` after other losses."""
        if self.count < 2:
            return delay
        return delay + backoff(self.count - 1, _BASE, _CAP, _FACTOR)
