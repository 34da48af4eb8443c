# SPDX-License-Identifier: Apache-2.0
"""ACK and CONFIRM events: lists of equal items after a header with their size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import AckStatus, ProtocolError
from bmq.wire.ack import STATUS_MASK, AckMessage, decode_acks, encode_acks, iter_acks
from bmq.wire.anatomy import dissect
from bmq.wire.confirm import MAX_CONFIRMS, ConfirmMessage, decode_confirms, encode_confirm, pack_confirms
from bmq.wire.constants import ACK_STATUS_FROM_WIRE, ACK_STATUS_TO_WIRE, EventType
from bmq.wire.event import read_event
from bmq.wire.layout import AckHeader, ConfirmHeader
from bmq.wire.layout import AckMessage as AckLayout
from bmq.wire.layout import ConfirmMessage as ConfirmLayout
from tests.sweeps import sweep
from tests.wire.messages import encode_confirms

GUID = bytes.fromhex("40000100000000003039CD8101020304")
EVENT_HEADER = bytes(8)
AT = len(EVENT_HEADER)

guids = st.binary(min_size=16, max_size=16)
int32s = st.integers(-(2**31), 2**31 - 1)
acks = st.lists(
    st.builds(AckMessage, st.integers(0, 15), st.integers(0, 2**24 - 1), guids, int32s), max_size=6
)
confirms = st.lists(st.builds(ConfirmMessage, int32s, guids, int32s), max_size=6)


def ack_item(ack: AckMessage) -> bytes:
    fields = {"status": ack.status, "correlationId": ack.correlation_id, "messageGUID": ack.guid}
    return AckLayout.build({"reserved": 0, "queueId": ack.queue_id, **fields})


def confirm_item(confirm: ConfirmMessage) -> bytes:
    fields = {"queueId": confirm.queue_id, "messageGUID": confirm.guid, "subQueueId": confirm.sub_queue_id}
    return ConfirmLayout.build(fields)


def header(kind: str, words: int = 1, stride: int = 6) -> bytes:
    if kind == "Ack":
        return AckHeader.build({"headerWords": words, "perMessageWords": stride, "flags": 0, "reserved": 0})
    return ConfirmHeader.build({"headerWords": words, "perMessageWords": stride, "reserved": 0})


def iterated(event: bytes, body: int) -> list[tuple[int, bytes]]:
    return [(first & STATUS_MASK, guid) for first, guid in iter_acks(event, body)]


def expected(acks: Iterable[AckMessage]) -> list[tuple[int, bytes]]:
    return [(ack.status, ack.guid) for ack in acks]


KINDS = [
    pytest.param("Ack", decode_acks, id="ACK"),
    pytest.param("Ack", iter_acks, id="ACK iterated"),
    pytest.param("Confirm", decode_confirms, id="CONFIRM"),
]
kinds = pytest.mark.parametrize(("kind", "decode"), KINDS)
Decoder = Callable[[bytes, int], Iterable[Any]]
ITEM = bytes(4) + GUID + bytes(4)


@given(acks)
@pytest.mark.statement("3.10")
def test_acks_arrive_as_they_were_sent(messages: list[AckMessage]) -> None:
    event = encode_acks(messages)
    assert event[8:] == header("Ack") + b"".join(map(ack_item, messages))
    read = read_event(event)
    assert (read.type, decode_acks(read.data, read.body)) == (EventType.ACK, messages)
    assert iterated(read.data, read.body) == expected(messages)


def test_the_reserved_bits_of_an_ack_are_not_its_status() -> None:
    event = bytearray(encode_acks([(5, 7, GUID, 3)]))
    event[12] |= 0xF0
    assert decode_acks(bytes(event), AT) == [AckMessage(5, 7, GUID, 3)]
    assert iterated(bytes(event), AT) == [(5, GUID)]


@given(confirms)
@pytest.mark.statement("3.11")
def test_confirms_arrive_as_they_were_sent(messages: list[ConfirmMessage]) -> None:
    event = encode_confirms(messages)
    assert event[8:] == header("Confirm") + b"".join(map(confirm_item, messages))
    assert pack_confirms([encode_confirm(*m) for m in messages]) == event
    read = read_event(event)
    assert (read.type, decode_confirms(read.data, read.body)) == (EventType.CONFIRM, messages)


def test_a_full_event_of_confirms_stays_below_the_limit() -> None:
    assert 8 + 4 + MAX_CONFIRMS * 24 <= 512 * 1024 * 1024 < 8 + 4 + (MAX_CONFIRMS + 1) * 24


@sweep(
    "wire, status",
    [
        (0, AckStatus.SUCCESS),
        (1, AckStatus.LIMIT_MESSAGES),
        (2, AckStatus.LIMIT_BYTES),
        (5, AckStatus.UNKNOWN),
        (6, AckStatus.STORAGE_FAILURE),
        (7, AckStatus.NOT_READY),
        *((n, AckStatus.UNKNOWN) for n in (3, 4, *range(8, 16))),
    ],
)
@pytest.mark.statement("3.20")
def test_statuses_on_the_wire(wire: int, status: AckStatus) -> None:
    assert ACK_STATUS_FROM_WIRE[wire] is status
    shown = [part.value for part in dissect(encode_acks([(wire, 7, GUID, 3)])) if part.name == "status"]
    assert shown == [f"{wire} ({status.name})"]
    if status is not AckStatus.UNKNOWN:
        assert ACK_STATUS_TO_WIRE[status] == wire
    else:
        assert status not in ACK_STATUS_TO_WIRE


@given(acks, confirms, st.integers(1, 15), st.integers(6, 15))
@pytest.mark.statement("3.2")
def test_longer_headers_and_items_are_honoured(
    some_acks: list[AckMessage], some_confirms: list[ConfirmMessage], words: int, stride: int
) -> None:
    def event(kind: str, items: list[bytes]) -> bytes:
        longer = [item.ljust(stride * 4, b"\xee") for item in items]
        return EVENT_HEADER + header(kind, words, stride).ljust(words * 4, b"\xdd") + b"".join(longer)

    ack_event = event("Ack", [*map(ack_item, some_acks)])
    assert decode_acks(ack_event, AT) == some_acks
    assert iterated(ack_event, AT) == expected(some_acks)
    assert decode_confirms(event("Confirm", [*map(confirm_item, some_confirms)]), AT) == some_confirms


@kinds
@sweep("start", [8, 12, 1020])
@sweep(
    "body, field, at",
    [
        (b"", "Header", 0),
        (b"\x16\0\0", "Header", 0),
        ((0, 6, ITEM), "Header.headerWords", 0),
        ((8, 6, ITEM), "Header.headerWords", 0),
        ((15, 6, b""), "Header.headerWords", 0),
        ((2, 6, b""), "Header.headerWords", 0),
        ((1, 0, ITEM), "Header.perMessageWords", 0),
        ((1, 5, ITEM[:20]), "Header.perMessageWords", 0),
        ((1, 1, ITEM), "Header.perMessageWords", 0),
        ((1, 6, ITEM[:-1]), "Message", 4),
        ((1, 6, ITEM + ITEM[:4]), "Message", 28),
        ((1, 6, b"x"), "Message", 4),
        ((1, 7, ITEM), "Message", 4),
        ((1, 15, ITEM + ITEM), "Message", 4),
        ((2, 6, ITEM), "Message", 8),
    ],
)
def test_inconsistent_headers_are_refused(
    kind: str, decode: Decoder, body: Any, field: str, at: int, start: int
) -> None:
    raw = body if isinstance(body, bytes) else header(kind, body[0], body[1]) + body[2]
    with pytest.raises(ProtocolError) as caught:
        decode(bytes(start) + raw, start)
    assert (caught.value.field, caught.value.offset) == (kind + field, start + at)
