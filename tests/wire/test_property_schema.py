# SPDX-License-Identifier: Apache-2.0
"""Remembered property schemas are faster, and never change a result."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq._caches import CACHES, Cache
from bmq.errors import InvalidProperty, ProtocolError
from bmq.wire import properties as module
from bmq.wire.constants import PropertyType
from bmq.wire.properties import (
    Properties,
    PropertyValue,
    SchemaIds,
    encode_properties,
    first_properties,
    property_column,
    split_properties,
)
from bmq.wire.property_schema import Layouts
from tests.hostile import attempt

ENCODINGS = pytest.mark.parametrize("new", [True, False], ids=["new", "old"])


@contextmanager
def forgotten() -> Iterator[None]:
    """Use empty caches inside the block, and restore the caches afterwards."""
    kept = module.LAYOUTS, module._encoders
    module.LAYOUTS = (Layouts(module.Properties, new=False), Layouts(module.Properties, new=True))
    module._encoders = Cache("encoders in this test", 512)
    try:
        yield
    finally:
        module.LAYOUTS, module._encoders = kept
        CACHES.pop("encoders in this test", None)


def read(area: bytes, new: bool) -> tuple[Any, ProtocolError | None]:
    return attempt(lambda: list(Properties(area, new=new).typed().items()))


def read_first(data: bytes, new: bool) -> tuple[Any, ProtocolError | None]:
    """The same for application data, as read by consumers."""
    return attempt(lambda: list(first_properties(data, new).typed().items()))


def read_cold(area: bytes, new: bool) -> tuple[Any, ProtocolError | None]:
    with forgotten():
        return read(area, new)


def same(one: tuple[Any, ProtocolError | None], other: tuple[Any, ProtocolError | None]) -> bool:
    return (one[0], str(one[1])) == (other[0], str(other[1]))


names = st.from_regex(r"[a-c][a-z]?", fullmatch=True)
values = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=5), st.binary(max_size=5)
)
mappings = st.dictionaries(names, values, min_size=1, max_size=5)
edits = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=3)
ends = st.binary(max_size=4)


# Encoding


@ENCODINGS
@given(messages=st.lists(mappings, min_size=1, max_size=4))
def test_the_first_message_of_a_schema_and_the_later_ones_are_alike(
    messages: list[dict[str, Any]], new: bool
) -> None:
    # Typed values are encoded without a cache.
    explicit = [dict(Properties(encode_properties(m, new=new), new=new).typed()) for m in messages]
    expected = [encode_properties(m, new=new) for m in explicit]
    with forgotten():
        for _ in range(3):
            assert [encode_properties(m, new=new) for m in messages] == expected


@ENCODINGS
@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ({"n": 1}, {"n": 2**63}, "does not fit INT64"),
        ({"n": 1}, {"n": -(2**63) - 1}, "does not fit INT64"),
        ({"s": "x", "n": 1}, {"s": "x", "n": 2**64}, "property 'n'.*does not fit INT64"),
        ({"s": "x"}, {"s": "\ud800"}, "half of a surrogate pair"),
        ({"n": 1}, {"n": 1.0}, "not float"),
        ({"n": 1}, {"n": PropertyValue(PropertyType.SHORT, 2**15)}, "does not fit SHORT"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_when_the_schema_is_known(
    good: dict[str, Any], bad: dict[str, Any], message: str, new: bool
) -> None:
    for _ in range(3):
        encode_properties(good, new=new)
        with pytest.raises(InvalidProperty, match=message):
            encode_properties(bad, new=new)


# Decoding


@ENCODINGS
@given(message=mappings, changes=st.lists(edits, max_size=3), end=ends)
def test_a_known_schema_gives_the_same_results(
    message: dict[str, Any], changes: list[list[tuple[int, int]]], end: bytes, new: bool
) -> None:
    area = encode_properties(message, new=new)
    damaged = [area, area + end, area[:-1], area + bytes(30)]
    for change in changes:
        other = bytearray(area)
        for at, value in change:
            other[at % len(other)] = value
        damaged += [bytes(other), bytes(other) + b"payload"]
    with forgotten():
        for _ in range(4):  # headers are cached first, then usual values
            properties, length = split_properties(area + b"payload", new)
            assert (dict(properties), length) == (message, len(area))
        for one in (*damaged, *damaged):
            expected = read_cold(one, new)
            assert same(read(one, new), expected)
            assert same(read_first(one, new), expected)


@ENCODINGS
def test_the_same_headers_with_other_names_and_values(new: bool) -> None:
    messages = [{"one": 1, "text": "x"}, {"two": 1, "text": "x"}]
    messages += [{"one": 1, "text": "t" * size} for size in [*range(20), 1000, 3, 0]]
    for _ in range(3):
        for message in messages:
            assert dict(Properties(encode_properties(message, new=new), new=new)) == message


# Columns


def column_cold(data: list[bytes], new: bool, name: str) -> tuple[Any, ProtocolError | None]:
    with forgotten():
        return attempt(lambda: [Properties(each, new).get(name) for each in data])


def check_column(data: list[bytes], name: str, new: bool, times: int) -> None:
    """A column equals the values of the single messages, even for a known shape."""
    with forgotten():
        for _ in range(times):
            values, error = attempt(lambda: property_column(data, new, name))
            expected = column_cold(data, new, name)
            assert (error is None) == (expected[1] is None)
            if error is None:
                assert values == expected[0]
                assert [type(value) for value in values] == [type(value) for value in expected[0]]


characters = st.sampled_from(["a", "z", "7", "\0", "\1", "\4", "\n", "ä", "€", "𝄞"])
typed = {
    PropertyType.BOOL: st.booleans(),
    PropertyType.CHAR: st.binary(min_size=1, max_size=1),
    PropertyType.SHORT: st.integers(-(2**15), 2**15 - 1),
    PropertyType.INT32: st.integers(-(2**31), 2**31 - 1),
    PropertyType.INT64: st.integers(-(2**63), 2**63 - 1),
    PropertyType.STRING: st.one_of(st.text(characters, max_size=4), st.text("ab", min_size=3, max_size=3)),
    PropertyType.BINARY: st.binary(max_size=4),
}


@ENCODINGS
@given(
    schema=st.dictionaries(names, st.sampled_from(list(typed)), min_size=1, max_size=4),
    count=st.sampled_from([1, 2, 63, 64, 65, 130]),
    change=st.one_of(st.just([]), edits),
    data=st.data(),
)
def test_long_column_equals_the_values_of_the_messages(
    schema: dict[str, PropertyType], count: int, change: list[tuple[int, int]], data: st.DataObject, new: bool
) -> None:
    row = st.fixed_dictionaries({name: typed[kind] for name, kind in schema.items()})
    areas = [
        encode_properties({name: PropertyValue(schema[name], value) for name, value in each.items()}, new=new)
        for each in data.draw(st.lists(row, min_size=1, max_size=3))
    ]
    drawn = [area + b"payload" for area in areas * count][:count]
    if change:
        damaged = bytearray(areas[0])
        for at, value in change:
            damaged[at % len(damaged)] = value
        drawn[data.draw(st.integers(0, count - 1))] = bytes(damaged)
    name = data.draw(st.sampled_from([*schema, "missing"]))
    check_column(drawn, name, new, times=2)


def odd_columns(new: bool) -> Iterator[tuple[str, list[bytes], list[bytes]]]:
    """Yield columns with their repeated areas, and areas that stand once among them."""
    for text in ("", "EXPRESS", "a\0b", "äöü", "x" * 24, "x" * 25, "x" * 200):
        texts = [encode_properties({"n": 1, "text": each}, new=new) for each in (text, text[::-1])]
        yield "text", [area + b"payload" for area in texts], []
    others = [encode_properties({"a": 1, second: 2}, new=new) for second in ("one", "two")]
    yield "one", others, []
    # Two halves of a character, in neighbouring texts, are not a character.
    halves = [PropertyValue(PropertyType.BINARY, raw) for raw in (b"a\xc3", b"\xa4a")]
    areas = [encode_properties({"text": half}, new=new) for half in halves]
    yield "text", [area.replace(b"\x1c", b"\x18", 1) for area in areas], []
    # Padding that takes some of the name.
    empty = encode_properties({"n": ""}, new=new)
    yield "n", [empty], [empty[:-1] + b"\4"]
    # Booleans that are neither true nor false.
    true = encode_properties({"n": True}, new=new)
    yield "n", [true[:-3] + bytes((value,)) + true[-2:] for value in (0, 1, 2, 255)], []
    whole = encode_properties({"CustomerId": 1, "OrderType": "EXPRESS"}, new=new)
    for size in (3, 5, 7, 8, 9, 20, 30, 44, 45, 46, 50, 52, 55):
        for name in ("CustomerId", "OrderType", "else"):
            yield name, [whole], [whole[:size]]


@ENCODINGS
@pytest.mark.parametrize("many", [1, 50])
def test_a_column_of_odd_messages_equals_the_values_of_the_messages(many: int, new: bool) -> None:
    for name, areas, once in odd_columns(new):
        check_column([*areas * many, *once, *areas * many], name, new, times=2)
    with pytest.raises(ProtocolError):  # alone, no bytes are no properties
        property_column([*areas * many, b""], new, name)


# Posting


@given(messages=st.lists(mappings, min_size=1, max_size=5), payload=st.binary(max_size=9))
def test_areas_with_a_payload_are_areas_and_the_payload(
    messages: list[dict[str, Any]], payload: bytes
) -> None:
    ids = SchemaIds()
    for _ in range(3):
        for message in messages:
            data, schema_id = ids.encode(message, payload)
            assert data == encode_properties(message, new=True) + payload
            assert schema_id >> 1 == ids.number(message) >> 1


@ENCODINGS
@pytest.mark.parametrize("last", ["text", b"", b"bytes", 7, True])
def test_the_same_headers_with_an_area_of_another_length(last: Any, new: bool) -> None:
    area = encode_properties({"first": 1, "last": last}, new=new)
    pad = area[-1]
    assert read(area, new)[1] is None
    for length in range(len(area) - pad + 9):
        body = area[: len(area) - pad][:length].ljust(length, b"\x01")
        count = 4 - length % 4
        words = (length + count) // 4
        other = area[:1] + words.to_bytes(3, "big") + body[4:] + bytes([count]) * count
        for _ in range(2):
            assert same(read(other, new), read_cold(other, new)), length


def test_a_peer_that_never_repeats_a_schema_fills_no_memory() -> None:
    def area(number: int) -> bytes:
        # Each with different headers: the lengths of the names differ.
        names = [f"{i}".ljust(4095 - number, "n") for i in range(40)]
        return encode_properties(dict.fromkeys(names, PropertyValue(PropertyType.BOOL, True)), new=True)

    with forgotten():
        tracemalloc.start()
        try:
            for number in range(200):
                assert len(Properties(area(number))) == 40
            module._names.clear()
            assert tracemalloc.get_traced_memory()[0] < 4 * 1024 * 1024
        finally:
            tracemalloc.stop()
