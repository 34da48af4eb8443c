# SPDX-License-Identifier: Apache-2.0
"""Rows that cannot be posted: dropped, or put into dead letters; in columns and in rows."""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

import bmq
from bmq.client.message import Message
from bmq.spark import BmqDataSource, PartitionReport, write_partition
from bmq.spark.partition import TaskScope
from bmq.spark.rows import InvalidRow, letter_of
from bmq.workers import original_of
from tests.spark.brokers import DOMAIN, BrokerThread

LIMIT = 64 << 20
QUEUE = f"bmq://{DOMAIN}/letters"


def good(messages: list[Message]) -> list[str]:
    return [message.data.decode() for message in messages]


def reasons(letters: list[Message]) -> list[str]:
    return [str(letter.properties["bmq_dead_error"]) for letter in letters]


Write = Callable[..., PartitionReport]


def in_columns(broker: BrokerThread, queue: str, columns: dict[str, Any], **options: str) -> PartitionReport:
    """Write Arrow columns, as Spark hands them over; with the type that each has in the DataFrame."""
    arrays = {name: array for name, (_, array) in columns.items()}
    schema = StructType([StructField(name, kind) for name, (kind, _) in columns.items()])
    given = {"broker": broker.uri, "queue": queue, **options}
    writer = BmqDataSource(CaseInsensitiveDict(given)).writer(schema, False)
    batch = pa.RecordBatch.from_pydict(arrays)
    report: PartitionReport = writer.write(iter([batch.slice(0, 2), batch.slice(2)])).report
    return report


def in_rows(broker: BrokerThread, queue: str, columns: dict[str, Any], **options: str) -> PartitionReport:
    """Write the same, row by row."""
    arrays = {name: array for name, (_, array) in columns.items()}
    schema = StructType([StructField(name, kind) for name, (kind, _) in columns.items()])
    given = {"broker": broker.uri, "queue": queue, **options}
    writer = BmqDataSource(CaseInsensitiveDict(given)).writer(schema, False)
    rows = pa.RecordBatch.from_pydict(arrays).to_pylist()
    for row in rows:
        for name, value in row.items():
            row[name] = dict(value) if isinstance(value, list) else value
    report: PartitionReport = writer.write(iter([Row(**row) for row in rows])).report
    return report


both = pytest.mark.parametrize("write", [in_columns, in_rows], ids=["columns", "rows"])

ORDERS = {
    "value": (StringType(), pa.array(["a", None, "b", "", "c"])),
    "n": (ShortType(), pa.array([1, 2, None, 4, 5], pa.int16())),
    "kind": (StringType(), pa.array(["EXPRESS", "ä", None, None, "SLOW"])),
}


@both
def test_invalid_rows_are_dropped_and_counted(
    write: Write, broker: BrokerThread, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "bmq.spark"):
        report = write(broker, queue, ORDERS, propertyColumns="n,kind", onInvalidRow="drop")
    assert (report.rows, report.acknowledged, report.dropped, report.dead_letters) == (5, 3, 2, 0)
    assert good(broker.drain(queue, expect=3)) == ["a", "b", "c"]
    first, last = caplog.messages
    assert first.startswith(
        "row 1 of partition 0 cannot be posted, and is dropped, like all rows that cannot be posted: "
        "InvalidPayload: this row: column 'value' is null; a payload has 1 to"
    )
    assert last.startswith("partition 0: 5 rows, 3 acknowledged, 2 invalid and dropped in ")


