# SPDX-License-Identifier: Apache-2.0
"""Options of a PUSH message: every form of subscriptions, and skipped options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import ProtocolError
from bmq.wire.layout import OptionHeader, SubQueueInfo
from bmq.wire.options import LimitedIds, encode_sub_queue_ids, read_sub_queue_ids
from tests.sweeps import sweep

identifiers = st.integers(0, 2**32 - 1)
some = st.lists(identifiers, min_size=1, max_size=8).map(tuple)


def option(
    kind: int, body: bytes = b"", *, packed: int = 0, specific: int = 0, words: int | None = None
) -> bytes:
    words = 1 + len(body) // 4 if words is None else words
    header = {"type": kind, "packed": packed, "typeSpecific": specific, "words": words}
    return OptionHeader.build(header) + body


def u32(*numbers: int) -> bytes:
    return b"".join(n.to_bytes(4, "big") for n in numbers)


def info(identifier: int, rda: int = 0x80) -> bytes:
    fields = {
        "unlimited": rda >> 7,
        "potentiallyPoisonous": rda >> 6 & 1,
        "remainingDeliveryAttempts": rda & 63,
    }
    return SubQueueInfo.build({"id": identifier, "reserved": 0, **fields})


@given(some)
def test_old_ids(ids: tuple[int, ...]) -> None:
    expected = option(1, u32(*ids))
    assert encode_sub_queue_ids(ids) == expected
    assert read_sub_queue_ids(expected) == ids


@given(some.filter(lambda ids: ids != (0,)))
@pytest.mark.statement("3.6")
def test_infos(ids: tuple[int, ...]) -> None:
    expected = option(3, b"".join(map(info, ids)), specific=2)
    assert read_sub_queue_ids(expected) == ids


@sweep("item_words", [1, 2, 3, 15])
def test_the_senders_item_size_is_honoured(item_words: int) -> None:
    body = b"".join(u32(identifier).ljust(item_words * 4, b"\xee") for identifier in (5, 6, 7))
    infos = option(3, body, specific=item_words)
    assert read_sub_queue_ids(infos) == (5, 6, 7)
    assert read_sub_queue_ids(option(40, u32(1, 2, 3)) + infos) == (5, 6, 7)


MSG_GROUP = option(2, b"group\3\3\3")
UNKNOWN = option(40, u32(1, 2, 3), specific=7)
UNKNOWN_PACKED = option(63, packed=1, words=2**21 - 1)


@sweep("skipped", [MSG_GROUP, UNKNOWN, UNKNOWN_PACKED])
def test_options_of_other_types_are_skipped(skipped: bytes) -> None:
    assert read_sub_queue_ids(skipped) == (0,)
    for named in (option(1, u32(4, 5)), option(3, info(4) + info(5), specific=2)):
        assert read_sub_queue_ids(skipped + named) == (4, 5)
        assert read_sub_queue_ids(named + skipped) == (4, 5)
        assert read_sub_queue_ids(skipped + named + skipped) == (4, 5)


@sweep(
    "area, field, at",
    [
        (b"\4", "OptionHeader", 0),
        (b"\4\0\0", "OptionHeader", 0),
        (option(1, words=0), "OptionHeader.words", 0),
        (option(1, words=1), "OptionHeader.words", 0),
        (option(40, words=1), "OptionHeader.words", 0),
        (option(1, u32(1), words=3), "OptionHeader.words", 0),
        (option(40, u32(1), words=3), "OptionHeader.words", 0),
        (MSG_GROUP + option(1, u32(1), words=3), "OptionHeader.words", 12),
        (UNKNOWN_PACKED + option(1, words=1), "OptionHeader.words", 4),
        (option(3, info(1), specific=0), "OptionHeader.typeSpecific", 0),
        (option(3, info(1) + u32(2), specific=2), "OptionHeader.typeSpecific", 0),
        (MSG_GROUP + option(3, info(1), specific=15), "OptionHeader.typeSpecific", 12),
        (option(1, u32(1)) + b"\4\0", "OptionHeader", 8),
    ],
)
def test_malformed_options_are_refused(area: bytes, field: str, at: int) -> None:
    for start in (0, 40):
        with pytest.raises(ProtocolError) as caught:
            read_sub_queue_ids(area, start)
        assert (caught.value.field, caught.value.offset) == (field, start + at)


@pytest.mark.statement("4.16")
@sweep(
    "area, left",
    [
        (option(3, u32(7) + b"\x03\0\0\0", specific=2), 3),
        (option(3, u32(7) + b"\x40\0\0\0", specific=2), 0),  # potentially poisonous
        (b"\x0e\x00\x00\x05", 5),  # packed
    ],
)
def test_attempts_that_are_left_are_read(area: bytes, left: int) -> None:
    ids = read_sub_queue_ids(area)
    assert isinstance(ids, LimitedIds)
    assert ids.attempts_left == left


@sweep("area", [option(3, info(7), specific=2), bytes.fromhex("0e000080"), option(1, u32(7))])
def test_attempts_without_a_limit_are_not_counted(area: bytes) -> None:
    assert not isinstance(read_sub_queue_ids(area), LimitedIds)
