# SPDX-License-Identifier: Apache-2.0
"""The scripted client of broker tests, which sends exactly a test's input.

:class:`RawClient` encodes requests and sorts answers, bytes in and bytes out; :class:`SocketClient` puts it
behind a socket.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bmq.protocol.framing import Framer
from bmq.wire.ack import AckMessage, decode_acks
from bmq.wire.constants import Compression, EventType, PushFlags, PutFlags
from bmq.wire.control import (
    AuthenticationRequest,
    AuthenticationResponse,
    BrokerResponse,
    ClientIdentity,
    ClientType,
    Codec,
    ConfigureStream,
    ConsumerInfo,
    ControlBody,
    ControlMessage,
    Expression,
    ExpressionVersion,
    GuidInfo,
    MessageKind,
    OpenQueue,
    QueueFlags,
    QueueHandleParameters,
    Status,
    StreamParameters,
    SubQueueIdInfo,
    Subscription,
)
from bmq.wire.control_event import decode_event, encode_event
from bmq.wire.event import HEADER_SIZE, Event, pack_event_header
from bmq.wire.guid import GuidGenerator
from bmq.wire.message import join_application_data, split_application_data
from bmq.wire.properties import PropertyInput, encode_properties
from bmq.wire.push import PushMessage, decode_pushes
from bmq.wire.put import encode_put
from tests.wire.messages import encode_confirms

__all__ = ["EX", "Got", "RawClient", "SocketClient", "dial", "open_queue", "subscription"]

#: How long an answer is waited for.
TIMEOUT = 20.0
EX = "PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX"


def subscription(
    s_id: int,
    text: str = "",
    *,
    priority: int = 0,
    count: int = 1,
    messages: int = 1000,
    size: int = 33554432,
) -> Subscription:
    version = ExpressionVersion.E_VERSION_1 if text else ExpressionVersion.E_UNDEFINED
    consumer = ConsumerInfo(
        max_unconfirmed_messages=messages,
        max_unconfirmed_bytes=size,
        consumer_priority=priority,
        consumer_priority_count=count,
    )
    return Subscription(s_id=s_id, expression=Expression(version=version, text=text), consumers=(consumer,))


def open_queue(
    uri: str, q_id: int = 0, *, read: bool = False, write: bool = False, sub_id: int = 0
) -> OpenQueue:
    """The request; an app has 1 as its id unless another is given."""
    app_id = uri.partition("?id=")[2]
    flags = (QueueFlags.READ if read else QueueFlags(0)) | (QueueFlags.WRITE if write else QueueFlags(0))
    return OpenQueue(
        handle_parameters=QueueHandleParameters(
            uri=uri,
            q_id=q_id,
            sub_id_info=SubQueueIdInfo(sub_id=sub_id or 1, app_id=app_id) if app_id else None,
            flags=int(flags),
            read_count=int(read),
            write_count=int(write),
            admin_count=0,
        )
    )


class Got(NamedTuple):
    push: PushMessage

    @property
    def payload(self) -> bytes:
        push = self.push
        return split_application_data(
            push.data,
            has_properties=bool(push.flags & PushFlags.MESSAGE_PROPERTIES),
            schema_id=push.schema_id,
            compression=push.compression,
        )[1]

    @property
    def out_of_order(self) -> bool:
        return bool(self.push.flags & PushFlags.OUT_OF_ORDER)


class RawClient(ABC):
    """The client's input, and its unread output.

    Attributes:
        guids: source of its messages' GUIDs.
        codec: encoding of its control messages.
        kinds: types of all received events, in order.
    """

    def __init__(self) -> None:
        self.guids = GuidGenerator(secrets.token_bytes(6))
        self.codec = Codec.JSON
        self.kinds: list[EventType] = []
        self._framer = Framer()
        self._r_ids = itertools.count(1)
        self._got: list[PushMessage] = []
        self._answered: list[AckMessage] = []
        self._events: list[Event] = []

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send bytes."""

    def take(self, data: bytes) -> None:
        events, error = self._framer.feed(data)
        for event in events:
            self.kinds.append(event.type)
            if event.type == EventType.PUSH:
                self._got += decode_pushes(event.data, event.body)
            elif event.type == EventType.ACK:
                self._answered += decode_acks(event.data, event.body)
            else:
                self._events.append(event)
        assert error is None, error

    def identity_event(self, features: str = EX, **identity: Any) -> bytes:
        given: dict[str, Any] = {
            "protocol_version": 1,
            "sdk_version": 100,
            "client_type": ClientType.E_TCPCLIENT,
            "process_name": "test",
            "pid": 1,
            "features": features,
            "sdk_language": 0,
            "guid_info": GuidInfo(client_id=self.guids.client_id_text),
        }
        return encode_event(ClientIdentity(**(given | identity)), self.codec)

    def request(self, body: ControlBody) -> int:
        r_id = next(self._r_ids)
        self.send(encode_event(ControlMessage(r_id=r_id, body=body), self.codec))
        return r_id

    def put(
        self,
        *payloads: bytes,
        q_id: int = 0,
        guids: list[bytes] | None = None,
        ack: bool = True,
        properties: Mapping[str, PropertyInput] | None = None,
        new: bool = True,
        compression: Compression = Compression.NONE,
    ) -> list[bytes]:
        """Post messages in one event; return their GUIDs."""
        guids = guids or [self.guids.next(0) for _ in payloads]
        area = encode_properties(properties or {}, new=new)
        flags = (PutFlags.ACK_REQUESTED if ack else 0) | (PutFlags.MESSAGE_PROPERTIES if area else 0)
        messages = []
        for guid, payload in zip(guids, payloads, strict=True):
            data, used = join_application_data(payload, area, new=new, compression=compression)
            messages.append(encode_put(q_id, guid, data, flags, 1 if area and new else 0, used))
        self.put_encoded(*messages)
        return guids

    def put_encoded(self, *messages: bytes) -> None:
        """Send a PUT event of messages that are encoded already."""
        body = b"".join(messages)
        self.send(pack_event_header(HEADER_SIZE + len(body), EventType.PUT) + body)

    def confirm(self, *guids: bytes, q_id: int = 0, sub_id: int = 0) -> None:
        self.send(encode_confirms([(q_id, guid, sub_id) for guid in guids]))


