# SPDX-License-Identifier: Apache-2.0
"""A copy of a queue has the same messages, with properties of the same types."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession, types

import bmq
import bmq.spark
from bmq import PropertyType, PropertyValue, PutMessage
from bmq.arrow.decoding import pa
from bmq.spark import Summary, write_partition
from bmq.spark.partition import TaskScope
from tests.spark.bench import WHOLE, Stage, Write, both, columns_to, source, struct, travelled
from tests.sweeps import sweep

#: Messages whose properties of one name differ in type, and messages without properties.
MESSAGES = [
    PutMessage(b"0", {"n": 1, "yes": True, "raw": b"\0\xff", "text": "7"}),
    PutMessage(b"1", {"n": "1", "yes": "true", "raw": "AP8=", "text": ""}),
    PutMessage(b"2", {"n": PropertyValue(PropertyType.INT32, -5), "yes": False, "raw": b""}),
    PutMessage(b"3", {"n": PropertyValue(PropertyType.SHORT, 2), "text": "only"}),
    PutMessage(b"4", {"text": "only"}),
    PutMessage(b"5", None),
    PutMessage(b"6", {"n": -(1 << 63), 'odd "name"': 3}),
]


def typed(messages: Iterable[Any]) -> list[tuple[bytes, dict[str, Any], dict[str, Any]]]:
    return sorted((m.data, dict(m.properties), dict(m.property_types)) for m in messages)


def copy(write: Write, stage: Stage) -> None:
    reader = source(**stage.target).reader(WHOLE)
    batches = [batch for each in travelled(reader.partitions()) for batch in reader.read(each)]
    write(stage, WHOLE, batches, guidColumn="guid", queue=f"{stage.queue}-copy")


@both
@pytest.mark.parametrize("repeated", [1, 40], ids=["few", "many"])
def test_a_copied_message_keeps_the_types_of_its_properties(
    write: Write, repeated: int, stage: Stage
) -> None:
    stage.broker.post(stage.queue, MESSAGES * repeated)
    copy(write, stage)
    count = len(MESSAGES) * repeated
    original = typed(stage.drain(count))
    assert typed(stage.drain(count, "-copy")) == original


@both
def test_a_single_character_becomes_a_number(write: Write, stage: Stage) -> None:
    stage.broker.post(stage.queue, [PutMessage(b"x", {"c": PropertyValue(PropertyType.CHAR, b"A")})])
    copy(write, stage)
    (found,) = stage.drain(1, "-copy", expression="c == 65")
    assert (found.properties["c"], found.property_types["c"]) == (65, PropertyType.SHORT)


ENTRIES = struct(value=types.StringType(), properties=types.MapType(types.StringType(), types.StringType()))


def batch(*maps: dict[str, str]) -> pa.RecordBatch:
    entries = pa.array([list(each.items()) for each in maps], pa.map_(pa.string(), pa.string()))
    return pa.record_batch({"value": [f"{n}" for n in range(len(maps))], "properties": entries})


@both
@pytest.mark.parametrize(
    ("text", "kinds", "error"),
    [
        ("one", '{"n": "INT64"}', "row 1 of the partition: property 'n' has the text 'one'"),
        ("70000", '{"n": "SHORT"}', "property 'n'"),
        ("1", '{"n": "LONG"}', "the entry 'bmq_types' of a map of properties must be"),
        ("1", "[" * 30_000, "the entry 'bmq_types' of a map of properties must be"),
        ("1", "[]", "the entry 'bmq_types' of a map of properties must be"),
    ],
    ids=["text", "range", "unknown", "deep", "list"],
)
def test_a_text_that_does_not_have_its_type_is_named(
    write: Write, text: str, kinds: str, error: str, stage: Stage
) -> None:
    given = [batch({"n": "2"}, {"n": text, "bmq_types": kinds})]
    with pytest.raises(bmq.InvalidProperty) as info:
        write(stage, ENTRIES, given)
    assert error in str(info.value)
    options = {"onInvalidRow": "deadLetters", "deadLetterQueue": f"{stage.queue}-dead"}
    report = write(stage, ENTRIES, given, **options)
    assert (report.acknowledged, report.dead_letters) == (1, 1)
    (letter,) = stage.drain(1, "-dead")
    assert text in str(dict(letter.properties))


@both
def test_entries_may_change_on_the_way(write: Write, stage: Stage) -> None:
    """A changed value keeps its type, a removed entry is no property, and a new entry is a string."""
    kinds = '{"n": "INT64", "gone": "BOOL"}'
    write(stage, ENTRIES, [batch({"n": "3", "new": "5", "bmq_types": kinds})])
    (message,) = stage.drain(1)
    assert dict(message.properties) == {"n": 3, "new": "5"}


# GUIDs of rows that come from messages


def guid(number: int) -> str:
    return f"{number:032X}"


ROWS = [Row(guid=guid(n), value=f"row {n % 10}", n=n) for n in range(100)]


def post(stage: Stage, rows: Sequence[Row], partitions: int, job: str = "job", **options: Any) -> list[Any]:
    """Post rows as one batch, in this many partitions."""
    write = write_partition(**{**stage.target, **options}, guid_column="guid", properties=["n"])
    return [
        write.post(iter(rows[number::partitions]), TaskScope(job, number)) for number in range(partitions)
    ]


def numbers_in(stage: Stage, count: int, suffix: str = "") -> list[Any]:
    return sorted(m.properties["n"] for m in stage.drain(count, suffix))


@pytest.mark.parametrize("job", ["job", "another job"])
def test_batch_repeated_with_other_partitions_adds_no_message(stage: Stage, job: str) -> None:
    post(stage, ROWS[:60], 2)
    again = list(ROWS)
    random.Random(1).shuffle(again)
    post(stage, again, 3, job)
    assert numbers_in(stage, 100) == list(range(100))


def test_guids_of_rows_without_a_message_depend_on_the_partition(stage: Stage) -> None:
    rows = [Row(guid=None if n % 2 else guid(n), value="tick", n=0) for n in range(20)]
    for _ in range(2):
        post(stage, rows, 4)
    assert len(stage.drain(20)) == 20


def test_rows_made_of_one_message_are_all_posted(stage: Stage) -> None:
    lines = [Row(guid=guid(n), value=line, n=n) for n in range(5) for line in ("apple", "apple", "pear")]
    for _ in range(2):
        post(stage, lines, 1)
    found = [(m.properties["n"], m.data) for m in stage.drain(15)]
    assert sorted(found) == sorted((row.n, row.value.encode()) for row in lines)


def test_equal_rows_in_different_partitions_are_found(stage: Stage) -> None:
    """In a sample of all rows of a small partition and the same rows of large partitions."""
    many = [Row(guid=guid(n), value="x", n=n) for n in range(5000)]
    for rows, found in (ROWS, 100), (many, 1024), (ROWS[:1], 1):
        reports = post(stage, rows, 1)
        (again,) = post(stage, rows, 1)
        Summary([*reports, again]).check()  # a task that was repeated
        again.partition = 1
        with pytest.raises(bmq.UsageError, match=rf"properties: {found} of a sample of {2 * found} "):
            Summary([*reports, again]).check()
    Summary(post(stage, many, 3)).check()


def test_the_same_message_goes_to_several_queues_and_back(stage: Stage) -> None:
    """A copy of a copy is a message of its own in each queue, and never has the first one's GUID."""
    row, seen = [Row(guid=guid(1), value="x", n=1)], set[str]()
    for _ in range(3):
        for suffix in ("-there", ""):
            post(stage, row, 1, queue=stage.queue + suffix)
            (message,) = stage.drain(1, suffix)
            assert message.guid not in seen
            seen.add(message.guid)
            row = [Row(guid=message.guid, value="x", n=1)]


