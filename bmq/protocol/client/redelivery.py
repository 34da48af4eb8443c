# SPDX-License-Identifier: Apache-2.0
"""Confirmations that may not have arrived: a redelivery of what was confirmed is recognised by them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

__all__ = ["UncertainConfirms"]

#: How long after a reconnect redeliveries are recognised, in seconds.
_WINDOW = 300.0
#: How many confirmations are remembered; the oldest are forgotten.
_CAPACITY = 131_072


class UncertainConfirms:
    """Remembers encoded CONFIRM messages that may have been lost with a connection.

    Nothing acknowledges a confirmation. After a reconnect the broker delivers again what it does not know to
    be confirmed; what is remembered here was confirmed by this process, so that it is confirmed again and
    not handed to the application a second time.

    Attributes:
        deadline: when everything is forgotten, or None.
        messages: what is remembered, the oldest first; for reading only.
    """

    __slots__ = ("deadline", "enabled", "messages")

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.deadline: float | None = None
        self.messages: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.messages)

    def remember(self, messages: Iterable[bytes]) -> None:
        """Keep confirmations, at least until the connection is restored."""
        if not self.enabled:
            return
        known = self.messages
        for message in messages:
            known[message] = None
            known.move_to_end(message)
        while len(known) > _CAPACITY:
            known.popitem(last=False)

    def take(self, message: bytes) -> bool:
        """Return whether this confirmation is remembered, and forget it."""
        if message in self.messages:
            del self.messages[message]
            return True
        return False

    def restored(self, now: float) -> None:
        """There is a connection again: redeliveries come from now on."""
        self.deadline = now + _WINDOW if self.messages else None

    def lost(self) -> None:
        """The connection is gone: redeliveries will come once it is restored."""
        self.deadline = None

    def tick(self, now: float) -> None:
        """Forget everything once the deadline has passed."""
        if self.deadline is not None and now >= self.deadline:
            self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.deadline = None
        self.messages.clear()
