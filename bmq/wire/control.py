# SPDX-License-Identifier: Apache-2.0
"""Control messages: the messages that set up and end sessions, queues and streams (schema ``bmqp_ctrlmsg``).

The three kinds are negotiation and control messages, both in CONTROL events, and authentication messages,
in AUTHENTICATION events. Attribute names are the protocol's, in snake case; defaults are the schema's.
msgspec writes and reads the declarations as JSON; :mod:`bmq.wire.ber` derives the older encoding from the
same declarations. Each event names its codec for readers. Writers choose the codec by the client's
:class:`Features`.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Iterable
from enum import Enum, IntEnum, IntFlag
from typing import Annotated, Any, NamedTuple, TypeAlias, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, Struct

from bmq._json import orjson
from bmq.errors import ProtocolError, StatusCategory, UsageError
from bmq.wire.notice import FewNotices, Notice, peers_word

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


class Structure(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Base of all structures: the order of the members is that of the schema; the index is the id in BER.

    Unknown members are forbidden so that msgspec stops at them; :func:`decode_json` then reads the message
    again, and notices and skips them.
    """


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
        features: the sender's capabilities; see :class:`Features`.
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


# Features

#: Control messages in BER, in JSON.
ENCODING_BER = ("PROTOCOL_ENCODING", "BER")
ENCODING_JSON = ("PROTOCOL_ENCODING", "JSON")
#: The new encoding of message properties.
MESSAGE_PROPERTIES_EX = ("MPS", "MESSAGE_PROPERTIES_EX")
#: Announced by a broker that accepts ``configureStream``; clients do not announce it.
CONFIGURE_STREAM = ("SUBSCRIPTIONS", "CONFIGURE_STREAM")


class Features:
    """A parsed features string, created by :func:`parse_features`."""

    __slots__ = ("_fields", "text")

    def __init__(self, text: str, fields: dict[str, tuple[str, ...]]) -> None:
        self.text = text
        self._fields = fields

    def has(self, field: str, value: str) -> bool:
        """Whether ``field`` lists ``value``: ``features.has(*MESSAGE_PROPERTIES_EX)``."""
        return value in self._fields.get(field, ())

    def values(self, field: str) -> tuple[str, ...]:
        """Return the values of a field; empty if the field is absent."""
        return self._fields.get(field, ())

    @property
    def codec(self) -> Codec:
        """The codec in which a broker writes to a client with these features: JSON only if listed without
        BER.
        """
        if self.has(*ENCODING_JSON) and not self.has(*ENCODING_BER):
            return Codec.JSON
        return Codec.BER

    def __repr__(self) -> str:
        return f"Features({self.text!r})"


def parse_features(text: str) -> Features:
    """Read a features string as the official implementation does.

    If a field is repeated, the first one counts. A field with an empty value is left out, and ends the list.
    """
    fields: dict[str, tuple[str, ...]] = {}
    for part in text.split(";"):
        field, colon, values = part.partition(":")
        if colon and not values:
            break
        if part:
            fields.setdefault(field, tuple(value for value in values.split(",") if value))
    return Features(text, fields)


# JSON: compact, in schema order, enumerators by name, no nulls, bytes in base64.

#: Largest number of elements accepted in one message: elements of arrays in JSON, of all kinds in BER. Two
#: bytes on the wire can make an element that costs microseconds and hundreds of bytes, so the length of a
#: message does not bound the work. An honest subscription has about eleven elements.
MAX_ELEMENTS = 131_072
# Most members, elements and structures of a document that is parsed. A subscription has some fifteen.
_MAX_VALUES = 4 * MAX_ELEMENTS

_PLAIN = (int, str, bool, bytes)
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_REQUEST_ID = re.compile(rb'\s*\{\s*"rId"\s*:\s*(\d{1,10})\s*[,}]')
_PLACE = re.compile(r" - at `\$\.?(.*)`$")

