# SPDX-License-Identifier: Apache-2.0
"""The messages that set up and end sessions, queues and streams (schema ``bmqp_ctrlmsg``).

The three kinds are negotiation and control messages, both in CONTROL events, and authentication messages,
in AUTHENTICATION events. Attribute names are the protocol's, in snake case; defaults are the schema's. The
encodings follow from these declarations: see :mod:`bmq.wire.control.json` and :mod:`bmq.wire.control.ber`.
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

#: The application id of every queue that is not an application of a fanout queue.
DEFAULT_APP_ID = "__default"
#: The priority of a consumer that takes no messages, used to deconfigure a stream.
INVALID_CONSUMER_PRIORITY = -(2**31)
#: ``deduplicationTimeMs`` if the answer omits it.
DEFAULT_DEDUPLICATION_TIME_MS = 300_000
#: ``sdkVersion`` of development builds, and the default.
UNRELEASED_VERSION = 999_999
#: Largest body in bytes accepted from a peer. The protocol limits only events, but a parsed message takes
#: many times its length in memory. The longest honest bodies are answers to admin commands.
MAX_BODY = 16 * 1024 * 1024


class Codec(IntEnum):
    """The encoding of a control or authentication event: the top three bits of byte 6 of its header."""

    BER = 0
    JSON = 1


class ClientType(IntEnum):
    """The kind of a peer. A broker closes the connection on E_UNKNOWN, without an answer."""

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
    """The purposes of an open queue (``QueueHandleParameters.flags``)."""

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
    """The basis of a client's unique GUIDs. Without it, or with an empty id, the broker makes the GUIDs.

    Attributes:
        client_id: six bytes as twelve upper-case hexadecimal digits.
        nano_seconds_from_epoch: start of the client's GUID timer.
    """

    client_id: str = member(0, STRING)
    nano_seconds_from_epoch: int = member(1, I64)


@structure
class ClientIdentity(Structure):
    """The sender of a connection: the first message after authentication.

    Attributes:
        features: the sender's capabilities; see :mod:`bmq.wire.control.features`.
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
        heartbeat_interval_ms: silence after which the broker sends a heartbeat request.
        max_missed_heartbeats: number of silent intervals after which the broker closes the connection; 0
            disables heartbeats.
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
        mechanism: BASIC, ANONYMOUS, or the mechanism of a broker plugin.
        data: the credentials themselves; for BASIC ``user:password``. Never shown in a repr.
    """

    mechanism: str = member(0, STRING)
    data: bytes | None = member(1, BYTES, optional=True, secret=True)


@structure
class AuthenticationResponse(Structure):
    """The broker's verdict on credentials.

    Attributes:
        lifetime_ms: milliseconds until the client must authenticate again; None for never.
    """

    status: Status = member(0, Status)
    lifetime_ms: int | None = member(1, U64, optional=True)


@structure
class SubQueueIdInfo(Structure):
    """A reader's application of a fanout queue.

    Attributes:
        sub_id: chosen by the client, small and dense for each queue; 0 for the default application.
    """

    sub_id: int = member(0, U32)
    app_id: str = member(1, STRING, default=DEFAULT_APP_ID)


@structure
class QueueHandleParameters(Structure):
    """The parameters of an open queue.

    Attributes:
        q_id: chosen by the client; one number for each queue, shared by its applications.
        sub_id_info: the application of a fanout queue; None for all other readers.
        flags: the bits of :class:`QueueFlags`. A plain integer, because a peer may set unknown bits.
        read_count: 1 if READ is set, else 0; likewise the other counts.
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
    """The broker's routing of an opened queue's messages.

    Attributes:
        flags: the bits of :class:`RoutingFlags`. A plain integer, because a peer may set unknown bits.
    """

    flags: int = member(0, U64)


