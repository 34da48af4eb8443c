# SPDX-License-Identifier: Apache-2.0
"""Messages skipped by an application, by the reason: finding a deliverable message needs no search."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from bmq.broker._routing import Blocked
from bmq.broker._storage import MessageRecord

__all__ = ["Backlog"]

_Entry = tuple[int, MessageRecord]
#: Smallest number of entries at which removing entries of deleted messages pays off.
_COMPACT_FROM = 16


class Backlog:
    """Messages waiting out of order, in the order of insertion.

    A message is *fresh* until the first attempt of a delivery. Afterwards the message waits until certain
    groups have room, or until the consumers change. Deleted messages (confirmed, expired, purged) are skipped
    when reached.
    """

    __slots__ = ("_fresh", "_members", "_parked", "_serial")

    def __init__(self) -> None:
        self._serial = 0
        self._members: dict[MessageRecord, int] = {}
        self._fresh: deque[_Entry] = deque()
        self._parked: dict[Blocked, deque[_Entry]] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[MessageRecord]:
        """Yield the messages in order."""
        return iter(self._members)

    def add(self, message: MessageRecord) -> None:
        """Append a message for an attempt."""
        self._fresh.append(self._enter(message))

    def park(self, message: MessageRecord, blocked: Blocked) -> None:
        """Append a message after an unsuccessful attempt to deliver."""
        self._wait(self._enter(message), blocked)

    def _enter(self, message: MessageRecord) -> _Entry:
        self._serial += 1
        # Keep the order of members equal to the order of the serial numbers.
        self._members.pop(message, None)
        self._members[message] = self._serial
        return self._serial, message

    def _wait(self, entry: _Entry, blocked: Blocked) -> None:
        self._parked.setdefault(blocked, deque()).append(entry)

    def discard(self, message: MessageRecord) -> None:
        """Remove a message, if present."""
        if self._members.pop(message, None) is None:
            return
        if not self._members:
            self.clear()
            return
        kept = len(self._fresh) + sum(map(len, self._parked.values()))
        if kept > _COMPACT_FROM and kept > 2 * len(self._members):
            self._fresh = self._current(self._fresh)
            self._parked = {k: c for k, entries in self._parked.items() if (c := self._current(entries))}

    def _current(self, entries: deque[_Entry]) -> deque[_Entry]:
        members = self._members
        return deque(entry for entry in entries if members.get(entry[1]) == entry[0])

    def clear(self) -> None:
        """Remove all messages."""
        # New containers: a dictionary emptied item by item keeps the memory of the largest size.
        self._members = {}
        self._fresh = deque()
        self._parked = {}

    def wake(self) -> None:
        """Make every message fresh again, because the consumers have changed."""
        if self._members:
            self._fresh = deque((serial, message) for message, serial in self._members.items())
            self._parked.clear()

    def next(self) -> MessageRecord | None:
        """Take the first message that may be deliverable; :meth:`put_back` and :meth:`wait` return it."""
        members = self._members
        while True:
            best: deque[_Entry] | None = self._fresh or None
            for blocked, entries in self._parked.items():
                if entries and (best is None or entries[0] < best[0]) and any(g.first for g in blocked):
                    best = entries
            if best is None:
                return None
            serial, message = best.popleft()
            if members.get(message) == serial:
                return message

    def put_back(self, message: MessageRecord) -> None:
        """Return a taken message to the front."""
        self._fresh.appendleft((self._members[message], message))

    def wait(self, message: MessageRecord, blocked: Blocked) -> None:
        """Return a taken message, to wait for room in any of the groups."""
        self._wait((self._members[message], message), blocked)
