# SPDX-License-Identifier: Apache-2.0
"""Damaged recorded events: each decoder returns values or raises a ProtocolError, and nothing else."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from bmq.errors import ProtocolError
from bmq.wire.ack import decode_acks, iter_acks
from bmq.wire.confirm import decode_confirms
from bmq.wire.constants import EventType
from bmq.wire.event import read_event
from bmq.wire.message import split_application_data
from bmq.wire.push import PushMessage, decode_pushes
from bmq.wire.put import DecodedPut, decode_puts
from tests.hostile import attempt, damaged
from tests.sweeps import sweep
from tests.transcripts import recorded

#: More than any recorded message decompresses to, and little enough to notice.
LIMIT = 1 << 20

BINARY = (EventType.PUT, EventType.PUSH, EventType.ACK, EventType.CONFIRM)
DECODERS: dict[str, Any] = {
    "decode_puts": decode_puts,
    "decode_pushes": decode_pushes,
    "decode_acks": decode_acks,
    "iter_acks": lambda event, body: list(iter_acks(event, body)),
    "decode_confirms": decode_confirms,
}


def check_error(error: ProtocolError, length: int, *, placed: bool = True) -> None:
    assert error.field
    assert error.reason
    if placed:
        assert error.offset is not None
        assert 0 <= error.offset <= length


def check_application_data(message: DecodedPut | PushMessage) -> None:
    """Decode the content of a message, in both encodings regardless of its header."""
    for schema_id in {message.schema_id, 0, 1}:
        split, error = attempt(
            split_application_data,
            message.data,
            has_properties=bool(message.flags & 2),
            schema_id=schema_id,
            compression=message.compression,
            limit=LIMIT,
        )
        if error:
            check_error(error, len(message.data), placed=False)
            continue
        properties, payload = split
        assert len(payload) <= max(LIMIT, len(message.data))
        values, error = attempt(lambda properties=properties: list(properties.items()))
        if error:
            check_error(error, LIMIT)
        else:
            assert 0 <= len(values) <= 255
            assert len(properties.types) == len(values)


def check_event(data: bytes) -> None:
    event, error = attempt(read_event, data)
    if error:
        check_error(error, len(data))
    if len(data) < 8:
        return
    body = 8 if error else event.body
    for decode in DECODERS.values():
        messages, error = attempt(decode, data, body)
        if error:
            check_error(error, len(data))
            continue
        assert len(messages) <= len(data) // 24
        for message in messages:
            if isinstance(message, DecodedPut | PushMessage):
                check_application_data(message)


@given(damaged(recorded(EventType.PUT, EventType.PUSH)))
def test_damaged_application_data_is_values_or_an_error(data: bytes) -> None:
    # The headers are right and the rest is not: the damage is behind the first message's header.
    check_application_data(DecodedPut(0, bytes(16), 3, 1, len(data) & 1, 0, data[44:]))


@sweep("event_type", BINARY, ids=lambda t: t.name)
def test_every_truncation_of_a_recorded_event(event_type: EventType) -> None:
    event = min(recorded(event_type), key=lambda e: len(e.data)).data
    decode = DECODERS[
        {2: "decode_puts", 3: "decode_confirms", 4: "decode_pushes", 5: "decode_acks"}[event_type]
    ]
    whole = decode(event, 8)
    assert whole
    for end in range(9, len(event)):
        messages, error = attempt(decode, event[:end], 8)
        if error:
            check_error(error, end)
        else:
            assert messages == whole[: len(messages)]
            assert len(messages) < len(whole)


def test_one_flipped_bit_anywhere_in_a_recorded_event() -> None:
    for event_type in BINARY:
        event = min(recorded(event_type), key=lambda e: len(e.data)).data
        for bit in range(len(event) * 8):
            flipped = bytearray(event)
            flipped[bit // 8] ^= 0x80 >> bit % 8
            check_event(bytes(flipped))
