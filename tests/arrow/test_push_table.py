# SPDX-License-Identifier: Apache-2.0
"""Columns have the same content as messages read one by one."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.arrow import decoding
from bmq.arrow.decoding import Decoded, TableDecoder, guid_texts
from bmq.arrow.push import PushColumns
from bmq.errors import ProtocolError, UsageError
from bmq.wire.constants import PropertyType
from bmq.wire.message import split_application_data
from bmq.wire.properties import PropertyValue, encode_properties
from bmq.wire.push import Push

VALUES: dict[PropertyType, st.SearchStrategy[Any]] = {
    PropertyType.BOOL: st.booleans(),
    PropertyType.CHAR: st.binary(min_size=1, max_size=1),
    PropertyType.SHORT: st.integers(-(2**15), 2**15 - 1),
    PropertyType.INT32: st.integers(-(2**31), 2**31 - 1),
    PropertyType.INT64: st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-129, -128, 127, 128, 32768]),
    PropertyType.STRING: st.text(max_size=9) | st.just("not \udcff UTF-8"),
    PropertyType.BINARY: st.binary(max_size=9),
}
NAMES = ["a", "b", "Customer", "né", "Customers"]
KINDS = [pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.binary()]
wanted = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(KINDS), max_size=4)


def push(
    properties: dict[str, Any] | bytes = b"",
    payload: bytes = b"payload",
    *,
    new: bool = True,
    schema_id: int = 1,
    compression: int = 0,
    flags: int | None = None,
) -> Push:
    area = properties if isinstance(properties, bytes) else encode_properties(properties, new=new)
    if compression:
        data = area + zlib.compress(payload) if new else zlib.compress(area + payload)
    else:
        data = area + payload
    has = 2 if area else 0
    return 3, (1,), bytes(16), has if flags is None else flags, schema_id if new else 0, compression, data


@st.composite
def blocks(draw: st.DrawFn) -> list[Push]:
    """Draw messages with the same properties, and with different values."""
    kinds = draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(list(VALUES)), max_size=4))
    new = draw(st.booleans())
    schema_id = draw(st.sampled_from([1, 2, 3, 4]))
    compression = draw(st.sampled_from([0, 0, 0, 1]))
    rows = draw(
        st.lists(
            st.tuples(
                st.fixed_dictionaries({name: VALUES[kind] for name, kind in kinds.items()}),
                st.binary(min_size=1, max_size=20),
            ),
            min_size=1,
            max_size=6,
        )
    )
    rows *= draw(st.sampled_from([1, 1, 5, 20]))
    return [
        push(
            {name: PropertyValue(kinds[name], value) for name, value in properties.items()},
            payload,
            new=new,
            schema_id=schema_id,
            compression=compression,
        )
        for properties, payload in rows
    ]


@st.composite
def messages(draw: st.DrawFn) -> list[Push]:
    """Return blocks of messages, in sequence or mixed."""
    found = [each for block in draw(st.lists(blocks(), max_size=5)) for each in block]
    return found[::3] + found[1::3] + found[2::3] if draw(st.booleans()) else found


def repaired(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def expected_value(kind: Any, properties: Any, name: str) -> Any:
    """Return the expected value in a column of a type, by independent code."""
    if name not in properties:
        return None
    value, found = properties[name], properties.types[name]
    if pa.types.is_string(kind):
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        return repaired({True: "true", False: "false"}[value] if isinstance(value, bool) else str(value))
    if pa.types.is_boolean(kind):
        return value if found is PropertyType.BOOL else None
    if pa.types.is_binary(kind):
        return value if isinstance(value, bytes) else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    bits: int = kind.bit_width
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def one_by_one(
    pushes: list[Push], kinds: dict[str, Any]
) -> tuple[list[Any], list[list[Any]], dict[int, str]]:
    payloads: list[Any] = []
    columns: list[list[Any]] = [[] for _ in kinds]
    errors: dict[int, str] = {}
    for row, (_, _, _, flags, schema_id, compression, data) in enumerate(pushes):
        try:
            properties, payload = split_application_data(
                data, has_properties=bool(flags & 2), schema_id=schema_id, compression=compression
            )
            if kinds:
                len(properties)
        except ProtocolError as error:
            errors[row] = str(error)
            payloads.append(None)
            for values in columns:
                values.append(None)
            continue
        payloads.append(payload)
        for values, (name, kind) in zip(columns, kinds.items(), strict=True):
            values.append(expected_value(kind, properties, name))
    return payloads, columns, errors


def checked(decoded: Decoded, pushes: list[Push], kinds: dict[str, Any]) -> None:
    for array, kind in zip(decoded.properties, kinds.values(), strict=True):
        array.validate(full=True)
        assert array.type == kind
    payloads, columns, errors = one_by_one(pushes, kinds)
    assert decoded.rows == len(pushes)
    assert decoded.payload.to_pylist() == payloads
    assert [array.to_pylist() for array in decoded.properties] == columns
    assert {row: str(error) for row, error in decoded.errors.items()} == errors


@given(pushes=messages(), kinds=wanted)
@settings(max_examples=100)
def test_columns_equal_the_values_of_messages(pushes: list[Push], kinds: dict[str, Any]) -> None:
    checked(TableDecoder(kinds).decode(PushColumns.of(pushes)), pushes, kinds)


@given(pushes=messages())
def test_a_map_has_all_properties(pushes: list[Push]) -> None:
    decoded = TableDecoder(None).decode(PushColumns.of(pushes))
    (maps,) = decoded.properties
    maps.validate(full=True)
    for entries, (_, _, _, flags, schema_id, compression, data) in zip(maps.to_pylist(), pushes, strict=True):
        properties, _ = split_application_data(
            data, has_properties=bool(flags & 2), schema_id=schema_id, compression=compression
        )
        assert entries == [(name, expected_value(pa.string(), properties, name)) for name in properties]


@given(pushes=messages(), kinds=wanted, data=st.data())
@settings(max_examples=100)
def test_malformed_message_is_named_and_affects_no_other(
    pushes: list[Push], kinds: dict[str, Any], data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(1, 3)) if pushes else 0):
        row = data.draw(st.integers(0, len(pushes) - 1))
        changed = bytearray(pushes[row][-1])
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.sampled_from([0, 1, 4, 5, 0x12, 0x7F, 0xFF]) | st.integers(0, 255))
        cut = data.draw(st.integers(0, 9))
        flags = data.draw(st.sampled_from([0, 2, 2, 2]))
        pushes[row] = (
            *pushes[row][:3],
            flags,
            *pushes[row][4:6],
            bytes(changed[: len(changed) - cut]) or b"x",
        )
    checked(TableDecoder(kinds).decode(PushColumns.of(pushes)), pushes, kinds)


def test_a_schema_id_is_verified_against_the_bytes() -> None:
    """A redelivered message may have an id that has been reused for other names."""
    pushes = [push({"a" if n % 2 else "b": n, "same": "x"}, schema_id=6) for n in range(100)]
    decoded = TableDecoder({"a": pa.int64()}).decode(PushColumns.of(pushes))
    assert decoded.properties[0].to_pylist() == [n if n % 2 else None for n in range(100)]


@pytest.mark.parametrize("own", ["name", "schema id"])
def test_work_grows_with_the_messages_not_with_their_square(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message has a name of its own, or a schema id: the rows are examined a limited number of times."""
    examined = 0
    like_first, index = decoding._like_first, decoding._index

    def counted_like_first(columns: PushColumns, rows: Any, *args: Any, **options: Any) -> Any:
        nonlocal examined
        examined += len(rows)
        return like_first(columns, rows, *args, **options)

    def counted_index(wanted: Any) -> Any:
        nonlocal examined
        examined += len(wanted)
        return index(wanted)

    monkeypatch.setattr(decoding, "_like_first", counted_like_first)
    monkeypatch.setattr(decoding, "_index", counted_index)
    names = [f"n{n}" if own == "name" else "n" for n in range(2000)]
    pushes = [push({name: n}, schema_id=1 if own == "name" else 2 * n + 2) for n, name in enumerate(names)]
    checked(TableDecoder({"n": pa.int64()}).decode(PushColumns.of(pushes)), pushes, {"n": pa.int64()})
    assert examined < 200 * len(pushes)


