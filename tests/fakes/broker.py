# SPDX-License-Identifier: Apache-2.0
"""A scripted broker for tests of the client; a test decides each answer.

:class:`ScriptedBroker` is the broker's side of one connection, from bytes to bytes; :class:`Peer` is a broker
on a socket.
"""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, cast

from bmq.errors import AckStatus
from bmq.protocol.framing import Framer
from bmq.wire.ack import encode_acks
from bmq.wire.confirm import ConfirmMessage, decode_confirms
from bmq.wire.constants import ACK_STATUS_TO_WIRE, EventType, PushFlags
from bmq.wire.control import (
    AuthenticationRequest,
    AuthenticationResponse,
    BrokerResponse,
    ClientIdentity,
    ClientType,
    CloseQueue,
    CloseQueueResponse,
    Codec,
    ConfigureQueueStream,
    ConfigureQueueStreamResponse,
    ConfigureStream,
    ConfigureStreamResponse,
    ControlBody,
    ControlMessage,
    Disconnect,
    DisconnectResponse,
    MessageKind,
    OpenQueue,
    OpenQueueResponse,
    RoutingConfiguration,
    Status,
    StatusCategory,
)
from bmq.wire.control_event import decode_event, encode_event
from bmq.wire.event import HEADER_SIZE, HEARTBEAT_RSP, pack_event_header
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.properties import PropertyInput, encode_properties
from bmq.wire.put import DecodedPut, decode_puts
from tests.waiting import eventually
from tests.wire.messages import push_message

__all__ = ["Connection", "Peer", "ScriptedBroker", "guid"]

FEATURES = "PROTOCOL_ENCODING:BER,JSON;MPS:MESSAGE_PROPERTIES_EX;SUBSCRIPTIONS:CONFIGURE_STREAM"


def guid(number: int) -> bytes:
    return b"\x40" + bytes(7) + number.to_bytes(8, "big")


