# SPDX-License-Identifier: Apache-2.0
"""The broker's side of a connection: bytes and the time in, bytes out.

A :class:`~bmq.broker._node.BrokerNode` handles queues and routing. This module handles the handshake,
control messages and heartbeats, and selects input to be ignored without an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from bmq import _checks
from bmq._logging import Log
from bmq.broker._client import ConnectedClient
from bmq.broker._domain import Refused
from bmq.broker._output import BrokerOutput
from bmq.broker._settings import Action, ActionKind, BrokerSettings, refused
from bmq.errors import ProtocolError, StatusCategory
from bmq.protocol.framing import Framer
from bmq.protocol.heartbeat import Heartbeat, HeartbeatAction
from bmq.protocol.machine import Machine, Transition
from bmq.wire.confirm import iter_confirms
from bmq.wire.constants import DEFAULT_MAX_INCOMING_EVENT, UNSET_GUID, EventType, PutFlags
from bmq.wire.control import (
    DEFAULT_APP_ID,
    INVALID_CONSUMER_PRIORITY,
    MESSAGE_PROPERTIES_EX,
    UNRELEASED_VERSION,
    AdminCommand,
    AdminCommandResponse,
    AuthenticationRequest,
    BrokerResponse,
    ClientIdentity,
    ClientLanguage,
    ClientType,
    CloseQueue,
    CloseQueueResponse,
    Codec,
    ConfigureQueueStream,
    ConfigureQueueStreamResponse,
    ConfigureStream,
    ConfigureStreamResponse,
    ConsumerInfo,
    ControlBody,
    ControlMessage,
    Disconnect,
    DisconnectResponse,
    Message,
    MessageKind,
    OpenQueue,
    QueueFlags,
    QueueHandleParameters,
    QueueStreamParameters,
    Status,
    StreamParameters,
    Subscription,
    parse_features,
)
from bmq.wire.control_event import codec_of, decode_event, encode_event
from bmq.wire.event import HEARTBEAT_REQ, HEARTBEAT_RSP, Event
from bmq.wire.guid import GuidGenerator
from bmq.wire.printable import printable
from bmq.wire.put import CORRELATION_ID, PUT_GUID, Put, PutRun, decode_put_runs

if TYPE_CHECKING:
    from bmq.broker._node import BrokerNode

__all__ = ["BrokerInput", "BrokerSession", "BrokerState"]

_log = Log("bmq.broker")

#: Mechanism and name of a client's authentication.
_Principal = tuple[str, str]

_ACK_REQUESTED = int(PutFlags.ACK_REQUESTED)
#: The oldest SDKs served, by language.
_MINIMUM_VERSIONS = {ClientLanguage.E_CPP: 10500, ClientLanguage.E_JAVA: 2}
#: Older SDKs receive a deprecation notice.
_RECOMMENDED_VERSIONS = {ClientLanguage.E_CPP: 10900, ClientLanguage.E_JAVA: 2}
# Java SDKs built from snapshots add this number to the version.
_JAVA_SNAPSHOT = 99_000_000
_GRACE_SECONDS = 180
#: The capabilities in this broker's identity.
_FEATURES = (
    "PROTOCOL_ENCODING:BER,JSON;HA:GRACEFUL_SHUTDOWN,GRACEFUL_SHUTDOWN_V2,BROADCAST_TO_PROXIES;"
    "MPS:MESSAGE_PROPERTIES_EX;SUBSCRIPTIONS:CONFIGURE_STREAM"
)
#: Largest event in bytes before the end of the negotiation, and without messages afterwards.
_MAX_HANDSHAKE_SIZE = 64 * 1024
_MAX_REQUEST_SIZE = 2 * 1024 * 1024
#: Work for a client's requests before the next client is served, and the work for reading a request, and for
#: every 10 bytes of it. After an admin command, which may take long, the next client is served at once.
_EFFORT_AT_ONCE = 10_000
_REQUEST_EFFORT = 200


class BrokerState(Enum):
    """The states of a connection."""

    CONNECTED = "nothing known about the client, except perhaps its credentials"
    SERVING = "negotiated"
    ADMINISTERED = "negotiated, for admin commands"
    DISCONNECTED = "disconnect answered"
    CLOSED = "closed, or to be closed"


class BrokerInput(Enum):
    """The inputs of a connection's state machine."""

    CREDENTIALS = "authenticationRequest, right"
    CLIENT = "clientIdentity"
    ADMIN_CLIENT = "clientIdentity for admin commands"
    UNWANTED_CLIENT = "clientIdentity, not authorized"
    REQUEST = "a request"
    DISCONNECT = "disconnect"
    PUT = "PUT events"
    CONFIRM = "CONFIRM events"
    HEARTBEAT_REQ = "HEARTBEAT_REQ"
    OTHER = "any other event, or one that makes no sense"
    LOST = "connection gone, timed out, or with input that must end it"
    SHUTDOWN = "the broker closes the connection"


