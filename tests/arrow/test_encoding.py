# SPDX-License-Identifier: Apache-2.0
"""Encoding columns gives the same bytes as encoding messages one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bmq
from bmq.arrow.encoding import MAX_MESSAGES, EncodedPosts, TableEncoder, guids_in, stream_of
from bmq.errors import InvalidPayload, InvalidProperty, UsageError
from bmq.wire.ack import encode_ack
from bmq.wire.constants import Compression, PropertyType
from bmq.wire.event import read_event
from bmq.wire.guid import GuidGenerator
from bmq.wire.message import join_application_data
from bmq.wire.properties import PropertyValue, SchemaIds, encode_properties
from bmq.wire.put import PutEvent, decode_puts, encode_puts
from tests.sweeps import sweep

QUEUE_ID = 7

# Column types, each with the property's type and its values.
KINDS: list[tuple[Any, PropertyType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), PropertyType.BOOL, st.booleans()),
    (pa.int8(), PropertyType.SHORT, st.integers(-(2**7), 2**7 - 1)),
    (pa.uint8(), PropertyType.SHORT, st.integers(0, 2**8 - 1)),
    (pa.int16(), PropertyType.SHORT, st.integers(-(2**15), 2**15 - 1)),
    (pa.uint16(), PropertyType.INT32, st.integers(0, 2**16 - 1)),
    (pa.int32(), PropertyType.INT32, st.integers(-(2**31), 2**31 - 1)),
    (pa.uint32(), PropertyType.INT64, st.integers(0, 2**32 - 1)),
    (pa.int64(), PropertyType.INT64, st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), PropertyType.INT64, st.integers(0, 2**63 - 1)),
    *((kind, PropertyType.STRING, st.text(max_size=20)) for kind in (pa.string(), pa.large_string())),
    (pa.string_view(), PropertyType.STRING, st.text(max_size=20)),
    *((kind, PropertyType.BINARY, st.binary(max_size=20)) for kind in (pa.binary(), pa.large_binary())),
    (pa.binary_view(), PropertyType.BINARY, st.binary(max_size=20)),
    (pa.binary(3), PropertyType.BINARY, st.binary(min_size=3, max_size=3)),
    (pa.dictionary(pa.int8(), pa.string()), PropertyType.STRING, st.sampled_from("abc")),
    (pa.null(), PropertyType.STRING, st.none()),
]
PAYLOADS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    *((kind, st.binary(min_size=1, max_size=40)) for kind in (pa.binary(), pa.large_binary())),
    *((kind, st.text(min_size=1, max_size=40)) for kind in (pa.string(), pa.large_string())),
    (pa.dictionary(pa.int32(), pa.binary()), st.sampled_from([b"one", b"three"])),
]
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_é]{0,8}", fullmatch=True)


Table = tuple[Any, dict[str, PropertyType]]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Return a batch, and the type of each property column."""
    rows = draw(st.integers(1, 50))
    kind, payloads = draw(st.sampled_from(PAYLOADS))
    columns = [pa.array(draw(st.lists(payloads, min_size=rows, max_size=rows)), kind)]
    types: dict[str, PropertyType] = {}
    for name in draw(st.lists(NAMES.filter(lambda name: name != "value"), max_size=5, unique=True)):
        kind, types[name], values = draw(st.sampled_from(KINDS))
        nulls = draw(st.sampled_from(["never", "blocks", "anywhere"]))
        if nulls == "anywhere":
            values = st.one_of(st.none(), values)
        found = draw(st.lists(values, min_size=rows, max_size=rows))
        if nulls == "blocks":
            found = [None if row % 8 < 4 else value for row, value in enumerate(found)]
        columns.append(pa.array(found, kind))
    batch = pa.RecordBatch.from_arrays(columns, names=["value", *types])
    return batch.slice(draw(st.integers(0, rows - 1))), types  # a slice begins inside its buffers


def guids(count: int) -> list[bytes]:
    return [n.to_bytes(16, "big") for n in range(1, count + 1)]


def one_by_one(table: Table, *, new: bool, compression: int) -> PutEvent:
    batch, types = table
    ids = SchemaIds()
    messages = []
    for guid, row in zip(guids(batch.num_rows), batch.to_pylist(), strict=True):
        payload = row["value"].encode() if isinstance(row["value"], str) else row["value"]
        properties = {name: PropertyValue(types[name], row[name]) for name in types if row[name] is not None}
        area = encode_properties(properties, new=new)
        schema_id = ids.number(properties) if area and new else 0
        data, kind = join_application_data(payload, area, new=new, compression=compression, threshold=10)
        messages.append((guid, data, 3 if area else 1, schema_id, kind))
    pieces, _, _ = encode_puts(QUEUE_ID, messages)
    acks = b"".join(encode_ack(0, 0, each, QUEUE_ID) for each in guids(batch.num_rows))
    return PutEvent(b"".join(pieces), (), acks, sum(len(data) for _, data, _, _, _ in messages))


