# SPDX-License-Identifier: Apache-2.0
"""The output of a session: messages of the same kind are collected into a single event."""

from __future__ import annotations

from collections import deque
from math import inf

from bmq.protocol.client.confirmations import Confirmations
from bmq.wire.confirm import CONFIRM_SIZE, MAX_CONFIRMS, pack_confirms
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.put import LARGE, Outgoing, encode_put_event, encode_puts

__all__ = ["OutputBuffer"]

#: Largest size in bytes of a PUT event. Larger events are legal, but only cost memory on both sides.
_PUT_EVENT = 1024 * 1024
# Pieces with a smaller average size in bytes are copied into a single piece: copying is faster.
_WORTH_GATHERING = 2048

# Largest number of posts encoded by a call.
_SLICE = 4096

# A qId, and consecutive posts to this queue.
_Run = tuple[int, list[Outgoing]]


class OutputBuffer:
    """Collects pending output; :meth:`take` returns whole events in a legal order.

    Posts are collected into PUT events and confirmations into CONFIRM events until output of another kind
    follows. Posts are encoded only in :meth:`take`: the outbox refers to pending posts without copying them.

    Args:
        confirms: the pending confirmations.

    Attributes:
        events: pending whole events, or posts for PUT events; for reading only.
        runs: pending posts after these events; for reading only.
        unsendable: unencodable posts, with the errors, for the owner to take.
    """

    __slots__ = (
        "_begin",
        "_confirms",
        "events",
        "runs",
        "unsendable",
    )

    def __init__(self, confirms: Confirmations) -> None:
        self._confirms = confirms
        self.events: deque[bytes | deque[_Run]] = deque()
        self.runs: deque[_Run] = deque()
        self.unsendable: list[tuple[Outgoing, Exception]] = []
        # Number of posts already taken from the first run.
        self._begin = 0

    def put(self, queue_id: int, message: Outgoing) -> None:
        """Add a post."""
        runs = self.runs
        if runs and runs[-1][0] == queue_id:
            runs[-1][1].append(message)
        else:
            runs.append((queue_id, [message]))

    def put_many(self, queue_id: int, messages: list[Outgoing]) -> None:
        """Add posts; the list must not be changed afterwards."""
        self.runs.append((queue_id, messages))

    def event(self, event: bytes) -> None:
        """Add a whole event after all earlier output."""
        self._close(everything=True)
        self.events.append(event)

    def take(self, limit: float = inf) -> list[bytes]:
        """Return and remove the pending output as whole events; stop once ``limit`` bytes are reached.

        An event of large messages is returned in pieces, to avoid a copy.
        """
        runs, waiting = self.runs, self.events
        if len(runs) == 1 and not waiting:
            queue_id, messages = runs[0]
            if len(messages) == 1:
                runs.clear()
                try:
                    return self._encode_one(queue_id, messages[0])
                except Exception as error:
                    self.unsendable.append((messages[0], error))
        self._close()
        taken: list[bytes] = []
        size = 0
        while waiting and size < limit:
            entry = waiting[0]
            if isinstance(entry, bytes):
                taken.append(entry)
                size += len(entry)
                waiting.popleft()
            else:
                size += self._take_puts(entry, taken)
                if not entry:
                    waiting.popleft()
        return taken

    def _encode_one(self, queue_id: int, message: Outgoing) -> list[bytes]:
        """Return the pending confirmations and this post.

        Raises:
            Exception: the post cannot be encoded; the confirmations are still pending.
        """
        if len(message[1]) < LARGE:
            event = encode_put_event(queue_id, message)
            return [b"".join((*self._confirm_events(), event)) if self._confirms.waiting else event]
        pieces, _, length = encode_puts(queue_id, (message,))
        confirms = self._confirm_events() if self._confirms.waiting else []
        return [*confirms, pack_event_header(HEADER_SIZE + length, EventType.PUT), *pieces]

    def _take_puts(self, runs: deque[_Run], taken: list[bytes]) -> int:
        """Move a PUT event from the runs to the taken events; return the size.

        Unencodable posts are left out: they fail alone, and the surrounding posts are sent.
        """
        pieces = [b""]
        size = HEADER_SIZE
        while runs:
            queue_id, messages = runs[0]
            begin = self._begin
            some = messages[begin : begin + _SLICE]
            try:
                more, count, length = encode_puts(queue_id, some, _PUT_EVENT - size)
                if not count and size == HEADER_SIZE:
                    more, count, length = encode_puts(queue_id, some[:1])
            except Exception:
                self._begin = 0
                if rest := self._encodable(queue_id, messages[begin:]):
                    runs[0] = queue_id, rest
                else:
                    runs.popleft()
                continue
            pieces += more
            size += length
            if begin + count == len(messages):
                runs.popleft()
                self._begin = 0
            else:
                self._begin += count
                if count < len(some):
                    break  # The event is full.
        if size == HEADER_SIZE:
            return 0  # No post could be encoded.
        pieces[0] = pack_event_header(size, EventType.PUT)
        if size < _WORTH_GATHERING * len(pieces):
            taken.append(b"".join(pieces))
        else:
            taken += pieces
        return size

    def _encodable(self, queue_id: int, messages: list[Outgoing]) -> list[Outgoing]:
        """Return the encodable posts; record the remaining posts."""
        good: list[Outgoing] = []
        for message in messages:
            try:
                encode_puts(queue_id, (message,))
            except Exception as error:
                self.unsendable.append((message, error))
            else:
                good.append(message)
        return good

    def clear(self) -> None:
        """Discard all pending output except confirmations."""
        self.events.clear()
        self.runs, self._begin = deque(), 0

    def _confirm_events(self, *, everything: bool = False) -> list[bytes]:
        """Return the pending confirmations as events."""
        confirms = self._confirms.take(everything=everything)
        if not confirms:
            return []
        most = MAX_CONFIRMS * CONFIRM_SIZE
        if len(confirms) <= most:
            return [pack_confirms((confirms,))]
        return [pack_confirms((confirms[at : at + most],)) for at in range(0, len(confirms), most)]

    def _close(self, *, everything: bool = False) -> None:
        # Confirmations first: they make room in a full queue for the following posts.
        if self._confirms.waiting or self._confirms.held:
            self.events += self._confirm_events(everything=everything)
        if self.runs:
            self.events.append(self.runs)
            self.runs = deque()
