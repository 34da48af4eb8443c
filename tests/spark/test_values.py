# SPDX-License-Identifier: Apache-2.0
"""Edge values in columns and in rows: legal values arrive unchanged, and errors name the others."""

from __future__ import annotations

import json
import logging
import random
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, types

import bmq
from bmq.client.message import Message
from bmq.spark import PartitionReport, write_partition
from bmq.spark.partition import TaskScope
from bmq.spark.rows import InvalidRow, letter_of
from bmq.workers import original_of
from tests.spark.bench import NOWHERE, Stage, Write, both, columns_to, struct
from tests.sweeps import sweep

sorting = pytest.mark.parametrize("on_invalid", ["fail", "drop"])

EVERY = struct(
    value=types.StringType(),
    yes=types.BooleanType(),
    short=types.ShortType(),
    number=types.IntegerType(),
    large=types.LongType(),
    text=types.StringType(),
    raw=types.BinaryType(),
)
NAMES = EVERY.fieldNames()


@both
@sorting
@pytest.mark.timeout(120)
def test_values_arrive_unchanged(write: Write, on_invalid: str, stage: Stage) -> None:
    """1 byte and 60 MiB, unicode, the least and the greatest numbers, nothing at all; null in places."""
    rows: list[list[Any]] = [
        ["x", True, -(1 << 15), -(1 << 31), -(1 << 63), "", b""],
        ["\0", False, (1 << 15) - 1, (1 << 31) - 1, (1 << 63) - 1, "\0", b"\0"],
        ["ä𝄞\U0010ffff", None, 0, None, 0, "ä𝄞\U0010ffff", None],
        ["y" * (60 << 20), None, None, None, None, None, None],
        ["\ufeff", None, 1, None, 2, None, b"\xff" * 70_000],
        ["z", True, None, 3, None, "é" * 40_000, None],
    ]
    kinds = [pa.string(), pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.binary()]
    schema = pa.schema(list(zip(NAMES, kinds, strict=True)))
    whole = pa.RecordBatch.from_pylist([dict(zip(NAMES, row, strict=True)) for row in rows], schema)
    options = {"propertyColumns": ",".join(NAMES[1:]), "onInvalidRow": on_invalid}
    batches = [whole.slice(0, 0), whole.slice(0, 4), whole.slice(4, 0), whole.slice(4)]
    report = write(stage, EVERY, batches, **options)
    assert (report.rows, report.acknowledged, report.dropped) == (6, 6, 0)
    got = stage.drain(6)
    assert [m.data for m in got] == [row[0].encode() for row in rows]
    assert [dict(m.properties) for m in got] == [
        {name: value for name, value in zip(NAMES[1:], row[1:], strict=True) if value is not None}
        for row in rows
    ]
    kinds = [got[0].property_types[name].name for name in NAMES[1:]]
    assert kinds == ["BOOL", "SHORT", "INT32", "INT64", "STRING", "BINARY"]


@sorting
def test_batches_may_differ_in_their_schema(on_invalid: str, stage: Stage) -> None:
    """In how a column is stored, in the order of columns, in columns of no use: the name counts."""
    schema = struct(value=types.StringType(), n=types.LongType(), text=types.StringType())
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
    assert columns_to(stage, schema, batches, **options).acknowledged == 6
    got = [(m.data, dict(m.properties)) for m in stage.drain(6)]
    assert got == [
        (b"a", {"n": 1, "text": "ä"}),
        (b"b", {}),
        (b"c", {"n": 3, "text": "x"}),
        (b"d", {"text": "y"}),
        (b"d", {"text": "y"}),
        (b"e", {"n": 4, "text": "z"}),
    ]


@sweep(
    "empty",
    [
        pa.array(["a", "", "b"]).dictionary_encode(),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", None, "b"])),
        pa.array(["a", "", "b"], pa.large_string()),
        pa.array(["a", None, "b"], pa.string_view()),
        pa.array([b"a", b"", b"b"], pa.binary_view()),
    ],
)
def test_empty_values_are_found_in_every_storage(stage: Stage, empty: Any) -> None:
    batch = pa.RecordBatch.from_arrays([empty], names=["value"])
    schema = struct(value=types.StringType())
    with pytest.raises(bmq.InvalidPayload, match=r"row 2 of the partition: column 'value' (is null|has 0 b)"):
        columns_to(stage, schema, [batch.slice(2), batch], queue=f"{stage.queue}-fails")
    report = columns_to(stage, schema, [batch, batch.slice(1, 2)], onInvalidRow="drop")
    assert (report.acknowledged, report.dropped) == (3, 2)
    assert [m.data for m in stage.drain(3)] == [b"a", b"b", b"b"]


LIMIT = 64 << 20


def texts(messages: list[Message]) -> list[str]:
    return [message.data.decode() for message in messages]


