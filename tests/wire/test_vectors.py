# SPDX-License-Identifier: Apache-2.0
"""The worked examples of the protocol description, byte for byte."""

from __future__ import annotations

from bmq.wire.ack import AckMessage, decode_acks, encode_acks
from bmq.wire.compression import compress
from bmq.wire.confirm import ConfirmMessage, decode_confirms
from bmq.wire.constants import EventType, PropertyType, PutFlags
from bmq.wire.crc import crc32c
from bmq.wire.event import (
    HEADER_SIZE,
    HEARTBEAT_REQ,
    HEARTBEAT_RSP,
    pack_event_header,
    pack_schema_event,
    read_event,
)
from bmq.wire.guid import GuidGenerator, guid_from_text, guid_to_text
from bmq.wire.message import split_application_data
from bmq.wire.options import encode_sub_queue_ids, read_sub_queue_ids
from bmq.wire.properties import Properties, PropertyValue, encode_properties
from bmq.wire.push import PushMessage, decode_pushes
from bmq.wire.put import DecodedPut, decode_puts, encode_put
from tests.wire.messages import encode_confirms, push_message

GUID = bytes.fromhex("40000100000000003039CD8101020304")
CLIENT_ID = bytes.fromhex("CD8101020304")

PROPERTIES = {"alpha": PropertyValue(PropertyType.INT32, 7), "beta": "hi"}
NEW = bytes.fromhex("1b000009 00021000 00000005 18000009 0004616c 70686100 00000762 65746168 69030303")
OLD = bytes.fromhex("1b000009 00021000 00040005 18000002 0004616c 70686100 00000762 65746168 69030303")
PUT_WITH_PROPERTIES = bytes.fromhex(
    "00000058 42020000 30000014 00000009 00000000 40000100 00000000 3039cd81 01020304 6848e6d8 00010000"
    "1b000009 00021000 00000005 18000009 0004616c 70686100 00000762 65746168 69030303 68656c6c 6f030303"
)
PUT_PLAIN = bytes.fromhex(
    "00000034 42020000 1000000b 00000009 00000000 40000100 00000000 3039cd81 01020304"
    "9a71bb4c 00000000 68656c6c 6f030303"
)
PUSH = bytes.fromhex(
    "00000038 44020000 0000000c 00000208 00000000 40000100 00000000 3039cd81 01020304"
    "00000000 04000002 00000001 68656c6c 6f030303"
)

ACK = bytes.fromhex("00000024 45020000 16000000 00000000 40000100 00000000 3039cd81 01020304 00000000")
NACK = bytes.fromhex("00000024 45020000 16000000 05000000 40000100 00000000 3039cd81 01020304 00000000")
CONFIRM = bytes.fromhex("00000024 43020000 16000000 00000000 40000100 00000000 3039cd81 01020304 00000000")
DISCONNECT = bytes.fromhex("00000024 41022000 7b227249 64223a33 2c226469 73636f6e 6e656374 223a7b7d 7d030303")


def event_of(event_type: EventType, *messages: bytes) -> bytes:
    body = b"".join(messages)
    return pack_event_header(HEADER_SIZE + len(body), event_type) + body


def test_a_guid_matches_its_vector() -> None:
    generator = GuidGenerator(CLIENT_ID)
    generator.next(0)
    assert generator.next(12345) == GUID
    assert guid_to_text(GUID) == "40000100000000003039CD8101020304"
    assert guid_from_text("40000100000000003039CD8101020304") == GUID


def test_properties_match_their_vectors() -> None:
    assert encode_properties(PROPERTIES, new=True) == NEW
    assert encode_properties(PROPERTIES, new=False) == OLD
    for properties in (Properties(NEW, new=True), Properties(OLD, new=False)):
        assert list(properties.items()) == [("alpha", 7), ("beta", "hi")]
        assert properties.types == {"alpha": PropertyType.INT32, "beta": PropertyType.STRING}


def test_a_put_with_properties_matches_its_vector() -> None:
    flags = PutFlags.ACK_REQUESTED | PutFlags.MESSAGE_PROPERTIES
    message = encode_put(0, GUID, NEW + b"hello", flags=flags, schema_id=1)
    assert event_of(EventType.PUT, message) == PUT_WITH_PROPERTIES
    event = read_event(PUT_WITH_PROPERTIES)
    assert (event.type, event.body) == (EventType.PUT, 8)
    [decoded] = decode_puts(event.data, event.body)
    assert decoded == DecodedPut(0, GUID, flags, 1, 0, 0x6848E6D8, NEW + b"hello")
    properties, payload = split_application_data(
        decoded.data, has_properties=True, schema_id=decoded.schema_id, compression=decoded.compression
    )
    assert (dict(properties), payload) == ({"alpha": 7, "beta": "hi"}, b"hello")


def test_a_put_without_properties_matches_its_vector() -> None:
    assert event_of(EventType.PUT, encode_put(0, GUID, b"hello")) == PUT_PLAIN
    assert decode_puts(PUT_PLAIN, 8) == [DecodedPut(0, GUID, 1, 0, 0, 0x9A71BB4C, b"hello")]


def test_a_push_matches_its_vector() -> None:
    assert event_of(EventType.PUSH, push_message(0, GUID, b"hello", encode_sub_queue_ids((1,)))) == PUSH
    assert decode_pushes(PUSH, 8) == [PushMessage(0, (1,), GUID, 0, 0, 0, b"hello")]


def test_acknowledgements_match_their_vectors() -> None:
    assert encode_acks([(0, 0, GUID, 0)]) == ACK
    assert encode_acks([(5, 0, GUID, 0)]) == NACK
    assert decode_acks(ACK, 8) == [AckMessage(0, 0, GUID, 0)]
    assert decode_acks(NACK, 8) == [AckMessage(5, 0, GUID, 0)]


def test_a_confirmation_matches_its_vector() -> None:
    assert encode_confirms([(0, GUID, 0)]) == CONFIRM
    assert decode_confirms(CONFIRM, 8) == [ConfirmMessage(0, GUID, 0)]


def test_a_control_event_matches_its_vector() -> None:
    json = 1
    assert pack_schema_event(EventType.CONTROL, json, b'{"rId":3,"disconnect":{}}') == DISCONNECT
    event = read_event(DISCONNECT)
    assert (event.type, event.type_specific >> 5, event.body) == (EventType.CONTROL, json, 8)
    authentication = pack_schema_event(EventType.AUTHENTICATION, json, b"{}")
    assert authentication == bytes.fromhex("0000000c 4f022000 7b7d0202")


def test_option_headers_match_their_vectors() -> None:
    assert encode_sub_queue_ids((1,)) == bytes.fromhex("04000002 00000001")
    packed, unpacked = bytes.fromhex("0e000080"), bytes.fromhex("0c400003 00000007 80000000")
    assert read_sub_queue_ids(packed) == (0,)
    assert read_sub_queue_ids(unpacked) == (7,)


def test_heartbeats_match_their_vectors() -> None:
    assert bytes.fromhex("00000008 4b020000") == HEARTBEAT_REQ
    assert bytes.fromhex("00000008 4c020000") == HEARTBEAT_RSP


def test_crc32c_matches_its_vectors() -> None:
    assert [crc32c(data) for data in (b"", b"a", b"hello", b"123456789")] == [
        0,
        0xC1D04330,
        0x9A71BB4C,
        0xE3069283,
    ]


def test_zlib_streams_start_like_those_of_other_clients() -> None:
    assert compress(b"hello").startswith(b"\x78\x9c")