class ScriptedBroker:
    """The broker's side of one connection: received messages, and the bytes of possible answers.

    Attributes:
        identity: the client's identity from the negotiation.
        credentials: the client's credentials, the latest last.
        requests: control messages without an answer.
        puts: posts without an acknowledgement.
        confirms: received confirmations.
        s_ids: subscription ids of each qId, the oldest first.
        log: names of the received messages, in order.
        pulses: number of heartbeat requests without an answer.
    """

    def __init__(self) -> None:
        self.identity: ClientIdentity | None = None
        self.credentials: list[AuthenticationRequest] = []
        self.requests: deque[ControlMessage] = deque()
        self.puts: list[DecodedPut] = []
        self.confirms: list[ConfirmMessage] = []
        self.s_ids: dict[int, list[int]] = {}
        self.log: list[str] = []
        self.pulses = 0
        self._framer = Framer()

    def take(self, data: Iterable[bytes]) -> None:
        events, error = self._framer.feed(b"".join(data))
        assert error is None
        for event in events:
            if event.type == EventType.AUTHENTICATION:
                request = decode_event(event, MessageKind.AUTHENTICATION)
                assert isinstance(request, AuthenticationRequest)
                self.credentials.append(request)
                self.log.append("authenticationRequest")
            elif event.type == EventType.CONTROL and self.identity is None:
                identity = decode_event(event, MessageKind.NEGOTIATION)
                assert isinstance(identity, ClientIdentity)
                self.identity = identity
                self.log.append("clientIdentity")
            elif event.type == EventType.CONTROL:
                message = decode_event(event, MessageKind.CONTROL)
                self.requests.append(message)
                if isinstance(message.body, ConfigureStream):
                    subscriptions = message.body.stream_parameters.subscriptions
                    self.s_ids.setdefault(message.body.q_id, []).extend(each.s_id for each in subscriptions)
                self.log.append(type(message.body).__name__)
            elif event.type == EventType.PUT:
                self.posted(decode_puts(event.data, event.body))
                self.log.append("PUT")
            elif event.type == EventType.CONFIRM:
                self.confirmed(decode_confirms(event.data, event.body))
                self.log.append("CONFIRM")
            else:
                self.log.append(EventType(event.type).name)
                if event.type == EventType.HEARTBEAT_REQ:
                    self.pulses += 1

    def posted(self, puts: list[DecodedPut]) -> None:
        self.puts += puts

    def confirmed(self, confirms: list[ConfirmMessage]) -> None:
        self.confirms += confirms

    @staticmethod
    def welcome(
        *,
        category: StatusCategory = StatusCategory.E_SUCCESS,
        features: str = FEATURES,
        interval_ms: int = 3000,
        max_missed: int = 0,
    ) -> bytes:
        message = "" if category == StatusCategory.E_SUCCESS else "go away"
        return encode_event(
            BrokerResponse(
                result=Status(category=category, code=0, message=message),
                protocol_version=1,
                broker_version=999999,
                broker_identity=ClientIdentity(client_type=ClientType.E_TCPBROKER, features=features),
                heartbeat_interval_ms=interval_ms,
                max_missed_heartbeats=max_missed,
            ),
            Codec.JSON,
        )

    @staticmethod
    def admit(
        *, category: StatusCategory = StatusCategory.E_SUCCESS, lifetime_ms: int | None = None
    ) -> bytes:
        message = "" if category == StatusCategory.E_SUCCESS else "wrong password"
        status = Status(category=category, code=0, message=message)
        return encode_event(AuthenticationResponse(status=status, lifetime_ms=lifetime_ms), Codec.JSON)

    @staticmethod
    def accept(request: ControlMessage, *, dedup_ms: int = 300_000, routing: int = 2) -> bytes:
        body = request.body
        answer: ControlBody
        if isinstance(body, OpenQueue):
            answer = OpenQueueResponse(
                original_request=body,
                routing_configuration=RoutingConfiguration(flags=routing),
                deduplication_time_ms=dedup_ms,
            )
        elif isinstance(body, ConfigureStream):
            answer = ConfigureStreamResponse(request=body)
        elif isinstance(body, ConfigureQueueStream):
            answer = ConfigureQueueStreamResponse(request=body)
        elif isinstance(body, CloseQueue):
            answer = CloseQueueResponse()
        else:
            assert isinstance(body, Disconnect)
            answer = DisconnectResponse()
        return encode_event(ControlMessage(r_id=request.r_id, body=answer), Codec.JSON)

    @staticmethod
    def refuse(
        request: ControlMessage,
        category: StatusCategory = StatusCategory.E_UNKNOWN,
        message: str = "not here",
        code: int = -1,
    ) -> bytes:
        status = Status(category=category, code=code, message=message)
        return encode_event(ControlMessage(r_id=request.r_id, body=status), Codec.JSON)

    @staticmethod
    def misunderstand(request: ControlMessage) -> bytes:
        """Send the answer to another request."""
        answer = DisconnectResponse() if isinstance(request.body, CloseQueue) else CloseQueueResponse()
        return encode_event(ControlMessage(r_id=request.r_id, body=answer), Codec.JSON)

    @staticmethod
    def ack(puts: Iterable[DecodedPut], status: AckStatus = AckStatus.SUCCESS) -> bytes:
        wire = ACK_STATUS_TO_WIRE.get(status, 5)
        return encode_acks([(wire, 0, put.guid, put.queue_id) for put in puts])

    @staticmethod
    def push(
        q_id: int,
        messages: Iterable[tuple[bytes, bytes]],
        s_ids: tuple[int, ...],
        properties: Mapping[str, PropertyInput] | None = None,
    ) -> bytes:
        """A PUSH event of (GUID, payload) for subscription ids; all have the same properties."""
        options = encode_sub_queue_ids(s_ids) if s_ids else b""
        area = encode_properties(properties, new=True) if properties else b""
        fields = {"flags": int(PushFlags.MESSAGE_PROPERTIES), "schema_id": 1} if properties else {}
        body = b"".join(push_message(q_id, key, area + data, options, **fields) for key, data in messages)
        return pack_event_header(HEADER_SIZE + len(body), EventType.PUSH) + body


