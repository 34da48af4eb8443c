# SPDX-License-Identifier: Apache-2.0
"""From a byte stream to whole events, with bounded memory."""

from __future__ import annotations

from typing import Any

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
#: Smallest number of missing bytes for which :attr:`Framer.bulky` asks for another way to receive. An event
#: loop reads several smaller events at once, and the session processes the events together.
_BULKY = 256 * 1024
#: Smallest memory for an unfinished event, in bytes.
_SMALLEST_SPACE = 64 * 1024
#: Growth of the memory of an unfinished event, times the arrived bytes: a peer announcing a large event
#: without sending the event gets little memory.
_GROWTH = 4
#: Most bytes received at once: a message of 1 MiB with its headers. An event loop may read 32 times before
#: the application has its turn.
_AT_ONCE = 1028 * 1024
#: Largest memory kept from one large event to the next, in bytes.
_KEPT = 4 * 1024 * 1024
_PUSH = int(EventType.PUSH)


class Framer:
    """Cuts the incoming stream into events.

    The length of an event is checked as soon as the four bytes of the length have arrived, before any bytes
    are kept: at most ``max_event_size`` bytes and one chunk are ever buffered.

    The bytes of an unfinished event are in one buffer of the framer. A receiver able to write into the buffer
    asks for :meth:`space`, and passes the filled part to :meth:`feed`. The kernel then copies each byte of a
    large event into its place. The space stays the same from one large event to the next: new memory for each
    event would cost as much as a copy.

    Args:
        max_event_size: largest event accepted, in bytes.
        max_request_size: largest accepted event except PUT and CONFIRM, in bytes; None for
            ``max_event_size``.
        tolerant: whether to read like a real broker: only an impossible length is an error, and the protocol
            version is ignored. An event beyond a limit, but after other events, is checked again at the next
            :meth:`feed`, because the earlier events may have raised the limit.

    An event whose ``headerWords`` do not fit has the type UNDEFINED and ``body`` 0: its length still leads to
    the next event.

    Attributes:
        buffered: the number of bytes held of an unfinished event.
        bulky: whether the next bytes probably belong to a large event, worth a call of :meth:`space`.
    """

    __slots__ = (
        "_buffer",
        "_error",
        "_lent",
        "_need",
        "_smallest",
        "buffered",
        "bulky",
        "max_event_size",
        "max_request_size",
        "tolerant",
    )

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
        # The unfinished event; free space follows only in a lent buffer.
        self._buffer = bytearray()
        self._lent = False
        self.buffered = 0
        self.bulky = False
        self._need = _LENGTH_BYTES
        self._error: ProtocolError | None = None

    def unfinished(self) -> bytes:
        """Return the bytes held of an unfinished event."""
        return bytes(memoryview(self._buffer)[: self.buffered])

    def space(self) -> memoryview:
        """Return memory for the next bytes; never empty.

        Write at the beginning, and pass the written part to :meth:`feed`. The next call uses the memory of
        large PUSH events returned by :meth:`feed` again: the events are valid until this call.
        """
        have, need = self.buffered, self._need
        room = min(max(need, _SMALLEST_SPACE), max(have * _GROWTH, _SMALLEST_SPACE))
        if not self._lent or len(self._buffer) <= have:
            # A new object: views of the old object may exist.
            larger = bytearray(room)
            memoryview(larger)[:have] = memoryview(self._buffer)[:have]
            self._buffer = larger
            self._lent = True
        # At most to the end of the event: the next event begins at offset 0.
        end = have + _AT_ONCE
        return memoryview(self._buffer)[have : min(need, end) if need > HEADER_SIZE else end]

    def _keep(self, data: memoryview) -> None:
        if self._lent:
            self._buffer = bytearray(self.unfinished())
            self._lent = False
        self._buffer += data
        self.buffered += len(data)

    def _take(self, data: bytes | memoryview) -> bytes:
        """Return the held bytes, followed by ``data``, and hold nothing."""
        taken = b"".join((memoryview(self._buffer)[: self.buffered], data))
        self._drop()
        return taken

    def _drop(self) -> None:
        """Hold nothing."""
        self._buffer = bytearray()
        self._lent = self.bulky = False
        self.buffered = 0

    def feed(self, data: bytes | bytearray | memoryview) -> tuple[list[Event], ProtocolError | None]:
        """Add bytes from the peer.

        Args:
            data: the bytes; a memoryview is the filled part of :meth:`space`.

        Returns:
            The completed events, in order, and the error that ends the stream, if any. Events before the
            error are valid. After an error no more bytes are accepted. The data of a large PUSH event in
            :meth:`space` is a memoryview.
        """
        events: list[Event] = []
        if self._error is not None:
            return events, self._error
        start = 0
        whole: memoryview | None = None
        if type(data) is memoryview:
            end = self.buffered = self.buffered + len(data)
            if end < self._need:
                return events, None
            data = whole = memoryview(self._buffer)[:end]
            self.buffered = 0
        else:
            # asyncio's event loop on Windows passes a bytearray: always in Python 3.11, after a pause in
            # later versions. Caches need bytes as keys. A call with bytes makes no copy.
            data = bytes(data)
            end = len(data)
        try:
            if self.buffered:
                missing = self._need - self.buffered
                if end < missing:
                    self._keep(memoryview(data))
                    return events, None
                if self._need <= HEADER_SIZE:
                    data = self._take(data)
                    end = len(data)
                else:
                    # The event is complete; avoid another copy of the bytes after it.
                    start = missing
                    events.append(self._read(self._take(memoryview(data)[:missing])))
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
                event: Any = data if length == end else data[start:stop]
                body = words * 4
                if first & mask == version and MIN_HEADER_SIZE <= body <= length:
                    append(make(Event, (kind, specific, event, body)))
                else:
                    append(self._read(event))
                start = stop
        except ProtocolError as error:
            if self.tolerant and events:
                self._need = _LENGTH_BYTES
                self._keep(memoryview(data)[start:])
            else:
                self._error = error
                self._drop()
            return events if whole is None else self._given(events), error
        if whole is not None:
            self._go_on(events, whole, start)
            return self._given(events), None
        if left:
            self._keep(memoryview(data)[start:])
            self.bulky = self._need - left >= _BULKY
        elif self.bulky:
            self._drop()
        return events, None

    def _go_on(self, events: list[Event], data: memoryview, start: int) -> None:
        """Hold the bytes of :meth:`space` after the last event; decide about the next bytes."""
        left = len(data) - start
        self.bulky = (self._need if left >= _LENGTH_BYTES else len(events[-1].data)) >= _BULKY
        if not start:
            self.buffered = left
        elif left or not self.bulky or len(self._buffer) > _KEPT:
            # Another buffer: the events are in the present one.
            self._buffer = bytearray()
            self._lent = False
            self._keep(data[start:])

    def _given(self, events: list[Event]) -> list[Event]:
        """Return events of :meth:`space` with copied data, except for large PUSH events."""
        return [
            each if each.type == _PUSH and len(each.data) >= _BULKY else each._replace(data=bytes(each.data))
            for each in events
        ]

    def _read(self, data: bytes) -> Event:
        """Return a whole event."""
        try:
            return read_event(data)
        except ProtocolError as error:
            if self.tolerant or error.field == "EventHeader.headerWords":
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