def encoded(batch: Any, names: Iterable[str], *, new: bool = True, compression: int = 0) -> EncodedPosts:
    (only,) = TableEncoder(batch.schema, "value", list(names), new=new).slices(batch)
    return EncodedPosts.of(
        only,
        only.data.to_pylist(),
        guids=np.frombuffer(b"".join(guids(batch.num_rows)), "V16"),
        new=new,
        compression=compression,
        threshold=10,
    )


def event_of(posts: EncodedPosts) -> PutEvent:
    return posts.bind(QUEUE_ID, SchemaIds().number, lambda count: b"")


@given(table=tables(), new=st.booleans(), compression=st.sampled_from(Compression))
def test_columns_encode_to_the_bytes_of_messages(table: Table, new: bool, compression: Compression) -> None:
    expected = one_by_one(table, new=new, compression=compression)
    found = event_of(encoded(*table, new=new, compression=compression))
    read_event(found.event)
    assert found.event[8:] == expected.event
    assert (found.acks, found.size) == (expected.acks, expected.size)
    assert found.ends[-1] == len(found.event)
    assert len(found.ends) == len(decode_puts(found.event, 8))


def test_selected_rows_keep_their_bytes() -> None:
    batch = pa.record_batch({"value": [f"{n}" * (n + 1) for n in range(20)], "p": [None, 1] * 10})
    posts = encoded(batch, ["p"])
    # The first message of an event introduces the schema id.
    whole, some = (
        [put._replace(schema_id=put.schema_id & ~1) for put in decode_puts(event_of(each).event, 8)]
        for each in (posts, posts.select([1, 7, 8, 19]))
    )
    assert some == [whole[n] for n in (1, 7, 8, 19)]


@given(before=st.integers(0, 3), count=st.integers(0, 40), counter=st.sampled_from([0, 4, (1 << 22) - 7]))
def test_guids_made_together_equal_guids_made_singly(before: int, count: int, counter: int) -> None:
    one, other = (GuidGenerator(b"client") for _ in range(2))
    for each in (one, other):
        each._counter = counter
        for _ in range(before):
            each.next(77)
    assert one.next_many(99, count) == b"".join(other.next(99) for _ in range(count))
    assert one.next(99) == other.next(99)


def slices_of(batch: Any, *names: str) -> list[Any]:
    return list(TableEncoder(batch.schema, "value", names).slices(batch))


def test_slices_respect_the_limits_of_rows_and_bytes() -> None:
    small = pa.record_batch({"value": [b"x"] * 10_000})
    assert [len(each.data) for each in slices_of(small)] == [MAX_MESSAGES, MAX_MESSAGES, 1808]
    large = pa.record_batch({"value": [b"x" * 100_000] * 25 + [b"y" * 3_000_000] + [b"z"]})
    assert [(each.first, len(each.data)) for each in slices_of(large)] == [
        (0, 10), (10, 10), (20, 5), (25, 1), (26, 1),
    ]  # fmt: skip


def test_a_dictionary_is_decoded_slice_by_slice() -> None:
    """A long value in many rows would be copied for each row."""
    value = pa.array([b"v" * 900_000]).dictionary_encode()
    batch = pa.record_batch({"value": value.take(pa.array([0] * 300))})
    assert sum(len(each.data) for each in TableEncoder(batch.schema, "value").slices(batch)) == 300


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


@sweep(
    "value, properties, kind, text",
    [
        ("value", ["p"], pa.float64(), "'p' is of type double, and a property must be boolean, an integer"),
        ("value", ["p"], pa.timestamp("us"), r"column 'p' is of type timestamp\[us\]"),
        ("value", ["p"], pa.list_(pa.int64()), "column 'p' is of type list<"),
        ("value", ["p"], pa.map_(pa.string(), pa.int64()), "column 'p' is of type map<string, int64"),
        ("value", ["p"], pa.struct({"a": pa.struct({"b": pa.int64()})}), "column 'p.a' is of type struct"),
        ("value", ["p"], pa.dictionary(pa.int8(), pa.float32()), "'p' is of type dictionary<values=float"),
        ("body", [], pa.int64(), "no column 'body'; the table has: value, p, two, two, -bad"),
        ("value", ["colour"], pa.int64(), "no column 'colour'; the table has: value"),
        ("p", [], pa.int64(), "column 'p' is of type int64, and a payload must be string or binary"),
        ("value", ["two"], pa.int64(), "2 columns are named 'two'"),
        ("value", ["-bad"], pa.int64(), "property name '-bad' must start with an ASCII letter or digit"),
    ],
    ids=str,
)
def test_a_column_that_cannot_be_posted_is_refused_by_name(
    value: str, properties: list[str], kind: Any, text: str
) -> None:
    others = [(name, pa.int64()) for name in ("two", "two", "-bad")]
    with pytest.raises(UsageError, match=text):
        TableEncoder(pa.schema([("value", pa.string()), ("p", kind), *others]), value, properties)


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
