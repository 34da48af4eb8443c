# SPDX-License-Identifier: Apache-2.0
"""A connection of the suite, to a broker or from a client: bytes, events, and a record of both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from bmq import _world
from bmq.errors import ProtocolError
from bmq.protocol.framing import Framer
from bmq.wire.anatomy import summary
from bmq.wire.constants import EventType
from bmq.wire.control import MessageKind
from bmq.wire.control_event import decode_event
from bmq.wire.event import HEADER_SIZE, HEARTBEAT_RSP, Event, type_of
from conformance.case import Mismatch

__all__ = ["ANSWER", "Connection", "Traced", "decoded"]

#: Seconds to wait for an expected answer.
ANSWER = 8.0
_CHUNK = 1 << 16
_MOST_TRACED = 200
_MOST_BYTES = 64
_MOST_TEXT = 300

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Traced:
    """An event, or other bytes, as shown in a report.

    Attributes:
        connection: number of the connection within the case.
        sent: whether the suite sent the bytes.
        size: number of bytes.
        hex: the first bytes.
        text: the event in words.
    """

    connection: int
    sent: bool
    size: int
    hex: str
    text: str

    def __str__(self) -> str:
        arrow = ">" if self.sent else "<"
        more = "..." if self.size * 2 > len(self.hex) else ""
        return f"{self.connection}{arrow} {self.text}\n     {self.hex}{more}"


class Connection:
    """A connection.

    Attributes:
        number: number of the connection within the case.
        trace: events in both directions.
        left_out: number of events that the trace does not contain.
        answers_heartbeats: whether HEARTBEAT_REQ is answered.
    """

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.trace: list[Traced] = []
        self.left_out = 0
        self.answers_heartbeats = True
        self._reader = reader
        self._writer = writer
        self._framer = Framer()
        self._controls: list[Event] = []
        self._others: list[Event] = []
        self._over = False

    # ---- bytes

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        self._note(data, sent=True)
        self._writer.write(data)

    async def send_piece(self, data: bytes) -> None:
        """Send a part of an event in a packet of its own."""
        self.send(data)
        await self._writer.drain()
        await asyncio.sleep(0)

    def _note(self, data: bytes, *, sent: bool) -> None:
        if len(self.trace) >= _MOST_TRACED:
            self.left_out += 1
            return
        text, shown = _in_words(data), data[:_MOST_BYTES]
        if sent and len(data) > HEADER_SIZE and type_of(data) == EventType.AUTHENTICATION:
            # Reports must not contain credentials.
            text, shown = "AUTHENTICATION authenticationRequest (body not shown)", data[:HEADER_SIZE]
        self.trace.append(Traced(self.number, sent, len(data), shown.hex(), text))

    async def _read(self, seconds: float) -> None:
        """Wait for the next bytes of the other side.

        Raises:
            TimeoutError: nothing arrived.
            ConnectionError: the other side closed the connection.
            Mismatch: the bytes are not an event of the protocol.
        """
        if self._over:
            raise ConnectionResetError("the other side closed the connection")
        try:
            async with asyncio.timeout(seconds):
                data = await self._reader.read(_CHUNK)
        except ConnectionError:
            data = b""
        if not data:
            self._over = True
            raise ConnectionResetError("the other side closed the connection")
        events, error = self._framer.feed(data)
        for event in events:
            self._note(event.data, sent=False)
            self._take(event)
        if error is not None:
            raise Mismatch("events of the protocol", f"bytes without a valid event: {error}")

    def _take(self, event: Event) -> None:
        """Sort a received event."""
        if event.type in (EventType.CONTROL, EventType.AUTHENTICATION):
            self._controls.append(event)
            return
        self._others.append(event)
        if event.type == EventType.HEARTBEAT_REQ and self.answers_heartbeats:
            self._writer.write(HEARTBEAT_RSP)

    async def _until(self, found: Callable[[], T | None], expected: str, seconds: float | None = None) -> T:
        """Read until a function returns a value other than None."""
        seconds = ANSWER if seconds is None else seconds
        end = _world.monotonic() + seconds
        while (value := found()) is None:
            try:
                await self._read(max(0.001, end - _world.monotonic()))
            except TimeoutError:
                raise Mismatch(expected, f"nothing within {seconds:g} s") from None
            except ConnectionError:
                raise Mismatch(expected, "the end of the connection") from None
        return value

    async def event(self, event_type: EventType, seconds: float | None = None) -> Event:
        """Return the next event of a type other than CONTROL."""

        def found() -> Event | None:
            for at, event in enumerate(self._others):
                if event.type == event_type:
                    return self._others.pop(at)
            return None

        return await self._until(found, f"an event of the type {event_type.name}", seconds)

    async def _next_control(self, expected: str, seconds: float | None = None) -> Event:
        return await self._until(lambda: self._controls.pop(0) if self._controls else None, expected, seconds)

    async def closed(self, seconds: float = ANSWER) -> None:
        """Expect that the other side closes the connection."""
        end = _world.monotonic() + seconds
        try:
            while True:
                await self._read(max(0.001, end - _world.monotonic()))
        except TimeoutError:
            raise Mismatch("the end of the connection", f"an open connection after {seconds:g} s") from None
        except ConnectionError:
            return

    def drop(self) -> None:
        """End the connection without a word."""
        self._over = True
        self._writer.transport.abort()


def _in_words(data: bytes) -> str:
    """An event in words, with the body of a control message in JSON."""
    try:
        text = " ".join(summary(data).split())
    except (ProtocolError, ValueError, IndexError, KeyError):
        return "bytes that are not an event"
    if type_of(data) in (EventType.CONTROL, EventType.AUTHENTICATION) and data[8:9] == b"{":
        body = data[8 : len(data) - data[-1]].decode("utf-8", "backslashreplace").replace("\\/", "/")
        text += f" {body if len(body) <= _MOST_TEXT else body[:_MOST_TEXT] + '...'}"
    return text


def decoded(event: Event, kind: MessageKind) -> Any:
    """Return the message of a control event.

    Raises:
        Mismatch: the event has no message of this kind.
    """
    try:
        return decode_event(event, kind)
    except ProtocolError as error:
        raise Mismatch("a control message of the schema", f"one that does not decode: {error}") from error
