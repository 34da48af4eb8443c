# SPDX-License-Identifier: Apache-2.0
"""What a queue stores: one copy of each message, in order of arrival, whatever the number of applications.

Messages form a doubly linked list, so that one can leave from the middle, and every application can keep its
place, at the same cost however many are stored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from bmq.broker._domain_config import Limits
from bmq.broker._history import History
from bmq.errors import ProtocolError
from bmq.subscriptions import Lookup, lookup
from bmq.wire.properties import first_properties, plain_values

__all__ = ["CapacityMeter", "MessageRecord", "MessageStore", "property_lookup", "property_values", "shrink"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
#: A growing dictionary takes 40 to 110 bytes an item; one that takes more than this has shrunk.
_ROOMY: Final = 400


class MessageRecord:
    """One stored message.

    Attributes:
        guid: its 16 bytes.
        data: application data with its padding, as it came and as it goes out.
        size: the data's length without the padding.
        flags: flags of a PUSH of it (MESSAGE_PROPERTIES or 0).
        schema_id: the wire schema id of the queue's own numbering; 0 for the old encoding or no properties.
        compression: the CAT field.
        arrival: when it came, in seconds of the broker's clock.
        pending: one bit for each application that has yet to be done with it.
        attempts: delivery attempts left, by application bit; None while none was used up.
        previous: the message that came before it, of those stored.
        next: the message that came after it, of those stored.
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
        """What expressions read this message's properties with."""
        found = self._lookup
        if found is None:
            found = self._lookup = property_lookup(self.data, self.flags, self.schema_id)
        return found


class _Looked(dict[str, Any]):
    """Properties that are looked up when they are asked for; None for one that is not there."""

    def __init__(self, get: Lookup) -> None:
        self._get = get

    def __missing__(self, name: str) -> Any:
        return self._get(name)


def property_values(data: bytes, flags: int, schema_id: int) -> Mapping[str, Any]:
    """Return the properties at the start of ``data`` by name, for expressions that are evaluated together."""
    if not flags:
        return {}
    values = plain_values(data, schema_id != 0)
    return values if values is not None else _Looked(_lookup(data, schema_id))


def property_lookup(data: bytes, flags: int, schema_id: int) -> Lookup:
    """Return what expressions read the properties at the start of ``data`` with."""
    if not flags:
        return lookup(None)
    values = plain_values(data, schema_id != 0)
    return values.get if values is not None else _lookup(data, schema_id)


def _lookup(data: bytes, schema_id: int) -> Lookup:
    """Return the same for properties that are not read at once."""
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
            ahead: bytes that are to be stored before it.
        """
        if self.messages > self.limits.messages:
            return 1
        if self.bytes + ahead > self.limits.bytes:
            return 2
        return 0


def shrink(table: dict[_Key, _Value]) -> None:
    """Give back the memory a dictionary does not use: by itself it keeps that of its largest size."""
    if sys.getsizeof(table) > _ROOMY * (len(table) + 1):
        rest = dict(table)
        table.clear()
        table.update(rest)


class MessageStore:
    """The messages of one queue, their quota, and the GUIDs seen lately.

    Args:
        limits: the queue's limits.
        domain: the usage of all queues of the domain.
        window: for how many seconds after its arrival a GUID is remembered; with 0 only while it is stored.
        history_limit: how many GUIDs of messages that are gone are remembered at most.

    Attributes:
        messages: what is stored, by GUID.
        history: the GUIDs of messages that are gone.
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
        """Whether a message with this GUID is stored or remembered."""
        return guid in self.messages or guid in self.history

    @property
    def remembered(self) -> int:
        """How many GUIDs of messages that are gone are remembered."""
        return len(self.history)

    def get(self, guid: bytes) -> MessageRecord | None:
        """Return a stored message."""
        return self.messages.get(guid)

    def append(self, message: MessageRecord) -> None:
        """Store a message whose GUID is not known yet."""
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
        """Take a message out; its GUID stays remembered while its window lasts."""
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
        """Return the oldest message if it has outlived ``ttl`` whole seconds."""
        oldest = self.first
        if oldest is not None and int(now) - int(oldest.arrival) > ttl:
            return oldest
        return None

    def forget(self, now: float) -> None:
        """Drop GUIDs whose time is over, and the oldest of too many; give back unused memory."""
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