class Connection(asyncio.Protocol):
    def __init__(self, peer: Peer, script: ScriptedBroker) -> None:
        self.peer = peer
        self.script = script
        self.transport: asyncio.Transport | None = None
        self.welcomed = False
        self.admitted = 0
        self.s_ids: dict[int, int] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.peer.connections.append(self)
        if self.peer.greeting is not None:
            self.transport.write(self.peer.greeting)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        if self.peer.greeting is None:
            self.script.take([data])
            self.react()

    def send(self, *data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(b"".join(data))

    def react(self) -> None:
        """Answer all requests except the held ones."""
        peer, script = self.peer, self.script
        if self.admitted < len(script.credentials) and "authenticationRequest" not in peer.hold:
            self.admitted += 1
            category = peer.category("authenticationRequest", StatusCategory.E_REFUSED)
            self.send(script.admit(category=category, lifetime_ms=peer.lifetime_ms))
        if script.identity is not None and not self.welcomed and "clientIdentity" not in peer.hold:
            self.welcomed = True
            category = peer.category("clientIdentity", StatusCategory.E_NOT_SUPPORTED)
            self.send(script.welcome(category=category, **peer.welcome))
        if script.pulses and "HEARTBEAT_REQ" not in peer.hold:
            self.send(HEARTBEAT_RSP * script.pulses)
            script.pulses = 0
        for request in list(script.requests):
            name = type(request.body).__name__
            if name in peer.hold:
                continue
            script.requests.remove(request)
            if name in peer.refuse:
                self.send(script.refuse(request, peer.refused_as, peer.refusal))
                continue
            if isinstance(request.body, ConfigureStream):
                for subscription in request.body.stream_parameters.subscriptions:
                    self.s_ids[request.body.q_id] = subscription.s_id
            self.send(script.accept(request, **(peer.open_options if name == "OpenQueue" else {})))
        if script.puts and "PUT" not in peer.hold:
            puts, script.puts = script.puts, []
            peer.posted.extend(int(put.data) if put.data.isdigit() else put.data for put in puts)
            self.send(script.ack(puts, peer.status))

    def push(self, *numbers: int, q_id: int = 0, size: int = 0) -> None:
        payloads = [(guid(number), b"%d" % number + b" " * size) for number in numbers]
        self.send(self.script.push(q_id, payloads, (self.s_ids[q_id],)))


class Peer:
    """A broker on a socket, which answers each message at once, except messages that a test holds or refuses.

    Attributes:
        hold: names of messages without an answer: "clientIdentity", "OpenQueue", "PUT", ...
        refuse: names of messages that are answered with a failure.
        refusal: text of the failures.
        refused_as: category of the failures.
        greeting: bytes sent on each new connection, in place of all answers.
        welcome: arguments of the answer to the negotiation, see :meth:`ScriptedBroker.welcome`.
        open_options: arguments of the answer to openQueue, see :meth:`ScriptedBroker.accept`.
        status: status of the acknowledgements.
        lifetime_ms: lifetime of credentials.
        posted: acknowledged posts.
        connections: all connections so far.
    """

    def __init__(self, ssl: ssl_module.SSLContext | None = None) -> None:
        self.hold: set[str] = set()
        self.refuse: set[str] = set()
        self.refusal = "not here"
        self.refused_as = StatusCategory.E_UNKNOWN
        self.greeting: bytes | None = None
        self.welcome: dict[str, Any] = {}
        self.open_options: dict[str, Any] = {}
        self.status = AckStatus.SUCCESS
        self.lifetime_ms: int | None = None
        self.posted: list[Any] = []
        self.connections: list[Connection] = []
        self.port = 0
        self._ssl = ssl
        self._server: asyncio.Server | None = None

    @property
    def uri(self) -> str:
        return f"{'tcps' if self._ssl else 'tcp'}://127.0.0.1:{self.port}"

    @property
    def connection(self) -> Connection:
        return self.connections[-1]

    @property
    def log(self) -> list[str]:
        """The names of the messages received on the newest connection."""
        return self.connection.script.log

    def category(self, name: str, failure: StatusCategory) -> StatusCategory:
        return failure if name in self.refuse else StatusCategory.E_SUCCESS

    def answer(self, *names: str) -> None:
        """Stop holding these requests, and answer the held ones."""
        self.hold -= set(names)
        for connection in self.connections:
            if connection.transport is not None:
                connection.react()

    def cut(self) -> None:
        for connection in self.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def accept(self) -> Connection:
        return Connection(self, ScriptedBroker())

    async def start(self) -> None:
        """Listen, on the same port as before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.accept, "127.0.0.1", self.port, ssl=self._ssl)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and break every connection."""
        if self._server is not None:
            self._server.close()
            self.cut()
            self._server = None
            await eventually(lambda: all(c.transport is None for c in self.connections))

    async def __aenter__(self) -> Peer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