def write_both_parts(write: Write, stage: Stage, columns: dict[str, Any], **options: str) -> PartitionReport:
    """Write columns, each with its type in the DataFrame, in two batches."""
    batch = pa.RecordBatch.from_pydict({name: array for name, (_, array) in columns.items()})
    schema = struct(**{name: kind for name, (kind, _) in columns.items()})
    return write(stage, schema, [batch.slice(0, 2), batch.slice(2)], **options)


ORDERS = {
    "value": (types.StringType(), pa.array(["a", None, "b", "", "c"])),
    "n": (types.ShortType(), pa.array([1, 2, None, 4, 5], pa.int16())),
    "kind": (types.StringType(), pa.array(["EXPRESS", "ä", None, None, "SLOW"])),
}


@both
def test_invalid_rows_are_dropped_and_counted(
    write: Write, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "bmq.spark"):
        report = write_both_parts(write, stage, ORDERS, propertyColumns="n,kind", onInvalidRow="drop")
    assert (report.rows, report.acknowledged, report.dropped, report.dead_letters) == (5, 3, 2, 0)
    assert texts(stage.drain(3)) == ["a", "b", "c"]
    first, last = caplog.messages
    assert first.startswith(
        "row 1 of partition 0 cannot be posted, and is dropped, like all rows that cannot be posted: "
        "InvalidPayload: this row: column 'value' is null; a payload has 1 to"
    )
    assert last.startswith("partition 0: 5 rows, 3 acknowledged, 2 invalid and dropped in ")


#: The end of the name of the queue of dead letters.
DEAD = ".dead"


def letters(stage: Stage) -> dict[str, str]:
    return {"onInvalidRow": "deadLetters", "deadLetterQueue": stage.queue + DEAD}


@both
def test_invalid_rows_become_dead_letters_with_the_reason(write: Write, stage: Stage) -> None:
    report = write_both_parts(write, stage, ORDERS, propertyColumns="n,kind", **letters(stage))
    assert (report.rows, report.acknowledged, report.dropped, report.dead_letters) == (5, 3, 0, 2)
    assert texts(stage.drain(3)) == ["a", "b", "c"]
    null, empty = stage.drain(2, DEAD)
    error = (
        "InvalidPayload: this row: column 'value' {}; a payload has 1 to 67,108,864 bytes of string or "
        "binary: filter these rows out before posting"
    )
    assert dict(null.properties) == {
        "n": 2,
        "kind": "ä",
        "bmq_dead_attempts": 0,
        "bmq_dead_error": error.format("is null"),
        "bmq_dead_queue": stage.queue,
        "bmq_dead_raw": "the payload was null",
    }
    assert null.data.decode() == null.properties["bmq_dead_error"]
    assert [null.property_types[name].name for name in ("n", "bmq_dead_attempts")] == ["SHORT", "INT32"]
    assert empty.properties["bmq_dead_error"] == error.format("has 0 bytes")
    assert empty.properties["bmq_dead_raw"] == "the payload was empty"
    with pytest.raises(bmq.UsageError, match="the payload was empty"):
        original_of(empty)


@both
def test_invalid_queues_ids_and_times_are_found(write: Write, stage: Stage) -> None:
    there, inf, nan = stage.queue, float("inf"), float("nan")
    rows: list[tuple[str | None, int | None, float | None, str]] = [
        (there, 0, None, ""),
        ("no uri", 1, None, "InvalidURI: .*"),
        (f"{there}?id=foo", 2, None, "UsageError: .* names an application, and applications are for readers"),
        (None, 3, None, "UsageError: this row: column 'queue' is null, and every row needs a queue"),
        (there, None, None, "UsageError: this row: column 'id' is null, and every row needs an id"),
        (there, 5, inf, "UsageError: this row: inf is not a time in seconds since 1970"),
        (there, 6, nan, "UsageError: this row: nan is not a time in seconds since 1970"),
        (there, 7, 1e18, r"UsageError: this row: 1e\+18 is not a time in seconds since 1970"),
    ]
    targets, ids, times, wanted = zip(*rows, strict=True)
    columns = {
        "value": (types.StringType(), pa.array([f"{n}" for n in range(8)])),
        "queue": (types.StringType(), pa.array(targets)),
        "id": (types.LongType(), pa.array(ids)),
        "at": (types.DoubleType(), pa.array(times)),
    }
    options = {**letters(stage), "queue": "", "idColumn": "id", "notBeforeColumn": "at"}
    report = write_both_parts(write, stage, columns, **options)
    assert (report.acknowledged, report.dead_letters) == (1, 7)
    assert texts(stage.drain(1)) == ["0"]
    found = sorted(stage.drain(7, DEAD), key=lambda letter: letter.data)
    assert [letter.data for letter in found] == [b"%d" % n for n in range(1, 8)]
    assert [letter.properties["bmq_dead_queue"] for letter in found] == [t or "" for t in targets[1:]]
    for letter, pattern in zip(found, wanted[1:], strict=True):
        assert re.match(pattern, str(letter.properties["bmq_dead_error"]))
    uri, message = original_of(found[0], there)
    assert (uri, message.data, message.properties) == (there, b"1", None)


