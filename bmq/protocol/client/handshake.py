# SPDX-License-Identifier: Apache-2.0
"""The start of a connection, client role: optional authentication, then negotiation; renewed credentials.

The kernel of a hung broker still accepts connections: a client with several addresses negotiates with the
next address concurrently. The session's core takes no part: the dialer hands the first finished candidate to
:meth:`bmq.protocol.client.core.ClientCore.channel_opened`, with the events behind the broker's answer, and
closes the other candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from bmq import _checks
from bmq.errors import (
    AuthenticationError,
    ConnectionFailed,
    Error,
    NegotiationError,
    ProtocolError,
    StatusCategory,
    UsageError,
)
from bmq.protocol.framing import Framer
from bmq.protocol.machine import Machine, Transition
from bmq.wire.constants import DEFAULT_MAX_INCOMING_EVENT, EventType
from bmq.wire.control import (
    CONFIGURE_STREAM,
    MESSAGE_PROPERTIES_EX,
    AuthenticationRequest,
    AuthenticationResponse,
    BrokerResponse,
    ClientIdentity,
    Codec,
    MessageKind,
    UnknownSelection,
    parse_features,
)
from bmq.wire.control_event import decode_event, encode_event, request_id
from bmq.wire.event import HEARTBEAT_RSP, Event, read_event
from bmq.wire.notice import Notice
from bmq.wire.printable import printable

__all__ = [
    "BrokerInfo",
    "Credentials",
    "Handshake",
    "HandshakeInput",
    "HandshakeState",
    "Renewal",
    "authentication_request",
    "not_a_broker",
]

# Renew at 90 % of the lifetime or five seconds before the end, whichever is earlier; half-way if the lifetime
# is short.
_RENEW_AT = 0.9
_MARGIN = 5.0
_SHORT = 2 * _MARGIN
# After a failed attempt, try again after half of the remaining time, but not more often than this, in
# seconds.
_MIN_RETRY = 0.1


# Maximum number of distinct skipped elements to report.
_MOST_SKIPPED = 100


@dataclass(frozen=True, slots=True)
class Credentials:
    """Proof of the client's identity.

    ::

        credentials = bmq.Credentials.basic("user", "secret")
        session = await bmq.connect(broker, credentials=credentials)

    Attributes:
        mechanism: BASIC, ANONYMOUS, or the name of a mechanism for which the broker has a plugin.
        data: for BASIC ``b"user:password"``; None for no data. ``repr()`` omits the data.

    Raises:
        UsageError: the mechanism is empty or not a string, or the data is not bytes.
    """

    mechanism: str
    data: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanism", _checks.text("mechanism", self.mechanism, empty=False))
        given: Any = self.data
        if given is not None and not isinstance(given, bytes | bytearray | memoryview):
            # Do not repeat the value: it may be a password.
            raise UsageError(f"the data of credentials must be bytes or None, not {type(given).__name__}")
        object.__setattr__(self, "data", _checks.optional(_checks.octets, "data", self.data))

    @classmethod
    def basic(cls, user: str, password: str) -> Credentials:
        """Return credentials for the mechanism BASIC.

        Raises:
            UsageError: an argument is not a string, or the user name contains a colon.
        """
        user = _checks.text("user", user)
        if ":" in user:
            raise UsageError("a user name cannot contain a colon: the mechanism BASIC ends the name there")
        try:
            password = _checks.text("password", password)
        except UsageError:
            raise UsageError("a password must be a str without NUL and lone surrogates") from None
        return cls("BASIC", f"{user}:{password}".encode())

    @classmethod
    def anonymous(cls) -> Credentials:
        """Return credentials for the mechanism ANONYMOUS."""
        return cls("ANONYMOUS")


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """The broker's identity in the negotiation.

    Attributes:
        name: process and host, for people.
        version: version number; 999999 is a development build.
        features: capabilities, as text.
        new_properties: whether the broker supports the new property encoding.
        configure_stream: whether the broker announces configureStream.
        heartbeat_interval: seconds between heartbeats.
        max_missed_heartbeats: number of silent intervals until the connection is considered dead; 0 disables
            heartbeats.
        deprecates: whether the broker reports this version of the client as deprecated.
    """

    name: str
    version: int
    features: str
    new_properties: bool
    configure_stream: bool
    heartbeat_interval: float
    max_missed_heartbeats: int
    deprecates: bool


class HandshakeState(Enum):
    """The states of a handshake."""

    IDLE = "not begun, or refused"
    AUTHENTICATING = "authenticationRequest sent"
    NEGOTIATING = "clientIdentity sent"
    DONE = "negotiated"


class HandshakeInput(Enum):
    """The inputs of a handshake."""

    CONNECTED = "connected, no credentials"
    CONNECTED_WITH_CREDENTIALS = "connected, with credentials"
    AUTHENTICATED = "authenticationResponse: success"
    NEGOTIATED = "brokerResponse: success"
    REFUSED = "a response with a failure"


_S, _I = HandshakeState, HandshakeInput
# Other types come from newer brokers, or from a peer other than a broker: the peer's silence ends the
# handshake.
_EVENT_TYPES = frozenset(map(int, EventType)) - {EventType.UNDEFINED}


class Handshake(Machine):
    """A connection up to the end of the negotiation: bytes in, bytes out. A session may try several.

    Args:
        identity: client's identity in the negotiation.
        max_incoming_event: largest event accepted, in bytes.

    Attributes:
        state: state of the handshake.
        framer: splits the stream into events; belongs to the connection.
        broker: broker's identity, after the negotiation.
        lifetime: seconds until the credentials must be renewed, or None.
        error: failure of the handshake, or None.
        rest: events after the broker's answer.
        skipped: elements sent only by newer brokers, each once.
    """

    __slots__ = ("_identity", "broker", "error", "framer", "lifetime", "rest", "skipped")

    state: HandshakeState

    def __init__(
        self, identity: ClientIdentity, max_incoming_event: int = DEFAULT_MAX_INCOMING_EVENT
    ) -> None:
        self.state = HandshakeState.IDLE
        self.framer = Framer(max_incoming_event)
        self._identity = identity
        self.broker: BrokerInfo | None = None
        self.lifetime: float | None = None
        self.error: Error | None = None
        self.rest: list[Event] = []
        self.skipped: dict[str, None] = {}

    @property
    def done(self) -> bool:
        """Whether the connection is negotiated."""
        return self.state is HandshakeState.DONE

    def begin(self, credentials: Credentials | None) -> bytes:
        """Return the event to send first."""
        event: bytes = (
            self.fire(_I.CONNECTED)
            if credentials is None
            else self.fire(_I.CONNECTED_WITH_CREDENTIALS, credentials)
        )
        return event

    def receive(self, data: bytes) -> bytes:
        """Process bytes from the broker; return bytes to send. Never raises: see :attr:`error`."""
        if self.error is not None:
            return b""
        events, broken = self.framer.feed(data)
        answers = b""
        for event in events:
            if self.done:
                self.rest.append(event)
            elif event.type == EventType.HEARTBEAT_REQ:
                answers = answers or HEARTBEAT_RSP
            else:
                try:
                    answers += self._take(event)
                except ProtocolError as error:
                    self.error = not_a_broker(error)
                    self.error.__cause__ = error
                if self.error is not None:
                    return b""
        if broken is not None and not self.done:
            self.error = not_a_broker(broken)
        return answers

    def _take(self, event: Event) -> bytes:
        """Process the broker's answer; return the next event to send, if any.

        Raises:
            ProtocolError: the answer is not legal.
        """
        if event.body and event.type not in _EVENT_TYPES:
            self._notice(f"events of type {event.type}")
            return b""
        if not event.body:
            read_event(event.data)  # raises the error of the header
        authenticating = self.state is HandshakeState.AUTHENTICATING
        wanted = EventType.AUTHENTICATION if authenticating else EventType.CONTROL
        if event.type != wanted:
            raise ProtocolError(
                f"the handshake expects {wanted.name}, and the event is of type {event.type}",
                field="EventHeader.type",
            )
        try:
            if authenticating:
                return self._authentication_answered(_authentication_response(event, self._notice))
            message = decode_event(event, MessageKind.NEGOTIATION, self._notice)
        except UnknownSelection as error:
            # A newer broker may send further messages, but no ControlMessage before its answer.
            if (r_id := request_id(event)) is not None:
                raise ProtocolError(f"the answer to request {r_id} came before the negotiation") from error
            self._notice(f"a message in the handshake: {error}")
            return b""
        if not isinstance(message, BrokerResponse):
            raise ProtocolError("the peer negotiated as a client")
        self._negotiation_answered(message)
        return b""

    def _notice(self, what: str) -> None:
        if len(self.skipped) < _MOST_SKIPPED:
            self.skipped[what] = None

    def _authentication_answered(self, answer: AuthenticationResponse) -> bytes:
        if answer.status.category != StatusCategory.E_SUCCESS:
            self.fire(_I.REFUSED, _authentication_error(answer))
            return b""
        self.lifetime = _lifetime(answer)
        event: bytes = self.fire(_I.AUTHENTICATED)
        return event

    def _negotiation_answered(self, message: BrokerResponse) -> None:
        result = message.result
        if result.category != StatusCategory.E_SUCCESS:
            error = NegotiationError(
                f"the broker refused the session: {printable(result.message) or 'no reason given'} "
                f"({result.category.name}, code {result.code})"
            )
            self.fire(_I.REFUSED, error)
        else:
            self.fire(_I.NEGOTIATED, message)

    # actions

    def _authenticate(self, credentials: Credentials) -> bytes:
        return authentication_request(credentials)

    def _negotiate(self) -> bytes:
        return encode_event(self._identity, Codec.JSON)

    def _finish(self, message: BrokerResponse) -> None:
        identity = message.broker_identity
        features = parse_features(identity.features)
        self.broker = BrokerInfo(
            name=printable(f"{identity.process_name or 'broker'} on {identity.host_name or 'unknown host'}"),
            version=message.broker_version,
            features=identity.features,
            new_properties=features.has(*MESSAGE_PROPERTIES_EX),
            configure_stream=features.has(*CONFIGURE_STREAM),
            heartbeat_interval=message.heartbeat_interval_ms / 1000,
            max_missed_heartbeats=message.max_missed_heartbeats,
            deprecates=message.is_deprecated_sdk,
        )

    def _fail(self, error: Error) -> None:
        self.error = error

    TRANSITIONS: ClassVar = {
        (_S.IDLE, _I.CONNECTED): Transition(_negotiate, _S.NEGOTIATING),
        (_S.IDLE, _I.CONNECTED_WITH_CREDENTIALS): Transition(_authenticate, _S.AUTHENTICATING),
        (_S.AUTHENTICATING, _I.AUTHENTICATED): Transition(_negotiate, _S.NEGOTIATING),
        (_S.AUTHENTICATING, _I.REFUSED): Transition(_fail, _S.IDLE),
        (_S.NEGOTIATING, _I.NEGOTIATED): Transition(_finish, _S.DONE),
        (_S.NEGOTIATING, _I.REFUSED): Transition(_fail, _S.IDLE),
    }


class Renewal:
    """Watches the lifetime given in an authenticationResponse.

    Attributes:
        due: time of the next renewal, or None.
        ends: end of the authentication, or None.
        asked: whether a renewal is unanswered.
    """

    __slots__ = ("asked", "due", "ends")

    def __init__(self) -> None:
        self.asked = False
        self.due: float | None = None
        self.ends: float | None = None

    def answered(self, event: Event, notice: Notice, now: float) -> None:
        """Process the answer to renewed credentials in a live session.

        Raises:
            AuthenticationError: the broker refused the credentials.
            ProtocolError: the answer is not legal; the old credentials stay valid.
        """
        answer = _authentication_response(event, notice)
        if answer.status.category != StatusCategory.E_SUCCESS:
            raise _authentication_error(answer)
        self.authenticated(_lifetime(answer), now)

    def authenticated(self, lifetime: float | None, now: float) -> None:
        """Record accepted credentials with a lifetime in seconds; None for no limit."""
        self.asked = False
        if lifetime is None:
            self.clear()
            return
        short = lifetime < _SHORT
        self.due = now + (lifetime / 2 if short else min(_RENEW_AT * lifetime, lifetime - _MARGIN))
        self.ends = now + lifetime

    def failed(self, now: float) -> None:
        """Schedule another attempt while time remains: no credentials were available."""
        if self.ends is not None:
            again = now + max(_MIN_RETRY, (self.ends - now) / 2)
            self.due = again if again < self.ends else None

    def clear(self) -> None:
        """Stop watching: no connection, or no lifetime."""
        self.due = self.ends = None

    def take_due(self, now: float) -> bool:
        """Return True once when the renewal is due."""
        if self.due is None or now < self.due:
            return False
        self.due = None
        return True

    def take_end(self, now: float) -> bool:
        """Return True once when the authentication is over."""
        if self.ends is None or now < self.ends:
            return False
        self.clear()
        return True


def not_a_broker(error: ProtocolError) -> ConnectionFailed:
    """Return the error for a peer that does not speak the protocol."""
    return ConnectionFailed(f"the peer does not behave like a BlazingMQ broker: {error}")


def authentication_request(credentials: Credentials) -> bytes:
    """Return the event with credentials."""
    request = AuthenticationRequest(mechanism=credentials.mechanism, data=credentials.data)
    return encode_event(request, Codec.JSON)


def _authentication_response(event: Event, notice: Notice) -> AuthenticationResponse:
    answer = decode_event(event, MessageKind.AUTHENTICATION, notice)
    if not isinstance(answer, AuthenticationResponse):
        raise ProtocolError(
            "the broker answered the credentials with a request for credentials", field="authentication"
        )
    return answer


def _lifetime(answer: AuthenticationResponse) -> float | None:
    return None if answer.lifetime_ms is None else max(0, answer.lifetime_ms) / 1000


def _authentication_error(answer: AuthenticationResponse) -> AuthenticationError:
    status = answer.status
    return AuthenticationError(
        f"the broker refused the credentials: {printable(status.message) or 'no reason given'} "
        f"({status.category.name}, code {status.code})"
    )
