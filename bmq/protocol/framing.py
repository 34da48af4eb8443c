"""From a byte stream to whole events, with the memory bounded."""

from __future__ import annotations

from bmq.errors import ProtocolError
from bmq.wire.constants import DEFAULT_MAX_INCOMING_EVENT
from bmq.wire.event import HEADER_SIZE, Event, read_event

__all__ = ["Framer"]

_LENGTH_BYTES = 4


class Framer:
    """Cuts the incoming stream into events.

    An event's length is checked as soon as its four bytes are there, before anything is kept on its behalf:
    at most ``max_event_size`` bytes and one chunk are ever buffered. The bytes of a large event are gathered
    as they come and looked at once they are all there, so small chunks cost no more than large ones.

    Args:
        max_event_size: the largest event that is accepted, in bytes.
    """

    __slots__ = ("_error", "_need", "_pending", "max_event_size")

    def __init__(self, max_event_size: int = DEFAULT_MAX_INCOMING_EVENT) -> None:
        self.max_event_size = max_event_size
        # Not a list of chunks: a peer that sends bytes one by one would make it many times their size.
        self._pending = bytearray()
        self._need = _LENGTH_BYTES
        self._error: ProtocolError | None = None

    @property
    def buffered(self) -> int:
        """How many bytes of an unfinished event are held."""
        return len(self._pending)

    def feed(self, data: bytes) -> tuple[list[Event], ProtocolError | None]:
        """Take bytes from the peer.

        Returns:
            The events completed by them, in order, and the error that ends the stream, if any. Events in
            front of the error are good. After an error nothing more is accepted.
        """
        events: list[Event] = []
        if self._error is not None:
            return events, self._error
        pending = self._pending
        start, end = 0, len(data)
        try:
            if pending:
                missing = self._need - len(pending)
                if end < missing:
                    pending += data
                    return events, None
                if self._need == _LENGTH_BYTES:
                    data = b"".join((pending, data))
                    pending.clear()
                    end = len(data)
                else:
                    # The event that has been waited for; what follows is not copied once more.
                    pending += memoryview(data)[:missing]
                    whole = bytes(pending)
                    pending.clear()
                    start = missing
                    events.append(read_event(whole))
            while True:
                left = end - start
                if left < _LENGTH_BYTES:
                    self._need = _LENGTH_BYTES
                    break
                length = self._check_length(data, start)
                if left < length:
                    self._need = length
                    break
                stop = start + length
                events.append(read_event(data if length == end else data[start:stop]))
                start = stop
        except ProtocolError as error:
            self._error = error
            return events, error
        if left:
            pending += memoryview(data)[start:]
        return events, None

    def _check_length(self, data: bytes, start: int) -> int:
        length = int.from_bytes(data[start : start + _LENGTH_BYTES], "big", signed=True)
        if length < 0:
            raise ProtocolError("fragmented events are not allowed", field="EventHeader.fragment", offset=0)
        if length < HEADER_SIZE:
            raise ProtocolError(
                f"an event of {length} bytes cannot hold its header of {HEADER_SIZE}",
                field="EventHeader.length",
                offset=0,
            )
        if length > self.max_event_size:
            raise ProtocolError(
                f"an event of {length:,} bytes exceeds the limit of {self.max_event_size:,}",
                field="EventHeader.length",
                offset=0,
            )
        return length
