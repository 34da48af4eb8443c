# SPDX-License-Identifier: Apache-2.0
"""Posts encoded together, a whole PUT event at a time: a single entry of the window.

A broker nearly always acknowledges the posts to a queue in order. The expected acknowledgements are therefore
known at the time of posting, and incoming bytes are compared with expected bytes by the thousand. Refusals,
and acknowledgements out of order, are processed individually.
"""

from __future__ import annotations

from collections.abc import Iterator

from bmq.protocol.client.ports import PostTarget
from bmq.wire.ack import ACK_GUID, ACK_SIZE
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.put import PutEvent

__all__ = ["PostSlice"]


class PostSlice:
    """The posts of an event, and their progress.

    Attributes:
        size: size in bytes of the application data.
        queue: target queue.
        token: caller's handle, returned unchanged with each outcome.
        tag: index of the first post among the token's posts.
        left: number of posts without an outcome.
    """

    __slots__ = ("_acks", "_ends", "_event", "_next", "_overtook", "left", "queue", "size", "tag", "token")

    def __init__(self, queue: PostTarget, event: PutEvent, token: object, tag: int) -> None:
        self.queue = queue
        self.token = token
        self.tag = tag
        self._event, self._ends, self._acks, self.size = event
        self.left = len(self._ends)
        # The first row without an outcome, and the later rows with an outcome.
        self._next = 0
        self._overtook: set[int] = set()

    def accepted(self, acks: bytes, at: int) -> int:
        """Take the acknowledgements from ``at`` on that accept the next rows; return their number."""
        first = self._next * ACK_SIZE
        stop = len(self._acks)
        if self._overtook:
            stop = min(self._overtook) * ACK_SIZE
        most = min(stop - first, len(acks) - at)
        if most <= 0 or acks[at : at + ACK_SIZE] != self._acks[first : first + ACK_SIZE]:
            return 0
        same = most // ACK_SIZE
        if acks[at : at + most] != self._acks[first : first + most]:
            least = 1  # At least this many rows are equal, and fewer than ``same``.
            while same - least > 1:
                half = (least + same) // 2
                begin, end = least * ACK_SIZE, half * ACK_SIZE
                if acks[at + begin : at + end] == self._acks[first + begin : first + end]:
                    least = half
                else:
                    same = half
            same = least
        self._advance(same)
        return same

    def _advance(self, count: int) -> None:
        self.left -= count
        self._next += count
        while self._next in self._overtook:
            self._overtook.remove(self._next)
            self._next += 1

    def take(self, guid: bytes) -> int | None:
        """Return the row with a GUID, and record the outcome; None if no row with this GUID waits."""
        at = self._acks.find(guid, self._next * ACK_SIZE)
        while at >= 0:
            row, inside = divmod(at, ACK_SIZE)
            if inside == ACK_GUID and row not in self._overtook:
                if row == self._next:
                    self._advance(1)
                else:
                    self._overtook.add(row)
                    self.left -= 1
                return row
            at = self._acks.find(guid, at + 1)
        return None

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """The rows without an outcome, with their GUIDs."""
        for row in range(self._next, len(self._ends)):
            if row not in self._overtook:
                at = row * ACK_SIZE + ACK_GUID
                yield row, self._acks[at : at + 16]

    def event(self) -> bytes:
        """Return an event of the rows without an outcome; the original event if no row has an outcome."""
        if self.left == len(self._ends):
            return self._event
        if not self._overtook:
            pieces = [self._event[self._start(self._next) :]]
        else:
            pieces = [self._event[self._start(row) : self._ends[row]] for row, _ in self.rows()]
        size = HEADER_SIZE + sum(map(len, pieces))
        return b"".join((pack_event_header(size, EventType.PUT), *pieces))

    def _start(self, row: int) -> int:
        return self._ends[row - 1] if row else HEADER_SIZE
