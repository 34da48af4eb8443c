# SPDX-License-Identifier: Apache-2.0
"""Control messages: the schema they follow, recorded conversations, and any message in both encodings."""

from __future__ import annotations

import inspect
import json
import re
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from bmq.errors import ProtocolError, StatusCategory
from bmq.wire import control
from bmq.wire.ber import decode_ber, encode_ber
from bmq.wire.constants import EventType
from bmq.wire.control import (
    CONFIGURE_STREAM,
    MESSAGE_PROPERTIES_EX,
    SELECTIONS,
    AuthenticationRequest,
    BrokerResponse,
    ClientIdentity,
    ClientLanguage,
    ClientType,
    Codec,
    ControlMessage,
    ExpressionVersion,
    Member,
    Message,
    MessageKind,
    Structure,
    decode_json,
    kind_of,
    members,
    parse_features,
    selection_name,
)
from bmq.wire.control_event import codec_of, decode_event, encode_event
from bmq.wire.event import Event, pack_schema_event, read_event
from bmq.wire.push import decode_pushes
from tests import transcripts
from tests.sweeps import sweep

ROOT = Path(__file__).parents[2]
#: A broker that reads this name closes the connection without a word, and so do we.
UNKNOWN_LANGUAGE = b'"sdkLanguage":"E_PYTHON"'


# ---- the schema

#: The tags of the members in BER: the number of the member, and 0x20 for structures and arrays. Names, types
#: and defaults are those of the published schema.
TAGS = """
ClientIdentity: 80 protocolVersion 81 sdkVersion 82 clientType 83 processName 84 pid 85 sessionId
    86 hostName 87 features 88 clusterName 89 clusterNodeId 8a sdkLanguage ab guidInfo 8c userAgent
GuidInfo: 80 clientId 81 nanoSecondsFromEpoch
BrokerResponse: a0 result 81 protocolVersion 82 brokerVersion 83 isDeprecatedSdk a4 brokerIdentity
    85 heartbeatIntervalMs 86 maxMissedHeartbeats
Status: 80 category 81 code 82 message
AuthenticationRequest: 80 mechanism 81 data
AuthenticationResponse: a0 status 81 lifetimeMs
OpenQueue: a0 handleParameters
QueueHandleParameters: 80 uri 81 qId a2 subIdInfo 83 flags 84 readCount 85 writeCount 86 adminCount
SubQueueIdInfo: 80 subId 81 appId
OpenQueueResponse: a0 originalRequest a1 routingConfiguration 82 deduplicationTimeMs
RoutingConfiguration: 80 flags
ConfigureStream: 80 qId a1 streamParameters
StreamParameters: 80 appId a1 subscriptions
Subscription: 80 sId a1 expression a2 consumers
Expression: 80 version 81 text
ConsumerInfo: 80 maxUnconfirmedMessages 81 maxUnconfirmedBytes 82 consumerPriority
    83 consumerPriorityCount
ConfigureStreamResponse: a0 request
ConfigureQueueStream: 80 qId a1 streamParameters
QueueStreamParameters: a0 subIdInfo 81 maxUnconfirmedMessages 82 maxUnconfirmedBytes 83 consumerPriority
    84 consumerPriorityCount
ConfigureQueueStreamResponse: a0 request
CloseQueue: a0 handleParameters 81 isFinal
AdminCommand: 80 command
AdminCommandResponse: 80 text
"""

SELECTED = {
    0: "status", 1: "disconnect", 2: "disconnectResponse", 7: "adminCommand", 8: "adminCommandResponse",
    10: "openQueue", 11: "openQueueResponse", 12: "closeQueue", 13: "closeQueueResponse",
    14: "configureQueueStream", 15: "configureQueueStreamResponse", 16: "configureStream",
    17: "configureStreamResponse",
}  # fmt: skip