@structure
class OpenQueueResponse(Structure):
    """The queue is open.

    Attributes:
        deduplication_time_ms: time during which the broker recognises a repeated GUID.
    """

    original_request: OpenQueue = member(0, OpenQueue)
    routing_configuration: RoutingConfiguration = member(1, RoutingConfiguration)
    deduplication_time_ms: int = member(2, I32, default=DEFAULT_DEDUPLICATION_TIME_MS)


@structure
class Expression(Structure):
    """A subscription's expression; an empty text matches every message."""

    version: ExpressionVersion = member(0, ExpressionVersion)
    text: str = member(1, STRING)


@structure
class ConsumerInfo(Structure):
    """A consumer's limits and priority.

    Attributes:
        consumer_priority: the broker serves the highest priority first.
        consumer_priority_count: number of consumers behind this entry; 0 with the invalid priority.
    """

    max_unconfirmed_messages: int = member(0, I64)
    max_unconfirmed_bytes: int = member(1, I64)
    consumer_priority: int = member(2, I32, default=INVALID_CONSUMER_PRIORITY)
    consumer_priority_count: int = member(3, I32)


@structure
class Subscription(Structure):
    """One subscription of a stream.

    Attributes:
        s_id: chosen by the client; repeated in each PUSH message.
    """

    s_id: int = member(0, U32)
    expression: Expression = member(1, Expression)
    consumers: tuple[ConsumerInfo, ...] = member(2, ArrayKind(ConsumerInfo))


@structure
class StreamParameters(Structure):
    """All subscriptions of one application of a queue; an empty list deconfigures the stream."""

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
    """Close a queue, or one application of a queue.

    Attributes:
        is_final: whether no other application of the queue stays open.
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
    """A command to the broker, in the broker's command language."""

    command: str = member(0, STRING)


@structure
class AdminCommandResponse(Structure):
    """The broker's printed output for a command."""

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
        r_id: number that matches an answer to its request; chosen by the client, not negative. A broker
            ignores a message without it.
        body: the request or answer; None if the type is unknown, then ignore the message.
    """

    r_id: int | None = member(0, I32, optional=True)
    body: ControlBody | None = member(1, _CONTROL)


NegotiationMessage: TypeAlias = ClientIdentity | BrokerResponse
AuthenticationMessage: TypeAlias = AuthenticationRequest | AuthenticationResponse
Message: TypeAlias = ControlMessage | NegotiationMessage | AuthenticationMessage


class MessageKind(Enum):
    """The kind of a message, known from the phase of the connection and not from the bytes."""

    NEGOTIATION = "NegotiationMessage"
    CONTROL = "ControlMessage"
    AUTHENTICATION = "AuthenticationMessage"


#: The kinds with a choice at the top level.
CHOICES: dict[MessageKind, ChoiceKind] = {
    MessageKind.NEGOTIATION: ChoiceKind({0: ClientIdentity, 1: BrokerResponse}),
    MessageKind.AUTHENTICATION: ChoiceKind({0: AuthenticationRequest, 1: AuthenticationResponse}),
}


class UnknownSelection(ProtocolError):
    """A message selects no variant known to this version; a newer peer may have others."""


def kind_of(message: Message) -> MessageKind:
    """Return the kind of a message.

    Raises:
        UsageError: the message cannot be sent on its own, such as a body without its
            :class:`ControlMessage`.
    """
    if isinstance(message, ControlMessage):
        return MessageKind.CONTROL
    for kind, choice in CHOICES.items():
        if type(message) in choice.ids:
            return kind
    name = type(message).__name__
    hint = f"; use ControlMessage(r_id, {name}(...))" if type(message) in _CONTROL.ids else ""
    raise UsageError(f"{name} is not a whole message{hint}")


def check_size(length: int, kind: MessageKind, offset: int) -> None:
    """Refuse an oversized body before parsing.

    Raises:
        ProtocolError: the body is longer than :data:`MAX_BODY`.
    """
    if length > MAX_BODY:
        raise ProtocolError(
            f"expected at most {MAX_BODY} bytes, got {length}", field=kind.value, offset=offset
        )
