# SPDX-License-Identifier: Apache-2.0
"""Times for the renewal of credentials."""

from __future__ import annotations

__all__ = ["Renewal"]

# Renew at 90 % of the lifetime or five seconds before the end, whichever is earlier; half-way if the lifetime
# is short.
_RENEW_AT = 0.9
_MARGIN = 5.0
_SHORT = 2 * _MARGIN
# After a failed attempt, try again after half of the remaining time, but not more often than this, in
# seconds.
_MIN_RETRY = 0.1


class Renewal:
    """Watches the lifetime given in an authenticationResponse.

    Attributes:
        due: time of the next renewal, or None.
        ends: end of the authentication, or None.
        asked: whether a renewal is unanswered.
    """

    __slots__ = ("asked", "due", "ends")

    def __init__(self) -> None:
        self.asked = False
        self.due: float | None = None
        self.ends: float | None = None

    def authenticated(self, lifetime: float | None, now: float) -> None:
        """Record accepted credentials with a lifetime in seconds; None for no limit."""
        self.asked = False
        if lifetime is None:
            self.clear()
            return
        short = lifetime < _SHORT
        self.due = now + (lifetime / 2 if short else min(_RENEW_AT * lifetime, lifetime - _MARGIN))
        self.ends = now + lifetime

    def failed(self, now: float) -> None:
        """Schedule another attempt while time remains: no credentials were available."""
        if self.ends is not None:
            again = now + max(_MIN_RETRY, (self.ends - now) / 2)
            self.due = again if again < self.ends else None

    def clear(self) -> None:
        """Stop watching: no connection, or no lifetime."""
        self.due = self.ends = None

    def take_due(self, now: float) -> bool:
        """Return True once when the renewal is due."""
        if self.due is None or now < self.due:
            return False
        self.due = None
        return True

    def take_end(self, now: float) -> bool:
        """Return True once when the authentication is over."""
        if self.ends is None or now < self.ends:
            return False
        self.clear()
        return True
