"""What waits to be sent: messages of one kind gather into one event."""

from __future__ import annotations

from collections import deque

from bmq.wire.confirm import CONFIRM_SIZE, MAX_CONFIRMS, pack_confirms, split_confirms
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header

__all__ = ["LARGE", "Outbox"]

# How many of the latest confirmations are remembered: there is no acknowledgement of a confirmation, so
# after a lost connection these may not have arrived.
_REMEMBERED_CONFIRMS = 65_536
#: A PUT event is closed before it exceeds this. Larger ones are legal, but only cost memory on both sides.
_PUT_EVENT = 1024 * 1024
#: From this many bytes on, copying something costs more than handing it over as a piece of its own.
LARGE = 8192


class Outbox:
    """Collects encoded messages; :meth:`take` returns whole events in a legal order.

    Posts gather into PUT events and confirmations into CONFIRM events until something of another kind has
    to go out behind them. Messages are copied into their event when it is taken, not before: what waits
    here is referred to, not copied.

    Args:
        max_put_event: a PUT event is closed before it exceeds this many bytes, unless it has one message.
    """

    __slots__ = ("_confirms", "_events", "_put_bytes", "_puts", "_sent", "_sent_bytes", "max_put_event")

    def __init__(self, max_put_event: int = _PUT_EVENT) -> None:
        self.max_put_event = max_put_event
        # A whole event, or the messages of a PUT event.
        self._events: deque[bytes | list[bytes]] = deque()
        self._puts: list[bytes] = []
        self._put_bytes = HEADER_SIZE
        self._confirms: list[bytes] = []
        self._sent: deque[bytes] = deque()
        self._sent_bytes = 0

    def put(self, messages: list[bytes], size: int) -> None:
        """Add encoded PUT messages, ``size`` bytes in all."""
        if self._put_bytes + size <= self.max_put_event:
            self._puts += messages
            self._put_bytes += size
        elif len(messages) == 1:
            self._close_puts()
            self._puts += messages
            self._put_bytes += size
        else:
            middle = len(messages) // 2
            for half in (messages[:middle], messages[middle:]):
                self.put(half, sum(map(len, half)))

    def confirm(self, messages: bytes) -> None:
        """Add encoded CONFIRM messages: one, or several one behind the other."""
        self._confirms.append(messages)

    def event(self, event: bytes) -> None:
        """Add a whole event, behind everything added before."""
        self._close()
        self._events.append(event)

    def __bool__(self) -> bool:
        return bool(self._events or self._puts or self._confirms)

    def take(self, limit: int | None = None) -> list[bytes]:
        """Return and forget what waits, as whole events; no more once ``limit`` bytes are reached.

        An event of large messages comes in pieces, so that they are not copied.
        """
        self._close()
        waiting = self._events
        taken: list[bytes] = []
        size = 0
        while waiting and (limit is None or size < limit):
            entry = waiting.popleft()
            if isinstance(entry, bytes):
                taken.append(entry)
                size += len(entry)
            else:
                length = HEADER_SIZE + sum(map(len, entry))
                pieces = [pack_event_header(length, EventType.PUT), *entry]
                taken += pieces if length >= LARGE * len(entry) else [b"".join(pieces)]
                size += length
        return taken

    def clear(self) -> list[bytes]:
        """Forget everything that waits; return the confirmations that may not have arrived, oldest first."""
        confirms = split_confirms(b"".join([*self._sent, *self._confirms]))
        self._events.clear()
        self._puts, self._confirms = [], []
        self._put_bytes = HEADER_SIZE
        self._sent.clear()
        self._sent_bytes = 0
        return confirms

    def _close_puts(self) -> None:
        if self._puts:
            self._events.append(self._puts)
            self._puts = []
            self._put_bytes = HEADER_SIZE

    def _close(self) -> None:
        # Confirmations first: they make room in a full queue for what is posted behind them.
        if self._confirms:
            confirms = b"".join(self._confirms)
            self._confirms = []
            for start in range(0, len(confirms), MAX_CONFIRMS * CONFIRM_SIZE):
                self._events.append(pack_confirms((confirms[start : start + MAX_CONFIRMS * CONFIRM_SIZE],)))
            self._sent.append(confirms)
            self._sent_bytes += len(confirms)
            while self._sent_bytes > _REMEMBERED_CONFIRMS * CONFIRM_SIZE and len(self._sent) > 1:
                self._sent_bytes -= len(self._sent.popleft())
        self._close_puts()
