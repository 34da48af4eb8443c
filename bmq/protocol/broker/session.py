"""The broker's side of one connection: bytes and the time in, bytes out.

:data:`BROKER_TRANSITIONS` is its state machine. What queues are and who gets what is the business of a
:class:`Backend`; here are the handshake, the control messages, heartbeats, and what is ignored in silence.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from enum import Enum
from itertools import chain

from bmq.errors import ProtocolError, StateError
from bmq.protocol.broker.backend import Backend, ClientPort, stream_parameters
from bmq.protocol.broker.data import Put, PutReader, read_confirm_event
from bmq.protocol.broker.framing import BrokerFramer
from bmq.protocol.broker.output import BrokerOutput
from bmq.protocol.broker.settings import BrokerSettings
from bmq.protocol.client.tables import Transition
from bmq.protocol.heartbeat import Heartbeat, Pulse
from bmq.wire.constants import UNSET_GUID, EventType, PutFlags
from bmq.wire.control import codec_of, decode_event, encode_event
from bmq.wire.control.features import MESSAGE_PROPERTIES_EX, parse_features
from bmq.wire.control.messages import (
    AdminCommand,
    AdminCommandResponse,
    AuthenticationRequest,
    AuthenticationResponse,
    BrokerResponse,
    ClientIdentity,
    ClientLanguage,
    ClientType,
    CloseQueue,
    Codec,
    ConfigureQueueStream,
    ConfigureQueueStreamResponse,
    ConfigureStream,
    ConfigureStreamResponse,
    ControlBody,
    ControlMessage,
    Disconnect,
    DisconnectResponse,
    Message,
    MessageKind,
    OpenQueue,
    Status,
    StatusCategory,
)
from bmq.wire.event import HEARTBEAT_REQ, HEARTBEAT_RSP, Event
from bmq.wire.guid import GuidGenerator
from bmq.wire.printable import printable

__all__ = [
    "BROKER_TRANSITIONS",
    "BrokerInput",
    "BrokerSession",
    "BrokerState",
]

_log = logging.getLogger("bmq.broker.session")

_ACK_REQUESTED = int(PutFlags.ACK_REQUESTED)
_CORRELATION_ID = slice(1, 4)
#: The oldest SDKs served, by language.
_MINIMUM_VERSIONS = {ClientLanguage.E_CPP: 10500, ClientLanguage.E_JAVA: 2}
#: Older ones are told that they are deprecated.
_RECOMMENDED_VERSIONS = {ClientLanguage.E_CPP: 10900, ClientLanguage.E_JAVA: 2}
# Java SDKs made of snapshots add this to their version.
_JAVA_SNAPSHOT = 99_000_000
_GRACE_SECONDS = 180
_MAX_COMPLAINTS = 20
#: How many requests of one client are answered before others have a turn, a long one counting as many; an
#: admin command may take long.
_REQUESTS_AT_ONCE = 50
_REQUEST_SIZE = 2048
_EFFORT_AT_ONCE = 10_000


class BrokerState(Enum):
    """Where a connection is."""

    CONNECTED = "nothing known about the client"
    AUTHENTICATED = "credentials accepted"
    SERVING = "negotiated"
    ADMINISTERED = "negotiated, for admin commands"
    DISCONNECTED = "disconnect answered"
    CLOSED = "closed, or to be closed"


class BrokerInput(Enum):
    """What moves a connection."""

    CREDENTIALS_ACCEPTED = "authenticationRequest, right"
    CREDENTIALS_REFUSED = "authenticationRequest, wrong"
    CLIENT = "clientIdentity"
    OLD_CLIENT = "clientIdentity of an SDK too old"
    ADMIN_CLIENT = "clientIdentity for admin commands"
    UNWANTED_CLIENT = "clientIdentity, not authorized"
    STRANGER = "anything else where these belong"
    REQUEST = "a request"
    DISCONNECT = "disconnect"
    PUT = "PUT events"
    CONFIRM = "CONFIRM events"
    HEARTBEAT_REQ = "HEARTBEAT_REQ"
    OTHER = "any other event, or one that makes no sense"
    TIMEOUT = "handshake or credentials timed out, or too many heartbeats missed"
    BAD_LENGTH = "an event length that cannot be"
    CHANNEL_DOWN = "connection gone"
    SHUTDOWN = "the broker closes the connection"


_S, _I = BrokerState, BrokerInput

#: (state, input) -> (action, next state); the actions are methods of :class:`BrokerSession`.
BROKER_TRANSITIONS: dict[tuple[BrokerState, BrokerInput], Transition] = {
    (_S.CONNECTED, _I.CREDENTIALS_ACCEPTED): Transition("authenticate", _S.AUTHENTICATED),
    (_S.CONNECTED, _I.CREDENTIALS_REFUSED): Transition("answer_credentials", _S.CLOSED),
    (_S.CONNECTED, _I.CLIENT): Transition("serve", _S.SERVING),
    (_S.CONNECTED, _I.OLD_CLIENT): Transition("serve_reluctantly", _S.SERVING),
    (_S.CONNECTED, _I.ADMIN_CLIENT): Transition("administer", _S.ADMINISTERED),
    (_S.CONNECTED, _I.UNWANTED_CLIENT): Transition("turn_away", _S.CLOSED),
    (_S.AUTHENTICATED, _I.CLIENT): Transition("serve", _S.SERVING),
    (_S.AUTHENTICATED, _I.OLD_CLIENT): Transition("serve_reluctantly", _S.SERVING),
    (_S.AUTHENTICATED, _I.ADMIN_CLIENT): Transition("administer", _S.ADMINISTERED),
    (_S.AUTHENTICATED, _I.UNWANTED_CLIENT): Transition("turn_away", _S.CLOSED),
    (_S.SERVING, _I.CREDENTIALS_ACCEPTED): Transition("authenticate", _S.SERVING),
    (_S.SERVING, _I.CREDENTIALS_REFUSED): Transition("refuse_renewal", _S.CLOSED),
    (_S.SERVING, _I.STRANGER): Transition("lose", _S.CLOSED),
    (_S.SERVING, _I.REQUEST): Transition("answer", _S.SERVING),
    (_S.SERVING, _I.DISCONNECT): Transition("part", _S.DISCONNECTED),
    (_S.SERVING, _I.PUT): Transition("post", _S.SERVING),
    (_S.SERVING, _I.CONFIRM): Transition("confirm", _S.SERVING),
    (_S.SERVING, _I.HEARTBEAT_REQ): Transition("pulse", _S.SERVING),
    (_S.SERVING, _I.OTHER): Transition("ignore", _S.SERVING),
    (_S.SERVING, _I.TIMEOUT): Transition("lose", _S.CLOSED),
    (_S.SERVING, _I.BAD_LENGTH): Transition("lose", _S.CLOSED),
    (_S.SERVING, _I.CHANNEL_DOWN): Transition("lose", _S.CLOSED),
    (_S.SERVING, _I.SHUTDOWN): Transition("leave", _S.CLOSED),
    (_S.ADMINISTERED, _I.REQUEST): Transition("command", _S.ADMINISTERED),
    (_S.ADMINISTERED, _I.DISCONNECT): Transition("part", _S.DISCONNECTED),
    (_S.ADMINISTERED, _I.CREDENTIALS_ACCEPTED): Transition("authenticate", _S.ADMINISTERED),
    (_S.ADMINISTERED, _I.CREDENTIALS_REFUSED): Transition("answer_credentials", _S.CLOSED),
    (_S.ADMINISTERED, _I.STRANGER): Transition("", _S.CLOSED),
    (_S.ADMINISTERED, _I.PUT): Transition("ignore", _S.ADMINISTERED),
    (_S.ADMINISTERED, _I.CONFIRM): Transition("ignore", _S.ADMINISTERED),
    (_S.ADMINISTERED, _I.HEARTBEAT_REQ): Transition("pulse", _S.ADMINISTERED),
    (_S.ADMINISTERED, _I.OTHER): Transition("ignore", _S.ADMINISTERED),
    **{
        (_S.DISCONNECTED, i): Transition("", _S.DISCONNECTED)
        for i in (
            _I.CREDENTIALS_ACCEPTED,
            _I.CREDENTIALS_REFUSED,
            _I.STRANGER,
            _I.REQUEST,
            _I.DISCONNECT,
            _I.PUT,
            _I.CONFIRM,
            _I.HEARTBEAT_REQ,
            _I.OTHER,
        )
    },
    # In the handshake anything out of place ends the connection without a word.
    **{
        (s, i): Transition("", _S.CLOSED)
        for s in (_S.CONNECTED, _S.AUTHENTICATED)
        for i in (_I.STRANGER, _I.REQUEST, _I.PUT, _I.CONFIRM, _I.HEARTBEAT_REQ, _I.OTHER)
    },
    (_S.AUTHENTICATED, _I.CREDENTIALS_ACCEPTED): Transition("", _S.CLOSED),
    (_S.AUTHENTICATED, _I.CREDENTIALS_REFUSED): Transition("", _S.CLOSED),
    **{
        (s, i): Transition("", _S.CLOSED)
        for s in (_S.CONNECTED, _S.AUTHENTICATED, _S.ADMINISTERED, _S.DISCONNECTED)
        for i in (_I.TIMEOUT, _I.BAD_LENGTH, _I.CHANNEL_DOWN, _I.SHUTDOWN)
    },
    **{(_S.CLOSED, i): Transition("", _S.CLOSED) for i in BrokerInput},
}

#: The interpreter keeps names it has looked up: the same ones each time, not new ones.
_METHODS = {t.action: sys.intern(f"_{t.action}") for t in BROKER_TRANSITIONS.values()}


class BrokerSession:
    """One connection of a broker.

    Args:
        settings: the broker's settings.
        backend: what is behind it.
        output: where answers and messages go.
        session_id: its number.
        peer: who is at the other end, for logs.
        now: the time, in seconds of a clock that does not go backwards.
        guids: makes GUIDs for clients that do not.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        backend: Backend,
        output: BrokerOutput,
        *,
        session_id: int,
        peer: str,
        now: float,
        guids: GuidGenerator,
    ) -> None:
        self.settings = settings
        self.backend = backend
        self.output = output
        self.session_id = session_id
        self.peer = peer
        self.state = BrokerState.CONNECTED
        self.identity: ClientIdentity | None = None
        self.client: ClientPort | None = None
        self.codec = Codec.BER
        #: The mechanism and the name the client authenticated with.
        self.principal: tuple[str, str] | None = None
        # Strangers cost little memory: what has to come first is small.
        self._framer = BrokerFramer(settings.max_handshake_size, settings.max_handshake_size)
        # What came in the same chunk and is done later, to let others have a turn; and the error behind it.
        self._rest: list[Event] = []
        self._error: ProtocolError | None = None
        # Whether it was so much that others have a turn, though nothing is left.
        self._enough = False
        self._complaints = 0
        self._guids = guids
        self._legacy = False
        self._now = now
        self._heartbeat: Heartbeat | None = None
        # Until the client has negotiated; later, until its credentials expire.
        self._deadline: float | None = now + settings.handshake_timeout
        # What an action is about: an event and what it says, or consecutive PUT or CONFIRM events.
        self._event: Event | None = None
        self._batch: list[Event] = []
        self._message: Message | None = None
        self._verdict = AuthenticationResponse()
        self._authenticated_as: tuple[str, str] = ("", "")
        self._refusal: Status | None = None
        self._expiry: float | None = None
        #: After how many more events the connection breaks, for tests of failures; None for never.
        self.events_left: int | None = None

    @property
    def closed(self) -> bool:
        """Whether the connection is to be closed, once what is in the output is sent."""
        return self.state is BrokerState.CLOSED

    @property
    def negotiating(self) -> bool:
        """Whether the client has yet to say who it is."""
        return self.state in (BrokerState.CONNECTED, BrokerState.AUTHENTICATED)

    @property
    def buffered(self) -> int:
        """How many bytes of an unfinished event are held."""
        return self._framer.buffered

    # ---- input

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the client."""
        self._now = now
        events, error = self._cut(data)
        self._work(self._rest + events if self._rest else events, error or self._error)

    @property
    def waiting(self) -> bool:
        """Whether something that came is not done yet: :meth:`resume` when others have had their turn."""
        return bool(self._rest) or self._enough

    def resume(self, now: float) -> None:
        """Go on with what waits."""
        self._now = now
        self._work(self._rest, self._error)

    def _cut(self, data: bytes) -> tuple[list[Event], ProtocolError | None]:
        events, error = self._framer.feed(data)
        if self.events_left is not None:
            events = events[: self.events_left]
            self.events_left -= len(events)
        if events and self._heartbeat is not None:
            self._heartbeat.received()
        return events, error

    def _work(self, events: list[Event], error: ProtocolError | None) -> None:
        """Deal with events, and with what comes behind them in the framer."""
        while True:
            done = self._handle(events)
            self._rest = events[done:]
            self._error = error
            if self.waiting or self.state is BrokerState.CLOSED:
                break
            if error is not None:
                self._complain(f"{error}; closing")
                self._step(_I.BAD_LENGTH)
            if not self._framer.undecided:
                break
            events, error = self._cut(b"")
        if self.state is BrokerState.CLOSED:
            self._rest, self._enough = [], False
        self.backend.deliver(self._now)

    def _handle(self, events: list[Event]) -> int:
        """Deal with events, up to so much that others should have a turn; return how many it were."""
        at, count, requests = 0, len(events), 0
        self._enough = False
        enough = self.backend.effort + _EFFORT_AT_ONCE
        while at < count and self.state is not BrokerState.CLOSED:
            event = events[at]
            first, kind = at, event.type
            at += 1
            if kind == EventType.PUT or kind == EventType.CONFIRM:
                # Clients that send one message an event send many events at once.
                while at < count and events[at].type == kind:
                    at += 1
                self._batch = events[first:at]
                self._step(_I.PUT if kind == EventType.PUT else _I.CONFIRM)
                self._batch = []
            else:
                self._receive_event(event)
                self._event = self._message = None
                requests += 1 + len(event.data) // _REQUEST_SIZE
                self._enough = requests >= _REQUESTS_AT_ONCE or self.backend.effort > enough
                if self._enough or self.state is BrokerState.ADMINISTERED:
                    break
        return at

    def channel_down(self, now: float) -> None:
        """Note that the connection is gone."""
        self._now = now
        self._step(_I.CHANNEL_DOWN)
        self.backend.deliver(now)

    def shut_down(self, now: float) -> None:
        """Close the connection from this side; what is unconfirmed does not count as a failed delivery."""
        self._now = now
        self._step(_I.SHUTDOWN)

    def next_deadline(self) -> float | None:
        """Return when :meth:`tick` has something to do."""
        beat = self._heartbeat.deadline if self._heartbeat is not None else None
        if self._deadline is None or beat is None:
            return beat if self._deadline is None else self._deadline
        return min(self._deadline, beat)

    def tick(self, now: float) -> None:
        """Do what is due."""
        self._now = now
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            _log.info("%s: timed out in state %s; closing", self.peer, self.state.name)
            self._step(_I.TIMEOUT)
        if self._heartbeat is not None:
            pulse = self._heartbeat.poll(now)
            if pulse is Pulse.SEND:
                self.output.event(HEARTBEAT_REQ)
            elif pulse is Pulse.DEAD:
                _log.info("%s: missed too many heartbeats; closing", self.peer)
                self._step(_I.TIMEOUT)

    def _receive_event(self, event: Event) -> None:
        self._event = event
        kind = event.type
        if kind == EventType.CONTROL:
            self._step(self._classify_control(event))
        elif kind == EventType.AUTHENTICATION:
            self._step(self._classify_credentials(event))
        elif kind == EventType.HEARTBEAT_REQ:
            self._step(_I.HEARTBEAT_REQ)
        elif kind == EventType.HEARTBEAT_RSP and self.state in (_S.SERVING, _S.ADMINISTERED):
            pass  # that it came was noted above
        else:
            self._step(_I.OTHER)

    def _classify_control(self, event: Event) -> BrokerInput:
        handshake = self.state in (_S.CONNECTED, _S.AUTHENTICATED)
        try:
            message = decode_event(event, MessageKind.NEGOTIATION if handshake else MessageKind.CONTROL)
        except ProtocolError as error:
            self._complain(error)
            return _I.STRANGER if handshake else _I.OTHER
        self._message = message
        if not isinstance(message, ControlMessage):
            return self._classify_identity(message)
        if message.r_id is None or message.r_id < 0:
            return _I.OTHER
        if isinstance(message.body, Disconnect):
            return _I.DISCONNECT
        requests = OpenQueue, ConfigureStream, ConfigureQueueStream, CloseQueue, AdminCommand
        return _I.REQUEST if isinstance(message.body, requests) else _I.OTHER

    def _classify_identity(self, message: Message) -> BrokerInput:
        if not isinstance(message, ClientIdentity):
            return _I.STRANGER
        if self.state is _S.CONNECTED and not self.settings.authentication.allows_anonymous:
            _log.info("%s: sent no credentials; closing", self.peer)
            return _I.STRANGER
        if message.client_type not in (ClientType.E_TCPCLIENT, ClientType.E_TCPADMIN) or message.cluster_name:
            return _I.STRANGER
        if self.settings.admit is not None:
            self._refusal = self.settings.admit(message)
            if self._refusal is not None:
                return _I.UNWANTED_CLIENT
        if message.client_type is ClientType.E_TCPADMIN:
            return _I.ADMIN_CLIENT
        return _I.OLD_CLIENT if _older(message, _MINIMUM_VERSIONS) else _I.CLIENT

    def _classify_credentials(self, event: Event) -> BrokerInput:
        if not self.negotiating and self.principal is None:
            return _I.OTHER  # there is nothing to renew
        try:
            message = decode_event(event, MessageKind.AUTHENTICATION)
        except ProtocolError as error:
            self._complain(error)
            return _I.STRANGER if self.negotiating else _I.OTHER
        if not isinstance(message, AuthenticationRequest):
            return _I.STRANGER if self.negotiating else _I.OTHER
        verdict, name = self.settings.authentication.check(message)
        principal = (message.mechanism.upper(), name)
        if self.principal is not None and principal[0] != self.principal[0]:
            _log.info("%s: changed the mechanism of its credentials; closing", self.peer)
            return _I.STRANGER
        if self.principal is not None and principal != self.principal:
            verdict = AuthenticationResponse(
                status=Status(
                    category=StatusCategory.E_REFUSED,
                    code=-1,
                    message=f"Reauthentication as another principal than '{self.principal[1]}'",
                )
            )
        self._verdict = verdict
        self._authenticated_as = principal
        accepted = verdict.status.category is StatusCategory.E_SUCCESS
        return _I.CREDENTIALS_ACCEPTED if accepted else _I.CREDENTIALS_REFUSED

    def _step(self, event: BrokerInput) -> None:
        transition = BROKER_TRANSITIONS.get((self.state, event))
        if transition is None:
            raise StateError(f"{event.name} is not possible in state {self.state.name}")
        action, self.state = transition
        if action:
            getattr(self, _METHODS[action])()

    def _complain(self, what: object) -> None:
        """Log what a client does wrong; not for ever, a client can do wrong faster than a log can be read."""
        self._complaints += 1
        if self._complaints <= _MAX_COMPLAINTS:
            _log.warning("%s: %s", self.peer, printable(what))
            if self._complaints == _MAX_COMPLAINTS:
                _log.warning("%s: what else it does wrong is not logged", self.peer)

    # ---- actions: the handshake

    def _answer_credentials(self) -> None:
        assert self._event is not None
        self.output.event(encode_event(self._verdict, codec_of(self._event), escape_solidus=True))

    def _authenticate(self) -> None:
        self._answer_credentials()
        self.principal = self._authenticated_as
        lifetime = self._verdict.lifetime_ms
        self._expiry = None if lifetime is None else self._now + lifetime / 1000
        if self.state is not _S.AUTHENTICATED:
            self._deadline = self._expiry

    def _refuse_renewal(self) -> None:
        self._answer_credentials()
        self._lose()

    def _serve(self) -> None:
        self._negotiate(Status())

    def _serve_reluctantly(self) -> None:
        identity = self._message
        assert isinstance(identity, ClientIdentity)
        minimum = _MINIMUM_VERSIONS[identity.sdk_language]
        self._negotiate(
            Status(
                category=StatusCategory.E_NOT_SUPPORTED,
                code=-1,
                message="Client is using an unsupported version of libbmq (minimum supported version: "
                f"{minimum}, client version: {identity.sdk_version}).",
            )
        )

    def _turn_away(self) -> None:
        assert self._refusal is not None
        self._negotiate(self._refusal)

    def _administer(self) -> None:
        self._negotiate(Status())

    def _negotiate(self, result: Status) -> None:
        identity, settings = self._message, self.settings
        assert isinstance(identity, ClientIdentity)
        self.identity = identity
        self._framer.max_event_size = settings.max_event_size
        self._framer.max_request_size = settings.max_request_size
        features = parse_features(identity.features)
        self.codec = features.codec
        self._legacy = not identity.guid_info.client_id
        self._deadline = self._expiry
        response = BrokerResponse(
            result=result,
            protocol_version=1,
            broker_version=settings.broker_version,
            is_deprecated_sdk=_older(identity, _RECOMMENDED_VERSIONS),
            broker_identity=ClientIdentity(
                protocol_version=1,
                sdk_version=settings.broker_version,
                client_type=ClientType.E_TCPBROKER,
                process_name=settings.process_name,
                pid=settings.pid,
                session_id=self.session_id,
                host_name=settings.host_name,
                features=settings.features,
                user_agent=settings.user_agent,
            ),
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            max_missed_heartbeats=settings.max_missed_heartbeats,
        )
        self._send(response)
        interval = settings.heartbeat_interval_ms / 1000
        if settings.max_missed_heartbeats > 0:
            self._heartbeat = Heartbeat(
                interval,
                settings.max_missed_heartbeats,
                self._now,
                grace=int(_GRACE_SECONDS / interval),
            )
        if self.state is _S.SERVING:
            self.client = self.backend.connect(
                self.output,
                new_properties=features.has(*MESSAGE_PROPERTIES_EX),
                description=printable(f"{identity.process_name or 'client'}:{identity.pid}@{self.peer}"),
            )
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s: %s", self.peer, printable(identity))

    # ---- actions: requests

    def _send(self, message: Message) -> None:
        self.output.event(encode_event(message, self.codec, escape_solidus=True, omit_empty_arrays=True))

    def _respond(self, body: ControlBody) -> None:
        assert isinstance(self._message, ControlMessage)
        self._send(ControlMessage(r_id=self._message.r_id, body=body))

    def _answer(self) -> None:
        message, client, now = self._message, self.client, self._now
        assert isinstance(message, ControlMessage)
        assert client is not None
        # What was posted before a request is delivered before its answer.
        self.backend.deliver(now)
        body = message.body
        match body:
            case OpenQueue():
                self._respond(client.open_queue(body, now))
            case ConfigureStream():
                refusal = client.configure(body.q_id, body.stream_parameters, now)
                self._respond(refusal or ConfigureStreamResponse(request=body))
            case ConfigureQueueStream():
                refusal = client.configure(body.q_id, stream_parameters(body.stream_parameters), now)
                self._respond(refusal or ConfigureQueueStreamResponse(request=body))
            case CloseQueue():
                self._respond(client.close_queue(body.handle_parameters, now, final=body.is_final))
            case _:
                self._complain(f"{type(body).__name__} is not for clients; ignored")
        self.backend.deliver(now)

    def _command(self) -> None:
        message = self._message
        assert isinstance(message, ControlMessage)
        if isinstance(message.body, AdminCommand):
            text = self.backend.admin(message.body.command, self._now)
            self._respond(AdminCommandResponse(text=text))

    def _part(self) -> None:
        self._leave()
        self._respond(DisconnectResponse())

    # ---- actions: messages

    def _post(self) -> None:
        client, now = self.client, self._now
        assert client is not None
        read = PutReader(client.inflate)
        for event in self._batch:
            error = read.event(event.data, event.body)
            if error is not None:
                self._complain(f"{error}; the rest of the event is ignored")
        for queue_id, puts in read.runs:
            if self._legacy:
                puts = [self._named(put) for put in puts]
            elif any(put[2] == UNSET_GUID for put in puts):
                client.refuse(queue_id, [put for put in puts if put[2] == UNSET_GUID])
                puts = [put for put in puts if put[2] != UNSET_GUID]
            client.post(queue_id, puts, now)

    def _named(self, put: Put) -> Put:
        """Give a legacy client's message a GUID; in its place came a correlation id."""
        flags, _, field, schema_id, compression, size, data = put
        correlation_id = int.from_bytes(field[_CORRELATION_ID], "big")
        flags = flags | _ACK_REQUESTED if correlation_id else flags & ~_ACK_REQUESTED
        guid = self._guids.next(int(self._now * 1e9))
        return flags, correlation_id, guid, schema_id, compression, size, data

    def _confirm(self) -> None:
        client = self.client
        assert client is not None
        confirms: list[Iterable[tuple[int, bytes, int]]] = []
        for event in self._batch:
            try:
                confirms.append(read_confirm_event(event.data, event.body))
            except ProtocolError as error:
                self._complain(f"{error}; ignored")
        client.confirm(chain.from_iterable(confirms), self._now)

    def _pulse(self) -> None:
        self.output.event(HEARTBEAT_RSP)

    def _ignore(self) -> None:
        kind = self._event.type if self._event is not None else None
        _log.debug("%s: an event of type %s is ignored", self.peer, kind)

    # ---- actions: the end

    def _leave(self) -> None:
        self._end(lost=False)

    def _lose(self) -> None:
        self._end(lost=True)

    def _end(self, *, lost: bool) -> None:
        client, self.client = self.client, None
        if client is not None:
            self.backend.disconnect(client, self._now, lost=lost)


def _older(identity: ClientIdentity, versions: dict[ClientLanguage, int]) -> bool:
    version, language = identity.sdk_version, identity.sdk_language
    if language is ClientLanguage.E_JAVA and version >= _JAVA_SNAPSHOT:
        version -= _JAVA_SNAPSHOT
    return version < versions.get(language, version)