@both
def test_invalid_keys_of_maps_are_found(write: Write, stage: Stage) -> None:
    many = [(f"k{n:03}", n) for n in range(300)]
    maps = [[("a", 1)], [("-b", 2), ("c", 3)], None, many, [("bmq_dead_queue", 4), ("d", 5)]]
    columns = {
        "value": (types.StringType(), pa.array(list("vwxyz"))),
        "properties": (
            types.MapType(types.StringType(), types.LongType()),
            pa.array(maps, pa.map_(pa.string(), pa.int64())),
        ),
    }
    with pytest.raises(bmq.InvalidProperty, match="row 1 of the partition: property name '-b' must start"):
        write_both_parts(write, stage, columns, queue=f"{stage.queue}-fails")
    report = write_both_parts(write, stage, columns, **letters(stage))
    assert (report.acknowledged, report.dead_letters) == (3, 2)
    assert texts(stage.drain(3)) == ["v", "x", "z"]
    name, number = stage.drain(2, DEAD)
    assert (name.data, name.properties["c"]) == (b"w", 3)
    assert json.loads(str(name.properties["bmq_dead_properties"])) == [["-b", "INT64", 2]]
    assert str(name.properties["bmq_dead_error"]).startswith("InvalidProperty: ")
    assert number.properties["bmq_dead_error"].endswith("300 properties; a message has at most 255")
    assert len(number.properties) == 254
    rest = json.loads(str(number.properties["bmq_dead_properties"]))
    assert {**{k: v for k, _, v in rest}, **number.properties}.items() >= dict(many).items()
    # What is not legal as a property is left out, the rest is as it was.
    uri, message = original_of(name)
    assert (uri, message.data) == (stage.queue, b"w")
    assert message.properties == {"c": bmq.PropertyValue(bmq.PropertyType.INT64, 3)}


@both
@pytest.mark.timeout(120)
def test_oversized_rows_become_dead_letters(write: Write, stage: Stage) -> None:
    """A slice fails half-way, with 60 MiB beside what is too large."""
    values = ["a", "b" * (60 << 20), "c", "d" * (LIMIT + 1), "e" * (LIMIT - 10), "f", "g"]
    columns = {
        "value": (types.StringType(), pa.array(values)),
        "p": (types.StringType(), pa.array([None, "x", "p", None, "y" * 100, "p" * (LIMIT + 1), "z"])),
    }
    report = write_both_parts(write, stage, columns, propertyColumns="p", **letters(stage))
    assert (report.acknowledged, report.dead_letters) == (4, 3)
    assert [m.data[:1] for m in stage.drain(4)] == [b"a", b"b", b"c", b"g"]
    found = sorted(stage.drain(3, DEAD), key=lambda letter: letter.data)
    assert [(letter.data[:1], len(letter.data)) for letter in found] == [
        (b"d", 1 << 20), (b"e", 1 << 20), (b"f", 1),
    ]  # fmt: skip
    assert [letter.properties["bmq_dead_raw"] for letter in found] == [
        "the payload is the first 1,048,576 of 67,108,865 bytes",
        "the payload is the first 1,048,576 of 67,108,854 bytes",
        "property 'p': the first 65,536 of 67,108,865 characters",
    ]
    assert found[1].properties["p"] == "y" * 100


