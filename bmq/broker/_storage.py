# SPDX-License-Identifier: Apache-2.0
"""The storage of a queue: one copy of each message, in order of arrival, for any number of applications.

Messages form a doubly linked list. Removing a message from the middle, and keeping an application's place,
have the same cost for any number of stored messages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from bmq.broker._domain_config import DomainConfig, Limits
from bmq.broker._history import History
from bmq.errors import ProtocolError
from bmq.subscriptions import Lookup, lookup
from bmq.wire.properties import first_properties, plain_values

__all__ = ["CapacityMeter", "MessageRecord", "MessageStore", "property_lookup", "property_values", "shrink"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
#: A growing dictionary takes 40 to 110 bytes an item; a dictionary with more bytes an item has shrunk.
_ROOMY: Final = 400


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

    __slots__ = (
        "_lookup",
        "arrival",
        "attempts",
        "compression",
        "data",
        "flags",
        "guid",
        "next",
        "pending",
        "previous",
        "schema_id",
        "size",
    )

    def __init__(
        self,
        guid: bytes,
        data: bytes,
        size: int,
        flags: int,
        schema_id: int,
        compression: int,
        arrival: float,
        pending: int,
    ) -> None:
        self.guid = guid
        self.data = data
        self.size = size
        self.flags = flags
        self.schema_id = schema_id
        self.compression = compression
        self.arrival = arrival
        self.pending = pending
        self.attempts: dict[int, int] | None = None
        self.previous: MessageRecord | None = None
        self.next: MessageRecord | None = None
        self._lookup: Lookup | None = None

    @property
    def lookup(self) -> Lookup:
        """The lookup of the message's properties for expressions."""
        found = self._lookup
        if found is None:
            found = self._lookup = property_lookup(self.data, self.flags, self.schema_id)
        return found


class _Looked(dict[str, Any]):
    """Properties read on access; None for a missing property."""

    def __init__(self, get: Lookup) -> None:
        self._get = get

    def __missing__(self, name: str) -> Any:
        return self._get(name)


def property_values(data: bytes, flags: int, schema_id: int) -> Mapping[str, Any]:
    """Return the properties at the start of ``data`` by name, for expressions evaluated together."""
    if not flags:
        return {}
    values = plain_values(data, schema_id != 0)
    return values if values is not None else _Looked(_lookup(data, schema_id))


def property_lookup(data: bytes, flags: int, schema_id: int) -> Lookup:
    """Return the lookup of the properties at the start of ``data`` for expressions."""
    if not flags:
        return lookup(None)
    values = plain_values(data, schema_id != 0)
    return values.get if values is not None else _lookup(data, schema_id)


def _lookup(data: bytes, schema_id: int) -> Lookup:
    """Return the same for properties read on access."""
    try:
        return lookup(first_properties(data, schema_id != 0))
    except ProtocolError:
        return lookup(None)


class CapacityMeter:
    """How much of a quota is used. A limit of N admits N + 1 messages."""

    __slots__ = ("bytes", "limits", "messages")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.messages = 0
        self.bytes = 0

    def full(self, ahead: int = 0) -> int:
        """Return the wire status of one more message: 1 (messages) or 2 (bytes) when full, otherwise 0.

        Args:
            ahead: bytes that are going to be stored before the message.
        """
        if self.messages > self.limits.messages:
            return 1
        if self.bytes + ahead > self.limits.bytes:
            return 2
        return 0


class DomainUse:
    """The part of a domain that its queues share.

    Attributes:
        config: the configuration.
        usage: the stored messages and bytes of all queues.
    """

    def __init__(self, config: DomainConfig) -> None:
        self.config = config
        self.usage = CapacityMeter(config.domain_limits)


def shrink(table: dict[_Key, _Value]) -> None:
    """Release unused memory of a dictionary, which otherwise keeps the memory of its largest size."""
    if sys.getsizeof(table) > _ROOMY * (len(table) + 1):
        rest = dict(table)
        table.clear()
        table.update(rest)


class MessageStore:
    """The messages of one queue, their quota, and recent GUIDs.

    Args:
        limits: the queue's limits.
        domain: the usage of all queues of the domain.
        window: seconds after arrival for which a GUID is remembered; 0: only while stored.
        history_limit: number of remembered GUIDs of deleted messages, at most.

    Attributes:
        messages: the stored messages, by GUID.
        history: the GUIDs of deleted messages.
        first: the oldest message.
        last: the newest message.
    """

    __slots__ = ("domain", "first", "history", "last", "messages", "usage")

    def __init__(self, limits: Limits, domain: CapacityMeter, window: float, history_limit: int) -> None:
        self.usage = CapacityMeter(limits)
        self.domain = domain
        self.first: MessageRecord | None = None
        self.last: MessageRecord | None = None
        self.messages: dict[bytes, MessageRecord] = {}
        self.history = History(window, history_limit)

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
        return guid in self.messages or guid in self.history

    @property
    def remembered(self) -> int:
        """Number of remembered GUIDs of deleted messages."""
        return len(self.history)

    def get(self, guid: bytes) -> MessageRecord | None:
        """Return a stored message."""
        return self.messages.get(guid)

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
        usage, domain, size = self.usage, self.domain, message.size
        usage.messages += 1
        usage.bytes += size
        domain.messages += 1
        domain.bytes += size

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
        guid = message.guid
        del self.messages[guid]
        self.history.add(guid, message.arrival)
        usage, domain, size = self.usage, self.domain, message.size
        usage.messages -= 1
        usage.bytes -= size
        domain.messages -= 1
        domain.bytes -= size

    def expired(self, now: float, ttl: int) -> MessageRecord | None:
        """Return the oldest message if older than ``ttl`` whole seconds."""
        oldest = self.first
        if oldest is not None and int(now) - int(oldest.arrival) > ttl:
            return oldest
        return None

    def forget(self, now: float) -> None:
        """Drop expired GUIDs, and the oldest beyond the limit; release unused memory."""
        self.history.forget(now)
        shrink(self.messages)

    def set_window(self, window: float) -> None:
        """Change for how long GUIDs are remembered."""
        self.history.window = window

    def clear(self) -> None:
        """Drop every message and all memory of GUIDs."""
        while self.first is not None:
            self.remove(self.first)
        self.messages.clear()
        self.history.clear()
