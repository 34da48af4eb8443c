# SPDX-License-Identifier: Apache-2.0
"""A broker without sockets, a clock that advances only on request, and clients of a few bytes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, TypeVar

from bmq.broker._domain import DomainSource
from bmq.broker._node import BrokerNode
from bmq.broker._output import BrokerOutput
from bmq.broker._session import BrokerSession
from bmq.broker._settings import BrokerSettings
from bmq.broker.domain_config import DomainConfig, builtin_domains
from bmq.wire.ack import AckMessage
from bmq.wire.control import (
    AuthenticationRequest,
    AuthenticationResponse,
    BrokerResponse,
    CloseQueue,
    ConfigureStream,
    ControlBody,
    Disconnect,
    MessageKind,
    Status,
    StreamParameters,
    Subscription,
)
from bmq.wire.control_event import decode_event, encode_event
from bmq.wire.event import Event
from bmq.wire.guid import GuidGenerator
from bmq.wire.push import PushMessage
from tests.fakes.client import EX, Got, RawClient, open_queue, subscription

__all__ = ["BROADCAST", "EX", "FANOUT", "PRIORITY", "Core", "CoreClient", "domain", "subscription"]

_T = TypeVar("_T")

PRIORITY = "bmq://bmq.test.mem.priority/q"
FANOUT = "bmq://bmq.test.mem.fanout/q"
BROADCAST = "bmq://bmq.test.mem.broadcast/q"


def domain(base: str = "bmq.test.mem.priority", **changes: Any) -> DomainConfig:
    return replace(builtin_domains()[base], **changes)


class Core:
    """A node and the time."""

    def __init__(
        self, *domains: DomainConfig, settings: BrokerSettings | None = None, **options: Any
    ) -> None:
        self.source = DomainSource(builtin_domains() | {each.name: each for each in domains})
        self.node = BrokerNode(self.source, **options)
        self.settings = settings or BrokerSettings()
        self.now = 1000.0
        self.guids = GuidGenerator(b"broker")
        self.sessions = 0

    def connect(self, *, high_water: int | None = None) -> CoreClient:
        self.sessions += 1
        return CoreClient(self, high_water or self.settings.high_water)

    def client(self, features: str = EX, **identity: Any) -> CoreClient:
        peer = self.connect()
        peer.negotiate(features, **identity)
        return peer

    def producer(self, uri: str = PRIORITY) -> CoreClient:
        peer = self.client()
        assert not isinstance(peer.open(uri, write=True), Status)
        return peer

    def consumer(self, uri: str = PRIORITY, **limits: Any) -> CoreClient:
        peer = self.client()
        peer.consume(uri, **limits)
        return peer

    def stored(self, uri: str = PRIORITY) -> int:
        return len(self.node.queues[uri].store)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.node.tick(self.now)


class CoreClient(RawClient):
    """A client as the broker sees it, which collects its input in ``pushes`` and ``acks``."""

    def __init__(self, core: Core, high_water: int) -> None:
        super().__init__()
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
        self._s_ids = itertools.count(1)

    # ---- raw

    def send(self, data: bytes) -> None:
        self.session.receive(data, self.core.now)
        while self.session.waiting:
            self.session.resume(self.core.now)

    def receive(self) -> list[Event]:
        events, error = self._framer.feed(b"".join(self.output.pieces()))
        assert error is None
        return events

    # What came since the last look: messages, acknowledgements, and all other events.

    def _new(self, found: list[_T]) -> list[_T]:
        self.take(b"".join(self.output.pieces()))
        new = found.copy()
        found.clear()
        return new

    @property
    def pushes(self) -> list[PushMessage]:
        return self._new(self._got)

    @property
    def payloads(self) -> list[bytes]:
        return [Got(push).payload for push in self.pushes]

    @property
    def acks(self) -> list[AckMessage]:
        return self._new(self._answered)

    @property
    def statuses(self) -> list[int]:
        return [ack.status for ack in self.acks]

    @property
    def others(self) -> list[Event]:
        return self._new(self._events)

    # ---- the conversation

    def negotiate(self, features: str = EX, **identity: Any) -> BrokerResponse:
        self.send(self.identity_event(features, **identity))
        (event,) = self.others
        response = decode_event(event, MessageKind.NEGOTIATION)
        assert isinstance(response, BrokerResponse)
        return response

    def authenticate(self, request: AuthenticationRequest) -> AuthenticationResponse:
        self.send(encode_event(request, self.codec))
        (event,) = self.others
        response = decode_event(event, MessageKind.AUTHENTICATION)
        assert isinstance(response, AuthenticationResponse)
        return response

    def ask(self, body: ControlBody) -> ControlBody:
        """Send a request and return the answer."""
        r_id = self.request(body)
        (event,) = self.others
        message = decode_event(event, MessageKind.CONTROL)
        assert message.r_id == r_id
        assert message.body is not None
        return message.body

    def open(self, uri: str, q_id: int = 0, **how: Any) -> ControlBody:
        return self.ask(open_queue(uri, q_id, **how))

    def close(self, uri: str, q_id: int = 0, *, final: bool = True, **how: Any) -> ControlBody:
        wanted = open_queue(uri, q_id, **how).handle_parameters
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

    def disconnect(self) -> None:
        self.ask(Disconnect())
        self.session.channel_down(self.core.now)

    def crash(self) -> None:
        self.session.channel_down(self.core.now)
        self.output.discard()