def test_named_writes_of_one_message_are_different_messages(stage: Stage) -> None:
    for name in ("first", "second", "first"):
        post(stage, ROWS[:3], 1, write_name=name)
    assert len(stage.drain(6)) == 6


def test_letter_case_of_a_guid_does_not_matter(stage: Stage) -> None:
    for digits in ("ABCDEF0123456789" * 2, "abcdef0123456789" * 2):
        post(stage, [Row(guid=digits, value="x", n=1)], 1)
    assert len(stage.drain(1)) == 1


@sweep("wrong", ["", "x", "0" * 31, "0" * 33, "g" * 32, "3f2504e0-4f89-41d3-9a0c-0305e82c3301", 7, b"0" * 32])
def test_invalid_guids_are_named(stage: Stage, wrong: Any) -> None:
    with pytest.raises(bmq.UsageError, match=r"row 0 of the partition: .* is not the GUID"):
        post(stage, [Row(guid=wrong, value="x", n=1)], 1)


def test_dead_letters_are_the_same_with_other_partitions(stage: Stage) -> None:
    dead = f"{stage.queue}-dead"
    rows = [Row(guid=guid(n) if n != 5 else "none", value="" if n % 2 else "x", n=n) for n in range(12)]
    for partitions in (2, 2, 4):
        some = rows if partitions == 2 else [row for row in rows if row.n != 5]
        post(stage, some, partitions, on_invalid_row="deadLetters", dead_letter_queue=dead)
    assert numbers_in(stage, 6, "-dead") == [1, 3, 5, 7, 9, 11]
    assert numbers_in(stage, 6) == [0, 2, 4, 6, 8, 10]


def test_columns_have_the_guids_of_rows(stage: Stage) -> None:
    """Batches as Spark hands them over, from a restart with the rows elsewhere."""
    schema = struct(guid=types.StringType(), value=types.StringType(), n=types.LongType())
    for start in (0, 37):
        order = [*range(start, 100), *range(start)]
        table = pa.RecordBatch.from_pylist([ROWS[at].asDict() for at in order])
        columns_to(stage, schema, [table], propertyColumns="n", guidColumn="guid")
    post(stage, ROWS, 2)
    assert numbers_in(stage, 100) == list(range(100))


def test_equal_rows_of_one_message_in_different_partitions_fail_the_write(
    spark: SparkSession, stage: Stage
) -> None:
    """The broker keeps one message: the job does not continue as if both were posted."""
    rows = spark.createDataFrame([(guid(n), f"row {n}") for n in range(50)], "guid STRING, value STRING")
    twice = rows.union(rows.where("value = 'row 7'")).coalesce(1).union(rows.limit(3).repartition(2))
    options = {**stage.target, "guidColumn": "guid"}
    write = twice.write.format("bmq").mode("append").options(**options)
    with pytest.raises(Exception, match=r"properties: 3 of a sample of 53 rows"):
        write.save()
    assert len(stage.drain(51)) == 51  # equal rows of one partition are told apart
    with pytest.raises(bmq.UsageError, match=r"Add a number \(posexplode\)"):
        bmq.spark.write(twice, **stage.target, guid_column="guid")
    write.option("guidMode", "content").save()
    assert len(stage.drain(54)) == 54
    rows.repartition(4).write.format("bmq").mode("append").options(**options).save()
    assert stage.left() == []