_S, _I = BrokerState, BrokerInput
_MESSAGES = _I.PUT, _I.CONFIRM, _I.HEARTBEAT_REQ, _I.OTHER
_ENDS = _I.LOST, _I.SHUTDOWN
#: Further events are not read.
_OVER = _S.DISCONNECTED, _S.CLOSED
#: As in a real broker, whose requests are not authorized yet.
_UNAUTHORIZED = Status(category=StatusCategory.E_REFUSED, code=-1, message="Connection not authorized")
_CONNECTIONS = {
    ClientType.E_TCPCLIENT: ActionKind.CONNECT_CLIENT,
    ClientType.E_TCPADMIN: ActionKind.CONNECT_ADMIN,
}


class BrokerSession(Machine):
    """A connection of a broker.

    Args:
        settings: settings of the broker.
        node: broker behind the session.
        output: destination of answers and messages.
        session_id: number of the session.
        peer: description of the peer, for logs.
        now: time, in seconds of a monotonic clock.
        guids: generates the GUIDs for legacy clients, which send no GUIDs.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        node: BrokerNode,
        output: BrokerOutput,
        *,
        session_id: int,
        peer: str,
        now: float,
        guids: GuidGenerator,
    ) -> None:
        self.settings = settings
        self.node = node
        self.output = output
        self.session_id = session_id
        self.peer = peer
        self.state: BrokerState = BrokerState.CONNECTED
        self.client: ConnectedClient | None = None
        self.codec = Codec.BER
        #: Whether the latest credentials were wrong.
        self.refused = False
        self.principal: _Principal | None = None
        # Before the handshake a client occupies little memory: its first events must be small.
        self._framer = Framer(_MAX_HANDSHAKE_SIZE, tolerant=True)
        # Events to handle, perhaps after further clients were served, and the error after these events.
        self._events: list[Event] = []
        self._error: ProtocolError | None = None
        self._guids = guids
        self._legacy = False
        self._heartbeat = Heartbeat(0, 0, now)  # disabled until the end of the negotiation
        # Deadline of the negotiation; after the negotiation, end of the credentials' lifetime.
        self._deadline: float | None = now + settings.handshake_timeout
        self._expiry: float | None = None
        #: Number of further events until the connection breaks, for tests of failures; None for never.
        self.events_left: int | None = None

    @property
    def closed(self) -> bool:
        """Whether to close the connection after the output is sent."""
        return self.state is BrokerState.CLOSED

    # ---- input

    def receive(self, data: bytes, now: float) -> None:
        """Process bytes from the client."""
        self._cut(data)
        self.resume(now)

    @property
    def waiting(self) -> bool:
        """Whether input is left; call :meth:`resume` after serving other clients."""
        return bool(self._events)

    def resume(self, now: float) -> None:
        """Process the remaining input."""
        while True:
            del self._events[: self._handle(self._events, now)]
            if self.waiting or self._error is None or self.state is BrokerState.CLOSED:
                break
            # The events before the error may have raised the limit.
            error = self._cut(b"")
            if error is not None and not self._events:
                self._complain(f"{error}; closing")
                self.fire(_I.LOST, now)
        if self.state in _OVER:
            self._events = []
        self.node.deliver(now)

    def channel_down(self, now: float) -> None:
        """Handle the loss of the connection."""
        self.fire(_I.LOST, now)
        self.node.deliver(now)

    def shut_down(self, now: float) -> None:
        """Close the connection from this side; unconfirmed messages do not count as failed deliveries."""
        self.fire(_I.SHUTDOWN, now)

    def next_deadline(self) -> float | None:
        """Return the time of the next :meth:`tick`; None if not scheduled."""
        if self.state is BrokerState.CLOSED:
            return None
        deadlines = self._deadline, self._heartbeat.deadline
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, now: float) -> None:
        """Perform due actions."""
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            _log.info("%s: timed out in state %s; closing", self.peer, self.state.name)
            self.fire(_I.LOST, now)
        action = self._heartbeat.poll(now)
        if action is HeartbeatAction.SEND:
            self.output.event(HEARTBEAT_REQ)
        elif action is HeartbeatAction.GIVE_UP:
            _log.info("%s: missed too many heartbeats; closing", self.peer)
            self.fire(_I.LOST, now)
        self.node.deliver(now)

    # ---- from bytes to inputs

    def _cut(self, data: bytes) -> ProtocolError | None:
        events, self._error = self._framer.feed(data)
        if self.events_left is not None:
            events = events[: self.events_left]
            self.events_left -= len(events)
        if events:
            self._heartbeat.heard = True
        self._events += events
        return self._error

    def _handle(self, events: list[Event], now: float) -> int:
        """Handle events until other clients must be served; return the number of handled events."""
        at, count = 0, len(events)
        began, reading = self.node.effort, 0
        while at < count and self.state not in _OVER:
            event = events[at]
            first, kind = at, event.type
            at += 1
            if kind == EventType.PUT or kind == EventType.CONFIRM:
                # Clients with one message in each event send many events at once.
                while at < count and events[at].type == kind:
                    at += 1
                self.fire(_I.PUT if kind == EventType.PUT else _I.CONFIRM, events[first:at], now)
            else:
                self._receive_event(event, now)
                reading += _REQUEST_EFFORT + len(event.data) // 10
                enough = self.node.effort - began + reading > _EFFORT_AT_ONCE
                if enough or self.state is BrokerState.ADMINISTERED:
                    break
        return at

    def _receive_event(self, event: Event, now: float) -> None:
        kind = event.type
        if kind == EventType.CONTROL:
            if self.state is _S.CONNECTED:
                self._receive_identity(event, now)
            else:
                self._receive_request(event, now)
        elif kind == EventType.AUTHENTICATION:
            self._receive_credentials(event, now)
        elif kind == EventType.HEARTBEAT_REQ:
            self.fire(_I.HEARTBEAT_REQ)
        else:
            self.fire(_I.OTHER, [event], now)

    def _decode(self, event: Event, kind: MessageKind) -> object:
        """Return the message of an event; None for a malformed message."""
        try:
            return decode_event(event, kind)
        except ProtocolError as error:
            self._complain(error)
            return None

    def _receive_request(self, event: Event, now: float) -> None:
        message = self._decode(event, MessageKind.CONTROL)
        if not isinstance(message, ControlMessage) or message.r_id is None or message.r_id < 0:
            self.fire(_I.OTHER, [event], now)
        elif isinstance(message.body, Disconnect):
            self.fire(_I.DISCONNECT, message, now)
        else:
            self.fire(_I.REQUEST, message, now)

    def _check_open(self, wanted: QueueHandleParameters) -> None:
        """Ask for the permission to open a queue.

        Raises:
            Refused: the client may not.
        """
        info = wanted.sub_id_info
        app_id = "" if info is None or info.app_id == DEFAULT_APP_ID else info.app_id
        reads = wanted.flags & QueueFlags.READ or wanted.read_count > 0
        writes = wanted.flags & QueueFlags.WRITE or wanted.write_count > 0
        kinds = [ActionKind.QUEUE_READ] * bool(reads) + [ActionKind.QUEUE_WRITE] * bool(writes)
        uri = wanted.uri.partition("?")[0]
        if not all(self._allows(kind, uri=uri, app_id=app_id) for kind in kinds):
            raise Refused(StatusCategory.E_REFUSED, "Queue not authorized", -1)

    def _allows(self, kind: ActionKind, **details: str) -> bool:
        """Return whether the client may perform an action. Without a clear yes, the answer is no."""
        if self.settings.authorize is None:
            return True
        action = Action(kind, "" if self.principal is None else self.principal[1], **details)
        problem = ""
        try:
            answer = cast("object", self.settings.authorize(action))
            if not isinstance(answer, bool):
                problem = f"must return True or False, and returned {_checks.shown(answer)}"
        except Exception as error:
            answer, problem = False, f"failed with {printable(f'{type(error).__name__}: {error}')}"
        if problem:
            self.node.refusals.error("authorize", "authorize %s; refused: %s", problem, printable(action))
        return answer is True

    def _receive_identity(self, event: Event, now: float) -> None:
        identity = self._decode(event, MessageKind.NEGOTIATION)
        if (
            not isinstance(identity, ClientIdentity)
            or identity.cluster_name
            or identity.client_type not in _CONNECTIONS
        ):
            self.fire(_I.LOST, now)
        elif self.principal is None and not self.settings.authentication.allows_anonymous:
            _log.info("%s: sent no credentials; closing", self.peer)
            self.fire(_I.LOST, now)
        elif (refusal := self.node.faults.refused_client()) is not None:
            self.fire(_I.UNWANTED_CLIENT, identity, refusal, now)
        elif not self._allows(_CONNECTIONS[identity.client_type]):
            self.fire(_I.UNWANTED_CLIENT, identity, _UNAUTHORIZED, now)
        elif identity.client_type is ClientType.E_TCPADMIN:
            self.fire(_I.ADMIN_CLIENT, identity, Status(), now)
        else:
            self.fire(_I.CLIENT, identity, _support(identity), now)

    def _receive_credentials(self, event: Event, now: float) -> None:
        # Before the identity come the first credentials, and afterwards their renewals.
        request, first = None, self.principal is None
        if first is (self.state is _S.CONNECTED):
            request = self._decode(event, MessageKind.AUTHENTICATION)
        if not isinstance(request, AuthenticationRequest):
            self.fire(_I.OTHER, [event], now)
            return
        verdict, name = self.settings.authentication.check(request)
        principal = (request.mechanism.upper(), name)
        if self.principal is not None and principal[0] != self.principal[0]:
            _log.info("%s: changed the mechanism of its credentials; closing", self.peer)
            self.fire(_I.LOST, now)
            return
        if self.principal is not None and principal != self.principal:
            verdict = refused(-1, f"Reauthentication as another principal than '{self.principal[1]}'")
        self.output.event(encode_event(verdict, codec_of(event), escape_solidus=True))
        if verdict.status.category is StatusCategory.E_SUCCESS:
            self.fire(_I.CREDENTIALS, principal, verdict.lifetime_ms, now)
        else:
            self.refused = True
            self.fire(_I.LOST, now)

    def _complain(self, what: object) -> None:
        self.node.limited.warning(self.peer, "%s: %s", self.peer, printable(what))

    # ---- actions: the handshake

    def _authenticate(self, principal: _Principal, lifetime: int | None, now: float) -> None:
        self.principal = principal
        self._expiry = None if lifetime is None else now + lifetime / 1000
        if self.state is not _S.CONNECTED:
            self._deadline = self._expiry

    def _serve(self, identity: ClientIdentity, result: Status, now: float) -> None:
        self._negotiate(identity, result, now)
        self.client = ConnectedClient(
            self.node,
            self.output,
            new_properties=parse_features(identity.features).has(*MESSAGE_PROPERTIES_EX),
            description=printable(f"{identity.process_name or 'client'}:{identity.pid}@{self.peer}"),
        )

    def _negotiate(self, identity: ClientIdentity, result: Status, now: float) -> None:
        settings = self.settings
        self._framer.max_event_size = DEFAULT_MAX_INCOMING_EVENT
        self._framer.max_request_size = _MAX_REQUEST_SIZE
        self.codec = parse_features(identity.features).codec
        self._legacy = not identity.guid_info.client_id
        self._deadline = self._expiry
        response = BrokerResponse(
            result=result,
            protocol_version=1,
            broker_version=UNRELEASED_VERSION,
            is_deprecated_sdk=_older(identity, _RECOMMENDED_VERSIONS),
            broker_identity=ClientIdentity(
                protocol_version=1,
                sdk_version=UNRELEASED_VERSION,
                client_type=ClientType.E_TCPBROKER,
                process_name=settings.process_name,
                pid=settings.pid,
                session_id=self.session_id,
                host_name=settings.host_name,
                features=_FEATURES,
                user_agent="bmqbrkr:99.99.99",
            ),
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            max_missed_heartbeats=settings.max_missed_heartbeats,
        )
        self._send(response)
        interval = settings.heartbeat_interval_ms / 1000
        grace = int(_GRACE_SECONDS / interval)
        self._heartbeat = Heartbeat(interval, settings.max_missed_heartbeats, now, grace=grace)
        _log.info("%s: %s", self.peer, printable(identity))

    # ---- actions: requests

    def _send(self, message: Message) -> None:
        self.output.event(encode_event(message, self.codec, escape_solidus=True, omit_empty_arrays=True))

    def _respond(self, request: ControlMessage, body: ControlBody) -> None:
        self._send(ControlMessage(r_id=request.r_id, body=body))

    def _answer(self, request: ControlMessage, now: float) -> None:
        client = self.client
        assert client is not None
        # Messages posted before a request are delivered before the answer.
        self.node.deliver(now)
        body = request.body
        try:
            match body:
                case OpenQueue():
                    self._check_open(body.handle_parameters)
                    self._respond(request, client.open_queue(body, now))
                case ConfigureStream():
                    client.configure(body.q_id, body.stream_parameters)
                    self._respond(request, ConfigureStreamResponse(request=body))
                case ConfigureQueueStream():
                    client.configure(body.q_id, _in_new_form(body.stream_parameters))
                    self._respond(request, ConfigureQueueStreamResponse(request=body))
                case CloseQueue():
                    client.close_queue(body.handle_parameters, now, final=body.is_final)
                    self._respond(request, CloseQueueResponse())
                case _:
                    self._complain(f"{type(body).__name__} is not for clients; ignored")
        except Refused as refusal:
            self._respond(request, refusal.status)
        self.node.deliver(now)

    def _command(self, request: ControlMessage, now: float) -> None:
        if isinstance(request.body, AdminCommand):
            text, command = "Command not authorized", request.body.command
            if self._allows(ActionKind.EXECUTE_ADMIN_COMMAND, command=command):
                text = self.node.admin(command, now)
            self._respond(request, AdminCommandResponse(text=text))

    def _part(self, request: ControlMessage, now: float) -> None:
        self._leave(now)
        self._respond(request, DisconnectResponse())

    # ---- actions: messages

    def _post(self, events: list[Event], now: float) -> None:
        client = self.client
        assert client is not None
        inflate = partial(client.inflate, now)
        runs: list[PutRun] = []
        for event in events:
            try:
                decode_put_runs(event.data, event.body, runs, inflate, checks_area=True)
            except ProtocolError as error:
                # A real broker also stops here without an answer, and keeps the connection.
                self._complain(f"{error}; the rest of the event is ignored")
        for queue_id, puts in runs:
            if self._legacy:
                puts = [self._named(put, now) for put in puts]
            elif nameless := [put for put in puts if put[PUT_GUID] == UNSET_GUID]:
                client.refuse(queue_id, nameless)
                puts = [put for put in puts if put[PUT_GUID] != UNSET_GUID]
            client.post(queue_id, puts, now)

    def _named(self, put: Put, now: float) -> Put:
        """Assign a GUID to the message of a legacy client, instead of the sent correlation id."""
        flags, _, field, schema_id, compression, crc, size, data = put
        correlation_id = int.from_bytes(field[CORRELATION_ID], "big")
        flags = flags | _ACK_REQUESTED if correlation_id else flags & ~_ACK_REQUESTED
        guid = self._guids.next(int(now * 1e9))
        return flags, correlation_id, guid, schema_id, compression, crc, size, data

    def _confirm(self, events: list[Event], now: float) -> None:
        client = self.client
        assert client is not None
        for event in events:
            try:
                confirms = iter_confirms(event.data, event.body)
            except ProtocolError as error:
                self._complain(f"{error}; ignored")
            else:
                client.confirm(confirms, now)

    def _pulse(self) -> None:
        self.output.event(HEARTBEAT_RSP)

    def _ignore(self, events: list[Event], now: float) -> None:
        _log.debug("%s: an event of type %s is ignored", self.peer, events[0].type)

    # ---- actions: the end

    def _leave(self, now: float, *, lost: bool = False) -> None:
        client, self.client = self.client, None
        if client is not None:
            client.drop(now, lost=lost)

    def _lose(self, now: float) -> None:
        self._leave(now, lost=True)

    TRANSITIONS: ClassVar[Mapping[tuple[Any, Any], Transition]] = {
        (_S.CONNECTED, _I.CREDENTIALS): Transition(_authenticate, _S.CONNECTED),
        (_S.CONNECTED, _I.CLIENT): Transition(_serve, _S.SERVING),
        (_S.CONNECTED, _I.ADMIN_CLIENT): Transition(_negotiate, _S.ADMINISTERED),
        (_S.CONNECTED, _I.UNWANTED_CLIENT): Transition(_negotiate, _S.CLOSED),
        # During the handshake, any unexpected input ends the connection without an answer.
        **{(_S.CONNECTED, event): Transition(None, _S.CLOSED) for event in _MESSAGES},
        (_S.SERVING, _I.CREDENTIALS): Transition(_authenticate, _S.SERVING),
        (_S.SERVING, _I.REQUEST): Transition(_answer, _S.SERVING),
        (_S.SERVING, _I.DISCONNECT): Transition(_part, _S.DISCONNECTED),
        (_S.SERVING, _I.PUT): Transition(_post, _S.SERVING),
        (_S.SERVING, _I.CONFIRM): Transition(_confirm, _S.SERVING),
        (_S.SERVING, _I.HEARTBEAT_REQ): Transition(_pulse, _S.SERVING),
        (_S.SERVING, _I.OTHER): Transition(_ignore, _S.SERVING),
        (_S.SERVING, _I.LOST): Transition(_lose, _S.CLOSED),
        (_S.SERVING, _I.SHUTDOWN): Transition(_leave, _S.CLOSED),
        (_S.ADMINISTERED, _I.REQUEST): Transition(_command, _S.ADMINISTERED),
        (_S.ADMINISTERED, _I.DISCONNECT): Transition(_part, _S.DISCONNECTED),
        (_S.ADMINISTERED, _I.CREDENTIALS): Transition(_authenticate, _S.ADMINISTERED),
        (_S.ADMINISTERED, _I.HEARTBEAT_REQ): Transition(_pulse, _S.ADMINISTERED),
        (_S.ADMINISTERED, _I.PUT): Transition(_ignore, _S.ADMINISTERED),
        (_S.ADMINISTERED, _I.CONFIRM): Transition(_ignore, _S.ADMINISTERED),
        (_S.ADMINISTERED, _I.OTHER): Transition(_ignore, _S.ADMINISTERED),
        **{
            (state, end): Transition(None, _S.CLOSED)
            for state in (_S.CONNECTED, _S.ADMINISTERED, *_OVER)
            for end in _ENDS
        },
    }


def _in_new_form(old: QueueStreamParameters) -> StreamParameters:
    """Return the newer form of stream parameters: one subscription with the sub-queue's id."""
    info = old.sub_id_info
    app_id = DEFAULT_APP_ID if info is None else info.app_id
    if old.consumer_priority == INVALID_CONSUMER_PRIORITY and not old.consumer_priority_count:
        return StreamParameters(app_id=app_id)
    consumer = ConsumerInfo(
        max_unconfirmed_messages=old.max_unconfirmed_messages,
        max_unconfirmed_bytes=old.max_unconfirmed_bytes,
        consumer_priority=old.consumer_priority,
        consumer_priority_count=old.consumer_priority_count,
    )
    subscription = Subscription(s_id=info.sub_id if info is not None else 0, consumers=(consumer,))
    return StreamParameters(app_id=app_id, subscriptions=(subscription,))


def _support(identity: ClientIdentity) -> Status:
    """Return the status to report an outdated SDK to the client. The client is served nevertheless."""
    if not _older(identity, _MINIMUM_VERSIONS):
        return Status()
    minimum = _MINIMUM_VERSIONS[identity.sdk_language]
    return Status(
        category=StatusCategory.E_NOT_SUPPORTED,
        code=-1,
        message="Client is using an unsupported version of libbmq (minimum supported version: "
        f"{minimum}, client version: {identity.sdk_version}).",
    )


def _older(identity: ClientIdentity, versions: dict[ClientLanguage, int]) -> bool:
    version, language = identity.sdk_version, identity.sdk_language
    if language is ClientLanguage.E_JAVA and version >= _JAVA_SNAPSHOT:
        version -= _JAVA_SNAPSHOT
    return version < versions.get(language, version)
