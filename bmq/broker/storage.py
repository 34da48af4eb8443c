"""What a queue stores: one copy of each message, in order of arrival, whatever the number of applications.

Messages form a doubly linked list, so that one can leave from the middle, and every application can keep its
place, at the same cost however many are stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from bmq.broker.domain import Limits
from bmq.subscriptions.evaluator import Lookup, lookup
from bmq.wire.properties import Properties

__all__ = ["Message", "MessageStore", "Usage", "property_lookup"]

_SLOT_SIZE = 8192


class Message:
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
        "serial",
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
        serial: int,
        pending: int,
    ) -> None:
        self.guid = guid
        self.data = data
        self.size = size
        self.flags = flags
        self.schema_id = schema_id
        self.compression = compression
        self.arrival = arrival
        self.serial = serial
        self.pending = pending
        self.attempts: dict[int, int] | None = None
        self.previous: Message | None = None
        self.next: Message | None = None
        self._lookup: Lookup | None = None

    @property
    def lookup(self) -> Lookup:
        """What expressions read this message's properties with."""
        found = self._lookup
        if found is None:
            found = self._lookup = property_lookup(self.data, self.flags, self.schema_id)
        return found


def property_lookup(data: bytes, flags: int, schema_id: int) -> Lookup:
    """Return what expressions read the properties in front of ``data`` with."""
    return lookup(Properties(data, new=schema_id != 0) if flags else None)


class Usage:
    """How much of a quota is used. A limit of N admits N + 1 messages."""

    __slots__ = ("bytes", "limits", "messages")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.messages = 0
        self.bytes = 0

    def full(self) -> int:
        """Return the wire status of a message that does not fit: 1 or 2, or 0 when it fits."""
        if self.messages > self.limits.messages:
            return 1
        if self.bytes > self.limits.bytes:
            return 2
        return 0


class _Slot:
    """GUIDs that came within one second, or the first thousands of them."""

    __slots__ = ("guids", "second", "serial")

    def __init__(self, second: int, serial: int) -> None:
        self.second = second
        self.serial = serial
        self.guids: list[bytes] = []


class MessageStore:
    """The messages of one queue, their quota, and the GUIDs seen lately.

    Args:
        limits: the queue's limits.
        domain: the usage of all queues of the domain.
        window: for how many seconds after its arrival a GUID is remembered; 0 for as long as it is stored.
        history_limit: how many GUIDs of messages that are gone are remembered at most.
    """

    __slots__ = (
        "_largest",
        "_room",
        "_slot_end",
        "_slot_guids",
        "_slots",
        "domain",
        "first",
        "history_limit",
        "last",
        "seen",
        "usage",
        "window",
    )

    def __init__(self, limits: Limits, domain: Usage, window: float, history_limit: int) -> None:
        self.usage = Usage(limits)
        self.domain = domain
        self.window = window
        self.history_limit = history_limit
        self.first: Message | None = None
        self.last: Message | None = None
        # GUID -> the stored message, or None for one that is gone but still remembered.
        self.seen: dict[bytes, Message | None] = {}
        self._largest = 0
        self._slots: deque[_Slot] = deque()
        # The slot that is being filled: its GUIDs, the second it is for, and how many fit.
        self._slot_guids: list[bytes] = []
        self._slot_end = 0
        self._room = 0

    def __len__(self) -> int:
        return self.usage.messages

    def __iter__(self) -> Iterator[Message]:
        message = self.first
        while message is not None:
            following = message.next
            yield message
            message = following

    def __contains__(self, guid: bytes) -> bool:
        """Whether a message with this GUID is stored or remembered."""
        return guid in self.seen

    @property
    def remembered(self) -> int:
        """How many GUIDs of messages that are gone are remembered."""
        return len(self.seen) - self.usage.messages

    def get(self, guid: bytes) -> Message | None:
        """Return a stored message."""
        return self.seen.get(guid)

    def append(self, message: Message) -> None:
        """Store a message whose GUID is not known yet and whose serial is the highest so far."""
        guid = message.guid
        self.seen[guid] = message
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
        if self.window:
            if not self._room or message.arrival >= self._slot_end:
                self._begin_slot(message)
            self._room -= 1
            self._slot_guids.append(guid)

    def _begin_slot(self, message: Message) -> None:
        slot = _Slot(int(message.arrival), message.serial)
        self._slots.append(slot)
        self._slot_guids = slot.guids
        self._slot_end = slot.second + 1
        self._room = _SLOT_SIZE

    def remove(self, message: Message) -> None:
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
        # Whoever still holds the message must not keep its neighbours alive.
        message.previous = message.next = None
        slots = self._slots
        if slots and slots[0].serial <= message.serial:
            self.seen[message.guid] = None
        else:
            del self.seen[message.guid]
        usage, domain, size = self.usage, self.domain, message.size
        usage.messages -= 1
        usage.bytes -= size
        domain.messages -= 1
        domain.bytes -= size

    def expired(self, now: float, ttl: int) -> Message | None:
        """Return the oldest message if it has outlived ``ttl`` whole seconds."""
        oldest = self.first
        if oldest is not None and int(now) - int(oldest.arrival) > ttl:
            return oldest
        return None

    def forget(self, now: float) -> None:
        """Drop GUIDs whose time is over, and the oldest where they are too many."""
        slots, seen = self._slots, self.seen
        self._largest = max(self._largest, len(seen))
        while slots and (now - slots[0].second > self.window + 1 or self.remembered > self.history_limit):
            slot = slots.popleft()
            if not slots:
                self._room = 0
            for guid in slot.guids:
                # One that is still stored is known by the message itself; it is forgotten when that goes.
                if seen.get(guid, self) is None:
                    del seen[guid]
        # A dictionary keeps the room of its largest size; made anew it takes what it needs.
        if self._largest > _SLOT_SIZE and len(seen) * 4 < self._largest:
            self.seen = dict(seen)
            self._largest = len(seen)

    def forget_gone(self) -> None:
        """Drop the GUIDs of all messages that are gone."""
        self.seen = {guid: message for guid, message in self.seen.items() if message is not None}

    def set_window(self, window: float) -> None:
        """Change for how long GUIDs are remembered."""
        if window and not self.window:
            for message in self:
                self._begin_slot(message)
                self._slot_guids.append(message.guid)
            self._room = 0
        self.window = window

    def clear(self) -> None:
        """Drop every message and all memory of GUIDs."""
        while self.first is not None:
            self.remove(self.first)
        self.seen.clear()
        self._slots.clear()
        self._room = 0
