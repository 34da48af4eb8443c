# SPDX-License-Identifier: Apache-2.0
"""The messages that clients and brokers exchange to set things up (schema ``bmqp_ctrlmsg``).

There are three kinds: negotiation and control messages, both in CONTROL events, and authentication messages,
in AUTHENTICATION events. Attribute names are the protocol's, in snake case; defaults are the schema's. How
they look on the wire follows from the declarations here: see :mod:`bmq.wire.control.json` and
:mod:`bmq.wire.control.ber`.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag
from typing import TypeAlias

from bmq.errors import ProtocolError, StatusCategory, UsageError
from bmq.wire.control.schema import (
    BOOL,
    BYTES,
    I32,
    I64,
    STRING,
    U32,
    U64,
    ArrayKind,
    ChoiceKind,
    Structure,
    member,
    structure,
)

__all__ = [
    "CHOICES",
    "DEFAULT_APP_ID",
    "DEFAULT_DEDUPLICATION_TIME_MS",
    "INVALID_CONSUMER_PRIORITY",
    "MAX_BODY",
    "AdminCommand",
    "AdminCommandResponse",
    "AuthenticationMessage",
    "AuthenticationRequest",
    "AuthenticationResponse",
    "BrokerResponse",
    "ClientIdentity",
    "ClientLanguage",
    "ClientType",
    "CloseQueue",
    "CloseQueueResponse",
    "Codec",
    "ConfigureQueueStream",
    "ConfigureQueueStreamResponse",
    "ConfigureStream",
    "ConfigureStreamResponse",
    "ConsumerInfo",
    "ControlBody",
    "ControlMessage",
    "Disconnect",
    "DisconnectResponse",
    "Expression",
    "ExpressionVersion",
    "GuidInfo",
    "Message",
    "MessageKind",
    "NegotiationMessage",
    "OpenQueue",
    "OpenQueueResponse",
    "QueueFlags",
    "QueueHandleParameters",
    "QueueStreamParameters",
    "RoutingConfiguration",
    "RoutingFlags",
    "Status",
    "StatusCategory",
    "StreamParameters",
    "SubQueueIdInfo",
    "Subscription",
    "UnknownSelection",
    "check_size",
    "kind_of",
]

#: The application id of everything that is not a fanout reader.
DEFAULT_APP_ID = "__default"
#: A consumer that takes nothing: sent to deconfigure a stream.
INVALID_CONSUMER_PRIORITY = -(2**31)
#: ``deduplicationTimeMs`` where an answer leaves it out.
DEFAULT_DEDUPLICATION_TIME_MS = 300_000
#: ``sdkVersion`` of development builds, and where it is left out.
UNRELEASED_VERSION = 999_999
#: Largest body accepted from a peer, in bytes. The protocol sets no limit below that of events; but a parsed
#: message takes many times its length in memory, and the longest honest ones are answers to admin commands.
MAX_BODY = 16 * 1024 * 1024


class Codec(IntEnum):
    """How a control or authentication event is encoded: the top three bits of its header's byte 6."""

    BER = 0
    JSON = 1


class ClientType(IntEnum):
    """What is at the other end of a connection. A broker closes on E_UNKNOWN without an answer."""

    E_UNKNOWN = 0
    E_TCPCLIENT = 1
    E_TCPBROKER = 2
    E_TCPADMIN = 3


class ClientLanguage(IntEnum):
    """The SDK's language; the schema has no others."""

    E_UNKNOWN = 0
    E_CPP = 1
    E_JAVA = 2


class ExpressionVersion(IntEnum):
    """The language of a subscription expression; E_UNDEFINED goes with an empty text."""

    E_UNDEFINED = 0
    E_VERSION_1 = 1


class QueueFlags(IntFlag):
    """What a queue is opened for (``QueueHandleParameters.flags``)."""

    ADMIN = 1
    READ = 2
    WRITE = 4
    ACK = 8


