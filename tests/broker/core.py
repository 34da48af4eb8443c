"""A broker without sockets, a clock that stands still, and clients that are a few bytes each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bmq.broker._builtin import builtin_domains
from bmq.broker._domain import DomainSource
from bmq.broker._domain_config import DomainConfig
from bmq.broker._node import Node
from bmq.protocol.broker.output import BrokerOutput
from bmq.protocol.broker.session import BrokerSession
from bmq.protocol.broker.settings import BrokerSettings
from bmq.protocol.framing import Framer
from bmq.wire.ack import AckMessage, decode_acks
from bmq.wire.constants import Compression, EventType, PushFlags, PutFlags
from bmq.wire.control import Codec, decode_event, encode_event
from bmq.wire.control.messages import (
    AuthenticationMessage,
    BrokerResponse,
    ClientIdentity,
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
    MessageKind,
    OpenQueue,
    QueueHandleParameters,
    Status,
    StreamParameters,
    SubQueueIdInfo,
    Subscription,
)
from bmq.wire.event import Event, pack_event_header
from bmq.wire.guid import GuidGenerator
from bmq.wire.message import join_application_data, split_application_data
from bmq.wire.properties import PropertyInput, encode_properties
from bmq.wire.push import PushMessage, decode_pushes
from bmq.wire.put import encode_put
from tests.wire.messages import encode_confirms

PRIORITY = "bmq://bmq.test.mem.priority/q"
FANOUT = "bmq://bmq.test.mem.fanout/q"
BROADCAST = "bmq://bmq.test.mem.broadcast/q"
EX = "PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX"
_client_ids = itertools.count(1)


def domain(base: str = "bmq.test.mem.priority", **changes: Any) -> DomainConfig:
    """A built-in domain, changed."""
    return replace(builtin_domains()[base], **changes)


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
    return Subscription(
        s_id=s_id,
        expression=Expression(version=version, text=text),
        consumers=(
            ConsumerInfo(
                max_unconfirmed_messages=messages,
                max_unconfirmed_bytes=size,
                consumer_priority=priority,
                consumer_priority_count=count,
            ),
        ),
    )


class Core:
    """A node and the time."""

    def __init__(
        self, *domains: DomainConfig, settings: BrokerSettings | None = None, **options: Any
    ) -> None:
        configured = builtin_domains() | {d.name: d for d in domains}
        self.source = DomainSource(configured)
        self.node = Node(self.source, **options)
        self.settings = settings or BrokerSettings()
        self.now = 1000.0
        self.guids = GuidGenerator(b"broker")
        self.sessions = 0

    def connect(self, *, high_water: int | None = None) -> Peer:
        self.sessions += 1
        return Peer(self, high_water or self.settings.high_water)

    def client(self, features: str = EX, **identity: Any) -> Peer:
        """A client that has negotiated."""
        peer = self.connect()
        peer.negotiate(features, **identity)
        return peer

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.node.tick(self.now)


class Peer:
    """A client as the broker sees it: what it is sent is gathered in ``pushes`` and ``acks``."""

    def __init__(self, core: Core, high_water: int) -> None:
        self.core = core
        self.output = BrokerOutput(high_water, lambda: None)
        self.session = BrokerSession(
            core.settings,
            core.node,
            self.output,
            session_id=core.sessions,
            peer=f"peer-{core.sessions}",
            now=core.now,
            guids=core.guids,
        )
        self.framer = Framer()
        self.guids = GuidGenerator(next(_client_ids).to_bytes(6, "big"))
        self.codec = Codec.JSON
        self._pushes: list[PushMessage] = []
        self._acks: list[AckMessage] = []
        self._others: list[Event] = []
        self._r_id = 0
        self._s_ids = itertools.count(1)

    # ---- raw

    def send(self, data: bytes) -> None:
        self.session.receive(data, self.core.now)
        while self.session.waiting:
            self.session.resume(self.core.now)

    def receive(self) -> list[Event]:
        """Return every event the broker has sent."""
        events, error = self.framer.feed(self.output.take())
        assert error is None
        return events

    def _collect(self) -> None:
        for event in self.receive():
            if event.type == EventType.PUSH:
                self._pushes += decode_pushes(event.data, event.body)
            elif event.type == EventType.ACK:
                self._acks += decode_acks(event.data, event.body)
            else:
                self._others.append(event)

    @property
    def pushes(self) -> list[PushMessage]:
        """The messages pushed since the last look."""
        self._collect()
        found, self._pushes = self._pushes, []
        return found

    @property
    def payloads(self) -> list[bytes]:
        """The payloads of :attr:`pushes`."""
        return [
            split_application_data(
                push.data,
                has_properties=bool(push.flags & PushFlags.MESSAGE_PROPERTIES),
                schema_id=push.schema_id,
                compression=push.compression,
            )[1]
            for push in self.pushes
        ]

    @property
    def acks(self) -> list[AckMessage]:
        """The acknowledgements since the last look."""
        self._collect()
        found, self._acks = self._acks, []
        return found

    @property
    def others(self) -> list[Event]:
        """All other events since the last look."""
        self._collect()
        found, self._others = self._others, []
        return found

    # ---- the conversation

    def negotiate(self, features: str = EX, **identity: Any) -> BrokerResponse:
        self.send(self.identity_event(features, **identity))
        (event,) = self.others
        response = decode_event(event, MessageKind.NEGOTIATION)
        assert isinstance(response, BrokerResponse)
        return response

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

    def authenticate(self, message: AuthenticationMessage) -> AuthenticationMessage:
        self.send(encode_event(message, self.codec))
        (event,) = self.others
        return decode_event(event, MessageKind.AUTHENTICATION)

    def ask(self, body: ControlBody) -> ControlBody:
        """Send a request and return the answer."""
        self._r_id += 1
        self.send(encode_event(ControlMessage(r_id=self._r_id, body=body), self.codec))
        (event,) = self.others
        message = decode_event(event, MessageKind.CONTROL)
        assert message.r_id == self._r_id
        assert message.body is not None
        return message.body

    def open(
        self, uri: str, q_id: int = 0, *, read: bool = False, write: bool = False, sub_id: int = 0
    ) -> ControlBody:
        return self.ask(OpenQueue(handle_parameters=self.parameters(uri, q_id, read, write, sub_id)))

    def parameters(
        self, uri: str, q_id: int, read: bool, write: bool, sub_id: int = 0
    ) -> QueueHandleParameters:
        app_id = uri.partition("?id=")[2]
        return QueueHandleParameters(
            uri=uri,
            q_id=q_id,
            sub_id_info=SubQueueIdInfo(sub_id=sub_id or 1, app_id=app_id) if app_id else None,
            flags=(2 if read else 0) | (4 if write else 0),
            read_count=int(read),
            write_count=int(write),
        )

    def close(
        self, uri: str, q_id: int = 0, *, read: bool = False, write: bool = False, sub_id: int = 0,
        final: bool = True,
    ) -> ControlBody:  # fmt: skip
        wanted = self.parameters(uri, q_id, read, write, sub_id)
        return self.ask(CloseQueue(handle_parameters=wanted, is_final=final))

    def configure(
        self, *subscriptions: Subscription, q_id: int = 0, app_id: str = "__default"
    ) -> ControlBody:
        parameters = StreamParameters(app_id=app_id, subscriptions=subscriptions)
        return self.ask(ConfigureStream(q_id=q_id, stream_parameters=parameters))

    def consume(self, uri: str, q_id: int = 0, **limits: Any) -> None:
        """Open a queue for reading and subscribe to everything."""
        app_id = uri.partition("?id=")[2] or "__default"
        opened = self.open(uri, q_id, read=True)
        assert not isinstance(opened, Status), opened
        answer = self.configure(subscription(next(self._s_ids), **limits), q_id=q_id, app_id=app_id)
        assert not isinstance(answer, Status), answer

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
        parts = []
        for guid, payload in zip(guids, payloads, strict=True):
            area = encode_properties(properties or {}, new=new)
            data, used = join_application_data(payload, area, new=new, compression=compression)
            flags = (PutFlags.ACK_REQUESTED if ack else 0) | (PutFlags.MESSAGE_PROPERTIES if area else 0)
            parts.append(
                encode_put(
                    q_id,
                    guid,
                    data,
                    flags=flags,
                    schema_id=1 if area and new else 0,
                    compression=used,
                )
            )
        body = b"".join(parts)
        self.send(pack_event_header(8 + len(body), EventType.PUT) + body)
        return guids

    def confirm(self, *guids: bytes, q_id: int = 0, sub_id: int = 0) -> None:
        self.send(encode_confirms([(q_id, guid, sub_id) for guid in guids]))

    def disconnect(self) -> None:
        """Say goodbye, and go."""
        self.ask(Disconnect())
        self.session.channel_down(self.core.now)

    def crash(self) -> None:
        """Go without a word."""
        self.session.channel_down(self.core.now)
        self.output.discard()
