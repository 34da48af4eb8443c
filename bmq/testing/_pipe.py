# SPDX-License-Identifier: Apache-2.0
"""One direction of a proxied connection: bytes in, bytes out, and faults in between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import cast

from bmq.errors import UsageError
from bmq.wire.event import HEADER_SIZE, LENGTH

__all__ = ["Conditions", "Direction", "Endpoint", "EventCounter", "Pipe", "Trigger"]

#: Bytes sent by one side and not yet received by the other. Reading pauses above this number.
_MAX_WAITING = 1024 * 1024
_MAX_WAITING_CHUNKS = 4096
#: Seconds between two sends of a throttled pipe.
_THROTTLE_INTERVAL = 0.02
_LENGTH_BYTES = LENGTH.size
_SMALLEST_EVENT = HEADER_SIZE


class Direction(Enum):
    """The direction of bytes."""

    TO_BROKER = "to broker"
    TO_CLIENT = "to client"


@dataclass(slots=True)
class Conditions:
    """The conditions of one direction; see :class:`bmq.testing._proxy.PathFaults` for each."""

    stalled: bool = False
    swallowing: bool = False
    delay: float = 0.0
    jitter: float = 0.0
    split: tuple[int, int] | None = None
    rate: float | None = None
    _waiting: dict[asyncio.Future[None], None] = field(default_factory=dict[asyncio.Future[None], None])

    def set(self, **values: object) -> None:
        """Change some conditions, and wake the waiting tasks."""
        for name, value in values.items():
            setattr(self, name, value)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def copy(self) -> Conditions:
        """Return the same conditions for another connection."""
        return Conditions(self.stalled, self.swallowing, self.delay, self.jitter, self.split, self.rate)

    async def change(self, timeout: float | None) -> None:
        """Wait for a change, or until ``timeout`` seconds have passed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await asyncio.wait([waiter], timeout=timeout)
        finally:
            self._waiting.pop(waiter, None)


class Endpoint(asyncio.Protocol):
    """One socket of a proxied connection, with a bounded inbox."""

    def __init__(self, connected: Callable[[Endpoint], None] | None = None) -> None:
        self._connected = connected
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self._inbox: deque[tuple[float, bytes]] = deque()
        self._waiting = 0
        self._paused = False
        self._ended = False
        self._lost = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self.transport = cast("asyncio.Transport", transport)
        if self._connected is not None:
            self._connected(self)

    def data_received(self, data: bytes) -> None:
        """Keep bytes with their time; stop reading above the limit."""
        self._inbox.append((self._loop.time(), data))
        self._waiting += len(data)
        if not self._paused and self._full and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()
        self._readable.set()

    @property
    def _full(self) -> bool:
        return self._waiting >= _MAX_WAITING or len(self._inbox) >= _MAX_WAITING_CHUNKS

    def eof_received(self) -> bool:
        """Note the end of the input; the opposite direction continues."""
        self._ended = True
        self._readable.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection."""
        self._lost = True
        self._readable.set()
        self._writable.set()

    def pause_writing(self) -> None:
        """Note that the operating system accepts no more bytes."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the operating system accepts bytes again."""
        self._writable.set()

    async def take(self) -> tuple[float, bytes] | None:
        """Return the next bytes with their time; None after the end of the peer's side.

        Raises:
            ConnectionResetError: the connection was lost.
        """
        while not self._inbox:
            if self._ended:
                return None
            if self._lost:
                raise ConnectionResetError("connection lost")
            self._readable.clear()
            await self._readable.wait()
        came = self._inbox.popleft()
        self._waiting -= len(came[1])
        if self._paused and not self._full and not self._lost and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()
        return came

    async def send(self, data: bytes) -> None:
        """Send bytes, and wait for room for more.

        Raises:
            ConnectionResetError: the connection was lost.
        """
        if not self._lost and self.transport is not None:
            self.transport.write(data)
            await self._writable.wait()
        if self._lost:
            raise ConnectionResetError("connection lost")

    def end(self) -> None:
        """Tell the peer the end of the stream."""
        if not self._lost and self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()

    def abort(self) -> None:
        """Close the socket now."""
        self._lost = True
        if self.transport is not None:
            self.transport.abort()


class EventCounter:
    """Counts the events of a byte stream by their length fields.

    The count of a stream of another protocol stops at the first impossible length.
    """

    def __init__(self) -> None:
        self.events = 0
        self._length = bytearray()
        self._left = 0
        self._lost = False

    @property
    def needed(self) -> int:
        """Bytes until the end of the event, or until its length is known."""
        if self._lost:
            return _MAX_WAITING
        return self._left or _LENGTH_BYTES - len(self._length)

    def feed(self, data: bytes) -> None:
        """Take bytes of the stream."""
        position = 0
        while position < len(data) and not self._lost:
            taken = data[position : position + self.needed]
            position += len(taken)
            if self._left:
                self._left -= len(taken)
                if not self._left:
                    self.events += 1
                continue
            self._length += taken
            if len(self._length) == _LENGTH_BYTES:
                length = LENGTH.unpack_from(self._length)[0] & LENGTH.mask("length")
                self._length.clear()
                self._left = length - _LENGTH_BYTES
                self._lost = length < _SMALLEST_EVENT


