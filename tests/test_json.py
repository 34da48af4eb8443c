# SPDX-License-Identifier: Apache-2.0
"""msgspec in place of orjson gives what orjson gives, and refuses what orjson refuses."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq._json import MsgspecJson as plain
from tests.sweeps import sweep


class Colour(enum.Enum):
    RED = "red"


class Text(str):
    pass


class Number(int):
    pass


class Level(enum.IntEnum):
    HIGH = 2


@dataclass
class Order:
    number: int
    lines: list[str] = field(default_factory=list)


TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_values(value: Any) -> None:
    data = orjson.dumps(value)
    assert plain.dumps(value) == data
    assert plain.loads(data) == value
    assert plain.loads(memoryview(data)) == value


@sweep(
    "value",
    [
        1.5,
        math.nan,
        [math.inf],
        (1, 2),
        Order(1, ["a"]),
        {"order": Order(2)},
        Colour.RED,
        Level.HIGH,
        {"on": date(2026, 1, 2), "text": Text("x"), "number": Number(3)},
        datetime(2026, 1, 2),
        UUID(int=5),
    ],
)
def test_values_of_applications(value: Any) -> None:
    assert plain.dumps(value) == orjson.dumps(value)


def test_indentation() -> None:
    value = {"a": [1, {"b": None}], "e": [], "o": {}}
    assert plain.dumps(value, option=plain.OPT_INDENT_2) == orjson.dumps(value, option=orjson.OPT_INDENT_2)


def test_other_types() -> None:
    value = {"a": object, "b": [object]}
    assert plain.dumps(value, default=repr) == orjson.dumps(value, default=repr)


def test_the_documented_differences() -> None:
    written = {
        '"eA=="': b"x",
        "[1]": {1},
        "18446744073709551616": 2**64,
        '{"1":2}': {1: 2},
        '"2026-01-02T00:00:00Z"': datetime(2026, 1, 2, tzinfo=UTC),
        '"1.5"': Decimal("1.5"),
        "1e22": 1e22,
    }
    for text, value in written.items():
        assert plain.dumps(value).decode() == text
    assert plain.loads(b"18446744073709551616") == 2**64


@sweep("text", ["[1]x", '{"a":1}\x00\x00', '"é"x', '["é" x]', "{", "nul"])
def test_an_error_has_its_place(text: str) -> None:
    with pytest.raises(orjson.JSONDecodeError) as theirs:
        orjson.loads(text)
    with pytest.raises(plain.JSONDecodeError) as ours:
        plain.loads(text)
    assert (ours.value.doc, ours.value.pos) == (text, theirs.value.pos)


@sweep("value", ["\ud800", object(), ["\udfff"], [10**5000]])
def test_what_is_no_json_value(value: Any) -> None:
    with pytest.raises(orjson.JSONEncodeError):
        orjson.dumps(value)
    with pytest.raises(plain.JSONEncodeError):
        plain.dumps(value)


TEXTS = [
    b"", b"{", b"NaN", b"[1,]", b"\xff", b'"\\ud800"', b"[" * 100_000,
    b"\xff\xfe1\x00", b"\xef\xbb\xbf1", b"01"
]  # fmt: skip


@sweep("text", TEXTS)
def test_what_is_no_json_text(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(text)
    with pytest.raises(plain.JSONDecodeError):
        plain.loads(text)


@sweep("json", [orjson, plain])
@sweep("error", [KeyError("x"), TypeError("x"), ValueError("x")])
def test_error_of_the_function_for_other_types_is_an_error_of_encoding(json: Any, error: Exception) -> None:
    def fail(value: object) -> object:
        raise error

    with pytest.raises(json.JSONEncodeError, match="Type is not JSON serializable: object") as caught:
        json.dumps(object(), fail)
    assert caught.value.__cause__ is error
