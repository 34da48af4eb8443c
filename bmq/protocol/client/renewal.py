# SPDX-License-Identifier: Apache-2.0
"""When credentials have to be renewed."""

from __future__ import annotations

__all__ = ["Renewal"]

# Renew at 90 % of the lifetime, or five seconds before its end if that comes first; half-way if it is short.
_RENEW_AT = 0.9
_MARGIN = 5.0
_SHORT = 2 * _MARGIN
# After a failed attempt, try again when half of what is left has passed, but not more often than this.
_MIN_RETRY = 0.1


class Renewal:
    """Watches the lifetime that an authenticationResponse gave.

    Attributes:
        due: when the credentials are to be renewed, or None.
        ends: when the authentication is over, or None.
    """

    __slots__ = ("due", "ends")

    def __init__(self) -> None:
        self.due: float | None = None
        self.ends: float | None = None

    def authenticated(self, lifetime: float | None, now: float) -> None:
        """The broker accepted credentials for ``lifetime`` seconds, or for ever."""
        if lifetime is None:
            self.clear()
            return
        short = lifetime < _SHORT
        self.due = now + (lifetime / 2 if short else min(_RENEW_AT * lifetime, lifetime - _MARGIN))
        self.ends = now + lifetime

    def failed(self, now: float) -> None:
        """There were no credentials to send: ask again while there is time."""
        if self.ends is not None:
            again = now + max(_MIN_RETRY, (self.ends - now) / 2)
            self.due = again if again < self.ends else None

    def clear(self) -> None:
        """There is no connection, or nothing to renew."""
        self.due = self.ends = None

    def take_due(self, now: float) -> bool:
        """Return, once, that it is time to renew."""
        if self.due is None or now < self.due:
            return False
        self.due = None
        return True

    def take_end(self, now: float) -> bool:
        """Return, once, that the authentication is over."""
        if self.ends is None or now < self.ends:
            return False
        self.clear()
        return True
