"""A client of a few bytes over a real socket."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from typing import Any

from bmq.protocol.framing import Framer
from bmq.wire.ack import AckMessage, decode_acks
from bmq.wire.constants import EventType, PutFlags
from bmq.wire.control import Codec, decode_event, encode_event
from bmq.wire.control.messages import (
    BrokerResponse,
    ClientIdentity,
    ClientType,
    ConfigureStream,
    ControlBody,
    ControlMessage,
    GuidInfo,
    Message,
    MessageKind,
    OpenQueue,
    QueueHandleParameters,
    StreamParameters,
)
from bmq.wire.event import Event, pack_event_header
from bmq.wire.guid import GuidGenerator
from bmq.wire.push import PushMessage, decode_pushes
from bmq.wire.put import encode_put
from tests.broker.core import EX, subscription
from tests.wire.messages import encode_confirms

TIMEOUT = 10
#: Every connection made, for tests to close at their end.
OPEN: list[Wire] = []
_client_ids = itertools.count(1_000_000)


class Wire:
    """One connection. Whatever comes is waited for with a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.guids = GuidGenerator(next(_client_ids).to_bytes(6, "big"))
        self._framer = Framer()
        self._events: list[Event] = []
        self._r_ids = itertools.count(1)
        OPEN.append(self)

    @classmethod
    async def connect(cls, port: int, tls: ssl.SSLContext | None = None) -> Wire:
        host = "localhost" if tls else None
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=host))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def event(self, *types: EventType) -> Event:
        """Return the next event of some types; others are dropped."""
        while True:
            for at, event in enumerate(self._events):
                if not types or event.type in types:
                    del self._events[: at + 1]
                    return event
            self._events.clear()
            data = await asyncio.wait_for(self.reader.read(1 << 16), TIMEOUT)
            if not data:
                raise ConnectionError("the broker closed the connection")
            events, error = self._framer.feed(data)
            assert error is None
            self._events += events

    async def closed(self) -> None:
        """Wait until the broker closes the connection."""
        try:
            while await asyncio.wait_for(self.reader.read(1 << 16), TIMEOUT):
                pass
        except ConnectionError:
            pass

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    async def negotiate(self, **identity: Any) -> BrokerResponse:
        given: dict[str, Any] = {
            "client_type": ClientType.E_TCPCLIENT,
            "features": EX,
            "sdk_language": 0,
            "guid_info": GuidInfo(client_id=self.guids.client_id_text),
        }
        self.send(encode_event(ClientIdentity(**(given | identity)), Codec.JSON))
        message = decode_event(await self.event(EventType.CONTROL), MessageKind.NEGOTIATION)
        assert isinstance(message, BrokerResponse)
        return message

    async def authenticate(self, message: Message) -> Message:
        self.send(encode_event(message, Codec.JSON))
        return decode_event(await self.event(EventType.AUTHENTICATION), MessageKind.AUTHENTICATION)

    async def ask(self, body: ControlBody) -> ControlBody:
        r_id = next(self._r_ids)
        self.send(encode_event(ControlMessage(r_id=r_id, body=body), Codec.JSON))
        message = decode_event(await self.event(EventType.CONTROL), MessageKind.CONTROL)
        assert message.r_id == r_id
        assert message.body is not None
        return message.body

    async def open(self, uri: str, *, read: bool = False, write: bool = False) -> ControlBody:
        return await self.ask(
            OpenQueue(
                handle_parameters=QueueHandleParameters(
                    uri=uri,
                    flags=(2 if read else 0) | (4 if write else 0),
                    read_count=int(read),
                    write_count=int(write),
                )
            )
        )

    async def consume(self, uri: str, **limits: Any) -> None:
        await self.open(uri, read=True)
        parameters = StreamParameters(subscriptions=(subscription(1, **limits),))
        await self.ask(ConfigureStream(stream_parameters=parameters))

    def put(self, *payloads: bytes) -> list[bytes]:
        guids = [self.guids.next(0) for _ in payloads]
        body = b"".join(
            encode_put(0, guid, payload, flags=PutFlags.ACK_REQUESTED)
            for guid, payload in zip(guids, payloads, strict=True)
        )
        self.send(pack_event_header(8 + len(body), EventType.PUT) + body)
        return guids

    def confirm(self, *guids: bytes) -> None:
        self.send(encode_confirms([(0, guid, 0) for guid in guids]))

    async def pushes(self, count: int) -> list[PushMessage]:
        found: list[PushMessage] = []
        while len(found) < count:
            event = await self.event(EventType.PUSH)
            found += decode_pushes(event.data, event.body)
        return found

    async def acks(self, count: int) -> list[AckMessage]:
        found: list[AckMessage] = []
        while len(found) < count:
            event = await self.event(EventType.ACK)
            found += decode_acks(event.data, event.body)
        return found


async def close_all() -> None:
    """Close every connection."""
    while OPEN:
        await OPEN.pop().close()


async def client(port: int, tls: ssl.SSLContext | None = None) -> Wire:
    """A client that has negotiated."""
    wire = await Wire.connect(port, tls)
    await wire.negotiate()
    return wire