@sweep(
    "row, text, rest",
    [  # with the other properties of the dead letter
        ({"value": None}, "column 'value' is null", []),
        ({"value": ""}, "column 'value' has 0 bytes", []),
        ({"value": 12}, "column 'value' is of type int", []),
        ({"value": "\ud800"}, "column 'value' has half of a surrogate pair", []),
        ({"key": None}, "column 'key' is null", []),
        ({"p": 1.5}, "column 'p' holds a value of type float, and a prop", [["p", "STRING", "1.5"]]),
        ({"p": 2**70}, "property 'p': 1180591620717411303424 does not fit", [["p", "STRING", f"{2**70}"]]),
        ({"p": [1, 2]}, "column 'p' holds a value of type list", [["p", "STRING", "[1, 2]"]]),
        ({"p": [("a", 1), ("b", [2])]}, "column 'p.b' holds a value of type list", [["b", "STRING", "[2]"]]),
        ({"p": {"a": {"b": 1}}}, "column 'p.a' holds a value of type dict", [["a", "STRING", "{'b': 1}"]]),
        ({"p": Row(a=Row(b=1))}, "column 'p.a' holds a value of type Row", [["a", "STRING", "Row(b=1)"]]),
        ({"p": {"a": 1.5}}, "column 'p.a' holds a value of type float", [["a", "STRING", "1.5"]]),
        ({"p": {"-a": 1}}, "property name '-a' must start with", [["-a", "INT64", 1]]),
        ({"p": {1: 1}}, "a property name must be a str, not int", [["1", "INT64", 1]]),
        ({"p": "\ud800"}, "column 'p' has half of a surrogate pair", [["p", "STRING", "?"]]),
        ({"p": {"a": "\ud800"}}, "column 'p.a' has half of a surrogate pair", [["a", "STRING", "?"]]),
    ],
)
def test_an_unsupported_value_is_named_with_its_row_or_becomes_a_dead_letter(
    stage: Stage, row: dict[str, Any], text: str, rest: list[Any]
) -> None:
    """Rows of Python may be of any type where no schema is given."""
    options: dict[str, Any] = {**stage.target, "properties": ["p"], "id_column": "key"}
    rows = [Row(value="x", p=1, key=uuid.uuid4().hex) for _ in range(200)]
    rows[150] = Row(**{**rows[150].asDict(), **row})
    fails = write_partition(**{**options, "queue": f"{stage.queue}-fails"})
    with pytest.raises(bmq.UsageError) as info:
        fails(iter(rows))
    assert f"row 150 of the partition: {text}" in str(info.value)
    fails(iter(rows[:1]))  # the session still works
    options |= {"on_invalid_row": "deadLetters", "dead_letter_queue": stage.queue + DEAD}
    report = write_partition(**options).post(iter(rows), TaskScope("job"))
    assert (report.acknowledged, report.dead_letters) == (199, 1)
    (letter,) = stage.drain(1, DEAD)
    assert f"this row: {text}" in str(letter.properties["bmq_dead_error"])
    assert json.loads(str(letter.properties.get("bmq_dead_properties", "[]"))) == rest
    if row.get("value") == 12:
        assert (letter.data, letter.properties["bmq_dead_raw"]) == (
            b"12",
            "the payload was of type int, and is its text",
        )


@pytest.mark.parametrize("mode", ["content", "id"])
def test_repeated_task_adds_no_message(stage: Stage, mode: str) -> None:
    """Neither good rows nor dead letters, in whatever order and storage the rows come."""
    ids = mode == "id"
    rows = [
        {"value": "" if n % 5 == 0 else f"{n % 50}", "n": n % 10, "key": n if n % 7 or not ids else None}
        for n in range(1000)
    ]
    write = write_partition(
        **stage.target,
        properties=["n"],
        id_column="key" if ids else "",
        on_invalid_row="deadLetters",
        dead_letter_queue=stage.queue + DEAD,
        schema=struct(value=types.StringType(), n=types.LongType(), key=types.LongType()),
    )

    def batches(rows: list[dict[str, Any]], kind: Any) -> Iterator[Any]:
        values = pa.array([row["value"] for row in rows]).cast(kind)
        for first in range(0, len(rows), 300):
            plain = pa.RecordBatch.from_pylist(rows[first : first + 300])
            yield plain.set_column(0, "value", values[first : first + 300])

    bad = sum(not row["value"] or row["key"] is None for row in rows)
    for attempt in range(4):
        random.Random(attempt).shuffle(rows)
        if attempt < 2:
            items = iter([Row(**row) for row in (rows if attempt else rows[:600])])  # the first one died
        else:
            items = batches(
                rows, pa.large_string() if attempt == 2 else pa.dictionary(pa.int32(), pa.string())
            )
        report = write.post(items, TaskScope("nightly", 3, attempt))
        if attempt:
            assert (report.acknowledged, report.dead_letters) == (1000 - bad, bad)
    assert len(stage.drain(1000 - bad)) == 1000 - bad
    assert len(stage.drain(bad, DEAD)) == bad


def test_an_invalid_row_does_not_take_the_place_of_a_good_one_with_its_id(stage: Stage) -> None:
    rows = [Row(value="", key=1), Row(value="good", key=1)]
    write = write_partition(**stage.target, id_column="key", on_invalid_row="drop")
    report = write.post(iter(rows), TaskScope("job"))
    assert (report.acknowledged, report.dropped, report.repeated) == (1, 1, 0)
    assert texts(stage.drain(1)) == ["good"]


def test_a_dead_letter_counts_properties_that_are_left_out() -> None:
    many = letter_of(InvalidRow(0, "no", "x", {f"-{n}": "y" * 60_000 for n in range(40)}, NOWHERE))
    assert many.properties["bmq_dead_raw"] == "24 properties are left out"
    assert len(json.loads(str(many.properties["bmq_dead_properties"]))) == 16