class SocketClient(RawClient):
    """A client over a socket, which reads while it waits, with a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, host: str | None, port: int | None, tls: ssl.SSLContext | None = None) -> Any:
        return cls(
            *await asyncio.open_connection(host, port, ssl=tls, server_hostname="localhost" if tls else None)
        )

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def _read(self, timeout: float = TIMEOUT) -> None:
        data = await asyncio.wait_for(self.reader.read(1 << 16), timeout)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self.take(data)

    async def event(self, *types: EventType, timeout: float = TIMEOUT) -> Event:
        """Return the next event of some types that is neither a PUSH nor an ACK; others are dropped."""
        while True:
            for at, event in enumerate(self._events):
                if not types or event.type in types:
                    del self._events[: at + 1]
                    return event
            self._events.clear()
            await self._read(timeout)

    async def ended(self) -> None:
        try:
            while True:
                await self._read()
        except ConnectionError:
            pass

    def drop(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close the connection when everything is sent."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    # ---- requests: all raise ConnectionError when the broker hangs up instead of answering

    async def authenticate(self, mechanism: str, data: bytes | None) -> AuthenticationResponse:
        self.send(encode_event(AuthenticationRequest(mechanism=mechanism, data=data), self.codec))
        message = decode_event(await self.event(EventType.AUTHENTICATION), MessageKind.AUTHENTICATION)
        assert isinstance(message, AuthenticationResponse)
        return message

    async def negotiate(self, **identity: Any) -> BrokerResponse:
        self.send(self.identity_event(**identity))
        message = decode_event(await self.event(EventType.CONTROL), MessageKind.NEGOTIATION)
        assert isinstance(message, BrokerResponse)
        return message

    async def ask(self, body: ControlBody, timeout: float = TIMEOUT) -> ControlBody:
        r_id = self.request(body)
        while True:
            message = decode_event(await self.event(EventType.CONTROL, timeout=timeout), MessageKind.CONTROL)
            if message.r_id == r_id:
                assert message.body is not None
                return message.body

    async def refused(self, body: ControlBody) -> tuple[str, int, str]:
        status = await self.ask(body)
        assert isinstance(status, Status), status
        return status.category.name, status.code, status.message

    async def open(self, uri: str, q_id: int = 0, **how: Any) -> ControlBody:
        return await self.ask(open_queue(uri, q_id, **how))

    async def configure(
        self, q_id: int, *subscriptions: Subscription, app_id: str = "__default"
    ) -> ControlBody:
        parameters = StreamParameters(app_id=app_id, subscriptions=subscriptions)
        reply = await self.ask(ConfigureStream(q_id=q_id, stream_parameters=parameters))
        assert not isinstance(reply, Status), reply
        return reply

    async def consume(self, uri: str, **limits: Any) -> None:
        """Open a queue for reading and subscribe to everything."""
        await self.open(uri, read=True)
        await self.configure(0, subscription(1, **limits))

    async def acks(self, count: int) -> list[AckMessage]:
        while len(self._answered) < count:
            await self._read()
        found, self._answered = self._answered[:count], self._answered[count:]
        return found

    async def pushes(self, count: int) -> list[Got]:
        while len(self._got) < count:
            await self._read()
        found, self._got = self._got[:count], self._got[count:]
        return [Got(push) for push in found]


@asynccontextmanager
async def dial(uri: str) -> AsyncIterator[SocketClient]:
    """A new connection to a broker, without any traffic."""
    address = urlsplit(uri)
    client: SocketClient = await SocketClient.connect(address.hostname, address.port)
    try:
        yield client
    finally:
        client.drop()
        await client.close()
