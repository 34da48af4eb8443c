# SPDX-License-Identifier: Apache-2.0
"""A connection of the suite: sends any bytes, and sorts the events of the broker.

Every event in both directions is kept, for the report of a failure.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bmq import _world
from bmq._json import orjson
from bmq.errors import ProtocolError
from bmq.wire.ack import AckMessage, decode_acks
from bmq.wire.constants import Compression, EventType, PushFlags, PutFlags
from bmq.wire.control import (
    AuthenticationRequest,
    AuthenticationResponse,
    BrokerResponse,
    ClientIdentity,
    ClientLanguage,
    ClientType,
    CloseQueue,
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
    OpenQueueResponse,
    QueueFlags,
    QueueHandleParameters,
    Status,
    StreamParameters,
    SubQueueIdInfo,
    Subscription,
    decode_json,
)
from bmq.wire.control_event import encode_event
from bmq.wire.event import (
    CODEC_SHIFT,
    HEADER_SIZE,
    Event,
    pack_event_header,
    pack_schema_event,
)
from bmq.wire.guid import GuidGenerator
from bmq.wire.message import join_application_data, split_application_data
from bmq.wire.properties import PropertyInput, encode_properties
from bmq.wire.push import PushMessage, decode_pushes
from bmq.wire.put import encode_put
from conformance.case import Mismatch, fail
from conformance.connection import Connection, decoded

__all__ = [
    "BER_FEATURES",
    "CLOSED",
    "JSON_FEATURES",
    "NO_ANSWER",
    "QUIET",
    "Peer",
    "Pushed",
    "confirm_event",
    "handle",
    "open_request",
    "put_event",
    "subscription",
]

#: Seconds without an event that count as silence. A request is answered first, so that the broker has read
#: all input before the silence begins.
QUIET = 0.15
#: Features of a client that wants JSON and the new encoding of properties.
JSON_FEATURES = "PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX"
#: Features of a client that wants BER.
BER_FEATURES = "PROTOCOL_ENCODING:BER,JSON;MPS:MESSAGE_PROPERTIES_EX"

#: Reactions to a request, beside the names of answers and statuses.
NO_ANSWER, CLOSED = "no answer", "closed"

_SHORT = 4096
#: A queue id that no case uses: the answer to a request for this queue shows that earlier input was read.
_NOBODY = 4_000_000_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pushed:
    """A delivered message."""

    push: PushMessage

    @property
    def payload(self) -> bytes:
        """The payload, decompressed."""
        return self._split()[1]

    @property
    def properties(self) -> dict[str, Any]:
        """The properties, by name."""
        return dict(self._split()[0])

    def _split(self) -> tuple[Mapping[str, Any], bytes]:
        push = self.push
        return split_application_data(
            push.data,
            has_properties=bool(push.flags & PushFlags.MESSAGE_PROPERTIES),
            schema_id=push.schema_id,
            compression=push.compression,
        )

    @property
    def again(self) -> bool:
        """Whether the broker marked the message as out of order."""
        return bool(self.push.flags & PushFlags.OUT_OF_ORDER)


def subscription(
    s_id: int,
    text: str = "",
    *,
    priority: int = 0,
    count: int = 1,
    messages: int = 1000,
    size: int = 33_554_432,
) -> Subscription:
    """A subscription with one consumer."""
    version = ExpressionVersion.E_VERSION_1 if text else ExpressionVersion.E_UNDEFINED
    consumer = ConsumerInfo(
        max_unconfirmed_messages=messages,
        max_unconfirmed_bytes=size,
        consumer_priority=priority,
        consumer_priority_count=count,
    )
    return Subscription(s_id=s_id, expression=Expression(version=version, text=text), consumers=(consumer,))


def handle(
    uri: str, q_id: int = 0, *, read: bool = True, write: bool = True, sub_id: int = 0, **changes: Any
) -> QueueHandleParameters:
    """The parameters of a queue, for reading and writing unless told otherwise."""
    app_id = uri.partition("?id=")[2]
    flags = (QueueFlags.READ if read else QueueFlags(0)) | (QueueFlags.WRITE if write else QueueFlags(0))
    values: dict[str, Any] = {
        "uri": uri,
        "q_id": q_id,
        "sub_id_info": SubQueueIdInfo(sub_id=sub_id or 1, app_id=app_id) if app_id else None,
        "flags": int(flags),
        "read_count": int(read),
        "write_count": int(write),
        "admin_count": 0,
    }
    return QueueHandleParameters(**(values | changes))


def open_request(uri: str, q_id: int = 0, **how: Any) -> OpenQueue:
    """The request to open a queue; see :func:`handle`."""
    return OpenQueue(handle_parameters=handle(uri, q_id, **how))


def put_event(*messages: bytes) -> bytes:
    """A PUT event of encoded messages."""
    body = b"".join(messages)
    return pack_event_header(HEADER_SIZE + len(body), EventType.PUT) + body


def confirm_event(*confirms: tuple[int, bytes, int], header: bytes = b"\x16\0\0\0") -> bytes:
    """A CONFIRM event of queue ids, GUIDs and sub-queue ids."""
    body = header + b"".join(
        q_id.to_bytes(4, "big", signed=True) + guid + sub_id.to_bytes(4, "big")
        for q_id, guid, sub_id in confirms
    )
    return pack_event_header(HEADER_SIZE + len(body), EventType.CONFIRM) + body


class Peer(Connection):
    """A connection of a case to the broker under test.

    Attributes:
        codec: encoding of the control messages sent.
        guids: source of GUIDs.
        kinds: types of all received events, in order.
        codecs: encodings of all received control messages, in order.
    """

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(number, reader, writer)
        self.codec = Codec.JSON
        self.guids = GuidGenerator(_world.token_bytes(6))
        self.kinds: list[int] = []
        self.codecs: list[int] = []
        self._short: list[tuple[int, bytes]] = []
        self._r_ids = itertools.count(1)
        self._acks: list[AckMessage] = []
        self._pushes: list[Pushed] = []

    # ---- events

    def _take(self, event: Event) -> None:
        self.kinds.append(event.type)
        if len(event.data) <= _SHORT:
            self._short.append((event.type, event.data))
        if event.type in (EventType.CONTROL, EventType.AUTHENTICATION):
            self.codecs.append(event.type_specific >> CODEC_SHIFT)
        try:
            if event.type == EventType.PUSH:
                self._pushes += map(Pushed, decode_pushes(event.data, event.body))
            elif event.type == EventType.ACK:
                self._acks += decode_acks(event.data, event.body)
            else:
                super()._take(event)
        except ProtocolError as error:
            raise Mismatch("an event of the protocol", f"an event that does not decode: {error}") from error

    def bytes_of(self, event_type: EventType) -> list[bytes]:
        """The received events of a type, without events of more than 4,096 bytes."""
        return [data for kind, data in self._short if kind == event_type]

    async def wait(self, seconds: float) -> None:
        """Let time pass, and read what arrives."""
        await self._listen(seconds, list)

    # ---- negotiation

    def identity(self, features: str | None = None, **changes: Any) -> ClientIdentity:
        """The identity of this client; its features name the encoding that it sends."""
        if features is None:
            features = BER_FEATURES if self.codec is Codec.BER else JSON_FEATURES
        given: dict[str, Any] = {
            "protocol_version": 1,
            "sdk_version": 100,
            "client_type": ClientType.E_TCPCLIENT,
            "process_name": "bmq conformance",
            "pid": 1,
            "features": features,
            "sdk_language": ClientLanguage.E_UNKNOWN,
            "guid_info": GuidInfo(client_id=self.guids.client_id_text),
        }
        return ClientIdentity(**(given | changes))

    async def response(self, seconds: float | None = None) -> BrokerResponse:
        """Return the answer to an identity."""
        event = await self._next_control("a brokerResponse", seconds)
        message = decoded(event, MessageKind.NEGOTIATION)
        if not isinstance(message, BrokerResponse):
            raise fail("a brokerResponse", message)
        return message

    async def negotiate(self, **changes: Any) -> BrokerResponse:
        """Send an identity, and return the answer."""
        self.send(encode_event(self.identity(**changes), self.codec))
        return await self.response()

    async def authenticate(self, mechanism: str, data: bytes | None) -> AuthenticationResponse:
        """Send credentials, and return the answer."""
        self.send(encode_event(AuthenticationRequest(mechanism=mechanism, data=data), self.codec))
        event = await self._next_control("an authenticationResponse")
        message = decoded(event, MessageKind.AUTHENTICATION)
        if not isinstance(message, AuthenticationResponse):
            raise fail("an authenticationResponse", message)
        return message

    # ---- requests

    def request(self, body: ControlBody) -> int:
        """Send a request; return its number."""
        r_id = next(self._r_ids)
        self.send(encode_event(ControlMessage(r_id=r_id, body=body), self.codec))
        return r_id

    def send_json(self, value: Any) -> None:
        """Send a control event with any JSON value, as the same request in BER if that is the encoding.

        Raises:
            ProtocolError: the value is no request, and the encoding is BER.
        """
        if self.codec is Codec.BER:
            self.send(encode_event(decode_json(orjson.dumps(value), MessageKind.CONTROL), Codec.BER))
            return
        self.send(pack_schema_event(EventType.CONTROL, Codec.JSON, orjson.dumps(value)))

    async def answer(self, r_id: int, seconds: float | None = None) -> ControlBody:
        """Return the answer to a request."""

        def found() -> ControlBody | None:
            for at, event in enumerate(self._controls):
                message = decoded(event, MessageKind.CONTROL)
                if isinstance(message, ControlMessage) and message.r_id == r_id:
                    del self._controls[at]
                    if message.body is None:
                        raise fail(f"an answer to rId {r_id}", message)
                    return message.body
            return None

        return await self._until(found, f"an answer to rId {r_id}", seconds)

    async def ask(self, body: ControlBody, seconds: float | None = None) -> ControlBody:
        """Send a request, and return the answer."""
        return await self.answer(self.request(body), seconds)

    async def accepted(self, body: ControlBody) -> ControlBody:
        """Send a request that must succeed, and return the answer."""
        reply = await self.ask(body)
        if isinstance(reply, Status):
            raise fail("success", _status(reply))
        return reply

    async def refused(self, body: ControlBody) -> Status:
        """Send a request that must fail, and return the status."""
        reply = await self.ask(body)
        if not isinstance(reply, Status):
            raise fail("a status", reply)
        return reply

    async def reaction(self, r_id: int, expected: str) -> str:
        """The reaction to a request that was just sent, in a word.

        The result is ``closed``, ``no answer``, the name of the answer such as ``openQueueResponse``, or the
        status such as ``E_REFUSED 0``. A broker may answer a later request first: an expected answer is
        waited for, and no answer is the answer to a later request and a silence.
        """
        barrier = self._ask_nobody()

        def found() -> str | None:
            passed = False
            for event in self._controls:
                message = decoded(event, MessageKind.CONTROL)
                if not isinstance(message, ControlMessage):
                    continue
                if message.r_id == r_id:
                    return _status(message.body) if isinstance(message.body, Status) else _name(message.body)
                passed |= message.r_id == barrier
            return NO_ANSWER if passed and expected == NO_ANSWER else None

        try:
            reaction = await self._until(found, expected)
            if reaction == NO_ANSWER:
                await self._listen(QUIET, lambda: [each for each in [found()] if each != NO_ANSWER])
                reaction = found() or NO_ANSWER
        except Mismatch as error:
            if self._over:
                return CLOSED
            if error.received.startswith("nothing within"):
                return NO_ANSWER
            raise
        return reaction

    def _ask_nobody(self) -> int:
        empty = StreamParameters(subscriptions=())
        return self.request(ConfigureStream(q_id=_NOBODY, stream_parameters=empty))

    async def barrier(self) -> None:
        """Wait until the broker has read all earlier input: for the answer to a request for no queue."""
        await self.answer(self._ask_nobody())

    async def open(self, uri: str, q_id: int = 0, **how: Any) -> OpenQueueResponse:
        """Open a queue, for reading and writing unless told otherwise."""
        reply = await self.accepted(open_request(uri, q_id, **how))
        if not isinstance(reply, OpenQueueResponse):
            raise fail("an openQueueResponse", reply)
        return reply

    async def configure(self, q_id: int, *subscriptions: Subscription, app_id: str = "__default") -> None:
        """Configure a stream with subscriptions."""
        parameters = StreamParameters(app_id=app_id, subscriptions=subscriptions)
        await self.accepted(ConfigureStream(q_id=q_id, stream_parameters=parameters))

    async def close(self, uri: str, q_id: int = 0, *, final: bool = True, **how: Any) -> None:
        """Close a queue after its subscriptions are withdrawn."""
        app_id = uri.partition("?id=")[2] or "__default"
        await self.configure(q_id, app_id=app_id)
        await self.accepted(CloseQueue(handle_parameters=handle(uri, q_id, **how), is_final=final))

    # ---- messages

    def post(
        self,
        payload: bytes,
        q_id: int = 0,
        *,
        guid: bytes | None = None,
        ack: bool = True,
        properties: Mapping[str, PropertyInput] | None = None,
        new: bool = True,
        compression: Compression = Compression.NONE,
    ) -> bytes:
        """Post a message; return its GUID."""
        guid = guid if guid is not None else self.guids.next(0)
        area = encode_properties(properties or {}, new=new)
        flags = (PutFlags.ACK_REQUESTED if ack else 0) | (PutFlags.MESSAGE_PROPERTIES if area else 0)
        data, used = join_application_data(payload, area, new=new, compression=compression)
        self.send(put_event(encode_put(q_id, guid, data, flags, 1 if area and new else 0, used)))
        return guid

    async def acks(self, count: int = 1) -> list[AckMessage]:
        """Return the next acknowledgements."""
        expected = f"{count} acknowledgements" if count > 1 else "an acknowledgement"
        await self._until(lambda: True if len(self._acks) >= count else None, expected)
        found, self._acks = self._acks[:count], self._acks[count:]
        return found

    async def ack(self) -> AckMessage:
        """Return the next acknowledgement."""
        return (await self.acks())[0]

    async def statuses(self, count: int) -> list[int]:
        """Return the statuses of the next acknowledgements."""
        return [ack.status for ack in await self.acks(count)]

    async def pushes(self, count: int = 1) -> list[Pushed]:
        """Return the next delivered messages."""
        expected = f"{count} messages" if count > 1 else "a message"
        await self._until(lambda: True if len(self._pushes) >= count else None, expected)
        found, self._pushes = self._pushes[:count], self._pushes[count:]
        return found

    async def push(self) -> Pushed:
        """Return the next delivered message."""
        return (await self.pushes())[0]

    async def payloads(self, count: int) -> list[bytes]:
        """Return the payloads of the next delivered messages."""
        return [each.payload for each in await self.pushes(count)]

    def confirm(self, *guids: bytes, q_id: int = 0, sub_id: int = 0) -> None:
        """Confirm messages."""
        self.send(confirm_event(*((q_id, guid, sub_id) for guid in guids)))

    async def some_push(self, seconds: float) -> bool:
        """Whether a message arrives in this time; the message is dropped."""
        await self._listen(seconds, lambda: self._pushes)
        found = bool(self._pushes)
        self._pushes.clear()
        return found

    async def no_push(self) -> None:
        """Expect that no message is delivered."""
        await self.barrier()
        await self._listen(QUIET, lambda: self._pushes)
        if self._pushes:
            raise fail("no message", f"a message with the payload {self._pushes[0].payload[:40]!r}")

    async def no_ack(self) -> None:
        """Expect that no acknowledgement arrives."""
        await self.barrier()
        await self._listen(QUIET, lambda: self._acks)
        if self._acks:
            raise fail("no acknowledgement", f"one with the status {self._acks[0].status}")

    async def no_answer(self, r_id: int) -> None:
        """Expect no answer to a request; the broker may close the connection."""
        try:
            reply = await self.answer(r_id, QUIET)
        except Mismatch:
            return
        raise fail("no answer", reply)

    async def quiet(self) -> None:
        """Expect no message for a moment; the broker may close the connection."""
        try:
            await self._listen(QUIET, lambda: self._pushes)
        except Mismatch:
            return
        if self._pushes:
            raise fail("no message", f"a message with the payload {self._pushes[0].payload[:40]!r}")

    async def _listen(self, seconds: float, arrived: Callable[[], list[Any]]) -> None:
        """Read for some seconds, or until something has arrived."""
        end = _world.monotonic() + seconds
        while not arrived() and (left := end - _world.monotonic()) > 0:
            try:
                await self._read(left)
            except TimeoutError:
                return
            except ConnectionError:
                raise Mismatch("an open connection", "the end of the connection") from None


def _status(status: Status) -> str:
    return f"{status.category.name} {status.code}"


def _name(body: object) -> str:
    name = type(body).__name__
    return name[:1].lower() + name[1:]
