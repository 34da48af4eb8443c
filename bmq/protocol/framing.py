# SPDX-License-Identifier: Apache-2.0
"""From a byte stream to whole events, with bounded memory."""

from __future__ import annotations

from bmq.errors import ProtocolError
from bmq.wire.codec import EVENT_HEADER, new_tuple
from bmq.wire.constants import DEFAULT_MAX_INCOMING_EVENT, PROTOCOL_VERSION, EventType
from bmq.wire.event import HEADER_SIZE, LENGTH, MIN_HEADER_SIZE, Event, read_event

__all__ = ["Framer"]

_WORDS = EVENT_HEADER.words("fragment+length", "protocolVersion+type", "headerWords", "typeSpecific")
_unpack = _WORDS.unpack_from
_TYPE_MASK = _WORDS.mask("type")
_VERSION_SHIFT = _WORDS.shift("protocolVersion")
_VERSION_MASK = _WORDS.mask("protocolVersion") << _VERSION_SHIFT
_VERSION = PROTOCOL_VERSION << _VERSION_SHIFT
# The length is read before the rest of the header has arrived.
_LENGTH_BYTES = LENGTH.size
_unpack_length = LENGTH.unpack_from
_LONGEST = LENGTH.mask("length")
#: Events that carry messages; all other events from a client are small.
_LARGE = frozenset({int(EventType.PUT), int(EventType.CONFIRM)})


class Framer:
    """Cuts the incoming stream into events.

    The length of an event is checked as soon as the four bytes of the length have arrived, before any bytes
    are kept: at most ``max_event_size`` bytes and one chunk are ever buffered. The bytes of a large event are
    collected, and parsed only when complete, so small chunks cost no more than large ones.

    Args:
        max_event_size: largest event accepted, in bytes.
        max_request_size: largest accepted event except PUT and CONFIRM, in bytes; None for
            ``max_event_size``.
        tolerant: whether to read like a real broker: only an impossible length is an error, an event with an
            invalid header has the type UNDEFINED, and the protocol version is ignored. An event beyond a
            limit, but after other events, is checked again at the next :meth:`feed`, because the earlier
            events may have raised the limit.
    """

    __slots__ = ("_error", "_need", "_smallest", "max_event_size", "max_request_size", "pending", "tolerant")

    def __init__(
        self,
        max_event_size: int = DEFAULT_MAX_INCOMING_EVENT,
        *,
        max_request_size: int | None = None,
        tolerant: bool = False,
    ) -> None:
        self.max_event_size = max_event_size
        self.max_request_size = max_event_size if max_request_size is None else max_request_size
        self.tolerant = tolerant
        self._smallest = _LENGTH_BYTES + 1 if tolerant else HEADER_SIZE
        # Not a list of chunks: a peer sending single bytes would make the list many times larger than the
        # bytes.
        self.pending = bytearray()
        self._need = _LENGTH_BYTES
        self._error: ProtocolError | None = None

    @property
    def buffered(self) -> int:
        """The number of bytes held of an unfinished event."""
        return len(self.pending)

    def feed(self, data: bytes) -> tuple[list[Event], ProtocolError | None]:
        """Add bytes from the peer.

        Returns:
            The completed events, in order, and the error that ends the stream, if any. Events before the
            error are valid. After an error no more bytes are accepted.
        """
        # asyncio's event loop on Windows passes a bytearray: always in Python 3.11, after a pause in later
        # versions. Caches need bytes as keys. A call with bytes makes no copy.
        data = bytes(data)
        events: list[Event] = []
        if self._error is not None:
            return events, self._error
        pending = self.pending
        start, end = 0, len(data)
        try:
            if pending:
                missing = self._need - len(pending)
                if end < missing:
                    pending += data
                    return events, None
                if self._need <= HEADER_SIZE:
                    data = b"".join((pending, data))
                    pending.clear()
                    end = len(data)
                else:
                    # The event is complete; avoid another copy of the bytes after it.
                    pending += memoryview(data)[:missing]
                    whole = bytes(pending)
                    pending.clear()
                    start = missing
                    events.append(self._read(whole))
            smallest, largest, largest_request = self._smallest, self.max_event_size, self.max_request_size
            unpack, append, make = _unpack, events.append, new_tuple
            mask, version = (0, 0) if self.tolerant else (_VERSION_MASK, _VERSION)
            while True:
                left = end - start
                if left >= HEADER_SIZE:
                    # The first bit is the fragment flag: if set, the number exceeds every limit.
                    length, first, words, specific = unpack(data, start)
                    kind = first & _TYPE_MASK
                elif left >= _LENGTH_BYTES:
                    (length,) = _unpack_length(data, start)
                    first = kind = words = specific = 0
                else:
                    self._need = _LENGTH_BYTES
                    break
                if not smallest <= length <= largest:
                    raise self._refusal(length, self.max_event_size)
                if length > largest_request and kind not in _LARGE:
                    if left >= HEADER_SIZE:
                        raise self._refusal(length, largest_request)
                    self._need = HEADER_SIZE
                    break
                if left < length:
                    self._need = length
                    break
                stop = start + length
                event = data if length == end else data[start:stop]
                body = words * 4
                if first & mask == version and MIN_HEADER_SIZE <= body <= length:
                    append(make(Event, (kind, specific, event, body)))
                else:
                    append(self._read(event))
                start = stop
        except ProtocolError as error:
            if self.tolerant and events:
                self._need = _LENGTH_BYTES
                pending += memoryview(data)[start:]
            else:
                self._error = error
            return events, error
        if left:
            pending += memoryview(data)[start:]
        return events, None

    def _read(self, data: bytes) -> Event:
        """Return a whole event."""
        try:
            return read_event(data)
        except ProtocolError:
            if self.tolerant:
                return Event(EventType.UNDEFINED, 0, data, 0)
            raise

    def _refusal(self, length: int, limit: int) -> ProtocolError:
        field = "EventHeader.length"
        if length > _LONGEST:
            field, text = "EventHeader.fragment", "fragmented events are not allowed"
        elif length > limit:
            kind = "an event" if limit == self.max_event_size else "a request"
            text = f"{kind} of {length:,} bytes exceeds the limit of {limit:,}"
        else:
            text = f"an event of {length} bytes cannot hold its header of {HEADER_SIZE}"
        return ProtocolError(text, field=field, offset=0)
