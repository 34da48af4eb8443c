# SPDX-License-Identifier: Apache-2.0
"""``python -m conformance replay``."""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated

import msgspec
import typer

from bmq.cli.decode import TO_BROKER, TO_CLIENT, Recorded, read_recording
from bmq.cli.output import BadInput, ExitStatus, emit, note
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import verb
from bmq.client.address import parse_addresses
from bmq.errors import ConnectionFailed, ProtocolError
from bmq.protocol.framing import Framer
from bmq.wire.ack import decode_acks
from bmq.wire.anatomy import read_control
from bmq.wire.confirm import decode_confirms
from bmq.wire.constants import EventType
from bmq.wire.control import ControlMessage, MessageKind
from bmq.wire.control_event import codec_of, decode_event, encode_event
from bmq.wire.event import HEARTBEAT_RSP, Event, read_event
from bmq.wire.push import decode_pushes
from bmq.wire.put import decode_puts

__all__ = ["replay"]

_CHUNK = 64 * 1024


@verb("conformance replay")
async def replay(
    target: BrokerTarget,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A recording of the command record.")],
    role: Annotated[str, typer.Option("--as", metavar="client|broker", help="The half to play.")] = "client",
    connection: Annotated[
        int, typer.Option("--connection", "-c", min=1, help="Number of the connection in the recording.")
    ] = 1,
    host: Annotated[str, typer.Option("--host", help="As a broker: the address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="As a broker: the port; 0 selects a free port.")
    ] = 0,
) -> int:
    """Play one half of a recorded conversation, and compare the other half with the recording.

    The command sends an event after all earlier events of the other side have arrived: as many messages, and
    control messages of the same kinds. As a broker, the command replaces the recorded GUIDs and request
    numbers by the live client's; the client has to repeat the recorded steps in the same order. The exit
    status is 1 if an event differs, or is missing after --timeout.

    [bold]Examples[/]

    $ python -m conformance replay conversation.ndjson --broker tcp://localhost:30114
    $ python -m conformance replay conversation.ndjson --as broker --port 30116
    """
    if role not in ("client", "broker"):
        raise BadInput(f"--as must be client or broker, not {role!r}")
    events, complaint = read_recording(file)
    if complaint:
        note(f"bmq conformance replay: {complaint}")
    chosen = [event for event in events if event.connection == connection and event.data]
    if not chosen:
        there = sorted({event.connection for event in events})
        raise BadInput(
            f"{file} has no connection {connection}; its connections: {', '.join(map(str, there)) or 'none'}"
        )
    if role == "client":
        reader, writer = await _connect(target)
        try:
            return await _Player(TO_BROKER, reader, writer, target.timeout).play(chosen)
        finally:
            writer.transport.abort()
    return await _serve(chosen, host, port, target.timeout)


async def _connect(target: BrokerTarget) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = parse_addresses(target.uri)[0]
    context = (target.ssl or ssl_module.create_default_context()) if address.tls else None
    name = (target.server_hostname or address.host) if context is not None else None
    try:
        async with asyncio.timeout(target.timeout):
            return await asyncio.open_connection(
                address.host, address.port, ssl=context, server_hostname=name
            )
    except TimeoutError:
        raise ConnectionFailed(f"{address} did not answer within {target.timeout:.2g} s") from None
    except OSError as error:
        raise ConnectionFailed(f"could not connect to {address}: {error.strerror or error}") from error


async def _serve(events: list[Recorded], host: str, port: int, timeout: float) -> int:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.close()  # only one client is served
        try:
            status = await _Player(TO_CLIENT, reader, writer, timeout).play(events)
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(status)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, host, port)
    emit(f"conformance replay ready on tcp://{host}:{server.sockets[0].getsockname()[1]}", flush=True)
    try:
        return await done
    finally:
        server.close()


