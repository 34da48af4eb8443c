# SPDX-License-Identifier: Apache-2.0
"""A client core and a scripted broker, in memory, with a clock that advances only on request.

A test chooses the answer to each request, and its time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from enum import Enum
from itertools import accumulate
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from bmq.errors import AckStatus, Error
from bmq.protocol.client.core import ClientCore, CoreOptions, SessionState
from bmq.protocol.client.counters import PostCounts
from bmq.protocol.client.events import (
    Acked,
    Astray,
    CloseChannel,
    Completed,
    ConfirmedAgain,
    CredentialsNeeded,
    Pushed,
    SessionEvent,
    Skipped,
    StreamConfigured,
)
from bmq.protocol.client.handshake import Credentials, Handshake
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.protocol.client.subscription import SubscriptionCore, SubscriptionOptions
from bmq.wire.ack import encode_ack
from bmq.wire.constants import EventType, PutFlags
from bmq.wire.control import (
    ClientIdentity,
    ClientType,
    CloseQueue,
    ConfigureQueueStream,
    ConfigureStream,
    ControlBody,
    ControlMessage,
    OpenQueue,
    QueueFlags,
    StatusCategory,
)
from bmq.wire.event import HEADER_SIZE, HEARTBEAT_REQ, HEARTBEAT_RSP, pack_event_header
from bmq.wire.push import PushMessage
from bmq.wire.put import PutEvent, encode_put
from bmq.wire.uri import QueueUri
from tests.fakes.broker import ScriptedBroker, guid

__all__ = ["READ", "WRITE", "Bench", "ScriptedBroker", "connected", "guid", "held", "opened"]

READ, WRITE = QueueFlags.READ, QueueFlags.WRITE


class Bench:
    """A client core between its user and its broker.

    Attributes:
        happened: the session events.
        outcomes: all outcomes of posts, by token, including duplicates.
        refused: rejected posts, as token and tag.
        completed: all results of operations, by token, including duplicates.
        received: delivered messages, each with the owner of its subscription.
        again: numbers of messages confirmed again, with the owner of their subscription.
        failures: reasons of the core for closing connections.
        renewals: number of requests for credentials.
        skipped: unknown input skipped by the core.
    """

    def __init__(self, options: CoreOptions | None = None) -> None:
        self.now = 1000.0
        self.core = ClientCore(ClientIdentity(client_type=ClientType.E_TCPCLIENT), options)
        self.broker = ScriptedBroker()
        self.happened: list[SessionEvent] = []
        self.outcomes: dict[Any, list[AckStatus]] = {}
        self.refused: list[tuple[Any, int]] = []
        self.completed: dict[Any, list[Error | None]] = {}
        self.received: list[tuple[Any, PushMessage]] = []
        self.again: list[tuple[Any, int]] = []
        self.failures: list[Error | None] = []
        self.renewals = 0
        self.skipped: list[str] = []
        self.up = False
        self._handshake: Handshake | None = None

    # the connection

    def open_channel(self, credentials: Credentials | None = None) -> None:
        """Open a connection without any answers."""
        self.broker = ScriptedBroker()
        self.up = True
        self._handshake = self.core.handshake()
        self.broker.take([self._handshake.begin(credentials)])
        self.pump()

    def connect(self, **welcome: Any) -> None:
        self.open_channel()
        self.send(self.broker.welcome(**welcome))

    def lose(self, reason: str = "cut") -> None:
        self.up = False
        handshake, self._handshake = self._handshake, None
        if handshake is None:
            self.core.channel_closed(reason, self.now)
        self.pump()

    def send(self, *data: bytes) -> None:
        for piece in data:
            if self._handshake is not None:
                self._greet(self._handshake, piece)
                continue
            self.core.receive(piece, self.now)
        self.pump()

    def _greet(self, handshake: Handshake, data: bytes) -> None:
        """Send bytes of the broker before the negotiation."""
        failed = handshake.error
        answer = handshake.receive(data)
        self.broker.take([answer])
        if handshake.error is not failed:
            self.failures.append(handshake.error)
        if handshake.done and self.state is not SessionState.CLOSED:
            self._handshake = None
            self.core.channel_opened(handshake, self.now)

    def pump(self) -> None:
        """Pass the core's output to its user and to the broker."""
        while events := self.core.events():
            for event in events:
                self._note(event)
        data = self.core.data_to_send(self.now)
        if self.up:
            self.broker.take(data)

    def _note(self, event: Any) -> None:
        if isinstance(event, SessionEvent):
            self.happened.append(event)
        elif isinstance(event, Acked):
            for token, tag, _, status, _ in event.outcomes:
                self.outcomes.setdefault(token, []).append(status)
                if status is not AckStatus.SUCCESS:
                    self.refused.append((token, tag))
            for token, count in event.accepted:
                self.outcomes.setdefault(token, []).extend([AckStatus.SUCCESS] * count)
        elif isinstance(event, Completed):
            self.completed.setdefault(event.token, []).append(event.error)
        elif isinstance(event, Pushed):
            for _, sub, messages in event.deliveries:
                self.received.extend((sub.owner, PushMessage._make(message)) for message in messages)
        elif isinstance(event, ConfirmedAgain):
            self.again.append((event.owner, event.messages))
        elif isinstance(event, CloseChannel):
            self.failures.append(event.error)
        elif isinstance(event, Skipped):
            self.skipped.append(event.what)
        elif isinstance(event, CredentialsNeeded):
            self.renewals += 1
        else:
            assert isinstance(event, Astray | StreamConfigured)

    def wait(self, seconds: float) -> None:
        """Time passes, deadline by deadline."""
        end = self.now + seconds
        at_once = 0
        while (deadline := self.core.next_deadline()) is not None and deadline <= end:
            # Output after a tick may fail here; the next tick reports the failure.
            at_once = at_once + 1 if deadline <= self.now else 0
            assert at_once < 3, "due again at once: a busy loop"
            self.now = max(self.now, deadline)
            self.core.tick(self.now)
            self.pump()
        self.now = end

    # the user

    def begin_open(
        self,
        uri: str,
        flags: QueueFlags = READ | WRITE,
        *,
        token: Any = None,
        subscriptions: Iterable[str] = ("",),
        timeout: float = 60.0,
        suspends: bool = False,
    ) -> QueueCore:
        queue = self.core.open_queue(
            QueueUri.parse(uri),
            flags,
            uri,
            uri if token is None else token,
            self.now,
            self.now + timeout,
            subscriptions=self.subscriptions(subscriptions) if flags & READ else [],
            suspends=suspends,
        )
        self.pump()
        return queue

    def open(self, uri: str, flags: QueueFlags = READ | WRITE, **options: Any) -> QueueCore:
        queue = self.begin_open(uri, flags, **options)
        self.answer_all()
        assert queue.state is QueueState.OPEN
        return queue

    @staticmethod
    def subscriptions(expressions: Iterable[str]) -> list[SubscriptionCore]:
        """Return subscriptions with their expression as owner."""
        options = SubscriptionOptions(1000, 1 << 20, 0)
        return [SubscriptionCore(text, options, text or "default") for text in expressions]

    def configure(
        self, queue: QueueCore, *expressions: str, token: Any = None, timeout: float = 60.0
    ) -> None:
        self.core.configure_queue(
            queue,
            self.subscriptions(expressions),
            expressions if token is None else token,
            self.now + timeout,
        )
        self.pump()

    def close(
        self, queue: QueueCore, token: Any = "close", timeout: float = 60.0, *, at_once: bool = False
    ) -> None:
        self.core.close_queue(queue, token, self.now, self.now + timeout, at_once=at_once)
        self.pump()

    def post(self, queue: QueueCore, *numbers: int) -> None:
        """Post messages with a number as GUID, payload and token."""
        for number in numbers:
            self.core.post(queue, guid(number), b"%d" % number, number, self.now)
        self.pump()

    def post_many(self, queue: QueueCore, *numbers: int) -> None:
        """Post messages together: GUID and payload are a number, the token is the tuple of numbers."""
        messages = [(guid(n), b"%d" % n, int(PutFlags.ACK_REQUESTED), 0, 0) for n in numbers]
        self.core.post_many(queue, messages, numbers, self.now)
        self.pump()

    def post_event(self, queue: QueueCore, *numbers: int) -> None:
        """Post messages encoded together: GUID and payload are a number, the token is their tuple."""
        puts = [encode_put(queue.q_id, guid(n), b"%d" % n) for n in numbers]
        ends = list(accumulate(map(len, puts), initial=HEADER_SIZE))
        event = pack_event_header(ends[-1], EventType.PUT) + b"".join(puts)
        acks = b"".join(encode_ack(0, 0, guid(n), queue.q_id) for n in numbers)
        self.core.post_event(
            queue, PutEvent(event, ends[1:], acks, sum(len(b"%d" % n) for n in numbers)), numbers, self.now
        )
        self.pump()

    def confirm_many(self, queue: QueueCore, *numbers: int) -> None:
        self.core.confirm_many(queue, [guid(n) for n in numbers])
        self.pump()

    # the broker

    def answer(self, **options: Any) -> ControlBody:
        request = self.broker.requests.popleft()
        self.send(self.broker.accept(request, **options))
        return request.body

    def refuse(self, category: StatusCategory = StatusCategory.E_UNKNOWN, code: int = -1) -> ControlBody:
        request = self.broker.requests.popleft()
        self.send(self.broker.refuse(request, category, code=code))
        return request.body

    def answer_queue(self, queue: QueueCore) -> None:
        """Accept all requests of a queue; requests of other queues wait."""
        while mine := [each for each in self.broker.requests if _q_id(each) == queue.q_id]:
            self.broker.requests.remove(mine[0])
            self.send(self.broker.accept(mine[0]))

    def answer_all(self, **options: Any) -> list[str]:
        names = []
        while self.broker.requests:
            names.append(type(self.answer(**options)).__name__)
        return names

    def ack_all(self, status: AckStatus = AckStatus.SUCCESS) -> list[int]:
        """Acknowledge every post; return their numbers, in the order of arrival."""
        puts, self.broker.puts = self.broker.puts, []
        if puts:
            self.send(self.broker.ack(puts, status))
        return [int(put.data) for put in puts]

    def push(self, queue: QueueCore, *numbers: int, s_id: int | None = None) -> None:
        """Deliver messages to a queue's newest subscription, or to the given subscription."""
        if s_id is None:
            s_id = self.broker.s_ids[queue.q_id][-1]
        messages = [(guid(n), b"%d" % n) for n in numbers]
        self.send(self.broker.push(queue.q_id, messages, (s_id,)))

    # ---- observations

    @property
    def numbers_received(self) -> list[int]:
        return [int(message.data) for _, message in self.received]

    @property
    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.happened]

    @property
    def state(self) -> SessionState:
        return self.core.state

    @staticmethod
    def pulse(response: bool = False) -> bytes:
        return HEARTBEAT_RSP if response else HEARTBEAT_REQ


