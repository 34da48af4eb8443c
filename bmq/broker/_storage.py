# SPDX-License-Identifier: Apache-2.0
"""The storage of a queue: one copy of each message, in order of arrival, for any number of applications.

Messages form a doubly linked list. Removing a message from the middle, and keeping an application's place,
have the same cost for any number of stored messages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from bmq.broker.domain_config import Limits
from bmq.errors import ProtocolError
from bmq.subscriptions import Lookup, lookup
from bmq.wire.properties import first_properties, plain_values

__all__ = ["CapacityMeter", "MessageRecord", "MessageStore", "compact", "property_lookup"]

_Table = TypeVar("_Table", dict[Any, Any], set[Any])
#: A growing dictionary takes 40 to 110 bytes an item, and a growing set 30 to 130. One with more bytes an
#: item has shrunk, and is copied.
_ROOMY: Final = 400


@dataclass(slots=True, eq=False)
class MessageRecord:
    """One stored message.

    Attributes:
        guid: 16 bytes.
        data: application data with padding, as received and as delivered.
        size: the data's length without padding.
        flags: flags of a PUSH of the message (MESSAGE_PROPERTIES or 0).
        schema_id: the wire schema id of the queue's own numbering; 0 for the old encoding or no properties.
        compression: the CAT field.
        arrival: time of arrival, in seconds of the broker's clock.
        pending: one bit for each application without a confirmation.
        attempts: remaining delivery attempts, by application bit; None before the first loss.
        previous: the previous stored message.
        next: the next stored message.
    """

    guid: bytes
    data: bytes
    size: int
    flags: int
    schema_id: int
    compression: int
    arrival: float
    pending: int
    attempts: dict[int, int] | None = None
    previous: MessageRecord | None = None
    next: MessageRecord | None = None
    _lookup: Lookup | None = None

    @property
    def lookup(self) -> Lookup:
        """The lookup of the message's properties for expressions."""
        if self._lookup is None:
            self._lookup = property_lookup(self.data, self.flags, self.schema_id)
        return self._lookup


def property_lookup(data: bytes, flags: int, schema_id: int) -> Lookup:
    """Return the lookup of the properties at the start of ``data`` for expressions."""
    if not flags:
        return lookup(None)
    values = plain_values(data, schema_id != 0)
    if values is not None:
        return values.get
    try:
        return lookup(first_properties(data, schema_id != 0))
    except ProtocolError:
        return lookup(None)


class CapacityMeter:
    """How much of a quota is used. A limit of N admits N + 1 messages.

    Args:
        limits: the limits.
        whole: the quota of which this is a part.
    """

    __slots__ = ("_whole", "bytes", "limits", "messages")

    def __init__(self, limits: Limits, whole: CapacityMeter | None = None) -> None:
        self.limits = limits
        self.messages = 0
        self.bytes = 0
        self._whole = whole

    def add(self, messages: int, size: int) -> None:
        """Count messages; negative numbers for removed messages."""
        self.messages += messages
        self.bytes += size
        if self._whole is not None:
            self._whole.add(messages, size)

    def full(self, ahead: int = 0) -> int:
        """Return the wire status of one more message: 1 (messages) or 2 (bytes) when full, otherwise 0.

        Args:
            ahead: bytes that are going to be stored before the message.
        """
        if self.messages > self.limits.messages:
            return 1
        if self.bytes + ahead > self.limits.bytes:
            return 2
        return 0 if self._whole is None else self._whole.full(ahead)


def compact(table: _Table) -> _Table:
    """Return a table, copied if it has shrunk: a table keeps the memory of its largest size."""
    return type(table)(table) if sys.getsizeof(table) > _ROOMY * (len(table) + 1) else table


class MessageStore:
    """The messages of one queue, their quota, and the GUIDs of deleted messages.

    A repeated post of a remembered GUID is not stored again.

    Args:
        limits: the queue's limits.
        domain: the quota of all queues of the domain.
        window: seconds after arrival for which a GUID is remembered; 0: only while stored.
        history_limit: number of remembered GUIDs of deleted messages, at most.

    Attributes:
        messages: the stored messages, by GUID; :meth:`forget` may replace the dictionary.
        remembered: the GUIDs of deleted messages; likewise.
        first: the oldest message.
        last: the newest message.
    """

    def __init__(self, limits: Limits, domain: CapacityMeter, window: float, history_limit: int) -> None:
        self.usage = CapacityMeter(limits, domain)
        self.window = window
        self.first: MessageRecord | None = None
        self.last: MessageRecord | None = None
        self.messages: dict[bytes, MessageRecord] = {}
        self.remembered: set[bytes] = set()
        self._history_limit = history_limit
        # The same GUIDs by the second of arrival: the GUIDs of a second are forgotten together.
        self._seconds: dict[int, list[bytes]] = {}
        # GUIDs of earlier arrivals are not remembered any more.
        self._oldest = float("-inf")

    def __len__(self) -> int:
        return self.usage.messages

    def __iter__(self) -> Iterator[MessageRecord]:
        message = self.first
        while message is not None:
            following = message.next
            yield message
            message = following

    def __contains__(self, guid: bytes) -> bool:
        """Whether a message with the GUID is stored or remembered."""
        return guid in self.messages or guid in self.remembered

    def append(self, message: MessageRecord) -> None:
        """Store a message with a new GUID."""
        self.messages[message.guid] = message
        last = self.last
        if last is None:
            self.first = message
        else:
            message.previous = last
            last.next = message
        self.last = message
        self.usage.add(1, message.size)

    def remove(self, message: MessageRecord) -> None:
        """Remove a message; its GUID is remembered until the end of the window."""
        previous, following = message.previous, message.next
        if previous is None:
            self.first = following
        else:
            previous.next = following
        if following is None:
            self.last = previous
        else:
            following.previous = previous
        # A reference to the message must not keep its neighbours alive.
        message.previous = message.next = None
        del self.messages[message.guid]
        self.remember(message.guid, message.arrival)
        self.usage.add(-1, -message.size)

    def remember(self, guid: bytes, arrival: float) -> None:
        """Remember the GUID of a deleted message that arrived at ``arrival``."""
        second = int(arrival)
        if not self.window or second < self._oldest:
            return
        self.remembered.add(guid)
        self._seconds.setdefault(second, []).append(guid)

    def forget(self, now: float) -> None:
        """Drop GUIDs from before the window, and the oldest beyond the limit; release unused memory."""
        oldest = self._oldest = now - self.window - 1
        for second in [second for second in self._seconds if second < oldest]:
            self.remembered.difference_update(self._seconds.pop(second))
        while (excess := len(self.remembered) - self._history_limit) > 0:
            second = min(self._seconds)
            guids = self._seconds[second]
            self.remembered.difference_update(guids[:excess])
            del guids[:excess]
            if not guids:
                del self._seconds[second]
        self.remembered = compact(self.remembered)
        self.messages = compact(self.messages)

    def forget_remembered(self) -> None:
        """Forget the GUIDs of all deleted messages."""
        self.remembered = set()
        self._seconds = {}

    def next_deadline(self, ttl: int) -> float:
        """Return the time of the next expiry of a message or a GUID; infinite without any."""
        deadline = float("inf")
        if self.first is not None:
            deadline = int(self.first.arrival) + ttl + 1
        if self._seconds:
            deadline = min(deadline, min(self._seconds) + self.window + 2)
        return deadline

    def expired(self, now: float, ttl: int) -> MessageRecord | None:
        """Return the oldest message if older than ``ttl`` whole seconds."""
        oldest = self.first
        if oldest is not None and int(now) - int(oldest.arrival) > ttl:
            return oldest
        return None
