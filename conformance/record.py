# SPDX-License-Identifier: Apache-2.0
"""``python -m conformance record``."""

from __future__ import annotations

import asyncio
import os
import ssl as ssl_module
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from bmq._json import orjson
from bmq._words import number
from bmq.cli.decode import TO_BROKER, TO_CLIENT, Recorded
from bmq.cli.output import BadInput, ExitStatus, emit, note
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import verb
from bmq.client.address import Address, parse_addresses
from bmq.errors import ProtocolError
from bmq.protocol.framing import Framer
from bmq.wire.constants import EventType
from bmq.wire.control import AuthenticationRequest, MessageKind
from bmq.wire.control_event import codec_of, decode_event, encode_event
from bmq.wire.event import Event, type_of

__all__ = ["line_of", "record"]

_Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_CHUNK = 64 * 1024
_HIDDEN = b"hidden:hidden"


@verb("conformance record", service=True)
async def record(
    target: BrokerTarget,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write, with one JSON line for each event.")
    ],
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port; 0 selects a free port.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    secrets: Annotated[
        bool, typer.Option("--with-credentials", help="Record the clients' credentials too.")
    ] = False,
) -> int:
    """Record the conversation between clients and a broker.

    The command is a proxy. Clients connect to the proxy without TLS; the proxy connects to the broker, with
    TLS if the address is tcps://. The recording ends with Ctrl-C. "bmq decode" shows a recording, and
    "python -m conformance replay" plays one. If the file cannot be written any more, the command says so at
    once, and passes on without recording; the exit status is 1 then.

    [bold]Examples[/]

    $ python -m conformance record conversation.ndjson --port 30115
    $ BMQ_BROKER_URI=tcp://localhost:30115 python my_service.py
    $ bmq decode --file conversation.ndjson --brief
    """
    (address, *more) = parse_addresses(target.uri)
    if more:
        raise BadInput("a recording covers one broker: give one address")
    context = (target.ssl or ssl_module.create_default_context()) if address.tls else None
    with _private(file, over=force) as output:
        recorder = _Recorder(output, address, context, target.server_hostname, secrets=secrets)
        server = await asyncio.start_server(recorder.serve, host, port)
        async with server:
            bound = server.sockets[0].getsockname()[1]
            emit(f"conformance record ready on tcp://{host}:{bound}", flush=True)
            try:
                await asyncio.Event().wait()  # until Ctrl-C or SIGTERM
            except asyncio.CancelledError:
                if not recorder.failed:
                    raise
            finally:
                await recorder.close()
                what = f"{number(recorder.events)} events of {number(recorder.connections)} connections"
                note(f"{what} in {file}")
    return ExitStatus.FAILED


def line_of(event: Recorded) -> bytes:
    """Return an event as a line of a recording."""
    entry: dict[str, Any] = {"conn": event.connection, "t": round(event.seconds, 6), "dir": event.direction}
    if event.data:
        entry |= {"type": type_of(event.data), "hex": event.data.hex()}
    else:
        entry["eof"] = True
    return orjson.dumps(entry) + b"\n"


def _private(file: Path, *, over: bool) -> BinaryIO:
    """Open a file for its owner alone: recordings contain payloads, and perhaps passwords.

    Raises:
        BadInput: the file exists.
        OSError: the file cannot be written.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if over else os.O_EXCL), 0o600)
    except FileExistsError:
        raise BadInput(f"{file} exists: --force overwrites the file") from None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        Path(file).chmod(0o600)  # an existing file may be readable by others
    return os.fdopen(descriptor, "wb")


class _Recorder:
    """Serves clients, and writes their events to a file."""

    def __init__(
        self,
        output: BinaryIO,
        address: Address,
        context: ssl_module.SSLContext | None,
        server_hostname: str | None,
        *,
        secrets: bool,
    ) -> None:
        self._output = output
        self._address = address
        self._context = context
        self._server_hostname = server_hostname
        self._secrets = secrets
        self._started = time.monotonic()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.connections = 0
        self.events = 0
        self.failed = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        self.connections += 1
        connection = self.connections
        broker_writer: asyncio.StreamWriter | None = None
        try:
            name = (self._server_hostname or self._address.host) if self._context is not None else None
            broker_reader, broker_writer = await asyncio.open_connection(
                self._address.host, self._address.port, ssl=self._context, server_hostname=name
            )
            await self._both_ways(connection, (reader, writer), (broker_reader, broker_writer))
        except OSError as error:
            note(f"bmq conformance record: connection {connection}: {error}")
        except asyncio.CancelledError:
            pass  # the recording ends
        finally:
            self._tasks.pop(task, None)
            for each in (writer, broker_writer):
                if each is not None:
                    each.transport.abort()

    async def _both_ways(self, connection: int, client: _Pair, broker: _Pair) -> None:
        ways = [
            asyncio.ensure_future(self._pass(connection, TO_BROKER, client[0], broker[1])),
            asyncio.ensure_future(self._pass(connection, TO_CLIENT, broker[0], client[1])),
        ]
        try:
            # An orderly end of one direction does not end the other direction; a loss ends both.
            await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def close(self) -> None:
        """End every connection."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _pass(
        self, connection: int, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        framer: Framer | None = Framer()
        while data := await reader.read(_CHUNK):
            writer.write(data)
            if framer is not None:
                events, error = framer.feed(data)
                for event in events:
                    self._write(connection, direction, self._hidden(event))
                if error is not None:
                    note(
                        f"bmq conformance record: connection {connection}, {direction}: {error}; "
                        "the rest is not recorded"
                    )
                    framer = None
            await writer.drain()
        self._write(connection, direction, b"")
        with suppress(OSError):
            writer.write_eof()

    def _write(self, connection: int, direction: str, data: bytes) -> None:
        if self.failed:
            return
        seconds = time.monotonic() - self._started
        try:
            self._output.write(line_of(Recorded(connection, seconds, direction, data)))
            self._output.flush()
        except OSError as error:
            self.failed = True
            note(f"bmq conformance record: {error}: from now on, traffic is passed on and not recorded")
            with suppress(OSError):  # it would write the rest, and fail again
                self._output.close()
        else:
            self.events += bool(data)

    def _hidden(self, event: Event) -> bytes:
        """Return an event; remove the client's credentials unless the recording includes credentials."""
        if self._secrets or event.type != EventType.AUTHENTICATION:
            return event.data
        try:
            message = decode_event(event, MessageKind.AUTHENTICATION)
            if isinstance(message, AuthenticationRequest) and message.data:
                return encode_event(msgspec.structs.replace(message, data=_HIDDEN), codec_of(event))
        except ProtocolError:
            return b""  # record no secret
        return event.data