class RoutingFlags(IntFlag):
    """How a broker routes a queue's messages (``RoutingConfiguration.flags``).

    Priority domains have 2, broadcast 7, fanout 10.
    """

    AT_MOST_ONCE = 1
    DELIVER_CONSUMER_PRIORITY = 2
    DELIVER_ALL = 4
    HAS_MULTIPLE_SUB_STREAMS = 8


@structure
class GuidInfo(Structure):
    """What keeps a client's GUIDs unique. Without it, or with an empty id, the broker makes the GUIDs.

    Attributes:
        client_id: six bytes as twelve upper-case hexadecimal digits.
        nano_seconds_from_epoch: when the client's GUID timer stood at zero.
    """

    client_id: str = member(0, STRING)
    nano_seconds_from_epoch: int = member(1, I64)


@structure
class ClientIdentity(Structure):
    """Who is talking: the first message of a connection after authentication.

    Attributes:
        features: what the sender can do; see :mod:`bmq.wire.control.features`.
        cluster_name: not empty only between brokers.
    """

    protocol_version: int = member(0, I32)
    sdk_version: int = member(1, I32, default=UNRELEASED_VERSION)
    client_type: ClientType = member(2, ClientType)
    process_name: str = member(3, STRING)
    pid: int = member(4, I32)
    session_id: int = member(5, I32, default=1)
    host_name: str = member(6, STRING)
    features: str = member(7, STRING)
    cluster_name: str = member(8, STRING)
    cluster_node_id: int = member(9, I32, default=-1)
    sdk_language: ClientLanguage = member(10, ClientLanguage, default=ClientLanguage.E_CPP)
    guid_info: GuidInfo = member(11, GuidInfo)
    user_agent: str = member(12, STRING)


@structure
class Status(Structure):
    """The outcome of a request.

    Attributes:
        code: a second number, meaningful only together with the message.
    """

    category: StatusCategory = member(0, StatusCategory)
    code: int = member(1, I32)
    message: str = member(2, STRING)


@structure
class BrokerResponse(Structure):
    """The broker's answer to a :class:`ClientIdentity`.

    Attributes:
        heartbeat_interval_ms: how often the broker probes a silent connection.
        max_missed_heartbeats: how many unanswered probes end it; 0 means no probes.
    """

    result: Status = member(0, Status)
    protocol_version: int = member(1, I32)
    broker_version: int = member(2, I32)
    is_deprecated_sdk: bool = member(3, BOOL)
    broker_identity: ClientIdentity = member(4, ClientIdentity)
    heartbeat_interval_ms: int = member(5, I32, default=3000)
    max_missed_heartbeats: int = member(6, I32, default=10)


@structure
class AuthenticationRequest(Structure):
    """Credentials.

    Attributes:
        mechanism: BASIC, ANONYMOUS, or what the broker has a plugin for.
        data: the credentials themselves; for BASIC ``user:password``. Never shown in a repr.
    """

    mechanism: str = member(0, STRING)
    data: bytes | None = member(1, BYTES, optional=True, secret=True)


@structure
class AuthenticationResponse(Structure):
    """The broker's verdict on credentials.

    Attributes:
        lifetime_ms: milliseconds within which they must be renewed; None for never.
    """

    status: Status = member(0, Status)
    lifetime_ms: int | None = member(1, U64, optional=True)


@structure
class SubQueueIdInfo(Structure):
    """Which application of a fanout queue a reader is.

    Attributes:
        sub_id: chosen by the client, small and dense for each queue; 0 is the default application's.
    """

    sub_id: int = member(0, U32)
    app_id: str = member(1, STRING, default=DEFAULT_APP_ID)