@dataclass(slots=True)
class Trigger:
    """An action after a given number of bytes or events."""

    action: Callable[[], None]
    position: int | None = None
    events: int | None = None


class Pipe:
    """Forwards bytes between two endpoints, under conditions.

    Attributes:
        direction: the direction.
        conditions: the conditions; change them through :meth:`Conditions.set`.
        forwarded: bytes that have left, swallowed bytes included.
        stopped: whether the pipe takes no more bytes.
        sink_gone: whether all bytes are thrown away, despite the conditions.
    """

    def __init__(self, direction: Direction, conditions: Conditions, random: Random) -> None:
        self.direction = direction
        self.conditions = conditions
        self.forwarded = 0
        self.stopped = False
        self.sink_gone = False
        # Separate generators: the number of drawn delays depends on the operating system's delivery of bytes,
        # and sizes must not depend on the system.
        self._sizes = Random(random.random())
        self._delays = Random(random.random())
        self._counter = EventCounter()
        self._triggers: list[Trigger] = []
        self._edits: dict[int, Callable[[int], int]] = {}
        self._boundary = 0

    @property
    def events(self) -> int:
        """How many whole events have left."""
        return self._counter.events

    def arm(self, action: Callable[[], None], *, nbytes: int | None, events: int | None) -> None:
        """Call ``action`` once ``nbytes`` more bytes, or ``events`` more events, have left."""
        if (nbytes is None) is (events is None):
            raise UsageError("give either a number of bytes or a number of events")
        if (nbytes if nbytes is not None else events or 0) < 1:
            raise UsageError("the number of bytes or events must be at least 1")
        if nbytes is not None:
            self._triggers.append(Trigger(action, position=self.forwarded + nbytes))
        elif events is not None:
            self._triggers.append(Trigger(action, events=self.events + events))

    def edit(self, offset: int, changes: list[Callable[[int], int]]) -> None:
        """Change bytes of the future, the first at ``offset`` after the next byte."""
        for index, change in enumerate(changes, self.forwarded + offset):
            self._edits[index] = change

    async def run(self, source: Endpoint, sink: Endpoint) -> None:
        """Forward until the end of the source.

        Raises:
            ConnectionResetError: an endpoint was lost.
        """
        while not self.stopped and (came := await source.take()) is not None:
            arrived, data = came
            lateness = self._delays.random()
            while (left := self._due(arrived, lateness)) > 0:
                await self.conditions.change(left)
            await self._forward(memoryview(data), sink)
        while self.conditions.stalled:
            await self.conditions.change(None)
        if not (self.stopped or self._swallows):
            sink.end()

    @property
    def _swallows(self) -> bool:
        return self.conditions.swallowing or self.sink_gone

    def _due(self, arrived: float, lateness: float) -> float:
        conditions = self.conditions
        now = asyncio.get_running_loop().time()
        return arrived + conditions.delay + lateness * conditions.jitter - now

    async def _forward(self, data: memoryview, sink: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        conditions = self.conditions
        while data and not self.stopped:
            while conditions.stalled:
                await conditions.change(None)
            size = self._piece(len(data))
            piece = bytes(data[:size])
            data = data[size:]
            # With the rate by which the piece was cut: with a lower one, the pause would not end.
            next_at = loop.time() + (size / conditions.rate if conditions.rate else 0)
            if not self._swallows:
                await sink.send(self._edited(piece))
            self.forwarded += size
            self._counter.feed(piece)
            self._pull_triggers()
            while conditions.rate and (left := next_at - loop.time()) > 0:
                await conditions.change(left)
            if conditions.split:
                # Lets a receiver in this process read the pieces separately.
                await asyncio.sleep(0)

    def _piece(self, size: int) -> int:
        """Return how many of ``size`` bytes can go at once."""
        conditions = self.conditions
        if conditions.split:
            # Boundaries are places in the stream: the size of a read depends on the operating system.
            if self._boundary <= self.forwarded:
                self._boundary = self.forwarded + self._sizes.randint(*conditions.split)
            size = min(size, self._boundary - self.forwarded)
        if conditions.rate:
            size = min(size, max(1, int(conditions.rate * _THROTTLE_INTERVAL)))
        for trigger in self._triggers:
            if trigger.position is not None:
                size = min(size, trigger.position - self.forwarded)
            else:
                size = min(size, self._counter.needed)
        return size

    def _edited(self, piece: bytes) -> bytes:
        if not self._edits:
            return piece
        changed = bytearray(piece)
        for index in range(len(changed)):
            change = self._edits.pop(self.forwarded + index, None)
            if change is not None:
                changed[index] = change(changed[index])
        return bytes(changed)

    def _pull_triggers(self) -> None:
        for trigger in self._triggers[:]:
            at_position = trigger.position is not None and self.forwarded >= trigger.position
            at_event = trigger.events is not None and self.events >= trigger.events
            if at_position or at_event:
                self._triggers.remove(trigger)
                trigger.action()
