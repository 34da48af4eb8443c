"""What waits to be sent: messages of one kind gather into one event."""

from __future__ import annotations

from collections import deque

from bmq.wire.confirm import MAX_CONFIRMS, pack_confirms
from bmq.wire.constants import MAX_PUT_EVENT, EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header

__all__ = ["Outbox"]

# How many of the latest confirmations are remembered: there is no acknowledgement of a confirmation, so
# after a lost connection these may not have arrived.
_REMEMBERED_CONFIRMS = 65_536


class Outbox:
    """Collects encoded messages; :meth:`take` returns whole events in a legal order.

    Posts gather into PUT events and confirmations into CONFIRM events until something of another kind has
    to go out behind them.

    Attributes:
        max_put_event: a PUT event is closed before it exceeds this many bytes.
    """

    __slots__ = ("_confirms", "_events", "_put_bytes", "_puts", "_sent", "_sent_count", "max_put_event")

    def __init__(self, max_put_event: int = MAX_PUT_EVENT) -> None:
        self.max_put_event = max_put_event
        self._events: list[bytes] = []
        self._puts: list[bytes] = []
        self._put_bytes = HEADER_SIZE
        self._confirms: list[bytes] = []
        self._sent: deque[list[bytes]] = deque()
        self._sent_count = 0

    def put(self, message: bytes) -> None:
        """Add an encoded PUT message."""
        size = len(message)
        if self._put_bytes + size > self.max_put_event and self._puts:
            self._close_puts()
        self._puts.append(message)
        self._put_bytes += size

    def confirm(self, message: bytes) -> None:
        """Add an encoded CONFIRM message."""
        self._confirms.append(message)

    def confirm_many(self, messages: list[bytes]) -> None:
        """Add encoded CONFIRM messages."""
        self._confirms.extend(messages)

    def event(self, event: bytes) -> None:
        """Add a whole event, behind everything added before."""
        self._close()
        self._events.append(event)

    def __bool__(self) -> bool:
        return bool(self._events or self._puts or self._confirms)

    def take(self) -> list[bytes]:
        """Return and forget everything that waits, as whole events."""
        self._close()
        events = self._events
        self._events = []
        return events

    def clear(self) -> set[bytes]:
        """Forget everything that waits; return the confirmations that may not have arrived."""
        confirms = {confirm for batch in self._sent for confirm in batch}
        confirms.update(self._confirms)
        self._events, self._puts, self._confirms = [], [], []
        self._put_bytes = HEADER_SIZE
        self._sent.clear()
        self._sent_count = 0
        return confirms

    def _close(self) -> None:
        if self._puts:
            self._close_puts()
        if self._confirms:
            confirms, self._confirms = self._confirms, []
            for start in range(0, len(confirms), MAX_CONFIRMS):
                self._events.append(pack_confirms(confirms[start : start + MAX_CONFIRMS]))
            self._sent.append(confirms)
            self._sent_count += len(confirms)
            while self._sent_count > _REMEMBERED_CONFIRMS and len(self._sent) > 1:
                self._sent_count -= len(self._sent.popleft())

    def _close_puts(self) -> None:
        header = pack_event_header(self._put_bytes, EventType.PUT)
        self._events.append(b"".join([header, *self._puts]))
        self._puts = []
        self._put_bytes = HEADER_SIZE
