# SPDX-License-Identifier: Apache-2.0
"""The messages that set up and end sessions, queues and streams (schema ``bmqp_ctrlmsg``).

The three kinds are negotiation and control messages, both in CONTROL events, and authentication messages,
in AUTHENTICATION events. Attribute names are the protocol's, in snake case; defaults are the schema's. The
encodings follow from these declarations: see :mod:`bmq.wire.control.json` and :mod:`bmq.wire.control.ber`.
"""

from __future__ import annotations

import functools
import types
from enum import Enum, IntEnum, IntFlag
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from bmq.errors import ProtocolError, StatusCategory, UsageError

__all__ = [
    "DEFAULT_APP_ID",
    "DEFAULT_DEDUPLICATION_TIME_MS",
    "INVALID_CONSUMER_PRIORITY",
    "MAX_BODY",
    "SELECTIONS",
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
    "Member",
    "Message",
    "MessageKind",
    "NegotiationMessage",
    "OpenQueue",
    "OpenQueueResponse",
    "QueueFlags",
    "QueueHandleParameters",
    "QueueStreamParameters",
    "RequestId",
    "RoutingConfiguration",
    "RoutingFlags",
    "Status",
    "StatusCategory",
    "StreamParameters",
    "Structure",
    "SubQueueIdInfo",
    "Subscription",
    "UnknownSelection",
    "check_size",
    "json_schema",
    "kind_of",
    "members",
    "selection_name",
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


_I32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_I64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_U32: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_U64: TypeAlias = Annotated[int, Meta(ge=0)]  # msgspec has no larger bound
#: A request id; None in a message without one.
RequestId: TypeAlias = _I32 | None


class Structure(Struct, frozen=True, rename="camel"):
    """Base of all structures: the order of the members is that of the schema; the index is the id in BER."""


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


class GuidInfo(Structure, frozen=True):
    """The basis of a client's unique GUIDs. Without it, or with an empty id, the broker makes the GUIDs.

    Attributes:
        client_id: six bytes as twelve upper-case hexadecimal digits.
        nano_seconds_from_epoch: start of the client's GUID timer.
    """

    client_id: str = ""
    nano_seconds_from_epoch: _I64 = 0


class ClientIdentity(Structure, frozen=True):
    """The sender of a connection: the first message after authentication.

    Attributes:
        features: the sender's capabilities; see :mod:`bmq.wire.control.features`.
        cluster_name: not empty only between brokers.
    """

    protocol_version: _I32 = 0
    sdk_version: _I32 = UNRELEASED_VERSION
    client_type: ClientType = ClientType.E_UNKNOWN
    process_name: str = ""
    pid: _I32 = 0
    session_id: _I32 = 1
    host_name: str = ""
    features: str = ""
    cluster_name: str = ""
    cluster_node_id: _I32 = -1
    sdk_language: ClientLanguage = ClientLanguage.E_CPP
    guid_info: GuidInfo = GuidInfo()
    user_agent: str = ""


class Status(Structure, frozen=True):
    """The outcome of a request.

    Attributes:
        code: a second number, meaningful only together with the message.
    """

    category: StatusCategory = StatusCategory.E_SUCCESS
    code: _I32 = 0
    message: str = ""


class BrokerResponse(Structure, frozen=True):
    """The broker's answer to a :class:`ClientIdentity`.

    Attributes:
        heartbeat_interval_ms: silence after which the broker sends a heartbeat request.
        max_missed_heartbeats: number of silent intervals after which the broker closes the connection; 0
            disables heartbeats.
    """

    result: Status = Status()
    protocol_version: _I32 = 0
    broker_version: _I32 = 0
    is_deprecated_sdk: bool = False
    broker_identity: ClientIdentity = ClientIdentity()
    heartbeat_interval_ms: _I32 = 3000
    max_missed_heartbeats: _I32 = 10


class AuthenticationRequest(Structure, frozen=True):
    """Credentials.

    Attributes:
        mechanism: BASIC, ANONYMOUS, or the mechanism of a broker plugin.
        data: the credentials themselves; for BASIC ``user:password``. Never shown in a repr.
    """

    mechanism: str = ""
    data: bytes | None = None

    def __repr__(self) -> str:
        data = "..." if self.data else repr(self.data)
        return f"AuthenticationRequest(mechanism={self.mechanism!r}, data={data})"


class AuthenticationResponse(Structure, frozen=True):
    """The broker's verdict on credentials.

    Attributes:
        lifetime_ms: milliseconds until the client must authenticate again; None for never.
    """

    status: Status = Status()
    lifetime_ms: _U64 | None = None


class SubQueueIdInfo(Structure, frozen=True):
    """A reader's application of a fanout queue.

    Attributes:
        sub_id: chosen by the client, small and dense for each queue; 0 for the default application.
    """

    sub_id: _U32 = 0
    app_id: str = DEFAULT_APP_ID


class QueueHandleParameters(Structure, frozen=True):
    """The parameters of an open queue.

    Attributes:
        q_id: chosen by the client; one number for each queue, shared by its applications.
        sub_id_info: the application of a fanout queue; None for all other readers.
        flags: the bits of :class:`QueueFlags`. A plain integer, because a peer may set unknown bits.
        read_count: 1 if READ is set, else 0; likewise the other counts.
    """

    uri: str = ""
    q_id: _U32 = 0
    sub_id_info: SubQueueIdInfo | None = None
    flags: _U64 = 0
    read_count: _I32 = 0
    write_count: _I32 = 0
    admin_count: _I32 = 0


class OpenQueue(Structure, frozen=True):
    """Open a queue, or one application of it."""

    handle_parameters: QueueHandleParameters = QueueHandleParameters()


class RoutingConfiguration(Structure, frozen=True):
    """The broker's routing of an opened queue's messages.

    Attributes:
        flags: the bits of :class:`RoutingFlags`. A plain integer, because a peer may set unknown bits.
    """

    flags: _U64 = 0


class OpenQueueResponse(Structure, frozen=True):
    """The queue is open.

    Attributes:
        deduplication_time_ms: time during which the broker recognises a repeated GUID.
    """

    original_request: OpenQueue = OpenQueue()
    routing_configuration: RoutingConfiguration = RoutingConfiguration()
    deduplication_time_ms: _I32 = DEFAULT_DEDUPLICATION_TIME_MS


class Expression(Structure, frozen=True):
    """A subscription's expression; an empty text matches every message."""

    version: ExpressionVersion = ExpressionVersion.E_UNDEFINED
    text: str = ""


class ConsumerInfo(Structure, frozen=True):
    """A consumer's limits and priority.

    Attributes:
        consumer_priority: the broker serves the highest priority first.
        consumer_priority_count: number of consumers behind this entry; 0 with the invalid priority.
    """

    max_unconfirmed_messages: _I64 = 0
    max_unconfirmed_bytes: _I64 = 0
    consumer_priority: _I32 = INVALID_CONSUMER_PRIORITY
    consumer_priority_count: _I32 = 0


class Subscription(Structure, frozen=True):
    """One subscription of a stream.

    Attributes:
        s_id: chosen by the client; repeated in each PUSH message.
    """

    s_id: _U32 = 0
    expression: Expression = Expression()
    consumers: tuple[ConsumerInfo, ...] = ()


class StreamParameters(Structure, frozen=True):
    """All subscriptions of one application of a queue; an empty list deconfigures the stream."""

    app_id: str = DEFAULT_APP_ID
    subscriptions: tuple[Subscription, ...] = ()


class ConfigureStream(Structure, frozen=True):
    """Replace the subscriptions of one application of a queue."""

    q_id: _U32 = 0
    stream_parameters: StreamParameters = StreamParameters()


class ConfigureStreamResponse(Structure, frozen=True):
    """The subscriptions are in force."""

    request: ConfigureStream = ConfigureStream()


class QueueStreamParameters(Structure, frozen=True):
    """The older form of :class:`StreamParameters`: one subscription without an expression."""

    sub_id_info: SubQueueIdInfo | None = None
    max_unconfirmed_messages: _I64 = 0
    max_unconfirmed_bytes: _I64 = 0
    consumer_priority: _I32 = INVALID_CONSUMER_PRIORITY
    consumer_priority_count: _I32 = 0


class ConfigureQueueStream(Structure, frozen=True):
    """The older form of :class:`ConfigureStream`, accepted by every broker."""

    q_id: _U32 = 0
    stream_parameters: QueueStreamParameters = QueueStreamParameters()


class ConfigureQueueStreamResponse(Structure, frozen=True):
    """The stream is configured."""

    request: ConfigureQueueStream = ConfigureQueueStream()


class CloseQueue(Structure, frozen=True):
    """Close a queue, or one application of a queue.

    Attributes:
        is_final: whether no other application of the queue stays open.
    """

    handle_parameters: QueueHandleParameters = QueueHandleParameters()
    is_final: bool = False


class CloseQueueResponse(Structure, frozen=True):
    """The queue is closed."""


class Disconnect(Structure, frozen=True):
    """The last request of a session."""


class DisconnectResponse(Structure, frozen=True):
    """The last answer of a session; the client may close the connection."""


class AdminCommand(Structure, frozen=True):
    """A command to the broker, in the broker's command language."""

    command: str = ""


class AdminCommandResponse(Structure, frozen=True):
    """The broker's printed output for a command."""

    text: str = ""


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


class ControlMessage(Structure, frozen=True):
    """A request or its answer.

    Attributes:
        r_id: number that matches an answer to its request; chosen by the client, not negative. A broker
            ignores a message without it.
        body: the request or answer; None if the type is unknown, then ignore the message.
    """

    r_id: RequestId = None
    body: ControlBody | None = None


NegotiationMessage: TypeAlias = ClientIdentity | BrokerResponse
AuthenticationMessage: TypeAlias = AuthenticationRequest | AuthenticationResponse
Message: TypeAlias = ControlMessage | NegotiationMessage | AuthenticationMessage


class MessageKind(Enum):
    """The kind of a message, known from the phase of the connection and not from the bytes."""

    NEGOTIATION = "NegotiationMessage"
    CONTROL = "ControlMessage"
    AUTHENTICATION = "AuthenticationMessage"


#: What a message of each kind may hold: types by element id in BER.
SELECTIONS: dict[MessageKind, dict[int, type[Structure]]] = {
    MessageKind.NEGOTIATION: {0: ClientIdentity, 1: BrokerResponse},
    MessageKind.AUTHENTICATION: {0: AuthenticationRequest, 1: AuthenticationResponse},
    MessageKind.CONTROL: {
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
    },
}


class UnknownSelection(ProtocolError):
    """A message selects no variant known to this version; a newer peer may have others."""


def kind_of(message: Message) -> MessageKind:
    """Return the kind of a message.

    Raises:
        UsageError: the message cannot be sent on its own, such as a body without its
            :class:`ControlMessage`.
    """
    bodies = SELECTIONS[MessageKind.CONTROL].values()
    if isinstance(message, ControlMessage):
        if message.body is not None and type(message.body) not in bodies:
            raise UsageError(f"body: {type(message.body).__name__} is no request and no answer")
        return MessageKind.CONTROL
    for kind in (MessageKind.NEGOTIATION, MessageKind.AUTHENTICATION):
        if type(message) in SELECTIONS[kind].values():
            return kind
    name = type(message).__name__
    hint = f"; use ControlMessage(r_id, {name}(...))" if type(message) in bodies else ""
    raise UsageError(f"{name} is not a whole message{hint}")


def selection_name(type: type[Structure]) -> str:
    """Return the protocol's name of the selection that holds ``type``."""
    return type.__name__[0].lower() + type.__name__[1:]


class Member(NamedTuple):
    """A member of a structure.

    Attributes:
        number: element id in BER.
        name: name in the protocol.
        attribute: name in Python.
        kind: type of the value, or of an array's elements.
        array: whether the member is an array.
        optional: whether the member may be null; a null member is omitted.
        bits: size of an integer.
        signed: whether an integer may be negative.
        default: value that a reader assumes for a missing member.
    """

    number: int
    name: str
    attribute: str
    kind: type[Any]
    array: bool
    optional: bool
    bits: int
    signed: bool
    default: object


@functools.cache
def members(of: type) -> tuple[Member, ...]:
    """Return the members of a structure, in the order of the schema."""
    found: list[Member] = []
    for number, field in enumerate(msgspec.structs.fields(of)):
        kind: Any = field.type
        optional = types.NoneType in get_args(kind)
        if optional:
            kind = next(each for each in get_args(kind) if each is not types.NoneType)
        integer = {_I32: (32, True), _I64: (64, True), _U32: (32, False), _U64: (64, False)}
        bits, signed = integer.get(kind, (32, True))
        array = get_origin(kind) is tuple
        if array or get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        found.append(
            Member(number, field.encode_name, field.name, kind, array, optional, bits, signed, field.default)
        )
    return tuple(found)


def json_schema() -> dict[str, Any]:
    """Return the definitions of NegotiationMessage, ControlMessage and others (draft 2020-12)."""
    types = [each for of in SELECTIONS.values() for each in of.values()]
    _, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    # On the wire an enumerator stands by name; msgspec would say the number.
    for enumeration in (ClientType, ClientLanguage, ExpressionVersion, StatusCategory):
        definitions[enumeration.__name__] = {"enum": list(enumeration.__members__)}
        for each in definitions.values():
            for member in each.get("properties", {}).values():
                if member.get("$ref") == f"#/$defs/{enumeration.__name__}":
                    member["default"] = enumeration(member["default"]).name
    for kind, of in SELECTIONS.items():
        properties: dict[str, Any] = {
            selection_name(each): {"$ref": f"#/$defs/{each.__name__}"} for each in of.values()
        }
        if kind is MessageKind.CONTROL:
            properties = {"rId": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}, **properties}
        definitions[kind.value] = {"type": "object", "properties": properties}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": definitions,
    }


def check_size(length: int, kind: MessageKind, offset: int) -> None:
    """Refuse an oversized body before parsing.

    Raises:
        ProtocolError: the body is longer than :data:`MAX_BODY`.
    """
    if length > MAX_BODY:
        raise ProtocolError(
            f"expected at most {MAX_BODY} bytes, got {length}", field=kind.value, offset=offset
        )
