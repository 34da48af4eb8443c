# SPDX-License-Identifier: Apache-2.0
"""Each recorded binary event of a real broker and its clients decodes, and encodes to the same bytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

from bmq.wire.ack import decode_acks, encode_acks
from bmq.wire.confirm import decode_confirms
from bmq.wire.constants import Compression, EventType, PutFlags
from bmq.wire.crc import crc32c
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.message import join_application_data, split_application_data
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.properties import Properties, encode_properties
from bmq.wire.push import PushMessage, decode_pushes
from bmq.wire.put import DecodedPut, decode_puts, encode_put, encode_puts
from tests.sweeps import sweep
from tests.transcripts import Recorded, recorded
from tests.wire.messages import encode_confirms, push_message

# zlib-ng produces different, equally good, compressions.
ZLIB_IS_THE_REFERENCE = "ng" not in zlib.ZLIB_RUNTIME_VERSION


def each(*types: EventType) -> Callable[[Callable[..., None]], Any]:
    return sweep("event", recorded(*types), ids=str)


def event_of(event_type: EventType, messages: list[bytes]) -> bytes:
    body = b"".join(messages)
    return pack_event_header(HEADER_SIZE + len(body), event_type) + body


def open_data(message: DecodedPut | PushMessage) -> tuple[Properties, bytes]:
    return split_application_data(
        message.data,
        has_properties=bool(message.flags & PutFlags.MESSAGE_PROPERTIES),
        schema_id=message.schema_id,
        compression=message.compression,
    )


def close_data(message: DecodedPut | PushMessage) -> bytes:
    """Encode a message's application data from its decoded values."""
    properties, payload = open_data(message)
    new = message.schema_id != 0
    if new and list(properties) != sorted(properties):
        # A producer that ignored the required order: read, and never written.
        assert message.schema_id == 1
        return message.data
    data, compression = join_application_data(
        payload, encode_properties(properties, new=new), new=new, compression=Compression(message.compression)
    )
    assert compression == message.compression
    if compression and not ZLIB_IS_THE_REFERENCE:  # pragma: no cover
        assert open_data(message._replace(data=data)) == (properties, payload)
        return message.data
    return data


@each(EventType.PUT)
@pytest.mark.statement("8.1")
def test_puts_encode_to_the_same_bytes(event: Recorded) -> None:
    messages = decode_puts(event.data, HEADER_SIZE)
    assert messages
    again = [
        encode_put(
            m.queue_id, m.guid, close_data(m), flags=m.flags, schema_id=m.schema_id, compression=m.compression
        )
        for m in messages
    ]
    assert event_of(EventType.PUT, again) == event.data
    for queue_id, several in groupby(messages, lambda m: m.queue_id):
        items = [(m.guid, close_data(m), m.flags, m.schema_id, m.compression) for m in several]
        assert b"".join(encode_puts(queue_id, items)[0]) == b"".join(again[: len(items)])
        del again[: len(items)]
    assert [crc32c(m.data) for m in messages] == [m.crc for m in messages]


@each(EventType.PUSH)
def test_pushes_encode_to_the_same_bytes(event: Recorded) -> None:
    messages = decode_pushes(event.data, HEADER_SIZE)
    assert messages
    again = [
        push_message(
            m.queue_id,
            m.guid,
            close_data(m),
            encode_sub_queue_ids(m.sub_ids),
            flags=m.flags,
            schema_id=m.schema_id,
            compression=m.compression,
        )
        for m in messages
    ]
    assert event_of(EventType.PUSH, again) == event.data


@each(EventType.CONFIRM)
@pytest.mark.statement("8.1")
def test_confirms_encode_to_the_same_bytes(event: Recorded) -> None:
    messages = decode_confirms(event.data, HEADER_SIZE)
    assert messages
    assert encode_confirms(messages) == event.data


@each(EventType.ACK)
def test_acks_encode_to_the_same_bytes(event: Recorded) -> None:
    messages = decode_acks(event.data, HEADER_SIZE)
    assert messages
    assert encode_acks(messages) == event.data


def test_the_official_clients_property_types() -> None:
    put = recorded(EventType.PUT, recording="official-props")[0]
    [message] = decode_puts(put.data, HEADER_SIZE)
    properties, payload = open_data(message)
    assert [(name, each.type.name, each.value) for name, each in properties.typed().items()] == [
        ("b", "BINARY", b"\x00\xff"),
        ("big", "INT64", 2**62),
        ("ch", "CHAR", b"A"),
        ("empty", "STRING", ""),
        ("f", "BOOL", False),
        ("i16", "SHORT", -3),
        ("i32", "INT32", 7),
        ("i64", "INT64", -5),
        ("s", "STRING", "héllo"),
        ("t", "BOOL", True),
    ]
    assert (payload, message.schema_id) == (b"with properties", 3)


def test_compression_of_the_official_client_starts_at_1024_bytes() -> None:
    puts = recorded(EventType.PUT, recording="official-zlib")
    messages = [message for put in puts for message in decode_puts(put.data, HEADER_SIZE)]
    assert [(len(open_data(m)[1]), m.compression, m.schema_id != 0) for m in messages] == [
        (1023, 0, True),
        (1024, 1, True),
        (5000, 1, True),
        (76800, 1, True),
        (1023, 0, False),
        (1024, 1, False),
        (5000, 1, False),
        (76800, 1, False),
    ]
    with_properties = messages[1]
    assert with_properties.data[:6] == bytes.fromhex("1b0000060001"), "properties stay plain in front"