@sweep("name, expected", re.findall(r"^(\w+):((?:.*\n)(?:    .*\n)*)", TAGS, re.MULTILINE))
@pytest.mark.statement("3.22")
def test_members_have_the_tags_of_the_schema(name: str, expected: str) -> None:
    def tag(member: Member) -> int:
        constructed = member.array or issubclass(member.kind, Structure)
        return (0xA0 if constructed else 0x80) | member.number

    found = [f"{tag(member):02x} {member.name}" for member in members(getattr(control, name))]
    assert found == re.findall(r"\w\w \w+", expected)


@pytest.mark.statement("3.22")
def test_selections_and_enumerators_have_the_numbers_of_the_schema() -> None:
    found = {
        kind: {number: selection_name(type) for number, type in of.items()} for kind, of in SELECTIONS.items()
    }
    assert found == {
        MessageKind.CONTROL: SELECTED,
        MessageKind.NEGOTIATION: {0: "clientIdentity", 1: "brokerResponse"},
        MessageKind.AUTHENTICATION: {0: "authenticationRequest", 1: "authenticationResponse"},
    }
    assert [*map(int, ClientType)] == [0, 1, 2, 3]
    assert [*map(int, ClientLanguage)] == [0, 1, 2]
    assert [*map(int, ExpressionVersion)] == [0, 1]
    assert (StatusCategory.E_SUCCESS, StatusCategory.E_REFUSED, StatusCategory.E_NOT_READY) == (0, -6, -8)


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
    for definition in definitions.values():
        definition.pop("additionalProperties", None)  # readers skip unknown members
        if "description" in definition:  # msgspec's versions indent docstrings in two ways
            definition["description"] = inspect.cleandoc(definition["description"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": definitions}


def test_recordings_match_the_published_schema() -> None:
    schema = json.loads((ROOT / "docs" / "assets" / "control.schema.json").read_text("utf-8"))
    assert schema == json.loads(json.dumps(json_schema()))
    validators = {
        kind: Draft202012Validator({**schema, "$ref": f"#/$defs/{kind.value}"}) for kind in MessageKind
    }
    for r in filter(known, recorded_in(Codec.JSON)):
        document = json.loads(r.body[: -r.body[-1]])
        assert not list(validators[r.kind].iter_errors(document)), r.place
    wrong = {"rId": 1, "openQueue": {"handleParameters": {"qId": "1"}}}
    assert not validators[MessageKind.CONTROL].is_valid(wrong)


def test_a_repr_shows_no_credentials() -> None:
    assert repr(AuthenticationRequest("BASIC", b"user:hunter2")) == (
        "AuthenticationRequest(mechanism='BASIC', data=...)"
    )


# ---- recorded conversations


class RecordedControl(NamedTuple):
    place: str
    from_broker: bool
    kind: MessageKind
    codec: Codec
    event: Event

    @property
    def body(self) -> bytes:
        return self.event.data[self.event.body :]


@cache
def recorded() -> tuple[RecordedControl, ...]:
    found = []
    negotiated = set()
    for r in transcripts.recorded(EventType.CONTROL, EventType.AUTHENTICATION):
        # The first control event in each direction of a connection is a negotiation message.
        way = r.recording, r.connection, r.direction
        if r.type is EventType.AUTHENTICATION:
            kind = MessageKind.AUTHENTICATION
        elif way in negotiated:
            kind = MessageKind.CONTROL
        else:
            kind = MessageKind.NEGOTIATION
            negotiated.add(way)
        event = read_event(r.data)
        found.append(RecordedControl(str(r), r.direction == "b2c", kind, codec_of(event), event))
    return tuple(found)


def recorded_in(codec: Codec) -> list[RecordedControl]:
    return [r for r in recorded() if r.codec is codec]


def known(r: RecordedControl) -> bool:
    return UNKNOWN_LANGUAGE not in r.body


def test_every_ber_event_is_written_back_byte_for_byte() -> None:
    older = 0
    for r in recorded_in(Codec.BER):
        message = decode_event(r.event, r.kind)
        again = encode_event(message, Codec.BER)
        if again != r.event.data:
            # The official wheel's schema ends before the user agent.
            assert isinstance(message, ClientIdentity)
            assert message.user_agent == ""
            again = pack_schema_event(EventType.CONTROL, Codec.BER, without_user_agent(message))
            older += 1
        assert again == r.event.data, r.place
    assert older == 31


def without_user_agent(message: ClientIdentity) -> bytes:
    head, user_agent, tail = encode_ber(message).rpartition(b"\x8c\0")
    assert user_agent
    return head + tail


def test_every_json_event_of_the_broker_is_written_back_byte_for_byte() -> None:
    events = [r for r in recorded_in(Codec.JSON) if r.from_broker]
    assert len(events) == 49
    for r in events:
        message = decode_event(r.event, r.kind)
        again = encode_event(message, Codec.JSON, escape_solidus=True, omit_empty_arrays=True)
        assert again == r.event.data


def test_every_json_event_of_the_client_is_written_back() -> None:
    # The recording client put spaces into its authentication requests, and subIdInfo last instead of in
    # schema order. Those are equal as JSON; everything else is equal byte for byte.
    spaced = reordered = same = 0
    for r in filter(known, recorded_in(Codec.JSON)):
        if r.from_broker:
            continue
        again = encode_event(decode_event(r.event, r.kind), Codec.JSON)
        if again == r.event.data:
            same += 1
            continue
        theirs = r.body[: -r.body[-1]]
        ours = again[8 : -again[-1]]
        assert json.loads(ours) == json.loads(theirs)
        if r.kind is MessageKind.AUTHENTICATION:
            assert ours == theirs.replace(b": ", b":").replace(b", ", b",")
            spaced += 1
        else:
            assert b'"adminCount":0,"subIdInfo"' in theirs
            reordered += 1
    assert (same, spaced, reordered) == (38, 8, 4)


def test_only_the_event_that_the_broker_refused_is_refused() -> None:
    refused = [r for r in recorded() if not known(r)]
    assert len(refused) == 1
    with pytest.raises(ProtocolError, match="E_PYTHON") as caught:
        decode_event(refused[0].event, refused[0].kind)
    assert caught.value.field == "clientIdentity.sdkLanguage"


def test_real_broker_sends_only_known_elements() -> None:
    noticed: list[str] = []
    for codec in Codec:
        for r in recorded_in(codec):
            if r.from_broker:
                decode_event(r.event, r.kind, noticed.append)
    for pushed in transcripts.recorded(EventType.PUSH):
        decode_pushes(pushed.data, 8, noticed.append)
    assert noticed == []


def test_features_of_a_recorded_broker_are_read() -> None:
    responses = [decode_event(r.event, r.kind) for r in recorded_in(Codec.JSON) if r.from_broker][:20]
    broker = next(r for r in responses if isinstance(r, BrokerResponse))
    features = parse_features(broker.broker_identity.features)
    assert features.has("MPS", "MESSAGE_PROPERTIES_EX")
    assert features.has(*MESSAGE_PROPERTIES_EX)
    assert features.has(*CONFIGURE_STREAM)
    assert features.values("HA") == ("GRACEFUL_SHUTDOWN", "GRACEFUL_SHUTDOWN_V2", "BROADCAST_TO_PROXIES")
    assert not features.has("HA", "GRACEFUL")
    assert features.text == broker.broker_identity.features


@sweep(
    "text, found",
    [
        ("PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX", True),
        ("MPS:A,MESSAGE_PROPERTIES_EX,B", True),
        (";;MPS:,MESSAGE_PROPERTIES_EX;", True),
        ("mps:MESSAGE_PROPERTIES_EX", False),
        ("MPS: MESSAGE_PROPERTIES_EX", False),
        ("MPS:MESSAGE_PROPERTIES_EX_2", False),
        ("MPS:A;MPS:MESSAGE_PROPERTIES_EX", False),
        # A field that promises values and has none ends the search.
        ("X:;MPS:MESSAGE_PROPERTIES_EX", False),
        ("MPS:MESSAGE_PROPERTIES_EX;X:", True),
    ],
)
def test_features_are_looked_up_by_name(text: str, found: bool) -> None:
    assert parse_features(text).has("MPS", "MESSAGE_PROPERTIES_EX") is found


# ---- any message

#: A peer's strings in BER are arbitrary bytes.
TEXTS = st.text(max_size=200) | st.binary(max_size=200).map(
    lambda raw: raw.decode("utf-8", "surrogateescape")
)


def contents(member: Member) -> st.SearchStrategy[Any]:
    kind = member.kind
    if issubclass(kind, IntEnum):
        return st.sampled_from(kind)
    if issubclass(kind, Structure):
        inner = structures(kind)
        return st.lists(inner, max_size=3).map(tuple) if member.array else inner
    if kind is int:
        high = 2 ** (member.bits - member.signed) - 1
        low = ~high if member.signed else 0
        edges = st.sampled_from([low, high, high // 2 + 1, 0, 127, 128, 255, 256])
        return edges | st.integers(low, high)
    return {bool: st.booleans(), bytes: st.binary()}.get(kind, TEXTS)


def structures(type: type[Structure]) -> st.SearchStrategy[Any]:
    if type is ControlMessage:
        bodies = [structures(each) for each in SELECTIONS[MessageKind.CONTROL].values()]
        r_ids = st.none() | st.integers(-(2**31), 2**31 - 1)
        return st.builds(type, r_id=r_ids, body=st.none() | st.one_of(bodies))
    return st.builds(
        type, **{m.attribute: st.none() | contents(m) if m.optional else contents(m) for m in members(type)}
    )


MESSAGES: st.SearchStrategy[Message] = st.one_of(
    structures(ControlMessage),
    *(structures(each) for each in SELECTIONS[MessageKind.NEGOTIATION].values()),
    *(structures(each) for each in SELECTIONS[MessageKind.AUTHENTICATION].values()),
)


def legible(value: Any) -> Any:
    """Return a value with invalid UTF-8 replaced, as JSON requires."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, tuple):
        return tuple(map(legible, value))
    if isinstance(value, Structure):
        return type(value)(*(legible(getattr(value, name)) for name in value.__struct_fields__))
    return value


@given(MESSAGES, st.sampled_from(Codec))
def test_events_survive_a_round_trip(message: Message, codec: Codec) -> None:
    data = encode_event(message, codec)
    assert len(data) % 4 == 0
    again = decode_event(read_event(data), kind_of(message))
    assert again == (message if codec is Codec.BER else legible(message))


@st.composite
def mutated(draw: st.DrawFn) -> tuple[RecordedControl, bytes]:
    original = draw(st.sampled_from(recorded()))
    body = bytearray(original.body)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        cut = draw(st.sampled_from([0, 0, 1, 1, 2, 8, len(body)]))
        piece = draw(
            st.binary(max_size=6)
            | st.sampled_from(
                [b"\x80", b"\0\0", b"\x30\x80", b"\xa0\x80", b"\x84\x7f\xff\xff\xff", b"null", b"{", b"]"]
            )
        )
        body[at : at + cut] = piece
    return original, bytes(body)


@given(mutated(), st.sampled_from(MessageKind))
def test_mutated_recordings_are_read_or_refused(
    case: tuple[RecordedControl, bytes], other: MessageKind
) -> None:
    original, body = case
    for kind in (original.kind, other):
        for decode in (decode_json, decode_ber):
            try:
                message = decode(body, kind)
            except ProtocolError as error:
                offset = error.offset
            else:
                # Accepted input can be encoded again.
                assert decode_ber(encode_ber(message), kind) == message
                continue
            assert offset is None or 8 <= offset <= 8 + len(body)
