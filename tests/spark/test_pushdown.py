# SPDX-License-Identifier: Apache-2.0
"""Spark's filters as subscriptions: the broker selects exactly the rows kept by Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, types
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

import bmq
import bmq.spark
from tests.spark.bench import NOWHERE, BrokerThread, source, struct
from tests.sweeps import sweep

PROPERTIES = struct(
    n=types.LongType(),
    i=types.IntegerType(),
    b=types.ByteType(),
    s=types.StringType(),
    t=types.BooleanType(),
    raw=types.BinaryType(),
)
SCHEMA = struct(value=types.BinaryType(), properties=PROPERTIES, guid=types.StringType())

Row = dict[str, Any]


#: Values of a property: of every type, and absent.
VALUES: list[Any] = [
    None,
    *(-(1 << 63), -1, 0, 5, 127, 128, 2**31 - 1, 2**31, (1 << 63) - 1),
    bmq.PropertyValue(bmq.PropertyType.SHORT, 5),
    bmq.PropertyValue(bmq.PropertyType.INT32, 5),
    *("5", "-1", "true", "false", "EXPRESS", "äö", "", "a"),
    True,
    False,
    b"5",
    b"EXPRESS",
]
MESSAGES = [
    bmq.PutMessage(b"%d" % at, None if value is None else dict.fromkeys(["n", "i", "b", "s", "t"], value))
    for at, value in enumerate(VALUES)
]


def of(name: str) -> tuple[str, str]:
    return ("properties", name)


#: Conditions, each with the values that it keeps; null is never kept.
PUSHED: list[tuple[Filter, Callable[[Any], bool]]] = [
    (EqualTo(of("n"), 5), lambda value: value == 5),
    (EqualTo(of("b"), 5), lambda value: value == 5),
    (EqualNullSafe(of("n"), -(1 << 63)), lambda value: value == -(1 << 63)),
    (Not(EqualTo(of("n"), 5)), lambda value: value != 5),
    (Not(EqualTo(of("i"), 5)), lambda value: value != 5),
    (GreaterThan(of("n"), 0), lambda value: value > 0),
    (GreaterThanOrEqual(of("b"), 5), lambda value: value >= 5),
    (LessThan(of("i"), 5), lambda value: value < 5),
    (LessThanOrEqual(of("n"), (1 << 63) - 1), lambda value: True),
    (In(of("n"), (5, 128, None)), lambda value: value in {5, 128}),
    (Not(In(of("n"), (5, 128))), lambda value: value not in {5, 128}),
    (IsNotNull(of("n")), lambda value: True),
    (IsNotNull(of("i")), lambda value: True),
    (EqualTo(of("s"), "EXPRESS"), lambda value: value == "EXPRESS"),
    (EqualTo(of("s"), "äö"), lambda value: value == "äö"),
    (EqualTo(of("s"), ""), lambda value: value == ""),
    (In(of("s"), ("EXPRESS", "a", None)), lambda value: value in {"EXPRESS", "a"}),
    (EqualTo(of("t"), True), lambda value: value is True),
    (Not(EqualTo(of("t"), True)), lambda value: value is False),
    (EqualNullSafe(of("t"), False), lambda value: value is False),
]
LEFT = [
    EqualTo(of("s"), "5"),  # a number has the same text
    EqualTo(of("s"), "true"),
    In(of("s"), ("a", "-1")),
    Not(EqualTo(of("s"), "a")),  # a number is another text
    GreaterThan(of("s"), "a"),
    StringStartsWith(of("s"), "E"),
    EqualTo(of("s"), 'a "word"'),  # no expression can contain the string
    IsNull(of("n")),  # a property of another type is null
    IsNotNull(of("s")),
    Not(EqualNullSafe(of("n"), 5)),
    Not(In(of("n"), (5, None))),
    EqualTo(of("raw"), b"5"),
    EqualTo(("guid",), "x"),
    EqualTo(("value",), b"x"),
]


def reader_of(broker: BrokerThread, queue: str, **options: Any) -> Any:
    given = {"idleTimeoutMs": 150, "confirm": "never", "pushFilters": "true", **options}
    return source(broker=broker.uri, queue=queue, **given).reader(SCHEMA)


def read(reader: Any) -> list[Row]:
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(({"at": int(row["value"]), **row["properties"]} for row in rows), key=lambda row: row["at"])


@pytest.fixture(scope="module")
def table(broker: BrokerThread) -> list[Row]:
    """The queue NOWHERE has all kinds of values; return the values of its columns."""
    broker.post(NOWHERE, MESSAGES)
    rows = read(reader_of(broker, NOWHERE, idleTimeoutMs=1000))
    assert [row["at"] for row in rows] == list(range(len(VALUES)))
    return rows


@sweep("condition, keeps", PUSHED)
def test_broker_selects_the_rows_kept_by_spark(
    broker: BrokerThread, table: list[Row], condition: Filter, keeps: Callable[[Any], bool]
) -> None:
    reader = reader_of(broker, NOWHERE)
    assert list(reader.pushFilters([condition])) == []
    child: Any = getattr(condition, "child", condition)
    values = {row["at"]: row[child.attribute[1]] for row in table}
    # Bytes shown as text in a column of strings are no string for the broker: the messages stay.
    expected = [
        at
        for at, value in values.items()
        if value is not None and keeps(value) and type(VALUES[at]) is not bytes
    ]
    assert 0 < len(expected) < len(VALUES)
    assert [row["at"] for row in read(reader)] == expected


@sweep("condition", LEFT)
def test_inexact_filters_stay_in_spark(broker: BrokerThread, condition: Filter) -> None:
    reader = reader_of(broker, NOWHERE)
    before = reader._options
    assert list(reader.pushFilters([condition])) == [condition]
    assert reader._options == before


def test_filters_and_subscriptions_both_apply(broker: BrokerThread, queue: str) -> None:
    broker.post(queue, [bmq.PutMessage(b"%d" % n, {"n": n, "s": "ab"[n % 2]}) for n in range(20)])
    reader = reader_of(broker, queue, expression='{"low": "!(n > 9)", "either": "n > 14 || n == 12"}')
    conditions = [IsNotNull(of("s")), EqualTo(of("s"), "b"), IsNull(of("i"))]
    assert list(reader.pushFilters(conditions)) == [conditions[2]]
    assert [row["at"] for row in read(reader)] == [1, 3, 5, 7, 9, 15, 17, 19]


def test_filters_beyond_the_brokers_limits_stay_in_spark(broker: BrokerThread, queue: str) -> None:
    broker.post(queue, [bmq.PutMessage(b"%d" % n, {"n": n, "s": "ab"[n % 2]}) for n in range(4)])
    reader = reader_of(broker, queue)
    many = In(of("n"), tuple(range(20)))
    assert list(reader.pushFilters([many, EqualTo(of("s"), "b")])) == [many]
    assert [row["at"] for row in read(reader)] == [1, 3]


def test_streams_push_no_filters() -> None:
    with pytest.raises(bmq.UsageError, match="Spark pushes no filters into streams"):
        source(queue=NOWHERE, pushFilters="true").streamReader(SCHEMA).initialOffset()


def test_unselected_messages_stay_in_the_queue(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    broker.post(queue, [bmq.PutMessage(b"%d" % n, {"n": n, "s": "ab"[n % 2]}) for n in range(100)])

    options = {"broker": broker.uri, "queue": queue, "checkpointLocation": str(tmp_path)}

    def wanted() -> list[int]:
        given = {**options, "propertiesSchema": "n BIGINT, s STRING", "pushFilters": "true"}
        orders = spark.read.format("bmq").options(**given, idleTimeoutMs="500").load()
        rows = orders.where("properties.n >= 50 AND properties.s = 'b' AND properties.n % 3 = 0").collect()
        return sorted(int(row.value) for row in rows)

    with pytest.raises(Exception, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        wanted()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert wanted() == [n for n in range(50, 100) if n % 2 and n % 3 == 0]
    # Spark itself evaluates n % 3: these rows are part of the read.
    assert bmq.spark.confirm(options) == 25
    rest = sorted(int(m.data) for m in broker.drain(queue, expect=75))
    assert rest == [n for n in range(100) if n < 50 or n % 2 == 0]