@structure
class QueueHandleParameters(Structure):
    """What a queue is opened as.

    Attributes:
        q_id: chosen by the client, one for each queue whatever the application.
        sub_id_info: only for the reader of one application of a fanout queue.
        flags: the bits of :class:`QueueFlags`. A plain integer, as a peer may set bits not known here.
        read_count: 1 when READ is set, else 0; likewise the other counts.
    """

    uri: str = member(0, STRING)
    q_id: int = member(1, U32)
    sub_id_info: SubQueueIdInfo | None = member(2, SubQueueIdInfo, optional=True)
    flags: int = member(3, U64)
    read_count: int = member(4, I32)
    write_count: int = member(5, I32)
    admin_count: int = member(6, I32)


@structure
class OpenQueue(Structure):
    """Open a queue, or one application of it."""

    handle_parameters: QueueHandleParameters = member(0, QueueHandleParameters)


@structure
class RoutingConfiguration(Structure):
    """How the broker routes an opened queue's messages.

    Attributes:
        flags: the bits of :class:`RoutingFlags`. A plain integer, as a peer may set bits not known here.
    """

    flags: int = member(0, U64)


@structure
class OpenQueueResponse(Structure):
    """The queue is open.

    Attributes:
        deduplication_time_ms: for how long the broker recognises a GUID it has seen.
    """

    original_request: OpenQueue = member(0, OpenQueue)
    routing_configuration: RoutingConfiguration = member(1, RoutingConfiguration)
    deduplication_time_ms: int = member(2, I32, default=DEFAULT_DEDUPLICATION_TIME_MS)


@structure
class Expression(Structure):
    """A subscription's expression; an empty text matches everything."""

    version: ExpressionVersion = member(0, ExpressionVersion)
    text: str = member(1, STRING)


@structure
class ConsumerInfo(Structure):
    """How much a consumer takes, and its priority.

    Attributes:
        consumer_priority: the highest is served first.
        consumer_priority_count: how many consumers this one stands for; 0 goes with the invalid priority.
    """

    max_unconfirmed_messages: int = member(0, I64)
    max_unconfirmed_bytes: int = member(1, I64)
    consumer_priority: int = member(2, I32, default=INVALID_CONSUMER_PRIORITY)
    consumer_priority_count: int = member(3, I32)


@structure
class Subscription(Structure):
    """One subscription of a stream.

    Attributes:
        s_id: chosen by the client; pushed messages name it.
    """

    s_id: int = member(0, U32)
    expression: Expression = member(1, Expression)
    consumers: tuple[ConsumerInfo, ...] = member(2, ArrayKind(ConsumerInfo))


@structure
class StreamParameters(Structure):
    """All subscriptions of one application of a queue; none at all deconfigures it."""

    app_id: str = member(0, STRING, default=DEFAULT_APP_ID)
    subscriptions: tuple[Subscription, ...] = member(1, ArrayKind(Subscription))


@structure
class ConfigureStream(Structure):
    """Replace the subscriptions of one application of a queue."""

    q_id: int = member(0, U32)
    stream_parameters: StreamParameters = member(1, StreamParameters)


@structure
class ConfigureStreamResponse(Structure):
    """The subscriptions are in force."""

    request: ConfigureStream = member(0, ConfigureStream)


@structure
class QueueStreamParameters(Structure):
    """The older form of :class:`StreamParameters`: one subscription without an expression."""

    sub_id_info: SubQueueIdInfo | None = member(0, SubQueueIdInfo, optional=True)
    max_unconfirmed_messages: int = member(1, I64)
    max_unconfirmed_bytes: int = member(2, I64)
    consumer_priority: int = member(3, I32, default=INVALID_CONSUMER_PRIORITY)
    consumer_priority_count: int = member(4, I32)


@structure
class ConfigureQueueStream(Structure):
    """The older form of :class:`ConfigureStream`, accepted by every broker."""

    q_id: int = member(0, U32)
    stream_parameters: QueueStreamParameters = member(1, QueueStreamParameters)


@structure
class ConfigureQueueStreamResponse(Structure):
    """The stream is configured."""

    request: ConfigureQueueStream = member(0, ConfigureQueueStream)


