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
#: Where the type stands in a header, and what is to be there before it is known.
_TYPE, _TYPE_MASK = 4, 0x3F
_TYPE_BYTES = 5
_HEADER_SIZE = EVENT_HEADER.size
# A header may be cut to six bytes by its own HeaderWords; these are needed to make sense of it.
_MIN_HEADER_SIZE = 6
_unpack = EVENT_HEADER.unpacker("type", "headerWords", "typeSpecific")
_UNDEFINED = int(EventType.UNDEFINED)
#: Only these have messages in them; whatever else a client sends is small.
_LARGE = frozenset({int(EventType.PUT), int(EventType.CONFIRM)})


class BrokerFramer:
    """Cuts the stream into whole events; memory is bounded by the largest event allowed and one chunk.

    Args:
        max_event_size: the largest event accepted. A real broker has no such limit.
        max_request_size: the largest event accepted that is neither PUT nor CONFIRM.

    Attributes:
        undecided: whether an event is too large as things are, but others came before it that may change
            that: feed it again when those are dealt with.
    """

    __slots__ = ("_need", "_pending", "max_event_size", "max_request_size", "undecided")

    def __init__(
        self,
        max_event_size: int = DEFAULT_MAX_INCOMING_EVENT,
        max_request_size: int = DEFAULT_MAX_INCOMING_EVENT,
    ) -> None:
        self.max_event_size = max_event_size
        self.max_request_size = max_request_size
        self.undecided = False
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
        start, end = 0, len(data)
        largest, largest_request = self.max_event_size, self.max_request_size
        self._need = _LENGTH_BYTES
        self.undecided = False
        while end - start >= _LENGTH_BYTES:
            # The first bit says "fragment", which is not allowed: with it the number is far too large.
            length = int.from_bytes(data[start : start + _LENGTH_BYTES], "big")
            if not _LENGTH_BYTES < length <= largest:
                if events:
                    self.undecided = True
                    break
                return events, _too_large(length, largest, "an event")
            if length > largest_request:
                if end - start < _TYPE_BYTES:
                    self._need = _TYPE_BYTES
                    break
                if data[start + _TYPE] & _TYPE_MASK not in _LARGE:
                    return events, _too_large(length, largest_request, "a request")
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


def _too_large(length: int, largest: int, what: str) -> ProtocolError:
    return ProtocolError(
        f"{what} of {length:,} bytes; at most {largest:,} are accepted", field="EventHeader.length", offset=0
    )