@dataclass(slots=True)
class _Seen:
    """Events of one side so far.

    Attributes:
        kinds: number of events of each kind.
        guids: GUIDs of the posts, in order.
        requests: request numbers by kind, in order.
    """

    kinds: Counter[str] = field(default_factory=Counter[str])
    guids: list[bytes] = field(default_factory=list[bytes])
    requests: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def take(self, event: Event) -> None:
        """Count the messages of an event."""
        match event.type:
            case EventType.PUT:
                puts = decode_puts(event.data, event.body)
                self.kinds["PUT"] += len(puts)
                self.guids.extend(bytes(put.guid) for put in puts)
            case EventType.PUSH:
                self.kinds["PUSH"] += len(decode_pushes(event.data, event.body))
            case EventType.ACK:
                self.kinds["ACK"] += len(decode_acks(event.data, event.body))
            case EventType.CONFIRM:
                self.kinds["CONFIRM"] += len(decode_confirms(event.data, event.body))
            case EventType.CONTROL | EventType.AUTHENTICATION:
                self._control(event)
            case EventType.HEARTBEAT_REQ | EventType.HEARTBEAT_RSP:
                pass
            case _:
                self.kinds[f"event of type {event.type}"] += 1

    def _control(self, event: Event) -> None:
        try:
            message, name, _ = read_control(event)
        except ProtocolError:
            self.kinds["unreadable control message"] += 1
            return
        self.kinds[name] += 1
        if isinstance(message, ControlMessage) and message.r_id is not None:
            self.requests.setdefault(name, []).append(message.r_id)


class _Player:
    """Plays one half."""

    def __init__(
        self, own: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout: float
    ) -> None:
        self._own = own
        self._reader = reader
        self._writer = writer
        self._timeout = timeout
        self._framer = Framer()
        self._live = _Seen()
        self._recorded = _Seen()
        self._ended = False

    async def play(self, events: list[Recorded]) -> int:
        """Send and expect events in the recorded order, and return the exit status."""
        good = True
        for direction, turn in groupby(events, key=lambda event: event.direction):
            data = [event.data for event in turn]
            if direction == self._own:
                for each in data:
                    self._writer.write(self._translated(each))
                    emit(f"sent      {_told(each)}")
                await self._writer.drain()
            else:
                good = await self._expect(data) and good
                if not good:
                    return ExitStatus.FAILED
        return ExitStatus.OK if good else ExitStatus.FAILED

    async def _expect(self, turn: list[bytes]) -> bool:
        before = self._recorded.kinds.copy()
        for data in turn:
            self._recorded.take(read_event(data))
        wanted = self._recorded.kinds
        try:
            async with asyncio.timeout(self._timeout):
                while not self._ended and any(
                    self._live.kinds[kind] < count for kind, count in wanted.items()
                ):
                    await self._read()
        except TimeoutError:
            pass
        for kind, count in (wanted - before).items():
            emit(f"expected  {count} x {kind}")
        good = True
        for kind in sorted(wanted | self._live.kinds):
            came, recorded = self._live.kinds[kind], wanted[kind]
            if came < recorded:
                good = False
                emit(
                    f"MISSING   {recorded - came} x {kind}"
                    + (": the connection was closed" if self._ended else "")
                )
            elif kind not in wanted:
                good = False
                emit(f"UNKNOWN   {came} x {kind} arrived, not in the recording so far")
        return good

    async def _read(self) -> None:
        data = await self._reader.read(_CHUNK)
        if not data:
            self._ended = True
            return
        events, error = self._framer.feed(data)
        for event in events:
            if event.type == EventType.HEARTBEAT_REQ:
                self._writer.write(HEARTBEAT_RSP)
            self._live.take(event)
        if error is not None:
            raise error

    def _translated(self, data: bytes) -> bytes:
        """Replace recorded GUIDs and request numbers by the live client's."""
        if self._own == TO_BROKER:
            return data
        event = read_event(data)
        if event.type == EventType.CONTROL:
            return self._renumbered(event)
        if event.type in (EventType.ACK, EventType.PUSH):
            for old, new in zip(self._recorded.guids, self._live.guids, strict=False):
                data = data.replace(old, new)
        return data

    def _renumbered(self, event: Event) -> bytes:
        try:
            message = decode_event(event, MessageKind.CONTROL)
        except ProtocolError:
            return event.data
        if message.r_id is None:
            return event.data
        numbers = dict(self._numbers())
        if message.r_id not in numbers:
            return event.data
        return encode_event(msgspec.structs.replace(message, r_id=numbers[message.r_id]), codec_of(event))

    def _numbers(self) -> Iterator[tuple[int, int]]:
        for kind, recorded in self._recorded.requests.items():
            yield from zip(recorded, self._live.requests.get(kind, ()), strict=False)


def _told(data: bytes) -> str:
    seen = _Seen()
    seen.take(read_event(data))
    return ", ".join(f"{count} x {kind}" for kind, count in seen.kinds.items()) or "heartbeat"