# msgspec writes an enumerator by number and an absent member as null. Quotes inside a text are escaped, so
# none of these patterns can match there.
_ENUMERATIONS: dict[bytes, type[IntEnum]] = {
    b"clientType": ClientType,
    b"sdkLanguage": ClientLanguage,
    b"version": ExpressionVersion,
    b"category": StatusCategory,
}
_NUMBERED = re.compile(rb'"(%b)":(-?\d+)' % b"|".join(_ENUMERATIONS))
_NAMED = re.compile(rb'"(%b)"\s*:\s*"(\w+)"' % b"|".join(_ENUMERATIONS))
_NULL = re.compile(rb'"\w+":null,|,"\w+":null')
# msgspec reads integers of any size; orjson reads those of more than 64 bits as numbers with a fraction.
_LONG_NUMBER = re.compile(rb'":\s*\d{20}')
_EMPTY_ARRAY = re.compile(rb',"\w+":\[\]')

# A whole message of each kind: an object with one selection, named after its type; in a control message the
# selection is next to the request id.
_DOCUMENTS: dict[MessageKind, type[Struct]] = {
    kind: msgspec.defstruct(
        kind.value,
        [
            *([("rId", RequestId | msgspec.UnsetType, UNSET)] if kind is MessageKind.CONTROL else []),
            *((selection_name(each), each | msgspec.UnsetType, UNSET) for each in of.values()),
        ],
        forbid_unknown_fields=True,
    )
    for kind, of in SELECTIONS.items()
}
_ENCODER = msgspec.json.Encoder()
_DECODERS = {kind: msgspec.json.Decoder(document) for kind, document in _DOCUMENTS.items()}


def _to_document(message: Message) -> Struct:
    document = _DOCUMENTS[kind_of(message)]
    if not isinstance(message, ControlMessage):
        return document(**{selection_name(type(message)): message})
    fields: dict[str, object] = {} if message.r_id is None else {"rId": message.r_id}
    if message.body is not None:
        fields[selection_name(type(message.body))] = message.body
    return document(**fields)


def check(message: Message) -> None:
    """Check that each value fits its member.

    Raises:
        UsageError: a value does not fit; the message names the member.
    """
    document = _to_document(message)
    try:
        _typed(msgspec.to_builtins(document, builtin_types=(bytes,)), kind_of(message))
    except (ProtocolError, TypeError) as error:
        raise UsageError(str(error)) from None


def encode_json(message: Message, *, escape_solidus: bool = False, omit_empty_arrays: bool = False) -> bytes:
    r"""Return a message as JSON, without padding.

    Both options reproduce recorded traffic byte for byte; every reader accepts either form. A broker writes
    ``\/`` for ``/`` and omits empty arrays. Clients write ``/``, and write ``"subscriptions":[]`` when
    they deconfigure a stream: there the empty array carries the meaning of the message.

    Args:
        message: the message.
        escape_solidus: write ``/`` as ``\/``.
        omit_empty_arrays: omit empty arrays.

    Raises:
        UsageError: the message cannot be sent on its own.
    """
    document = _to_document(message)
    try:
        body = _ENCODER.encode(document)
    except UnicodeEncodeError:
        body = _ENCODER.encode(_legible(msgspec.to_builtins(document)))
    body = _NUMBERED.sub(_by_name, body)
    if b":null" in body:
        body = _NULL.sub(b"", body)
    if omit_empty_arrays:
        body = _EMPTY_ARRAY.sub(b"", body)
    # JSON uses the solidus only inside strings, so replacing every solidus is safe.
    return body.replace(b"/", rb"\/") if escape_solidus else body


def _by_name(found: re.Match[bytes]) -> bytes:
    known = _ENUMERATIONS[found[1]]._value2member_map_.get(int(found[2]))
    return found[0] if known is None else b'"%b":"%b"' % (found[1], known.name.encode())


def _by_number(found: re.Match[bytes]) -> bytes:
    known = _ENUMERATIONS[found[1]].__members__.get(found[2].decode())
    return found[0] if known is None else b'"%b":%d' % (found[1], known)


