# SPDX-License-Identifier: Apache-2.0
"""Edge values in columns and in rows: legal values arrive unchanged, and errors name the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

import bmq
from bmq.spark import BmqDataSource, PartitionReport, write_partition
from bmq.spark.partition import TaskScope
from tests.spark.brokers import DOMAIN, BrokerThread
from tests.spark.readers import struct

Write = Callable[..., PartitionReport]


def batches_to(
    broker: BrokerThread, queue: str, schema: StructType, batches: list[pa.RecordBatch], **options: str
) -> PartitionReport:
    given = {"broker": broker.uri, "queue": queue, **options}
    writer = BmqDataSource(CaseInsensitiveDict(given)).writer(schema, False)
    report: PartitionReport = writer.write(iter(batches)).report
    return report


def rows_to(
    broker: BrokerThread, queue: str, schema: StructType, batches: list[pa.RecordBatch], **options: str
) -> PartitionReport:
    def rows() -> Iterator[Row]:
        for batch in batches:
            for row in batch.to_pylist():
                yield Row(**{name: row[name] for name in schema.fieldNames()})

    given = {"broker": broker.uri, "queue": queue, **options}
    writer = BmqDataSource(CaseInsensitiveDict(given)).writer(schema, False)
    report: PartitionReport = writer.write(rows()).report
    return report


both = pytest.mark.parametrize("write", [batches_to, rows_to], ids=["columns", "rows"])
sorting = pytest.mark.parametrize("on_invalid", ["fail", "drop"])

EVERY = struct(
    value=StringType(),
    yes=BooleanType(),
    short=ShortType(),
    number=IntegerType(),
    large=LongType(),
    text=StringType(),
    raw=BinaryType(),
)
NAMES = EVERY.fieldNames()


@both
@sorting
@pytest.mark.timeout(120)
def test_values_arrive_unchanged(write: Write, on_invalid: str, broker: BrokerThread, queue: str) -> None:
    """1 byte and 60 MiB, unicode, the least and the greatest numbers, nothing at all; null in places."""
    rows: list[list[Any]] = [
        ["x", True, -(1 << 15), -(1 << 31), -(1 << 63), "", b""],
        ["\0", False, (1 << 15) - 1, (1 << 31) - 1, (1 << 63) - 1, "\0", b"\0"],
        ["ä𝄞\U0010ffff", None, 0, None, 0, "ä𝄞\U0010ffff", None],
        ["y" * (60 << 20), None, None, None, None, None, None],
        ["\ufeff", None, 1, None, 2, None, b"\xff" * 70_000],
        ["z", True, None, 3, None, "é" * 40_000, None],
    ]
    columns = [list(column) for column in zip(*rows, strict=True)]
    kinds = [pa.string(), pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.binary()]
    whole = pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], names=NAMES
    )
    options = {"propertyColumns": ",".join(NAMES[1:]), "onInvalidRow": on_invalid}
    batches = [whole.slice(0, 0), whole.slice(0, 4), whole.slice(4, 0), whole.slice(4)]
    report = write(broker, queue, EVERY, batches, **options)
    assert (report.rows, report.acknowledged, report.dropped) == (6, 6, 0)
    got = broker.drain(queue, expect=6)
    assert [m.data for m in got] == [row[0].encode() for row in rows]
    assert [dict(m.properties) for m in got] == [
        {name: value for name, value in zip(NAMES[1:], row[1:], strict=True) if value is not None}
        for row in rows
    ]
    assert {name: kind.name for name, kind in got[0].property_types.items()} == {
        "yes": "BOOL",
        "short": "SHORT",
        "number": "INT32",
        "large": "INT64",
        "text": "STRING",
        "raw": "BINARY",
    }


@sorting
def test_batches_may_differ_in_their_schema(on_invalid: str, broker: BrokerThread, queue: str) -> None:
    """In how a column is stored, in the order of columns, in columns of no use: the name counts."""
    schema = struct(value=StringType(), n=LongType(), text=StringType())
    given: list[dict[str, Any]] = [
        {"value": pa.array(["a", "b"]), "n": pa.array([1, None], pa.int64()), "text": pa.array(["ä", None])},
        {"n": pa.array([3], pa.int32()), "more": pa.array([1.5]), "value": pa.array(["c"], pa.large_string()),
         "text": pa.array(["x"], pa.large_string())},
        {"text": pa.nulls(0, pa.string()), "value": pa.nulls(0, pa.string()), "n": pa.nulls(0, pa.int64())},
        {"text": pa.array(["y", "y"]).dictionary_encode(), "n": pa.nulls(2),
         "value": pa.array(["d", "d"]).dictionary_encode()},
        {"value": pa.array([b"e"], pa.binary(1)), "n": pa.array([4], pa.int8()),
         "text": pa.array(["z"], pa.string_view())},
    ]  # fmt: skip
    batches = [pa.RecordBatch.from_pydict(each) for each in given]
    options = {"propertyColumns": "n,text", "onInvalidRow": on_invalid}
    assert batches_to(broker, queue, schema, batches, **options).acknowledged == 6
    got = [(m.data, dict(m.properties)) for m in broker.drain(queue, expect=6)]
    assert got == [
        (b"a", {"n": 1, "text": "ä"}),
        (b"b", {}),
        (b"c", {"n": 3, "text": "x"}),
        (b"d", {"text": "y"}),
        (b"d", {"text": "y"}),
        (b"e", {"n": 4, "text": "z"}),
    ]


@pytest.mark.parametrize(
    "empty",
    [
        pa.array(["a", "", "b"]).dictionary_encode(),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", None, "b"])),
        pa.array(["a", "", "b"], pa.large_string()),
        pa.array(["a", None, "b"], pa.string_view()),
        pa.array([b"a", b"", b"b"], pa.binary_view()),
    ],
    ids=lambda array: f"{array.type} {array.null_count}",
)
def test_empty_values_are_found_in_every_storage(broker: BrokerThread, queue: str, empty: Any) -> None:
    batch = pa.RecordBatch.from_arrays([empty], names=["value"])
    schema = struct(value=StringType())
    with pytest.raises(bmq.InvalidPayload, match=r"row 1 of the partition: column 'value' (is null|has 0 b)"):
        batches_to(broker, f"{queue}-fails", schema, [batch])
    report = batches_to(broker, queue, schema, [batch, batch.slice(1, 2)], onInvalidRow="drop")
    assert (report.acknowledged, report.dropped) == (3, 2)
    assert [m.data for m in broker.drain(queue, expect=3)] == [b"a", b"b", b"b"]


@both
def test_rows_before_a_failing_row_are_posted_once(write: Write, broker: BrokerThread, queue: str) -> None:
    """A slice fails half-way; the repeated task finds one value and adds only the rest."""
    texts: list[str | None] = [f"{n}" for n in range(5000)]
    schema = struct(value=StringType(), n=LongType())

    def batches() -> list[pa.RecordBatch]:
        whole = pa.RecordBatch.from_pydict(
            {"value": pa.array(texts, pa.string()), "n": pa.array(range(5000), pa.int64())}
        )
        return [whole.slice(first, 1500) for first in range(0, 5000, 1500)]

    options = {"propertyColumns": "n", "writeName": "nightly"}
    texts[3700] = None
    with pytest.raises(bmq.InvalidPayload, match="row 3700 of the partition"):
        write(broker, queue, schema, batches(), **options)
    texts[3700] = "3700"
    write(broker, queue, schema, batches(), **options)
    assert [int(m.data) for m in broker.drain(queue, expect=5000)] == list(range(5000))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, 2], "column 'p' holds a value of type list, and a property must be boolean, byte"),
        ([("a", 1), ("b", [2])], "column 'p.b' holds a value of type list"),
        ({"a": {"b": 1}}, "column 'p.a' holds a value of type dict"),
        (Row(a=Row(b=1)), "column 'p.a' holds a value of type Row"),
        ({"a": 1.5}, "column 'p.a' holds a value of type float"),
        ({"-a": 1}, "property name '-a' must start with"),
        ({1: 1}, "a property name must be a str, not int"),
        ({f"k{n}": n for n in range(256)}, "256 properties; a message has at most 255"),
        ("\ud800", "column 'p' has half of a surrogate pair"),
        ({"a": "\ud800"}, "column 'p.a' has half of a surrogate pair"),
    ],
    ids=lambda value: str(value)[:30].encode("ascii", "replace").decode(),
)
def test_an_unsupported_value_is_named_with_its_row(
    broker: BrokerThread, queue: str, value: Any, text: str
) -> None:
    rows = [Row(value="x", p=1)] * 3 + [Row(value="x", p=value), Row(value="x", p=2)]
    with pytest.raises(bmq.InvalidProperty) as info:
        write_partition(queue=f"{queue}-fails", broker=broker.uri, properties=["p"]).post(
            iter(rows), TaskScope("job")
        )
    assert "row 3 of the partition: " in str(info.value)
    assert text in str(info.value)
    sorts = write_partition(queue=queue, broker=broker.uri, properties=["p"], on_invalid_row="drop")
    report = sorts.post(iter(rows), TaskScope("job"))
    assert (report.acknowledged, report.dropped) == (4, 1)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ArrayType(LongType()), "column 'p' is of type array<bigint>"),
        (struct(a=struct(b=LongType())), "column 'p.a' is of type struct<b:bigint>"),
        (struct(a=ArrayType(StringType())), "column 'p.a' is of type array<string>"),
        (MapType(StringType(), struct(a=LongType())), "column 'p[]' is of type struct<a:bigint>"),
        (MapType(StringType(), MapType(StringType(), LongType())), "column 'p[]' is of type map<"),
        (MapType(LongType(), LongType()), "column 'p': the keys of a map of properties must be strings"),
    ],
    ids=lambda kind: kind.simpleString() if isinstance(kind, DataType) else "",
)
def test_nested_types_are_refused_by_name(kind: DataType, text: str) -> None:
    given = {"queue": f"bmq://{DOMAIN}/q", "propertyColumns": "p", "onInvalidRow": "drop"}
    with pytest.raises(bmq.UsageError) as info:
        BmqDataSource(CaseInsensitiveDict(given)).writer(struct(value=StringType(), p=kind), False)
    assert text in str(info.value)
