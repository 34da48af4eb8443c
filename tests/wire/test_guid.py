# SPDX-License-Identifier: Apache-2.0
"""Message GUIDs: unique, in their layout, and as text."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import UsageError
from bmq.wire.guid import GuidGenerator, client_id_from, guid_from_text, guid_to_text
from bmq.wire.layout import MessageGUID
from tests.sweeps import sweep

CLIENT_ID = bytes.fromhex("CD8101020304")


@given(st.integers(0, 2**56 - 1), st.binary(min_size=6, max_size=6))
@pytest.mark.statement("3.23")
def test_a_guid_has_the_documented_layout(tick: int, client_id: bytes) -> None:
    generator = GuidGenerator(client_id)
    for counter in range(3):
        expected = {"version": 1, "counter": counter, "timerTick": tick, "clientId": client_id}
        assert generator.next(tick) == MessageGUID.build(expected)


def test_the_counter_wraps_and_the_tick_keeps_guids_apart() -> None:
    generator = GuidGenerator(CLIENT_ID)
    first = generator.next(1)
    for _ in range(2**22 - 2):
        generator.next(1)
    last, wrapped, later = generator.next(1), generator.next(1), generator.next(2)
    assert last[:3].hex() == "7fffff"
    assert wrapped == first, "4,194,304 GUIDs in one nanosecond are too many"
    assert later[:3].hex() == "400001"
    assert later[3:10] == (2).to_bytes(7, "big")


@sweep(
    "tick, expected",
    [(2**56 - 1, "ff" * 7), (2**56, "00" * 7), (2**56 + 5, "00" * 6 + "05"), (2**63, "00" * 7)],
)
def test_the_tick_wraps_at_56_bits(tick: int, expected: str) -> None:
    assert GuidGenerator(CLIENT_ID).next(tick)[3:10].hex() == expected


def test_client_id_is_a_prefix_of_an_md5_of_the_sessions_identity() -> None:
    seed = b"\x7f\0\0\1" + (1_700_000_000_000_000_000).to_bytes(8, "big") + b"\0\0\x10\x92" + b"\0\0\0\1"
    assert client_id_from("\x7f\0\0\1", 1_700_000_000_000_000_000, 4242, 1) == hashlib.md5(seed).digest()[:6]
    assert len(client_id_from("h\udce9st", 1, 2, 3)) == 6


@given(st.binary(min_size=16, max_size=16).filter(any))
def test_a_guid_has_a_text_form(guid: bytes) -> None:
    text = guid_to_text(guid)
    assert len(text) == 32
    assert text == text.upper()
    assert int(text, 16) == int.from_bytes(guid, "big")
    assert guid_from_text(text) == guid


@sweep(
    "text",
    [
        "",
        "40000100000000003039CD810102030",
        "40000100000000003039CD81010203040",
        "40000100000000003039cd8101020304",
        "40000100000000003039CD810102030G",
        "40000100000000003039CD8101020304\n",
        " 0000100000000003039CD8101020304",
        "0x000100000000003039CD8101020304",
        "４0000100000000003039CD8101020304",
    ],
)
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"32 upper-case hexadecimal digits, .*not"):
        guid_from_text(text)
    with pytest.raises(UsageError, match="means 'unset'"):
        guid_from_text("0" * 32)
