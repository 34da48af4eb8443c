# SPDX-License-Identifier: Apache-2.0
"""The messages of a queue without a matching consumer."""

from __future__ import annotations

from operator import itemgetter

from bmq.client._definition import Numbered
from bmq.client.backlog import Backlog
from bmq.wire.push import DATA

__all__ = ["Unclaimed"]

_number = itemgetter(0)


class Unclaimed:
    """Keeps messages until a matching consumer starts, counted in the session's backlog.

    Messages are appended on arrival, and sorted into the order of delivery on taking. Sorting on arrival
    would move all messages for each event.

    Args:
        backlog: session's account of held messages.

    Attributes:
        bytes: bytes of the messages.
    """

    __slots__ = ("_backlog", "_messages", "bytes")

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._messages: list[Numbered] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def keep(self, messages: list[Numbered]) -> int:
        """Keep messages, only the first ones if space is short; return the number of dropped messages."""
        size = sum([len(push[DATA]) for _, push in messages])
        kept: list[Numbered] = messages
        if not self._backlog.has_room(len(messages), size):
            kept = []
            size = 0
            for each in messages:
                more = len(each[1][DATA])
                if not self._backlog.has_room(len(kept) + 1, size + more):
                    break
                kept.append(each)
                size += more
        if kept:
            self._messages += kept
            self.bytes += size
            self._backlog.count_unclaimed(len(kept), size)
        return len(messages) - len(kept)

    def take(self) -> list[Numbered]:
        """Take out all messages, in the order of delivery."""
        messages, self._messages = self._messages, []
        size, self.bytes = self.bytes, 0
        if messages:
            self._backlog.count_unclaimed(-len(messages), -size)
            messages.sort(key=_number)
        return messages
