# SPDX-License-Identifier: Apache-2.0
"""Text of a peer in logs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bmq.wire.printable import printable
from tests.sweeps import sweep


@sweep(
    "text, shown",
    [
        ("", ""),
        ("caf\u00e9 \u6f22 \N{GRINNING FACE}", "caf\u00e9 \u6f22 \N{GRINNING FACE}"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[2J\x07\x00\x7f\x85", r"\x1b[2J\x07\x00\x7f\x85"),
        ("\u2028\u202e\u200b", r"\u2028\u202e\u200b"),
        ("\udcff\ud800", r"\udcff\ud800"),
        ("C:\\new", "C:\\new"),
    ],
)
def test_cursor_movements_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(), max_size=200))
def test_the_result_is_one_printable_line(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown.encode().splitlines()) <= 1


def test_long_texts_are_truncated() -> None:
    assert printable("x" * 10_000_000) == "x" * 1000 + "..."
    assert printable("x\n" * 10, limit=3) == r"x\nx..."
