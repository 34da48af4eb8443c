"""The incoming stream of a broker, cut into events.

A real broker closes only on a length that cannot be one; an event whose header makes no sense is skipped.
"""

from __future__ import annotations

from bmq.errors import ProtocolError
from bmq.wire.constants import DEFAULT_MAX_INCOMING_EVENT
from bmq.wire.event import Event, read_event

__all__ = ["BrokerFramer"]

_LENGTH_BYTES = 4


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

    def feed(self, data: bytes) -> tuple[list[Event | ProtocolError], ProtocolError | None]:
        """Take bytes from the client.

        Returns:
            The whole events, in order, or for one that is to be skipped the reason; and the error that ends
            the connection, if any.
        """
        events: list[Event | ProtocolError] = []
        pending = self._pending
        if pending:
            if len(pending) + len(data) < self._need:
                pending += data
                return events, None
            data = b"".join((pending, data))
            pending.clear()
        start, end = 0, len(data)
        while end - start >= _LENGTH_BYTES:
            length = int.from_bytes(data[start : start + _LENGTH_BYTES], "big", signed=True)
            if length <= _LENGTH_BYTES or length > self.max_event_size:
                return events, ProtocolError(
                    f"an event of {length:,} bytes; at most {self.max_event_size:,} are accepted",
                    field="EventHeader.length",
                    offset=0,
                )
            stop = start + length
            if stop > end:
                self._need = length
                break
            try:
                events.append(read_event(data if length == end else data[start:stop]))
            except ProtocolError as error:
                events.append(error)
            start = stop
        else:
            self._need = _LENGTH_BYTES
        if start < end:
            pending += memoryview(data)[start:] if start else data
        return events, None
