# SPDX-License-Identifier: Apache-2.0
"""The pages about the protocol: recorded events are annotated byte by byte, and each field has a meaning."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from bmq.wire import control
from bmq.wire.constants import EventType
from bmq.wire.control import Codec, MessageKind, Structure, members
from bmq.wire.control_event import decode_event, encode_event
from bmq.wire.event import read_event
from bmq.wire.layout import LAYOUTS
from tests.programs.test_docs import generate as generate
from tests.transcripts import RECORDINGS, Recorded, recorded


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


def test_exactly_the_fields_have_a_meaning(generate: ModuleType) -> None:
    declared = {name: [m.name for m in layout.subcon.subcons] for name, layout in LAYOUTS.items()}
    for name, cls in vars(control).items():
        if isinstance(cls, type) and issubclass(cls, Structure) and members(cls):
            declared[name] = [member.name for member in members(cls)]
    assert {name: list(fields) for name, fields in generate.meanings().items()} == declared