@both
def test_invalid_rows_become_dead_letters_with_the_reason(
    write: Write, broker: BrokerThread, queue: str
) -> None:
    dead = f"{queue}.dead"
    options = {"propertyColumns": "n,kind", "onInvalidRow": "deadLetters", "deadLetterQueue": dead}
    report = write(broker, queue, ORDERS, **options)
    assert (report.rows, report.acknowledged, report.dropped, report.dead_letters) == (5, 3, 0, 2)
    assert good(broker.drain(queue, expect=3)) == ["a", "b", "c"]
    null, empty = broker.drain(dead, expect=2)
    assert null.data.decode() == null.properties["bmq_dead_error"]
    error = (
        "InvalidPayload: this row: column 'value' {}; a payload has 1 to 67,108,864 bytes of string or "
        "binary: filter these rows out before posting"
    )
    assert dict(null.properties) == {
        "n": 2,
        "kind": "ä",
        "bmq_dead_attempts": 0,
        "bmq_dead_error": error.format("is null"),
        "bmq_dead_queue": queue,
        "bmq_dead_raw": "the payload was null",
    }
    assert {name: null.property_types[name].name for name in ("n", "bmq_dead_attempts")} == {
        "n": "SHORT",
        "bmq_dead_attempts": "INT32",
    }
    assert empty.properties["bmq_dead_error"] == error.format("has 0 bytes")
    assert empty.properties["bmq_dead_raw"] == "the payload was empty"
    with pytest.raises(bmq.UsageError, match="the payload was empty"):
        original_of(empty)


@both
def test_invalid_queues_ids_and_times_are_found(write: Write, broker: BrokerThread, queue: str) -> None:
    dead = f"{queue}.dead"
    there = [queue, "no uri", f"{queue}?id=foo", None, queue, queue, queue]
    columns = {
        "value": (StringType(), pa.array([f"{n}" for n in range(7)])),
        "queue": (StringType(), pa.array(there)),
        "id": (LongType(), pa.array([0, 1, 2, 3, None, 5, 6])),
        "at": (DoubleType(), pa.array([None, None, None, None, None, float("inf"), 1e18])),
    }
    report = write(
        broker,
        "",
        columns,
        idColumn="id",
        notBeforeColumn="at",
        onInvalidRow="deadLetters",
        deadLetterQueue=dead,
    )
    assert (report.acknowledged, report.dead_letters) == (1, 6)
    assert good(broker.drain(queue, expect=1)) == ["0"]
    letters = sorted(broker.drain(dead, expect=6), key=lambda letter: letter.data)
    assert [letter.data for letter in letters] == [b"%d" % n for n in range(1, 7)]
    assert [letter.properties["bmq_dead_queue"] for letter in letters] == [t or "" for t in there[1:]]
    wanted = [
        "InvalidURI: .*",
        "UsageError: .* names an application, and applications are for readers",
        "UsageError: this row: column 'queue' is null, and every row needs a queue",
        "UsageError: this row: column 'id' is null, and every row needs an id",
        "UsageError: this row: inf is not a time in seconds since 1970",
        r"UsageError: this row: 1e\+18 is not a time in seconds since 1970",
    ]
    for reason, pattern in zip(reasons(letters), wanted, strict=True):
        assert re.match(pattern, reason), reason
    uri, message = original_of(letters[0], queue)
    assert (uri, message.data, message.properties) == (queue, b"1", None)


@both
def test_invalid_keys_of_maps_are_found(write: Write, broker: BrokerThread, queue: str) -> None:
    many = [(f"k{n:03}", n) for n in range(300)]
    maps = [[("a", 1)], [("-b", 2), ("c", 3)], None, many, [("bmq_dead_queue", 4), ("d", 5)]]
    columns = {
        "value": (StringType(), pa.array(list("vwxyz"))),
        "properties": (MapType(StringType(), LongType()), pa.array(maps, pa.map_(pa.string(), pa.int64()))),
    }
    dead = f"{queue}.dead"
    report = write(broker, queue, columns, onInvalidRow="deadLetters", deadLetterQueue=dead)
    assert (report.acknowledged, report.dead_letters) == (3, 2)
    assert good(broker.drain(queue, expect=3)) == ["v", "x", "z"]
    name, number = broker.drain(dead, expect=2)
    assert name.data == b"w"
    assert name.properties["c"] == 3
    assert json.loads(str(name.properties["bmq_dead_properties"])) == [["-b", "INT64", 2]]
    assert str(name.properties["bmq_dead_error"]).startswith("InvalidProperty: ")
    assert number.properties["bmq_dead_error"].endswith("300 properties; a message has at most 255")
    assert len(number.properties) == 254
    rest = json.loads(str(number.properties["bmq_dead_properties"]))
    assert {**{k: v for k, _, v in rest}, **number.properties}.items() >= dict(many).items()
    # What is not legal as a property is left out, the rest is as it was.
    assert original_of(name) == (
        queue,
        bmq.PutMessage(b"w", {"c": bmq.PropertyValue(bmq.PropertyType.INT64, 3)}, original_of(name)[1].guid),
    )


