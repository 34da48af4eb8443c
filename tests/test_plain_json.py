# SPDX-License-Identifier: Apache-2.0
"""The stand-in for orjson gives what orjson gives."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq import _plain_json as plain


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


@dataclass
class Order:
    number: int
    lines: list[str] = field(default_factory=list)
    _hidden: int = 3


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


@pytest.mark.parametrize(
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
        {"at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "on": date(2026, 1, 2)},
        datetime(2026, 1, 2),
        UUID(int=5),
    ],
)
def test_values_of_applications(value: Any) -> None:
    assert plain.dumps(value) == orjson.dumps(value)


@pytest.mark.parametrize("option", ["OPT_INDENT_2", "OPT_NON_STR_KEYS"])
def test_options(option: str) -> None:
    value = {"a": [1, {"b": None}], "e": []}
    ours, theirs = getattr(plain, option), getattr(orjson, option)
    assert plain.dumps(value, option=ours) == orjson.dumps(value, option=theirs)


def test_other_keys_and_other_types() -> None:
    value = {1: "a", Level.HIGH: object()}
    assert plain.dumps(value, default=repr, option=plain.OPT_NON_STR_KEYS) == orjson.dumps(
        value, default=repr, option=orjson.OPT_NON_STR_KEYS
    )
    passed = plain.OPT_PASSTHROUGH_DATACLASS
    assert passed == orjson.OPT_PASSTHROUGH_DATACLASS
    assert plain.dumps(Order(1), default=lambda _: "order", option=passed) == b'"order"'


@pytest.mark.parametrize(
    "value", ["\ud800", {1: 2}, {b"k": 1}, object(), b"bytes", {1, 2}, ["\udfff"], [10**5000]]
)
def test_what_is_no_json_value(value: Any) -> None:
    with pytest.raises(orjson.JSONEncodeError):
        orjson.dumps(value)
    with pytest.raises(plain.JSONEncodeError):
        plain.dumps(value)


TEXTS = [
    b"",
    b"{",
    b"NaN",
    b"[1,]",
    b"\xff",
    b'"\\ud800"',
    b"[" * 100_000,
    b"\xff\xfe1\x00",
    b"\xef\xbb\xbf1",
    b"01",
]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:8]))
def test_what_is_no_json_text(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(text)
    with pytest.raises(plain.JSONDecodeError):
        plain.loads(text)


@pytest.mark.parametrize("json", [orjson, plain])
@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), ValueError("x")])
def test_error_of_the_function_for_other_types_is_an_error_of_encoding(json: Any, error: Exception) -> None:
    def fail(value: object) -> object:
        raise error

    with pytest.raises(json.JSONEncodeError, match="Type is not JSON serializable: object") as caught:
        json.dumps(object(), fail)
    assert caught.value.__cause__ is error
