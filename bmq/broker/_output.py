# SPDX-License-Identifier: Apache-2.0
"""A broker's output on one connection: answers, and ACK and PUSH messages collected into events."""

from __future__ import annotations

from collections.abc import Callable

from bmq.wire.ack import ACK_SIZE, encode_ack, pack_acks
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header

__all__ = ["BrokerOutput"]

#: Size in bytes at which an event of PUSH messages is closed.
_FLUSH_AT = 1024 * 1024
_MAX_ACKS = _FLUSH_AT // ACK_SIZE * ACK_SIZE


def _ignore(*_: object) -> None:
    """Do nothing."""


class BrokerOutput:
    """Pending bytes for one client.

    Args:
        high_water: number of pending bytes above which no more PUSH messages are accepted.
        wake: called when output is pending, and not again until the output is taken.
        flow: called when PUSH messages are no longer accepted, and when they are accepted again.
    """

    def __init__(self, high_water: int, wake: Callable[[], None]) -> None:
        self.high_water = high_water
        self.wake = wake
        self.flow: Callable[[bool], None] = _ignore
        #: Add a PUSH message, or an acknowledgement; tests of failures replace both methods.
        self.push: Callable[[bytes, bytes], None] = self.add_push
        self.ack: Callable[[int, int, bytes, int], None] = self.add_ack
        self._chunks: list[bytes] = []
        # The present event of PUSH messages, and its size. Two pieces for each message: the bytes in front of
        # the data, and the data.
        self._pushes: list[bytes] = []
        self._pushed = 0
        self._acks: list[bytes] = []
        #: The size of pending PUSH messages in bytes.
        self.size = 0
        self._awake = False
        #: Whether PUSH messages are accepted: the client is connected and reads messages.
        self.accepting = True

    def add_push(self, head: bytes, data: bytes) -> None:
        """Add a PUSH message: the bytes in front of the data, and the data."""
        self._pushes += head, data
        size = len(head) + len(data)
        self.size += size
        self._pushed += size
        if self._pushed >= _FLUSH_AT:
            self._close_pushes()
        self._wake_once()
        if self.size > self.high_water and self.accepting:
            self.accept(False)

    def _wake_once(self) -> None:
        if not self._awake:
            self._awake = True
            self.wake()

    def accept(self, accepting: bool) -> None:
        """Start or stop accepting PUSH messages, depending on the room in the transport."""
        if self.accepting is not accepting:
            self.accepting = accepting
            self.flow(accepting)

    def add_ack(self, status: int, correlation_id: int, guid: bytes, queue_id: int) -> None:
        """Add an acknowledgement."""
        self._acks.append(encode_ack(status, correlation_id, guid, queue_id))
        self._wake_once()

    def event(self, event: bytes) -> None:
        """Add a whole event after all pending output."""
        self._seal()
        self._chunks.append(event)
        self._wake_once()

    def discard(self) -> None:
        """Discard all pending output, and accept no more PUSH messages."""
        self._chunks.clear()
        self._pushes.clear()
        self._acks.clear()
        self.size = 0
        self.accepting = False
        # Break reference cycles, to free memory without the garbage collector.
        self.wake = self.flow = self.push = self.ack = _ignore

    def pieces(self) -> list[bytes]:
        """Return all pending output: as a single piece, or as several if large.

        Large pieces are not joined: the larger the freed blocks, the more memory the C library keeps.
        """
        self._awake = False
        self._seal()
        self.size = 0
        pieces, self._chunks = self._chunks, []
        if len(pieces) > 1 and sum(map(len, pieces)) <= _FLUSH_AT:
            return [b"".join(pieces)]
        return pieces

    def _seal(self) -> None:
        if self._acks:
            acks = b"".join(self._acks)
            for start in range(0, len(acks), _MAX_ACKS):
                self._chunks.append(pack_acks((acks[start : start + _MAX_ACKS],)))
            self._acks.clear()
        if self._pushes:
            self._close_pushes()

    def _close_pushes(self) -> None:
        header = pack_event_header(HEADER_SIZE + self._pushed, EventType.PUSH)
        self._chunks.append(b"".join((header, *self._pushes)))
        self._pushes.clear()
        self._pushed = 0
