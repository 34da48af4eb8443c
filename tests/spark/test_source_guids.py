# SPDX-License-Identifier: Apache-2.0
"""Rows read from a queue: a repeated batch computes the same GUIDs with any partitions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import (
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    TimestampType,
)

import bmq
import bmq.spark
from bmq.arrow.decoding import pa
from bmq.spark import BmqDataSource, Summary, write_partition
from bmq.spark.options import write_options
from bmq.spark.partition import TaskScope, post_partition
from tests.spark.brokers import BrokerThread
from tests.spark.readers import struct

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.timeout(400),
]


IDLE = {"idleTimeoutMs": "300"} if find_spec("pyspark.sql.streaming.datasource") else {}


def guid(number: int) -> str:
    return f"{number:032X}"


ROWS = [Row(guid=guid(n), value=f"row {n % 10}", n=n) for n in range(100)]


def post(
    broker: BrokerThread, queue: str, rows: Sequence[Row], partitions: int, job: str = "job", **options: Any
) -> list[Any]:
    """Post rows as one batch, in this many partitions."""
    write = write_partition(queue=queue, broker=broker.uri, guid_column="guid", properties=["n"], **options)
    return [
        write.post(iter(rows[number::partitions]), TaskScope(job, number)) for number in range(partitions)
    ]


@pytest.mark.parametrize("job", ["job", "another job"])
def test_batch_repeated_with_other_partitions_adds_no_message(
    broker: BrokerThread, queue: str, job: str
) -> None:
    post(broker, queue, ROWS[:60], 2)
    again = list(ROWS)
    random.Random(1).shuffle(again)
    post(broker, queue, again, 3, job)
    assert sorted(m.properties["n"] for m in broker.drain(queue, expect=100)) == list(range(100))


def test_guids_of_rows_without_a_message_depend_on_the_partition(broker: BrokerThread, queue: str) -> None:
    rows = [Row(guid=None if n % 2 else guid(n), value="tick", n=0) for n in range(20)]
    for _ in range(2):
        post(broker, queue, rows, 4)
    assert len(broker.drain(queue, expect=20)) == 20


def test_rows_made_of_one_message_are_all_posted(broker: BrokerThread, queue: str) -> None:
    lines = [Row(guid=guid(n), value=line, n=n) for n in range(5) for line in ("apple", "apple", "pear")]
    for partitions in (1, 1):
        post(broker, queue, lines, partitions)
    found = [(m.properties["n"], m.data) for m in broker.drain(queue, expect=15)]
    assert sorted(found) == sorted((row.n, row.value.encode()) for row in lines)


def test_equal_rows_in_different_partitions_are_found(broker: BrokerThread, queue: str) -> None:
    """In a sample of all rows of a small partition and the same rows of large partitions."""
    many = [Row(guid=guid(n), value="x", n=n) for n in range(5000)]
    for rows, found in (ROWS, 100), (many, 1024), (ROWS[:1], 1):
        reports = post(broker, queue, rows, 1)
        (again,) = post(broker, queue, rows, 1)
        Summary([*reports, again]).check()  # a task that was repeated
        again.partition = 1
        with pytest.raises(bmq.UsageError, match=rf"properties: {found} of a sample of {2 * found} "):
            Summary([*reports, again]).check()
    Summary(post(broker, queue, many, 3)).check()


def test_the_same_message_goes_to_several_queues_and_back(broker: BrokerThread, queue: str) -> None:
    """A copy of a copy is a message of its own in each queue, and never has the first one's GUID."""
    there, row = f"{queue}-there", [Row(guid=guid(1), value="x", n=1)]
    seen: set[str] = set()
    for _ in range(3):
        for target in (there, queue):
            post(broker, target, row, 1)
            (message,) = broker.drain(target, expect=1)
            assert message.guid not in seen
            seen.add(message.guid)
            row = [Row(guid=message.guid, value="x", n=1)]


def test_named_writes_of_one_message_are_different_messages(broker: BrokerThread, queue: str) -> None:
    for name in ("first", "second", "first"):
        post(broker, queue, ROWS[:3], 1, write_name=name)
    assert len(broker.drain(queue, expect=6)) == 6


def test_letter_case_of_a_guid_does_not_matter(broker: BrokerThread, queue: str) -> None:
    for digits in ("ABCDEF0123456789" * 2, "abcdef0123456789" * 2):
        post(broker, queue, [Row(guid=digits, value="x", n=1)], 1)
    assert len(broker.drain(queue, expect=1)) == 1


@pytest.mark.parametrize(
    "wrong", ["", "x", "0" * 31, "0" * 33, "g" * 32, "3f2504e0-4f89-41d3-9a0c-0305e82c3301", 7, b"0" * 32]
)
def test_invalid_guids_are_named(broker: BrokerThread, queue: str, wrong: Any) -> None:
    rows = [Row(guid=guid(1), value="x", n=1), Row(guid=wrong, value="x", n=1)]
    kinds = {type(row.guid) for row in rows}
    rows = rows if kinds == {str} else rows[1:]
    with pytest.raises(bmq.UsageError, match=rf"row {len(rows) - 1} of the partition: .* is not the GUID"):
        post(broker, queue, rows, 1)


def test_dead_letters_are_the_same_with_other_partitions(broker: BrokerThread, queue: str) -> None:
    dead = f"{queue}-dead"
    rows = [Row(guid=guid(n) if n != 5 else "none", value="" if n % 2 else "x", n=n) for n in range(12)]
    for partitions in (2, 2, 4):
        some = rows if partitions == 2 else [row for row in rows if row.n != 5]
        post(broker, queue, some, partitions, on_invalid_row="deadLetters", dead_letter_queue=dead)
    assert sorted(m.properties["n"] for m in broker.drain(dead, expect=6)) == [1, 3, 5, 7, 9, 11]
    assert sorted(m.properties["n"] for m in broker.drain(queue, expect=6)) == [0, 2, 4, 6, 8, 10]