@both
@pytest.mark.timeout(120)
def test_oversized_rows_become_dead_letters(write: Write, broker: BrokerThread, queue: str) -> None:
    """A slice fails half-way, with 60 MiB beside what is too large."""
    texts = ["a", "b" * (60 << 20), "c", "d" * (LIMIT + 1), "e" * (LIMIT - 10), "f", "g"]
    columns = {
        "value": (StringType(), pa.array(texts)),
        "p": (StringType(), pa.array([None, "x", "p", None, "y" * 100, "p" * (LIMIT + 1), "z"])),
    }
    dead = f"{queue}.dead"
    options = {"propertyColumns": "p", "onInvalidRow": "deadLetters", "deadLetterQueue": dead}
    report = write(broker, queue, columns, **options)
    assert (report.acknowledged, report.dead_letters) == (4, 3)
    assert [m.data[:1] for m in broker.drain(queue, expect=4)] == [b"a", b"b", b"c", b"g"]
    letters = sorted(broker.drain(dead, expect=3), key=lambda letter: letter.data)
    assert [len(letter.data) for letter in letters] == [1 << 20, 1 << 20, 1]
    assert [letter.data[:1] for letter in letters] == [b"d", b"e", b"f"]
    assert [letter.properties["bmq_dead_raw"] for letter in letters] == [
        "the payload is the first 1,048,576 of 67,108,865 bytes",
        "the payload is the first 1,048,576 of 67,108,854 bytes",
        "property 'p': the first 65,536 of 67,108,865 characters",
    ]
    assert letters[1].properties["p"] == "y" * 100


def test_unsupported_values_are_found(broker: BrokerThread, queue: str) -> None:
    """Rows of Python may be of any type where no schema is given."""
    dead = f"{queue}.dead"
    rows = [
        Row(body="a", p=1),
        Row(body=12, p=2),
        Row(body="b", p=1.5),
        Row(body="c", p=2**70),
        Row(body="\ud800", p=3),
        Row(body="d", p="\ud800"),
        Row(body="e", p=[1, 2]),
        Row(body="f", p={7: 1}),
        Row(body="g", p="good"),
    ]
    write = write_partition(
        queue=queue,
        broker=broker.uri,
        value="body",
        properties=["p"],
        on_invalid_row="deadLetters",
        dead_letter_queue=dead,
    )
    report = write.post(iter(rows), TaskScope("job"))
    assert (report.rows, report.acknowledged, report.dead_letters) == (9, 2, 7)
    assert good(broker.drain(queue, expect=2)) == ["a", "g"]
    letters = broker.drain(dead, expect=7)
    assert [letter.data for letter in letters] == [b"12", b"b", b"c", b"\xed\xa0\x80", b"d", b"e", b"f"]
    assert letters[0].properties["bmq_dead_raw"] == "the payload was of type int, and is its text"
    rest = [json.loads(str(each.properties.get("bmq_dead_properties", "[]"))) for each in letters]
    assert rest == [
        [],
        [["p", "STRING", "1.5"]],
        [["p", "STRING", "1180591620717411303424"]],
        [],
        [["p", "STRING", "?"]],
        [["p", "STRING", "[1, 2]"]],
        [["7", "INT64", 1]],
    ]
    for reason in reasons(letters):
        assert reason.startswith(("InvalidPayload: this row: ", "InvalidProperty: this row: ")), reason