def _legible(value: Any) -> Any:
    """Replace what is no UTF-8: a peer may have sent such text in BER; JSON has no form for it."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [_legible(element) for element in cast("Iterable[object]", value)]
    if isinstance(value, dict):
        return {name: _legible(content) for name, content in cast("dict[str, object]", value).items()}
    return value


def decode_json(
    body: bytes | memoryview, kind: MessageKind, *, offset: int = 8, notice: Notice | None = None
) -> Message:
    """Read a message from JSON.

    Args:
        body: the event's body; padding and any other bytes may follow the closing brace.
        kind: the expected kind of message.
        offset: offset of the body in its event, for error messages.
        notice: see :func:`from_document`.

    Raises:
        ProtocolError: the body is not JSON or not an object, or a value does not have its member's type.
        UnknownSelection: no known selection is present (a control message is then decoded without a body).
    """
    body = bytes(body)
    # Every element of an array is an object.
    few = len(body) <= MAX_BODY and body.count(b"{") <= MAX_ELEMENTS
    if few and not _LONG_NUMBER.search(body):
        try:
            found = _selected(_DECODERS[kind].decode(_NAMED.sub(_by_number, _without_padding(body))), kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = None
        if found is not None:
            return found
    # Not as this version writes it. The second reading skips and notices what is unknown, or says what is
    # wrong.
    return from_document(_parse(body, kind, offset), kind, notice)


def from_document(document: object, kind: MessageKind, notice: Notice | None) -> Message:
    """Return the message of a document of dictionaries, lists and plain values.

    Unknown members are skipped, and missing members take their defaults. Of several selections, the last
    known one counts.

    Args:
        document: the document; changed into the form that msgspec accepts.
        kind: the expected kind of message.
        notice: receives unknown content. With a notice, unknown enumerators are read as E_UNKNOWN or
            E_UNDEFINED; without a notice they are an error, as for a real broker.

    Raises:
        ProtocolError: a value does not have its member's type.
        UnknownSelection: no known selection is present (a control message is then decoded without a body).
    """
    types = {selection_name(each): each for each in SELECTIONS[kind].values()}
    tidy = _Tidy(notice)
    fields = tidy.fields(document, _DOCUMENTS[kind].__struct_fields__, kind.value, kind.value)
    selections = [name for name in fields if name in types]
    for earlier in selections[:-1]:
        del fields[earlier]
    for name in selections[-1:]:
        tidy.structure(types[name], fields[name], name)
    found = _selected(_typed(fields, kind), kind)
    if found is None:
        raise UnknownSelection(f"expected one of {', '.join(types)}, got neither", field=kind.value)
    return found


def _selected(document: Any, kind: MessageKind) -> Message | None:
    """Return the message of a typed document; None if the document has no selection, or several."""
    contents = [getattr(document, name) for name in document.__struct_fields__]
    r_id = contents.pop(0) if kind is MessageKind.CONTROL else None
    selections = [each for each in contents if each is not UNSET]
    if len(selections) > 1:
        return None
    body = selections[0] if selections else None
    if kind is MessageKind.CONTROL:
        return ControlMessage(None if r_id is UNSET else r_id, body)
    return cast("Message | None", body)


class _Tidy:
    """Makes a document fit for msgspec; ``elements`` counts down the array elements still accepted."""

    def __init__(self, notice: Notice | None) -> None:
        self.elements = MAX_ELEMENTS
        self.notice = None if notice is None else FewNotices(notice)

    def fields(self, value: object, known: Iterable[str], path: str, name: str) -> dict[str, Any]:
        """Return the members of an object, without those that are unknown."""
        if not isinstance(value, dict):
            raise ProtocolError(f"expected an object, got {_type_name(value)}", field=path)
        found = cast("dict[str, Any]", value)
        for unknown in sorted(found.keys() - set(known)):
            del found[unknown]
            if self.notice is not None:
                self.notice(f"the member {peers_word(unknown)} of {name}")
        return found

    def structure(self, type: type[Structure], value: object, path: str) -> None:
        """Replace enumerators by numbers, bound the number of elements, and take out what is unknown."""
        fields = self.fields(value, type.__struct_encode_fields__, path, type.__name__)
        for m in members(type):
            content = fields.get(m.name)
            if content is None or m.kind in _PLAIN:
                continue  # left to msgspec
            at = f"{path}.{m.name}"
            if issubclass(m.kind, IntEnum):
                fields[m.name] = number = self.enumerator(m.kind, content, at, f"{type.__name__}.{m.name}")
                if type is Status and content not in (number, m.kind(number).name):
                    # Why a broker refused is worth more than the word E_UNKNOWN.
                    fields["message"] = f"{peers_word(content)}: {fields.get('message', '')}"
            elif m.array and isinstance(content, list):
                elements = cast("list[object]", content)
                self.elements -= len(elements)
                if self.elements < 0:
                    raise ProtocolError(f"more than {MAX_ELEMENTS} array elements in one message", field=at)
                for i, element in enumerate(elements):
                    self.structure(m.kind, element, f"{at}[{i}]")
            elif not m.array:
                self.structure(m.kind, content, at)

    def enumerator(self, kind: type[IntEnum], value: object, path: str, name: str) -> int:
        if isinstance(value, str) and value in kind.__members__:
            return kind[value].value
        if type(value) is int and value in kind._value2member_map_:
            return value
        if type(value) in (str, int) and self.notice is not None:
            self.notice(f"the enumerator {peers_word(value)} of {name}")
            return next(each for each in kind if each.name in ("E_UNKNOWN", "E_UNDEFINED")).value
        expected = ", ".join(f"{each.name} ({each.value})" for each in kind)
        got = peers_word(value) if type(value) in (str, int) else _type_name(value)
        raise ProtocolError(f"expected one of {expected}, got {got}", field=path)


def _typed(document: object, kind: MessageKind) -> Struct:
    problem = ""
    try:
        return msgspec.convert(document, _DOCUMENTS[kind])
    except msgspec.ValidationError as error:
        problem = str(error)
    # Raised here: the context of an error must not hold a value, which may be a credential.
    place = _PLACE.search(problem)
    problem = _PLACE.sub("", problem).replace("`", "")
    raise ProtocolError(problem[0].lower() + problem[1:], field=place[1] if place else kind.value)


def _type_name(value: object) -> str:
    names: dict[type, str] = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "an integer",
    }
    return names.get(type(value), "null" if value is None else "a number with a fraction")


def request_id_in_json(body: bytes) -> int | None:
    """Return the request id of a control message whose other parts cannot be read, or None.

    Of a message beyond the limits, the id is found only at the beginning.
    """
    try:
        document = _parse(body, MessageKind.CONTROL, 0)
    except ProtocolError:
        found = _REQUEST_ID.match(body)
        return int(found[1]) if found else None
    number = cast("dict[str, object]", document).get("rId") if isinstance(document, dict) else None
    return number if type(number) is int else None


def _without_padding(body: bytes) -> bytes:
    pad = body[-1] if body else 0
    return body[:-pad] if 1 <= pad <= 4 else body


def _parse(body: bytes, kind: MessageKind, offset: int) -> object:
    if len(body) > _MAX_VALUES:  # a smaller document has fewer values
        check_size(len(body), kind, offset)
        _check_count(body, kind, offset)
    text = _without_padding(body)
    # Never chain the parser's exception: it carries the whole document, which may contain credentials.
    problem, prefix = "", b""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        problem = error.msg
        prefix = error.doc[: error.pos].encode()
    try:
        # If the bytes before the error are a whole document, ignore the bytes after it.
        return orjson.loads(prefix)
    except orjson.JSONDecodeError:
        pass
    raise ProtocolError(
        f"expected a JSON object, got {len(body)} bytes that are not JSON: {problem}",
        field=kind.value,
        offset=offset + len(prefix),
    )


def _check_count(body: bytes, kind: MessageKind, offset: int) -> None:
    """Refuse a document of very many values before parsing: in memory they take up to 40 times their size.

    Raises:
        ProtocolError: the document has more values than :data:`_MAX_VALUES`.
    """
    if _count(body) <= _MAX_VALUES:
        return
    # Texts may contain any number of these bytes: an answer to an admin command is nearly a single text.
    texts = (body.count(b'"') - body.count(b'\\"')) // 2
    if texts > _MAX_VALUES or _count(_TEXT.sub(b"", body)) > _MAX_VALUES:
        raise ProtocolError(f"more than {_MAX_VALUES} values in one message", field=kind.value, offset=offset)


def _count(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def check_size(length: int, kind: MessageKind, offset: int) -> None:
    """Refuse an oversized body before parsing.

    Raises:
        ProtocolError: the body is longer than :data:`MAX_BODY`.
    """
    if length > MAX_BODY:
        raise ProtocolError(
            f"expected at most {MAX_BODY} bytes, got {length}", field=kind.value, offset=offset
        )