def test_compressed_messages_are_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed messages may be very large when decompressed, so the memory held at once is bounded."""
    monkeypatch.setattr(decoding, "_MOST_INFLATED", 10_000)
    pushes = [push({"a": n}, b"z" * 4000, compression=n % 2) for n in range(20)]
    columns = PushColumns.of(pushes)
    seen: list[Any] = []
    while columns.count:
        decoded = TableDecoder({"a": pa.int64()}).decode(columns)
        assert 0 < decoded.rows <= 7
        assert decoded.payload.to_pylist() == [b"z" * 4000] * decoded.rows
        seen += decoded.properties[0].to_pylist()
        columns = columns.part(decoded.rows, columns.count)
    assert seen == list(range(20))


def test_a_message_that_inflates_beyond_the_limit_is_an_error() -> None:
    columns = PushColumns.of([push({}, b"small", compression=1), push({}, b"z" * 1001, compression=1)])
    decoded = TableDecoder({}, limit=1000).decode(columns)
    assert decoded.payload.to_pylist() == [b"small", None]
    assert list(decoded.errors) == [1]


def test_an_unsupported_property_type_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="property 'when' cannot be read as timestamp"):
        TableDecoder({"when": pa.timestamp("us")})


def test_guids_have_the_spelling_of_messages() -> None:
    guids = [bytes(range(n, n + 16)) for n in (0, 100, 240)]
    texts = guid_texts(np.frombuffer(b"".join(guids), "V16"))
    assert texts.to_pylist() == [each.hex().upper() for each in guids]
    assert guid_texts(np.frombuffer(b"", "V16")).to_pylist() == []