@pytest.mark.parametrize("mode", ["content", "id"])
@pytest.mark.parametrize("arrow", [True, False], ids=["columns", "rows"])
def test_repeated_task_adds_no_message(broker: BrokerThread, queue: str, mode: str, arrow: bool) -> None:
    """Neither good rows nor dead letters, in whatever order the rows come."""
    dead = f"{queue}.dead"
    rows = [
        {"value": "" if n % 5 == 0 else f"{n % 50}", "n": n % 10, "key": n if n % 7 else None}
        for n in range(1000)
    ]
    if mode == "content":
        rows = [{**row, "key": 0} for row in rows]
    options = {"id_column": "key"} if mode == "id" else {}
    write = write_partition(
        queue=queue,
        broker=broker.uri,
        properties=["n"],
        on_invalid_row="deadLetters",
        dead_letter_queue=dead,
        write_name="nightly",
        schema=StructType(
            [
                StructField("value", StringType()),
                StructField("n", IntegerType()),
                StructField("key", LongType()),
            ]
        ),
        **options,  # type: ignore[arg-type]
    )

    def batches(shuffled: list[dict[str, Any]]) -> Iterator[tuple[int, pa.RecordBatch]]:
        for first in range(0, len(shuffled), 300):
            yield first, pa.RecordBatch.from_pylist(shuffled[first : first + 300])

    from bmq.spark.partition import post_partition

    reports = []
    for attempt in range(3):
        shuffled = list(rows)
        random.Random(attempt).shuffle(shuffled)
        scope = TaskScope("nightly", 3, attempt)
        if arrow:
            reports.append(post_partition(batches(shuffled), write.options, scope))
        else:
            reports.append(write.post(iter([Row(**row) for row in shuffled]), scope))
    bad = sum(not row["value"] or row["key"] is None for row in rows)
    assert [(each.acknowledged, each.dead_letters) for each in reports] == [(1000 - bad, bad)] * 3
    assert len(broker.drain(queue, expect=1000 - bad)) == 1000 - bad
    assert len(broker.drain(dead, expect=bad)) == bad


def test_an_invalid_row_does_not_take_the_place_of_a_good_one_with_its_id(
    broker: BrokerThread, queue: str
) -> None:
    rows = [Row(value="", key=1), Row(value="good", key=1)]
    write = write_partition(queue=queue, broker=broker.uri, id_column="key", on_invalid_row="drop")
    report = write.post(iter(rows), TaskScope("job"))
    assert (report.acknowledged, report.dropped, report.repeated) == (1, 1, 0)
    assert good(broker.drain(queue, expect=1)) == ["good"]


def test_dead_letter_reports_each_missing_part_once() -> None:
    row = InvalidRow(0, "no", "x" * LIMIT, {"-a": "y" * 70_000, "b": b"z" * 70_000}, QUEUE)
    letter = letter_of(row)
    assert len(letter.payload) == 1 << 20
    assert letter.properties["bmq_dead_raw"] == (
        "the payload is the first 1,048,576 of 67,108,864 bytes; "
        "property '-a': the first 65,536 of 70,000 characters; "
        "property 'b': the first 65,536 of 93,336 characters"
    )
    many = letter_of(InvalidRow(0, "no", "x", {f"-{n}": "y" * 60_000 for n in range(40)}, QUEUE))
    assert many.properties["bmq_dead_raw"] == "24 properties are left out"
    assert len(json.loads(str(many.properties["bmq_dead_properties"]))) == 16


def test_all_rows_may_be_invalid(broker: BrokerThread, queue: str) -> None:
    dead = f"{queue}.dead"
    columns = {"value": (StringType(), pa.nulls(2500, pa.string()))}
    report = in_columns(broker, queue, columns, onInvalidRow="deadLetters", deadLetterQueue=dead)
    assert (report.rows, report.acknowledged, report.dead_letters) == (2500, 0, 2500)
    assert len(broker.drain(dead, expect=2500)) == 2500


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"onInvalidRow": "skip"}, "onInvalidRow must be one of fail, drop, deadLetters, not 'skip'"),
        ({"onInvalidRow": "deadLetters"}, "dead letters need both"),
        ({"deadLetterQueue": f"bmq://{DOMAIN}/dead"}, "dead letters need both"),
        ({"onInvalidRow": "deadLetters", "deadLetterQueue": "dead"}, "bmq://"),
    ],
)
def test_impossible_jobs_are_refused_before_the_start(options: dict[str, str], text: str) -> None:
    schema = StructType([StructField("value", StringType())])
    given = {"queue": f"bmq://{DOMAIN}/q", **options}
    with pytest.raises(bmq.UsageError) as info:
        BmqDataSource(CaseInsensitiveDict(given)).writer(schema, False)
    assert text in str(info.value)
