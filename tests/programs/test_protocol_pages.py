# SPDX-License-Identifier: Apache-2.0
"""The pages about the protocol: recorded events are annotated byte by byte, and each field has a meaning."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bmq.wire import control
from bmq.wire.constants import EventType, PropertyType
from bmq.wire.control import Codec, MessageKind, Structure, members
from bmq.wire.control_event import decode_event, encode_event
from bmq.wire.event import read_event
from bmq.wire.layout import LAYOUTS
from bmq.wire.properties import PropertyValue, encode_properties
from tests.transcripts import RECORDINGS, Recorded, recorded

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def generate() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("generate")
        for name in ("generate", "annotated", "diagram", "messages", "reference"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def annotated(generate: ModuleType) -> ModuleType:
    return sys.modules["annotated"]


def with_kinds(recording: str) -> Iterator[tuple[Recorded, MessageKind]]:
    """The events of a recording; the first CONTROL event of each direction of a connection negotiates."""
    negotiated = set()
    for event in recorded(recording=recording):
        kind = MessageKind.CONTROL
        if event.type is EventType.AUTHENTICATION:
            kind = MessageKind.AUTHENTICATION
        elif event.type is EventType.CONTROL and (event.connection, event.direction) not in negotiated:
            negotiated.add((event.connection, event.direction))
            kind = MessageKind.NEGOTIATION
        yield event, kind


def bytes_of(rows: list[Any]) -> bytes:
    """Return the bytes of the rows, which must follow each other without a gap."""
    covered = b""
    for row in rows:
        assert not row.data or row.offset == len(covered)
        covered += row.data
    return covered


@pytest.mark.parametrize("recording", RECORDINGS)
def test_each_byte_of_a_recorded_event_is_annotated_once(annotated: ModuleType, recording: str) -> None:
    for event, kind in with_kinds(recording):
        assert bytes_of(annotated.annotate(event.data, kind)) == event.data, str(event)


def test_recorded_json_is_annotated_as_ber(annotated: ModuleType) -> None:
    for event, kind in with_kinds("json-session"):
        if event.type is EventType.CONTROL:
            message = decode_event(read_event(event.data), kind)
            data = encode_event(message, Codec.BER)
            assert bytes_of(annotated.annotate(data, kind)) == data


def test_annotations_describe_the_bytes(annotated: ModuleType) -> None:
    put = recorded(EventType.PUT, recording="json-session")[1].data
    said = {row.offset: row.text for row in annotated.annotate(put) if row.data}
    assert said[8] == "flags 3 (ACK_REQUESTED | MESSAGE_PROPERTIES), messageWords 24"
    assert said[20] == "messageGUID 40000200037FD1A344B800328458B230"
    assert said[62] == "name 'CustomerId'"
    assert said[72] == "value 2000"
    assert said[96] == "payload 'beta'"
    refused = [
        row.text for row in annotated.annotate(recorded(EventType.ACK, recording="json-session")[-1].data)
    ]
    assert "reserved 0, status 5 (status: UNKNOWN)" in refused


def test_both_encodings_have_the_same_values(annotated: ModuleType) -> None:
    properties = {"a": PropertyValue(PropertyType.SHORT, -2), "b": "", "c": b"\0\1", "d": True}
    said = []
    for new in (False, True):
        area = encode_properties(properties, new=new)
        rows = annotated.annotate_area(area, new=new)
        assert bytes_of(rows) == area
        said.append([(row.offset, row.text) for row in rows if row.text.startswith(("name", "value "))])
    assert said[0] == said[1]
    assert [text for _, text in said[0]] == [
        "name 'a'", "value -2", "name 'b'", "name 'c'", "value (BINARY)", "name 'd'", "value True",
    ]  # fmt: skip


def test_exactly_the_fields_have_a_meaning(generate: ModuleType) -> None:
    declared = {name: [m.name for m in layout.subcon.subcons] for name, layout in LAYOUTS.items()}
    for name, cls in vars(control).items():
        if isinstance(cls, type) and issubclass(cls, Structure) and members(cls):
            declared[name] = [member.name for member in members(cls)]
    assert {name: list(fields) for name, fields in generate.meanings().items()} == declared


def test_every_control_message_is_shown(generate: ModuleType) -> None:
    page = generate.control_messages()
    for cls in vars(control).values():
        if (
            isinstance(cls, type)
            and issubclass(cls, Structure)
            and cls not in (Structure, control.ControlMessage)
        ):
            name = cls.__name__[0].lower() + cls.__name__[1:]
            assert f"## {name}\n" in page or f"### {cls.__name__}\n" in page


def test_every_kind_of_event_of_a_client_is_in_the_conversation(generate: ModuleType) -> None:
    page = generate.fill((DOCS / "protocol" / "protocol.md").read_text(encoding="utf-8"))
    of_clients = {
        "CONTROL",
        "PUT",
        "CONFIRM",
        "PUSH",
        "ACK",
        "HEARTBEAT_REQ",
        "HEARTBEAT_RSP",
        "AUTHENTICATION",
    }
    assert all(f"({kind})" in page for kind in of_clients)
