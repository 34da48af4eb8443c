# SPDX-License-Identifier: Apache-2.0
"""Spark's filters as subscriptions: the broker selects exactly the rows kept by Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
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
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    IntegerType,
    LongType,
    StringType,
)

import bmq
import bmq.spark
from bmq.spark import BmqDataSource
from tests.spark.brokers import DOMAIN, BrokerThread
from tests.spark.readers import struct

PROPERTIES = struct(
    n=LongType(), i=IntegerType(), b=ByteType(), s=StringType(), t=BooleanType(), raw=BinaryType()
)
SCHEMA = struct(value=BinaryType(), properties=PROPERTIES, guid=StringType())

Row = dict[str, Any]


def narrow(value: int) -> bmq.PropertyValue:
    return bmq.PropertyValue(bmq.PropertyType.SHORT, value)


#: Values of a property: of every type, and absent.
VALUES: list[Any] = [
    None,
    *(-(1 << 63), -1, 0, 5, 127, 128, 2**31 - 1, 2**31, (1 << 63) - 1),
    narrow(5),
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


def compare(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool | None]:
    return lambda column, value: None if column is None else test(column, value)


def kept(condition: Filter, row: Row) -> bool | None:
    """The result of SQL for a row: true, false, or null."""
    if isinstance(condition, Not):
        inner = kept(condition.child, row)
        return None if inner is None else not inner
    given: Any = condition
    column = row[given.attribute[1]]
    if isinstance(condition, IsNull):
        return column is None
    if isinstance(condition, IsNotNull):
        return column is not None
    value = given.value
    if isinstance(condition, EqualNullSafe):
        return bool(column == value)
    if column is None:
        return None
    if isinstance(condition, In):
        return True if column in value else (None if None in value else False)
    if isinstance(condition, StringStartsWith):
        return bool(column.startswith(value))
    tests: dict[type[Filter], Any] = {
        EqualTo: lambda: column == value,
        GreaterThan: lambda: column > value,
        GreaterThanOrEqual: lambda: column >= value,
        LessThan: lambda: column < value,
        LessThanOrEqual: lambda: column <= value,
    }
    return bool(tests[type(condition)]())


def of(name: str) -> tuple[str, str]:
    return ("properties", name)


PUSHED = [
    EqualTo(of("n"), 5),
    EqualTo(of("b"), 5),
    EqualNullSafe(of("n"), -(1 << 63)),
    Not(EqualTo(of("n"), 5)),
    Not(EqualTo(of("i"), 5)),
    GreaterThan(of("n"), 0),
    GreaterThan(of("i"), 0),
    GreaterThanOrEqual(of("b"), 5),
    LessThan(of("n"), 5),
    LessThan(of("i"), 5),
    LessThanOrEqual(of("n"), (1 << 63) - 1),
    In(of("n"), (5, 128, None)),
    Not(In(of("n"), (5, 128))),
    IsNotNull(of("n")),
    IsNotNull(of("i")),
    EqualTo(of("s"), "EXPRESS"),
    EqualTo(of("s"), "äö"),
    EqualTo(of("s"), ""),
    In(of("s"), ("EXPRESS", "a", None)),
    EqualTo(of("t"), True),
    EqualTo(of("t"), False),
    Not(EqualTo(of("t"), True)),
    EqualNullSafe(of("t"), False),
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


def reader_of(broker: BrokerThread, queue: str, **options: str) -> Any:
    given = {
        "broker": broker.uri,
        "queue": queue,
        "idleTimeoutMs": "150",
        "confirm": "never",
        "pushFilters": "true",
        **options,
    }
    return BmqDataSource(CaseInsensitiveDict(given)).reader(SCHEMA)


def read(reader: Any) -> list[Row]:
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return [{"at": int(row["value"]), **row["properties"]} for row in rows]


@pytest.fixture(scope="module")
def table(broker: BrokerThread) -> tuple[str, list[Row]]:
    """A queue with all kinds of values, and the values of its columns."""
    queue = f"bmq://{DOMAIN}/truth"
    broker.post(queue, MESSAGES)
    rows = read(reader_of(broker, queue, idleTimeoutMs="1000"))
    assert sorted(row["at"] for row in rows) == list(range(len(VALUES)))
    return queue, sorted(rows, key=lambda row: row["at"])


@pytest.mark.parametrize("condition", PUSHED, ids=str)
def test_broker_selects_the_rows_kept_by_spark(
    broker: BrokerThread, table: tuple[str, list[Row]], condition: Filter
) -> None:
    queue, rows = table
    reader = reader_of(broker, queue)
    assert list(reader.pushFilters([condition])) == []
    # Bytes shown as text in a column of strings are no string for the broker: the messages stay.
    expected = [row["at"] for row in rows if kept(condition, row) and type(VALUES[row["at"]]) is not bytes]
    assert 0 < len(expected) < len(VALUES)
    assert sorted(row["at"] for row in read(reader)) == expected


@pytest.mark.parametrize("condition", LEFT, ids=str)
def test_inexact_filters_stay_in_spark(broker: BrokerThread, condition: Filter) -> None:
    reader = reader_of(broker, f"bmq://{DOMAIN}/truth")
    before = reader._options
    assert list(reader.pushFilters([condition])) == [condition]
    assert reader._options == before


def test_filters_and_subscriptions_both_apply(broker: BrokerThread, queue: str) -> None:
    broker.post(queue, [bmq.PutMessage(b"%d" % n, {"n": n, "s": "ab"[n % 2]}) for n in range(20)])
    reader = reader_of(broker, queue, expression='{"low": "!(n > 9)", "either": "n > 14 || n == 12"}')
    conditions = [IsNotNull(of("s")), EqualTo(of("s"), "b"), IsNull(of("i"))]
    assert list(reader.pushFilters(conditions)) == [conditions[2]]
    assert reader._options.expression == (
        ("low", '!(n > 9) && s=="b"'),
        ("either", '(n > 14 || n == 12) && s=="b"'),
    )
    assert sorted(row["at"] for row in read(reader)) == [1, 3, 5, 7, 9, 15, 17, 19]


def test_filters_beyond_the_brokers_limits_stay_in_spark(broker: BrokerThread, queue: str) -> None:
    reader = reader_of(broker, queue)
    many = In(of("n"), tuple(range(20)))
    assert list(reader.pushFilters([many, EqualTo(of("s"), "b")])) == [many]
    assert reader._options.expression == (("", 's=="b"'),)


def test_streams_push_no_filters() -> None:
    source = BmqDataSource(CaseInsensitiveDict({"queue": f"bmq://{DOMAIN}/q", "pushFilters": "true"}))
    with pytest.raises(bmq.UsageError, match="Spark pushes no filters into streams"):
        source.streamReader(SCHEMA).initialOffset()


@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_unselected_messages_stay_in_the_queue(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    broker.post(queue, [bmq.PutMessage(b"%d" % n, {"n": n, "s": "ab"[n % 2]}) for n in range(100)])

    options = {"broker": broker.uri, "queue": queue, "checkpointLocation": str(tmp_path)}

    def wanted() -> list[int]:
        orders = (
            spark.read.format("bmq")
            .options(**options, propertiesSchema="n BIGINT, s STRING")
            .options(pushFilters="true", idleTimeoutMs="500")
            .load()
        )
        rows = orders.where("properties.n >= 50 AND properties.s = 'b' AND properties.n % 3 = 0").collect()
        return sorted(int(row.value) for row in rows)

    with pytest.raises(Exception, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        wanted()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    found = wanted()
    assert found == [n for n in range(50, 100) if n % 2 and n % 3 == 0]
    # Spark itself evaluates n % 3: these rows are part of the read.
    assert bmq.spark.confirm(options) == 25
    assert sorted(int(m.data) for m in broker.drain(queue, expect=75)) == [
        n for n in range(100) if n < 50 or n % 2 == 0
    ]