def _q_id(request: ControlMessage) -> int | None:
    body = request.body
    if isinstance(body, (OpenQueue, CloseQueue)):
        return body.handle_parameters.q_id
    return body.q_id if isinstance(body, (ConfigureStream, ConfigureQueueStream)) else None


def connected(options: CoreOptions | None = None) -> Bench:
    bench = Bench(options)
    bench.connect()
    return bench


def opened(
    uri: str, flags: QueueFlags = READ | WRITE, options: CoreOptions | None = None, **how: Any
) -> tuple[Bench, QueueCore]:
    bench = connected(options)
    return bench, bench.open(uri, flags, **how)


def held(core: ClientCore) -> int:
    """Number of objects kept alive by a core; finished objects must not be included."""
    core.next_deadline()  # a cancelled deadline leaves at its time
    # One error is kept on purpose, for the texts of later errors: the reason for the missing connection.
    return len(_reachable(core) - _reachable(core._trouble))


def _reachable(root: object) -> set[int]:
    seen: set[int] = set()
    found: list[Any] = [root]
    while found:
        new = [each for each in found if id(each) not in seen and not isinstance(each, _CODE)]
        seen.update(map(id, new))
        found = gc.get_referents(*new)
    return seen


# Objects that exist in any case, and counters: one number per bucket and status.
_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, Enum, PostCounts)
