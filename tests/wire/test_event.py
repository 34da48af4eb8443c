# SPDX-License-Identifier: Apache-2.0
"""Event headers and padding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import ProtocolError
from bmq.wire.constants import EventType
from bmq.wire.event import pack_event_header, pack_schema_event, read_event
from bmq.wire.layout import EventHeader
from bmq.wire.padding import unpadded_length
from tests.sweeps import sweep


def event(body: bytes = b"", **fields: int) -> bytes:
    """Write an event with Construct alone, right or wrong."""
    right = {
        "fragment": 0,
        "length": 8 + len(body),
        "protocolVersion": 1,
        "type": 4,
        "headerWords": 2,
        "typeSpecific": 0,
        "reserved": 0,
    }
    return EventHeader.build(right | fields) + body


@given(st.integers(8, 2**31 - 1), st.sampled_from(EventType), st.integers(0, 255))
@pytest.mark.statement("3.1")
def test_headers_have_the_protocols_fields(length: int, event_type: EventType, specific: int) -> None:
    header = EventHeader.parse(pack_event_header(length, event_type, specific))
    assert (header.fragment, header.length) == (0, length)
    assert (header.protocolVersion, header.type, header.headerWords) == (1, event_type, 2)
    assert (header.typeSpecific, header.reserved) == (specific, 0)


@sweep("words", [2, 3, 4, 255])
@pytest.mark.statement("3.2")
def test_longer_headers_are_honoured(words: int) -> None:
    data = event(bytes(words * 4 - 8) + b"body", headerWords=words)
    assert read_event(data).body == words * 4
    assert data[read_event(data).body :] == b"body"


@sweep(
    "data, field, offset",
    [
        (b"", "length", 0),
        (event()[:7], "length", 0),
        (event(fragment=1), "EventHeader.fragment", 0),
        (event(b"1234", length=8), "EventHeader.length", 0),
        (event(b"1234", length=13), "EventHeader.length", 0),
        (event(length=0), "EventHeader.length", 0),
        (event(protocolVersion=2), "EventHeader.protocolVersion", 4),
        (event(headerWords=0), "EventHeader.headerWords", 5),
        (event(headerWords=1), "EventHeader.headerWords", 5),
        (event(headerWords=3), "EventHeader.headerWords", 5),
        (event(b"1234567", headerWords=4), "EventHeader.headerWords", 5),
        (event(headerWords=255), "EventHeader.headerWords", 5),
    ],
)
def test_malformed_headers_are_refused(data: bytes, field: str, offset: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_event(data)
    assert (caught.value.field, caught.value.offset) == (field, offset)


@sweep(
    "tail, offset",
    [(b"\0", 4), (b"\5", 4), (b"\5" * 5, 8), (b"\xff", 4), (b"\2", 4), (b"\4\4\4", 6), (b"", 4)],
)
def test_invalid_padding_is_refused(tail: bytes, offset: int) -> None:
    buffer = b"\1\1\1\1" + tail
    with pytest.raises(ProtocolError, match="must be 1 to 4") as caught:
        unpadded_length(buffer, 4, len(buffer), field="option padding")
    assert (caught.value.field, caught.value.offset) == ("option padding", offset)


@given(st.binary(max_size=40), st.integers(0, 7))
@pytest.mark.statement("3.12")
def test_schema_events_are_padded_and_name_their_codec(body: bytes, codec: int) -> None:
    data = pack_schema_event(EventType.CONTROL, codec, body)
    read = read_event(data)
    assert len(data) % 4 == 0
    assert read.type_specific == codec << 5
    assert data[read.body : read.body + unpadded_length(data, read.body, len(data), field="x")] == body
