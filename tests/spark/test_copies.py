# SPDX-License-Identifier: Apache-2.0
"""A copy of a queue has the same messages, with properties of the same types."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import MapType, StringType

import bmq
from bmq import PropertyType, PropertyValue, PutMessage
from tests.spark.brokers import BrokerThread
from tests.spark.readers import WHOLE, source, struct, travelled
from tests.spark.test_odd_values import both

Write = Callable[..., Any]
pytestmark = [pytest.mark.timeout(400)]

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


@both
@pytest.mark.parametrize("repeated", [1, 40], ids=["few", "many"])
def test_a_copied_message_keeps_the_types_of_its_properties(
    write: Write, repeated: int, broker: BrokerThread, queue: str
) -> None:
    broker.post(queue, MESSAGES * repeated)
    reader = source(broker=broker.uri, queue=queue).reader(WHOLE)
    batches = [batch for each in travelled(reader.partitions()) for batch in reader.read(each)]
    write(broker, f"{queue}-copy", WHOLE, batches, guidColumn="guid")
    original = typed(broker.drain(queue, expect=len(MESSAGES) * repeated))
    assert typed(broker.drain(f"{queue}-copy", expect=len(MESSAGES) * repeated)) == original


@both
def test_a_single_character_becomes_a_number(write: Write, broker: BrokerThread, queue: str) -> None:
    broker.post(queue, [PutMessage(b"x", {"c": PropertyValue(PropertyType.CHAR, b"A")})])
    reader = source(broker=broker.uri, queue=queue).reader(WHOLE)
    batches = [batch for each in travelled(reader.partitions()) for batch in reader.read(each)]
    write(broker, f"{queue}-copy", WHOLE, batches)
    (copy,) = broker.drain(f"{queue}-copy", expect=1, expression="c == 65")
    assert (copy.properties["c"], copy.property_types["c"]) == (65, PropertyType.SHORT)


ENTRIES = struct(value=StringType(), properties=MapType(StringType(), StringType()))


def batch(*maps: dict[str, str]) -> pa.RecordBatch:
    kinds = [pa.string(), pa.map_(pa.string(), pa.string())]
    columns = [[f"{n}" for n in range(len(maps))], [list(each.items()) for each in maps]]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["value", "properties"])


@both
@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (
            {"n": "one", "bmq_types": '{"n": "INT64"}'},
            "row 1 of the partition: property 'n' has the text 'one'",
        ),
        ({"n": "1", "bmq_types": '{"n": "LONG"}'}, "the entry 'bmq_types' of a map of properties must be"),
        ({"n": "1", "bmq_types": "[" * 30_000}, "the entry 'bmq_types' of a map of properties must be"),
        ({"n": "70000", "bmq_types": '{"n": "SHORT"}'}, "property 'n'"),
        ({"n": "1", "bmq_types": "[]"}, "the entry 'bmq_types' of a map of properties must be"),
    ],
)
def test_a_text_that_does_not_have_its_type_is_named(
    write: Write, entries: dict[str, str], text: str, broker: BrokerThread, queue: str
) -> None:
    given = batch({"n": "2"}, entries)
    with pytest.raises(bmq.InvalidProperty) as info:
        write(broker, queue, ENTRIES, [given])
    assert text in str(info.value)
    options = {"onInvalidRow": "deadLetters", "deadLetterQueue": f"{queue}-dead"}
    report = write(broker, queue, ENTRIES, [given], **options)
    assert (report.acknowledged, report.dead_letters) == (1, 1)
    (letter,) = broker.drain(f"{queue}-dead", expect=1)
    assert entries["n"] in str(dict(letter.properties))


@both
def test_entries_may_change_on_the_way(write: Write, broker: BrokerThread, queue: str) -> None:
    """A changed value keeps its type, a removed entry is no property, and a new entry is a string."""
    types = '{"n": "INT64", "gone": "BOOL"}'
    write(broker, queue, ENTRIES, [batch({"n": "3", "new": "5", "bmq_types": types})])
    (message,) = broker.drain(queue, expect=1)
    assert dict(message.properties) == {"n": 3, "new": "5"}


def whole(frame: DataFrame) -> DataFrame:
    return frame


def three(frame: DataFrame) -> DataFrame:
    return frame.select("guid", "value", "properties")


@pytest.mark.parametrize("chosen", [whole, three])
@pytest.mark.parametrize("streams", [False, True], ids=["batch", "stream"])
def test_a_subscription_on_numbers_matches_the_copies_of_spark(
    streams: bool,
    chosen: Callable[[DataFrame], DataFrame],
    spark: SparkSession,
    broker: BrokerThread,
    queue: str,
    tmp_path: Path,
) -> None:
    frame = spark.range(4).selectExpr("concat('v', id) as value", "id as L", "cast(id as int) as I")
    options = {"broker": broker.uri, "checkpointLocation": str(tmp_path)}
    writing = {"broker": broker.uri, "queue": f"{queue}-copy", "guidColumn": "guid"}
    frame.write.format("bmq").mode("append").options(
        broker=broker.uri, queue=queue, propertyColumns="L,I"
    ).save()
    if streams:
        stream = chosen(spark.readStream.format("bmq").options(queue=queue, **options).load())
        query = stream.writeStream.format("bmq").options(**writing, checkpointLocation=str(tmp_path))
        query.trigger(availableNow=True).start().awaitTermination(120)
    else:
        copied = chosen(spark.read.format("bmq").options(queue=queue, **options).load())
        copied.write.format("bmq").mode("append").options(**writing).save()
    found = broker.drain(f"{queue}-copy", expect=2, expression="L >= 2 && I >= 2")
    assert sorted(m.data for m in found) == [b"v2", b"v3"]
    assert {kind.name for kind in found[0].property_types.values()} == {"INT64", "INT32"}