def test_an_arrow_table_has_source_guids(broker: BrokerThread, queue: str) -> None:
    """A batch as Spark hands it over, in slices, and from a restart with its rows elsewhere."""
    given = {"queue": queue, "broker": broker.uri, "propertycolumns": "n", "guidcolumn": "guid"}
    options = write_options(given, ["guid", "value", "n"])
    for start in (0, 37):
        order = [*range(start, 100), *range(start)]
        table = pa.RecordBatch.from_pylist([ROWS[at].asDict() for at in order])
        post_partition(iter([(0, table)]), options, TaskScope("job", start))
    assert sorted(m.properties["n"] for m in broker.drain(queue, expect=100)) == list(range(100))


SOURCE: dict[str, DataType] = {
    "value": StringType(),
    "properties": MapType(StringType(), StringType()),
    "guid": StringType(),
    "queue": StringType(),
    "subscription": StringType(),
    "redelivered": BooleanType(),
    "receivedAt": TimestampType(),
}


def settings_of(columns: dict[str, DataType], **options: str) -> Any:
    source = BmqDataSource({"queue": "bmq://bmq.test.mem.priority/q", **options})
    writer: Any = source.writer(struct(**columns), overwrite=False)
    return writer._partition.options


@pytest.mark.parametrize(
    ("columns", "options", "mode"),
    [
        (["value"], {}, "content"),
        (["value", "guid"], {"guidcolumn": "guid"}, "source"),
        (["value", "guid", "id"], {"guidcolumn": "guid", "idcolumn": "id"}, "id"),
        (["value", "guid"], {"guidcolumn": "guid", "guidmode": "content"}, "content"),
        (["value", "guid"], {"guidcolumn": "guid", "guidmode": "random"}, "random"),
        (["value", "origin"], {"guidcolumn": "origin"}, "source"),
        (list(SOURCE), {}, "content"),
        (list(SOURCE), {"guidcolumn": "guid"}, "source"),
    ],
)
def test_an_option_names_the_column_of_guids(columns: list[str], options: dict[str, str], mode: str) -> None:
    settings = settings_of({name: SOURCE.get(name, StringType()) for name in columns}, **options)
    assert settings.guid_mode == mode


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ({"value": StringType()}, {"guidmode": "source"}, "guidMode=source needs guidColumn"),
        (
            {"value": StringType(), "guid": LongType()},
            {"guidcolumn": "guid"},
            "column 'guid' is of type bigint; the GUID of",
        ),
        ({"value": StringType()}, {"guidcolumn": "origin"}, "no column 'origin'"),
        (
            {"value": StringType(), "subscription": StringType()},
            {},
            "column 'subscription' cannot be written",
        ),
    ],
)
def test_impossible_values_are_refused_by_name(
    columns: dict[str, DataType], options: dict[str, str], text: str
) -> None:
    with pytest.raises(bmq.UsageError, match=text):
        settings_of(columns, **options)


def test_unfinished_batch_may_continue_with_other_partitions(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    """From queue to queue: one partition of two is posted, then the query continues with three."""
    source, checkpoint = f"{queue}-in", str(tmp_path / "checkpoint")
    broker.post(source, [bmq.PutMessage(b"tick", properties={"n": n}) for n in range(300)])
    sign = tmp_path / "out of order"
    sign.touch()
    path = str(sign)

    def failing(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1 and Path(path).exists():
            raise RuntimeError("half way, on purpose")
        yield from batches

    def go(partitions: int) -> None:
        options = {"broker": broker.uri, "queue": source, "checkpointLocation": checkpoint, **IDLE}
        options |= {"propertiesSchema": "n BIGINT", "numPartitions": str(partitions)}
        frame = spark.readStream.format("bmq").options(**options).load()
        frame = frame.select("guid", "value", "properties")
        frame = frame.mapInArrow(failing, frame.schema)
        writer = frame.writeStream.format("bmq").options(broker=broker.uri, queue=queue, guidColumn="guid")
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination(120)

    with pytest.raises(Exception, match="half way, on purpose"):
        go(2)
    half = [m.properties["n"] for m in broker.drain(queue)]
    assert len(half) == 150
    sign.unlink()
    go(3)
    rest = [m.properties["n"] for m in broker.drain(queue, expect=150)]
    assert sorted(half + rest) == list(range(300))


def test_equal_rows_of_one_message_in_different_partitions_fail_the_write(
    spark: SparkSession, broker: BrokerThread, queue: str
) -> None:
    """The broker keeps one message: the job does not continue as if both were posted."""
    rows = spark.createDataFrame([(guid(n), f"row {n}") for n in range(50)], "guid STRING, value STRING")
    twice = rows.union(rows.where("value = 'row 7'")).coalesce(1).union(rows.limit(3).repartition(2))
    options = {"broker": broker.uri, "queue": queue, "guidColumn": "guid"}
    write = twice.write.format("bmq").mode("append").options(**options)
    with pytest.raises(Exception, match=r"properties: 3 of a sample of 53 rows"):
        write.save()
    assert len(broker.drain(queue, expect=51)) == 51  # equal rows of one partition are told apart
    with pytest.raises(bmq.UsageError, match=r"Add a number \(posexplode\)"):
        bmq.spark.write(twice, queue=queue, broker=broker.uri, guid_column="guid")
    write.option("guidMode", "content").save()
    assert len(broker.drain(queue, expect=54)) == 54
    rows.repartition(4).write.format("bmq").mode("append").options(**options).save()
    assert broker.drain(queue) == []
