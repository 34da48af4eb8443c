"""The incoming stream of a broker, cut into events.

A real broker closes only on a length that cannot be one; an event whose header makes no sense is skipped.
"""

from __future__ import annotations

from bmq.errors import ProtocolError
from bmq.wire.codec import EVENT_HEADER, new_tuple
from bmq.wire.constants import DEFAULT_MAX_INCOMING_EVENT, EventType
from bmq.wire.event import Event

__all__ = ["BrokerFramer"]

_LENGTH_BYTES = 4
_HEADER_SIZE = EVENT_HEADER.size
# A header may be cut to six bytes by its own HeaderWords; these are needed to make sense of it.
_MIN_HEADER_SIZE = 6
_unpack = EVENT_HEADER.unpacker("type", "headerWords", "typeSpecific")
_UNDEFINED = int(EventType.UNDEFINED)


class BrokerFramer:
    """Cuts the stream into whole events; memory is bounded by the largest event allowed and one chunk.

    Args:
        max_event_size: the largest event accepted. A real broker has no such limit.
    """

    __slots__ = ("_need", "_pending", "max_event_size")

    def __init__(self, max_event_size: int = DEFAULT_MAX_INCOMING_EVENT) -> None:
        self.max_event_size = max_event_size
        self._pending = bytearray()
        self._need = _LENGTH_BYTES

    @property
    def buffered(self) -> int:
        """How many bytes of an unfinished event are held."""
        return len(self._pending)

    def feed(self, data: bytes) -> tuple[list[Event], ProtocolError | None]:
        """Take bytes from the client.

        Returns:
            The whole events, in order, and the error that ends the connection, if any. Events that make no
            sense have the type UNDEFINED.
        """
        events: list[Event] = []
        append = events.append
        pending = self._pending
        if pending:
            if len(pending) + len(data) < self._need:
                pending += data
                return events, None
            data = b"".join((pending, data))
            pending.clear()
        start, end, largest = 0, len(data), self.max_event_size
        self._need = _LENGTH_BYTES
        while end - start >= _LENGTH_BYTES:
            # The first bit says "fragment", which is not allowed: with it the number is far too large.
            length = int.from_bytes(data[start : start + _LENGTH_BYTES], "big")
            if not _LENGTH_BYTES < length <= largest:
                return events, ProtocolError(
                    f"an event of {length:,} bytes; at most {largest:,} are accepted",
                    field="EventHeader.length",
                    offset=0,
                )
            stop = start + length
            if stop > end:
                self._need = length
                break
            kind = specific = words = 0
            if length >= _HEADER_SIZE:
                kind, words, specific = _unpack(data, start)
                if not _MIN_HEADER_SIZE <= words * 4 <= length:
                    kind = _UNDEFINED
            event = data if length == end else data[start:stop]
            append(new_tuple(Event, (kind, specific, event, words * 4)))
            start = stop
        if start < end:
            pending += memoryview(data)[start:] if start else data
        return events, None
