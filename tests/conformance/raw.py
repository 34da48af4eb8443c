"""A client of a few bytes: says exactly what a test wants said, and keeps everything it is told."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from bmq.protocol.framing import Framer
from bmq.wire.ack import AckMessage, decode_acks
from bmq.wire.constants import Compression, EventType, PushFlags, PutFlags
from bmq.wire.control import Codec, MessageKind, decode_event, encode_event
from bmq.wire.control.messages import (
    AuthenticationRequest,
    AuthenticationResponse,
    BrokerResponse,
    ClientIdentity,
    ClientLanguage,
    ClientType,
    CloseQueue,
    ConfigureStream,
    ConsumerInfo,
    ControlBody,
    ControlMessage,
    Disconnect,
    Expression,
    ExpressionVersion,
    GuidInfo,
    OpenQueue,
    QueueFlags,
    QueueHandleParameters,
    Status,
    StreamParameters,
    SubQueueIdInfo,
    Subscription,
)
from bmq.wire.event import Event, pack_event_header
from bmq.wire.message import join_application_data, split_application_data
from bmq.wire.properties import PropertyInput, encode_properties
from bmq.wire.push import PushMessage, decode_pushes
from bmq.wire.put import encode_put
from tests.wire.messages import encode_confirms

TIMEOUT = 20.0
#: How long something that must not come is waited for.
QUIET = 0.15
EX = "PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX"

Connect = Callable[..., Awaitable["Raw"]]
NewUri = Callable[..., str]


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


def identity(**changes: object) -> ClientIdentity:
    values: dict[str, object] = {
        "protocol_version": 1,
        "sdk_version": 1,
        "client_type": ClientType.E_TCPCLIENT,
        "process_name": "conformance",
        "pid": 1,
        "session_id": 1,
        "host_name": "",
        "features": EX,
        "sdk_language": ClientLanguage.E_UNKNOWN,
        "guid_info": GuidInfo(client_id=secrets.token_hex(6).upper(), nano_seconds_from_epoch=1),
        "user_agent": "conformance",
    }
    return ClientIdentity(**values | changes)  # type: ignore[arg-type]


@dataclass
class Got:
    """A message as it was pushed."""

    push: PushMessage

    @property
    def payload(self) -> bytes:
        push = self.push
        _, payload = split_application_data(
            push.data,
            has_properties=bool(push.flags & PushFlags.MESSAGE_PROPERTIES),
            schema_id=push.schema_id,
            compression=push.compression,
        )
        return payload

    @property
    def out_of_order(self) -> bool:
        return bool(self.push.flags & PushFlags.OUT_OF_ORDER)


class Raw:
    """One connection to the broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._framer = Framer()
        self._r_ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[ControlBody]] = {}
        self._handshake: asyncio.Queue[Event | None] = asyncio.Queue()
        self.acks: asyncio.Queue[AckMessage] = asyncio.Queue()
        self.pushes: asyncio.Queue[Got] = asyncio.Queue()
        self.heartbeats: asyncio.Queue[int] = asyncio.Queue()
        self.closed = asyncio.Event()
        #: What came, in the order in which it came.
        self.kinds: list[EventType] = []
        self._negotiated = False
        self._task = asyncio.ensure_future(self._read())

    # ---- bytes

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(65536):
                events, error = self._framer.feed(data)
                for event in events:
                    self._take(event)
                assert error is None, error
        except ConnectionResetError:
            pass
        finally:
            self.closed.set()
            self._handshake.put_nowait(None)

    def _take(self, event: Event) -> None:
        self.kinds.append(event.type)
        match event.type:
            case EventType.CONTROL if self._negotiated:
                message = decode_event(event, MessageKind.CONTROL)
                reply = self._replies.pop(message.r_id, None)  # type: ignore[arg-type]
                if reply is not None and not reply.done():
                    reply.set_result(message.body)
            case EventType.CONTROL | EventType.AUTHENTICATION:
                self._handshake.put_nowait(event)
            case EventType.ACK:
                for ack in decode_acks(event.data, event.body):
                    self.acks.put_nowait(ack)
            case EventType.PUSH:
                for push in decode_pushes(event.data, event.body):
                    self.pushes.put_nowait(Got(push))
            case EventType.HEARTBEAT_REQ | EventType.HEARTBEAT_RSP:
                self.heartbeats.put_nowait(event.type)
            case _:
                raise AssertionError(f"unexpected event of type {event.type}")

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def drop(self) -> None:
        """Go without a word."""
        self._writer.transport.abort()

    async def close(self) -> None:
        self.drop()
        await self._task

    async def ended(self) -> None:
        """Wait until the broker has closed the connection."""
        await asyncio.wait_for(self.closed.wait(), TIMEOUT)

    # ---- requests

    async def authenticate(self, mechanism: str, data: bytes | None) -> AuthenticationResponse | None:
        """Returns None when the connection was closed instead of an answer."""
        request = AuthenticationRequest(mechanism=mechanism, data=data)
        self.send(encode_event(request, Codec.JSON))
        event = await asyncio.wait_for(self._handshake.get(), TIMEOUT)
        if event is None:
            return None
        message = decode_event(event, MessageKind.AUTHENTICATION)
        assert isinstance(message, AuthenticationResponse)
        return message

    async def negotiate(self, **changes: object) -> BrokerResponse | None:
        """Returns None when the connection was closed instead of an answer."""
        self.send(encode_event(identity(**changes), Codec.JSON))
        event = await asyncio.wait_for(self._handshake.get(), TIMEOUT)
        if event is None:
            return None
        response = decode_event(event, MessageKind.NEGOTIATION)
        assert isinstance(response, BrokerResponse)
        self._negotiated = True
        return response

    async def request(self, body: ControlBody, *, wait: float = TIMEOUT) -> ControlBody:
        r_id = next(self._r_ids)
        reply: asyncio.Future[ControlBody] = asyncio.get_running_loop().create_future()
        self._replies[r_id] = reply
        self.send(encode_event(ControlMessage(r_id=r_id, body=body), Codec.JSON))
        return await asyncio.wait_for(reply, wait)

    async def refused(self, body: ControlBody) -> tuple[str, int, str]:
        """Category, code and message of a failure."""
        status = await self.request(body)
        assert isinstance(status, Status), status
        return status.category.name, status.code, status.message

    async def open(
        self, uri: str, q_id: int = 0, *, read: bool = True, write: bool = True, sub_id: int = 0
    ) -> ControlBody:
        reply = await self.request(open_queue(uri, q_id, read=read, write=write, sub_id=sub_id))
        assert not isinstance(reply, Status), reply
        if read and write and not sub_id:
            # Otherwise a node of a cluster that has not the queue itself drops what is put.
            await self.configure(q_id, subscription(2**31 - 1, messages=0, size=0, priority=-(2**30)))
        return reply

    async def configure(
        self, q_id: int, *subscriptions: Subscription, app_id: str = "__default"
    ) -> ControlBody:
        parameters = StreamParameters(app_id=app_id, subscriptions=subscriptions)
        reply = await self.request(ConfigureStream(q_id=q_id, stream_parameters=parameters))
        assert not isinstance(reply, Status), reply
        return reply

    async def close_queue(self, uri: str, q_id: int = 0, *, read: bool = True, write: bool = True) -> None:
        """What the SDKs do: take the subscriptions back, then close."""
        await self.configure(q_id)
        handle = open_queue(uri, q_id, read=read, write=write).handle_parameters
        reply = await self.request(CloseQueue(handle_parameters=handle, is_final=True))
        assert not isinstance(reply, Status), reply

    async def disconnect(self) -> None:
        await self.request(Disconnect())
        self.drop()
        await self._task

    # ---- messages

    def put(
        self,
        payload: bytes,
        q_id: int = 0,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        guid: bytes | None = None,
        ack: bool = True,
    ) -> bytes:
        """Post; returns the GUID."""
        guid = secrets.token_bytes(16) if guid is None else guid
        flags = PutFlags.ACK_REQUESTED if ack else PutFlags.NONE
        area, schema = b"", 0
        if properties:
            area, schema = encode_properties(properties, new=True), 1
            flags |= PutFlags.MESSAGE_PROPERTIES
        data, compression = join_application_data(payload, area, new=True, compression=Compression.NONE)
        self.put_raw(encode_put(q_id, guid, data, flags, schema, compression))
        return guid

    def put_raw(self, message: bytes) -> None:
        self.send(pack_event_header(8 + len(message), EventType.PUT) + message)

    def confirm(self, guid: bytes, q_id: int = 0, *, sub_id: int = 0) -> None:
        self.send(encode_confirms([(q_id, guid, sub_id)]))

    async def ack(self) -> AckMessage:
        return await asyncio.wait_for(self.acks.get(), TIMEOUT)

    async def statuses(self, count: int) -> list[int]:
        return [(await self.ack()).status for _ in range(count)]

    async def push(self) -> Got:
        return await asyncio.wait_for(self.pushes.get(), TIMEOUT)

    async def payloads(self, count: int) -> list[bytes]:
        return [(await self.push()).payload for _ in range(count)]

    async def no_push(self) -> bool:
        """Whether nothing is pushed, with a request answered meanwhile."""
        return await self._nothing(self.pushes)

    async def no_ack(self) -> bool:
        return await self._nothing(self.acks)

    async def _nothing(self, queue: asyncio.Queue[Got] | asyncio.Queue[AckMessage]) -> bool:
        await self.barrier()
        try:
            await asyncio.wait_for(queue.get(), QUIET)
        except TimeoutError:
            return True
        return False

    async def barrier(self) -> None:
        """Wait until everything sent so far was read: a request about nothing is answered behind it."""
        empty = StreamParameters(subscriptions=())
        await self.request(ConfigureStream(q_id=4_000_000_000, stream_parameters=empty))


def open_queue(
    uri: str, q_id: int = 0, *, read: bool = True, write: bool = True, sub_id: int = 0
) -> OpenQueue:
    app_id = uri.partition("?id=")[2]
    flags = (QueueFlags.READ if read else QueueFlags(0)) | (QueueFlags.WRITE if write else QueueFlags(0))
    return OpenQueue(
        handle_parameters=QueueHandleParameters(
            uri=uri,
            q_id=q_id,
            sub_id_info=SubQueueIdInfo(sub_id=sub_id, app_id=app_id) if app_id else None,
            flags=int(flags),
            read_count=int(read),
            write_count=int(write),
            admin_count=0,
        )
    )


@asynccontextmanager
async def dial(uri: str) -> AsyncIterator[Raw]:
    """A connection on which nothing was said yet."""
    address = urlsplit(uri)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    client = Raw(reader, writer)
    try:
        yield client
    finally:
        await client.close()
