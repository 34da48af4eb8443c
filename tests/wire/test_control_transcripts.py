# SPDX-License-Identifier: Apache-2.0
"""Every control message recorded between the official clients and a real broker is read and written back."""

import inspect
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from bmq.errors import ProtocolError, StatusCategory
from bmq.wire.ber import encode_ber
from bmq.wire.constants import EventType
from bmq.wire.control import (
    SELECTIONS,
    ClientIdentity,
    ClientLanguage,
    ClientType,
    Codec,
    ExpressionVersion,
    MessageKind,
    selection_name,
)
from bmq.wire.control_event import decode_event, encode_event
from bmq.wire.event import pack_schema_event
from bmq.wire.push import decode_pushes
from tests import transcripts
from tests.wire.control_recordings import RecordedControl, recorded, recorded_in

ROOT = Path(__file__).parents[2]
#: A broker that reads this name closes the connection without a word, and so do we.
UNKNOWN_LANGUAGE = b'"sdkLanguage":"E_PYTHON"'


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
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": definitions,
    }


def known(r: RecordedControl) -> bool:
    return UNKNOWN_LANGUAGE not in r.body


def test_every_ber_event_is_written_back_byte_for_byte():
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


def test_every_json_event_of_the_broker_is_written_back_byte_for_byte():
    events = [r for r in recorded_in(Codec.JSON) if r.from_broker]
    assert len(events) == 49
    for r in events:
        message = decode_event(r.event, r.kind)
        again = encode_event(message, Codec.JSON, escape_solidus=True, omit_empty_arrays=True)
        assert again == r.event.data


def test_every_json_event_of_the_client_is_written_back():
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


def test_only_the_event_that_the_broker_refused_is_refused():
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
