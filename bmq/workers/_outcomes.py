# SPDX-License-Identifier: Apache-2.0
"""How a handler ends an attempt on purpose."""

from __future__ import annotations

from bmq import _checks

__all__ = ["Reject", "RetryAfter"]


class Reject(Exception):
    """Raised by a handler: this message will never be handled, do not try again.

    It is put aside if the retry policy has a :class:`bmq.DeadLetter`, whatever attempts are left; else it is
    confirmed, and gone. ::

        @app.consumer("bmq://bmq.test.mem.priority/orders", retry=bmq.Backoff(5, then=bmq.DeadLetter(dead)))
        async def ship(message: bmq.Message) -> None:
            if "OrderType" not in message.properties:
                raise bmq.Reject("no OrderType")

    Not a :class:`bmq.Error`: a handler that catches those lets it pass.

    Args:
        reason: for the log, and for ``deadletter.error``.
    """

    def __init__(self, reason: str = "") -> None:
        reason = _checks.text("reason", reason)
        super().__init__(reason)
        self.reason = reason


class RetryAfter(Exception):
    """Raised by a handler: not now, try again in so many seconds.

    Such an attempt is no failure: the retry policy is not asked, and does not count it. A handler that always
    says so is called for ever, and its worker takes no other message meanwhile.

    Args:
        seconds: until the next attempt, 0 or more.
        reason: for the log.

    Raises:
        UsageError: ``seconds`` is negative.
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        seconds, reason = _checks.seconds("seconds", seconds), _checks.text("reason", reason)
        super().__init__(seconds, reason)
        self.seconds = seconds
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or f"in {self.seconds:g} s"
