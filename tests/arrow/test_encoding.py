# SPDX-License-Identifier: Apache-2.0
"""Encoding columns gives the same bytes as encoding messages one by one."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bmq
from bmq.arrow import columns
from bmq.arrow.columns import column, dtype_of, fill
from bmq.arrow.encoding import MAX_BYTES, MAX_MESSAGES, EncodedPosts, TableEncoder, guids_in, stream_of
from bmq.errors import InvalidPayload, InvalidProperty, UsageError
from bmq.wire.ack import encode_ack
from bmq.wire.codec import Words
from bmq.wire.constants import Compression, PropertyType
from bmq.wire.event import read_event
from bmq.wire.guid import GuidGenerator
from bmq.wire.layout import LAYOUTS
from bmq.wire.message import join_application_data
from bmq.wire.properties import PropertyValue, SchemaIds, encode_properties
from bmq.wire.put import PutEvent, decode_puts, encode_puts
from tests.sweeps import sweep
from tests.wire.test_codec import values_of

QUEUE_ID = 7

# Columns narrower than the property's type, and the property type of each column type.
KINDS: dict[str, tuple[Any, PropertyType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), PropertyType.BOOL, st.booleans()),
    "int8": (pa.int8(), PropertyType.SHORT, st.integers(-(2**7), 2**7 - 1)),
    "uint8": (pa.uint8(), PropertyType.SHORT, st.integers(0, 2**8 - 1)),
    "int16": (pa.int16(), PropertyType.SHORT, st.integers(-(2**15), 2**15 - 1)),
    "uint16": (pa.uint16(), PropertyType.INT32, st.integers(0, 2**16 - 1)),
    "int32": (pa.int32(), PropertyType.INT32, st.integers(-(2**31), 2**31 - 1)),
    "uint32": (pa.uint32(), PropertyType.INT64, st.integers(0, 2**32 - 1)),
    "int64": (pa.int64(), PropertyType.INT64, st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), PropertyType.INT64, st.integers(0, 2**63 - 1)),
    "string": (pa.string(), PropertyType.STRING, st.text(max_size=20)),
    "large_string": (pa.large_string(), PropertyType.STRING, st.text(max_size=20)),
    "string_view": (pa.string_view(), PropertyType.STRING, st.text(max_size=20)),
    "binary": (pa.binary(), PropertyType.BINARY, st.binary(max_size=20)),
    "large_binary": (pa.large_binary(), PropertyType.BINARY, st.binary(max_size=20)),
    "binary_view": (pa.binary_view(), PropertyType.BINARY, st.binary(max_size=20)),
    "fixed": (pa.binary(3), PropertyType.BINARY, st.binary(min_size=3, max_size=3)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), PropertyType.STRING, st.sampled_from("abc")),
    "null": (pa.null(), PropertyType.STRING, st.none()),
}
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_é]{0,8}", fullmatch=True)
PAYLOADS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "binary": (pa.binary(), st.binary(min_size=1, max_size=40)),
    "large_binary": (pa.large_binary(), st.binary(min_size=1, max_size=40)),
    "string": (pa.string(), st.text(min_size=1, max_size=40)),
    "large_string": (pa.large_string(), st.text(min_size=1, max_size=40)),
    "dictionary": (pa.dictionary(pa.int32(), pa.binary()), st.sampled_from([b"one", b"three"])),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[Any, list[str], dict[str, PropertyType]]:
    """Return a batch, its property columns, and the type of each."""
    rows = draw(st.integers(1, 50))
    kind, payloads = PAYLOADS[draw(st.sampled_from(sorted(PAYLOADS)))]
    columns = [pa.array(draw(st.lists(payloads, min_size=rows, max_size=rows)), kind)]
    names = draw(st.lists(NAMES.filter(lambda name: name != "value"), max_size=5, unique=True))
    types: dict[str, PropertyType] = {}
    for name in names:
        kind, types[name], values = KINDS[draw(st.sampled_from(sorted(KINDS)))]
        # Null nowhere, in places, or all over the place.
        nulls = draw(st.sampled_from(["never", "blocks", "always"]))
        if nulls == "always":
            values = st.one_of(st.none(), values)
        found = draw(st.lists(values, min_size=rows, max_size=rows))
        if nulls == "blocks":
            found = [None if row % 8 < 4 else value for row, value in enumerate(found)]
        columns.append(pa.array(found, kind))
    batch = pa.RecordBatch.from_arrays(columns, names=["value", *names])
    start = draw(st.integers(0, rows - 1))  # a slice of a batch begins inside its buffers
    return batch.slice(start), names, types


def guids(count: int) -> list[bytes]:
    return [n.to_bytes(16, "big") for n in range(1, count + 1)]


def one_by_one(
    batch: Any, names: list[str], types: dict[str, PropertyType], *, new: bool, compression: int = 0
) -> PutEvent:
    """The event from the encoder of messages."""
    ids = SchemaIds()
    messages = []
    rows = batch.to_pylist()
    for guid, row in zip(guids(len(rows)), rows, strict=True):
        payload = row["value"].encode() if isinstance(row["value"], str) else row["value"]
        properties = {name: PropertyValue(types[name], row[name]) for name in names if row[name] is not None}
        area = encode_properties(properties, new=new)
        schema_id = ids.number(properties) if area and new else 0
        data, kind = join_application_data(payload, area, new=new, compression=compression, threshold=10)
        messages.append((guid, data, 3 if area else 1, schema_id, kind))
    pieces, _, _ = encode_puts(QUEUE_ID, messages)
    acks = b"".join(encode_ack(0, 0, each, QUEUE_ID) for each in guids(len(rows)))
    return PutEvent(b"".join(pieces), (), acks, sum(len(data) for _, data, _, _, _ in messages))


def as_columns(batch: Any, names: list[str], *, new: bool, compression: int = 0) -> PutEvent:
    encoder = TableEncoder(batch.schema, "value", names, new=new)
    (only,) = encoder.slices(batch)
    posts = EncodedPosts.of(
        only,
        only.data.to_pylist(),
        guids=np.frombuffer(b"".join(guids(batch.num_rows)), "V16"),
        new=new,
        compression=compression,
        threshold=10,
    )
    return posts.bind(QUEUE_ID, SchemaIds().number, lambda count: b"")


@given(table=tables(), new=st.booleans(), compression=st.sampled_from(Compression))
def test_columns_encode_to_the_bytes_of_messages(
    table: tuple[Any, list[str], dict[str, PropertyType]], new: bool, compression: Compression
) -> None:
    batch, names, types = table
    expected = one_by_one(batch, names, types, new=new, compression=compression)
    found = as_columns(batch, names, new=new, compression=compression)
    read_event(found.event)
    assert found.event[8:] == expected.event
    assert found.acks == expected.acks
    assert found.size == expected.size
    puts = decode_puts(found.event, 8)
    assert [found.event[:end] for end in found.ends][-1] == found.event
    assert len(found.ends) == len(puts)


@pytest.mark.parametrize("words", [columns.PUT, columns.PUSH, columns.ACK, columns.AREA, columns.PROPERTY])
@settings(max_examples=30)
@given(data=st.data())
def test_columns_of_headers_equal_the_declaration(words: Words, data: st.DataObject) -> None:
    name = words.structure.name
    rows = data.draw(st.lists(values_of(name), min_size=1, max_size=5))
    headers = np.zeros(len(rows), dtype_of(words))
    for field in rows[0]:
        values = [row[field] for row in rows]
        raw = isinstance(values[0], bytes)
        fill(headers, words, **{field: np.array([np.void(v) for v in values] if raw else values)})
    assert headers.tobytes() == b"".join(LAYOUTS[name].build(row) for row in rows)
    for field in rows[0]:
        got = [
            each.tobytes() if each.dtype.kind == "V" else int(each) for each in column(headers, words, field)
        ]
        assert got == [row[field] for row in rows]


@given(before=st.integers(0, 3), count=st.integers(0, 40), counter=st.sampled_from([0, 4, (1 << 22) - 7]))
def test_guids_made_together_equal_guids_made_singly(before: int, count: int, counter: int) -> None:
    one, other = (GuidGenerator(b"client") for _ in range(2))
    for each in (one, other):
        each._counter = counter
        for _ in range(before):
            each.next(77)
    assert one.next_many(99, count) == b"".join(other.next(99) for _ in range(count))
    assert one.next(99) == other.next(99)


# slices


def slices_of(batch: Any, *names: str) -> list[Any]:
    return list(TableEncoder(batch.schema, "value", names).slices(batch))


def test_slices_respect_the_limits_of_rows_and_bytes() -> None:
    small = pa.record_batch({"value": [b"x"] * 10_000})
    assert [len(each.data) for each in slices_of(small)] == [MAX_MESSAGES, MAX_MESSAGES, 1808]
    large = pa.record_batch({"value": [b"x" * 100_000] * 25 + [b"y" * 3_000_000] + [b"z"]})
    sizes = [[len(row) for row in each.data.to_pylist()] for each in slices_of(large)]
    assert [len(each) for each in sizes] == [10, 10, 5, 1, 1]
    assert all(sum(each) < MAX_BYTES for each in sizes if len(each) > 1)
    assert [each.first for each in slices_of(large)] == [0, 10, 20, 25, 26]


def test_a_dictionary_is_decoded_slice_by_slice() -> None:
    """A long value in many rows would be copied for each row."""
    value = pa.array([b"v" * 900_000]).dictionary_encode()
    batch = pa.record_batch({"value": value.take(pa.array([0] * 300))})
    seen = 0
    for each in TableEncoder(batch.schema, "value").slices(batch):
        assert each.data.to_pylist() == [b"v" * 900_000]
        seen += 1
    assert seen == 300


def test_the_longest_value_fits() -> None:
    batch = pa.record_batch({"value": [b"x" * (60 << 20)], "p": ["y"]})
    (only,) = slices_of(batch, "p")
    posts = EncodedPosts.of(only, only.data.to_pylist())
    event = posts.bind(1, SchemaIds().number, lambda count: bytes(15) + b"1")
    (put,) = decode_puts(event.event, 8)
    assert put.data.endswith(b"x" * (60 << 20))


def test_each_field_of_a_struct_column_becomes_a_property() -> None:
    struct = pa.array([{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None])
    other = pa.array([{"a": "no", "b": 0}, {"a": "yes", "b": 0}, {"a": None, "b": 5}])
    batch = pa.record_batch(
        {"value": ["1", "2", "3"], "more": struct, "other": other, "b": ["own", None, None]}
    )
    (only,) = slices_of(batch, "more", "b", "other")
    # A column takes precedence over a field of the same name, and the first struct over the second; null
    # never does.
    expected: list[dict[str, Any]] = [{"a": 1, "b": "own"}, {"a": "yes", "b": "y"}, {"b": 5}]
    assert only.data.to_pylist() == [
        encode_properties(each, new=True) + payload
        for each, payload in zip(expected, [b"1", b"2", b"3"], strict=True)
    ]


def test_selected_rows_keep_their_bytes() -> None:
    batch = pa.record_batch({"value": [f"{n}" * (n + 1) for n in range(20)], "p": [None, 1] * 10})
    (only,) = slices_of(batch, "p")
    given_guids = np.frombuffer(b"".join(guids(20)), "V16")
    posts = EncodedPosts.of(only, only.data.to_pylist(), guids=given_guids)
    whole = decode_puts(posts.bind(3, SchemaIds().number, lambda count: b"").event, 8)
    part = posts.select([1, 7, 8, 19])
    some = decode_puts(part.bind(3, SchemaIds().number, lambda count: b"").event, 8)
    without = [each._replace(schema_id=each.schema_id & ~1) for each in some]
    assert without == [whole[n]._replace(schema_id=whole[n].schema_id & ~1) for n in (1, 7, 8, 19)]


def test_the_first_message_alone_introduces_a_schema_id() -> None:
    batch = pa.record_batch({"value": ["x"] * 200, "p": [None, 1] * 100, "q": [5] * 200})
    (only,) = slices_of(batch, "p", "q")
    posts = EncodedPosts.of(only, only.data.to_pylist())
    ids = SchemaIds()
    for expected in ([3, 5, *[2, 4] * 99], [2, 4] * 100):
        event = posts.bind(1, ids.number, lambda count: bytes(range(1, 17)) * count)
        assert [put.schema_id for put in decode_puts(event.event, 8)] == expected


# ---- values that cannot be posted


@sweep(
    "kind, text",
    [
        (
            pa.float64(),
            "column 'p' is of type double, and a property must be boolean, an integer, string or binary",
        ),
        (pa.timestamp("us"), r"column 'p' is of type timestamp\[us\]"),
        (pa.list_(pa.int64()), "column 'p' is of type list<"),
        (pa.map_(pa.string(), pa.int64()), "column 'p' is of type map<string, int64"),
        (pa.struct([("a", pa.struct([("b", pa.int64())]))]), "column 'p.a' is of type struct<b: int64>"),
        (pa.dictionary(pa.int8(), pa.float32()), "column 'p' is of type dictionary<values=float"),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_refused_by_name(kind: Any, text: str) -> None:
    schema = pa.schema([("value", pa.string()), ("p", kind)])
    with pytest.raises(UsageError, match=text):
        TableEncoder(schema, "value", ["p"])


@sweep(
    "value, properties, text",
    [
        ("body", [], "no column 'body'; the table has: value, number, two, two, bad name"),
        ("value", ["colour"], "no column 'colour'; the table has: value"),
        ("number", [], "column 'number' is of type int64, and a payload must be string or binary"),
        ("value", ["two"], "2 columns are named 'two'"),
        ("value", ["-bad"], "property name '-bad' must start with an ASCII letter or digit"),
    ],
)
def test_columns_that_cannot_be_used_are_refused_by_name(
    value: str, properties: list[str], text: str
) -> None:
    columns = [("value", pa.string()), ("number", pa.int64()), ("two", pa.int64()), ("two", pa.int64())]
    schema = pa.schema(
        [*columns, ("bad name", pa.int64()) if "-bad" not in properties else ("-bad", pa.int64())]
    )
    with pytest.raises(UsageError, match=text):
        TableEncoder(schema, value, properties)


@sweep(
    "value, p, text",
    [
        (None, 1, "row 1150: column 'value' is null"),
        (b"", 1, "row 1150: column 'value' has 0 bytes"),
        (b"x", 2**63, "row 1150: property 'p': 9223372036854775808 .int. does not fit INT64"),
    ],
)
def test_a_row_that_cannot_be_posted_is_named(value: bytes | None, p: int, text: str) -> None:
    values = [b"x"] * 150 + [value] + [b"x"] * 10
    batch = pa.record_batch({"value": values, "p": pa.array([1] * 150 + [p] + [1] * 10, pa.uint64())})
    encoder = TableEncoder(batch.schema, "value", ["p"])
    with pytest.raises((InvalidPayload, InvalidProperty), match=text):
        list(encoder.slices(batch, 1000))


@sweep("value", [None, "AB", "z" * 32, "ab" * 16, "0" * 32, b"short"], ids=repr)
def test_invalid_guid_is_named(value: Any) -> None:
    with pytest.raises(UsageError, match=r"row 7: column 'guid' is .* a GUID must be 16 bytes or 32"):
        guids_in(pa.array([value], pa.binary() if isinstance(value, bytes) else pa.string()), "guid", 7)


@sweep("table", [[1, 2], {"value": ["x"]}, "text", b"bytes"], ids=str)
def test_objects_other_than_tables_are_refused(table: object) -> None:
    with pytest.raises(bmq.UsageError, match=r"a table must be a pyarrow Table, .* not "):
        stream_of(table)


def test_only_shrinking_rows_are_compressed() -> None:
    batch = pa.record_batch({"value": [b"x" * 5000, b"y"], "p": ["z", "z"]})
    (only,) = slices_of(batch, "p")
    posts = EncodedPosts.of(only, only.data.to_pylist(), compression=1)
    one, other = decode_puts(posts.bind(1, SchemaIds().number, lambda count: b"g" * 16 * count).event, 8)
    area = encode_properties({"p": "z"}, new=True)
    assert (one.compression, other.compression) == (1, 0)
    assert zlib.decompress(one.data[len(area) :]) == b"x" * 5000
    assert other.data == area + b"y"