@structure
class CloseQueue(Structure):
    """Close a queue, or one application of it.

    Attributes:
        is_final: nothing else of this queue stays open.
    """

    handle_parameters: QueueHandleParameters = member(0, QueueHandleParameters)
    is_final: bool = member(1, BOOL)


@structure
class CloseQueueResponse(Structure):
    """The queue is closed."""


@structure
class Disconnect(Structure):
    """The last request of a session."""


@structure
class DisconnectResponse(Structure):
    """The last answer of a session; the client may close the connection."""


@structure
class AdminCommand(Structure):
    """A command to the broker, in the broker's own language."""

    command: str = member(0, STRING)


@structure
class AdminCommandResponse(Structure):
    """What the broker printed in answer to a command."""

    text: str = member(0, STRING)


ControlBody: TypeAlias = (
    Status
    | Disconnect
    | DisconnectResponse
    | AdminCommand
    | AdminCommandResponse
    | OpenQueue
    | OpenQueueResponse
    | CloseQueue
    | CloseQueueResponse
    | ConfigureQueueStream
    | ConfigureQueueStreamResponse
    | ConfigureStream
    | ConfigureStreamResponse
)

_CONTROL = ChoiceKind(
    {
        0: Status,
        1: Disconnect,
        2: DisconnectResponse,
        7: AdminCommand,
        8: AdminCommandResponse,
        10: OpenQueue,
        11: OpenQueueResponse,
        12: CloseQueue,
        13: CloseQueueResponse,
        14: ConfigureQueueStream,
        15: ConfigureQueueStreamResponse,
        16: ConfigureStream,
        17: ConfigureStreamResponse,
    }
)


@structure
class ControlMessage(Structure):
    """A request or its answer.

    Attributes:
        r_id: the number an answer is matched by: chosen by the client, not negative. Without it a broker
            ignores the message.
        body: the request or answer; None when its type is unknown: then ignore the message.
    """

    r_id: int | None = member(0, I32, optional=True)
    body: ControlBody | None = member(1, _CONTROL)


NegotiationMessage: TypeAlias = ClientIdentity | BrokerResponse
AuthenticationMessage: TypeAlias = AuthenticationRequest | AuthenticationResponse
Message: TypeAlias = ControlMessage | NegotiationMessage | AuthenticationMessage


class MessageKind(Enum):
    """The kind of a message. Its bytes do not say it: it follows from the phase of the connection."""

    NEGOTIATION = "NegotiationMessage"
    CONTROL = "ControlMessage"
    AUTHENTICATION = "AuthenticationMessage"


#: The kinds whose top level is itself a choice.
CHOICES: dict[MessageKind, ChoiceKind] = {
    MessageKind.NEGOTIATION: ChoiceKind({0: ClientIdentity, 1: BrokerResponse}),
    MessageKind.AUTHENTICATION: ChoiceKind({0: AuthenticationRequest, 1: AuthenticationResponse}),
}


class UnknownSelection(ProtocolError):
    """A message is none of those that this version knows; a newer peer may have others."""


def kind_of(message: Message) -> MessageKind:
    """Return the kind of a message.

    Raises:
        UsageError: it cannot be sent on its own, such as a body without its
            :class:`ControlMessage`.
    """
    if isinstance(message, ControlMessage):
        return MessageKind.CONTROL
    for kind, choice in CHOICES.items():
        if type(message) in choice.ids:
            return kind
    name = type(message).__name__
    hint = f"; send it as ControlMessage(r_id, {name}(...))" if type(message) in _CONTROL.ids else ""
    raise UsageError(f"{name} is not a whole message{hint}")


def check_size(length: int, kind: MessageKind, offset: int) -> None:
    """Refuse a body that is too long to be honest, before it is parsed.

    Raises:
        ProtocolError: it is longer than :data:`MAX_BODY`.
    """
    if length > MAX_BODY:
        raise ProtocolError(
            f"expected at most {MAX_BODY} bytes, got {length}", field=kind.value, offset=offset
        )
