# SPDX-License-Identifier: Apache-2.0
"""``format("bmq")``: readers and writers called as Spark calls them, without a JVM."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

import bmq
import bmq.spark
from bmq.conventions import delay_queue_of
from bmq.delays import Mover
from bmq.spark.connection import ConnectionOptions, run, shutdown
from bmq.spark.options import ReadOptions, parse
from bmq.spark.receiver import SourceReceiver
from bmq.spark.rows import bucket_column, due_column
from bmq.testing import Simulation
from bmq.wire.constants import PutFlags
from bmq.wire.keys import key_bucket
from tests.spark.brokers import DOMAIN, BrokerThread
from tests.spark.readers import WHOLE, read, rows_of, source, struct, travelled
from tests.waiting import eventually
from tests.workers.test_dead_letters import post_bytes

try:
    from pyspark.sql.streaming.datasource import ReadMaxRows
except ImportError:  # pyspark 4.0 and 4.1
    ReadMaxRows = None


SIMULATED = f"bmq://{DOMAIN}/simulated"

# writing

ORDERS = struct(value=StringType(), CustomerId=IntegerType(), properties=MapType(StringType(), LongType()))


def batches(count: int, size: int = 1000) -> Iterator[pa.RecordBatch]:
    for first in range(0, count, size):
        numbers = range(first, min(first + size, count))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([f"order {n}" for n in numbers]),
                pa.array([n if n % 2 else None for n in numbers], pa.int32()),
                pa.array([[("n", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
            ],
            names=ORDERS.fieldNames(),
        )


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_arrow_batches_become_messages(broker: BrokerThread, queue: str, kind: str) -> None:
    options = {"broker": broker.uri, "queue": queue, "propertyColumns": "CustomerId"}
    writer = travelled(getattr(source(**options), kind)(ORDERS, False))
    message = travelled(writer.write(batches(3500)))
    assert (message.report.rows, message.report.acknowledged) == (3500, 3500)
    got = broker.drain(queue, expect=3500)
    assert [m.data for m in got] == [f"order {n}".encode() for n in range(3500)]
    assert dict(got[0].properties) == {"n": 0}
    assert dict(got[1].properties) == {"n": 1, "CustomerId": 1}
    assert got[1].property_types["CustomerId"].name == "INT32"
    more = (3,) if kind == "streamWriter" else ()
    writer.commit([message, None], *more)
    writer.abort([None], *more)


def test_rows_are_taken_where_spark_has_no_arrow(broker: BrokerThread, queue: str) -> None:
    writer = source(broker=broker.uri, queue=queue).writer(struct(value=StringType()), False)
    assert writer.write(iter([Row(value="a"), Row(value="b")])).report.acknowledged == 2
    assert [m.data for m in broker.drain(queue, expect=2)] == [b"a", b"b"]


def test_the_writer_of_a_save_is_one_job(broker: BrokerThread, queue: str) -> None:
    options = {"broker": broker.uri, "queue": queue, "propertyColumns": "CustomerId"}
    one, other = (source(**options).writer(ORDERS, False) for _ in range(2))
    for writer in (one, travelled(one), other):
        writer.write(batches(10))
    assert len(broker.drain(queue, expect=20)) == 20


def test_the_option_queue_wins_over_the_column(broker: BrokerThread, queue: str) -> None:
    schema = struct(value=StringType(), queue=StringType())
    writer = source(broker=broker.uri, queue=queue).writer(schema, False)
    writer.write(
        iter([pa.RecordBatch.from_pydict({"value": ["x"], "queue": ["bmq://bmq.test.mem.priority/no"]})])
    )
    assert len(broker.drain(queue, expect=1)) == 1


def test_rows_with_equal_ids_are_a_warning(
    broker: BrokerThread, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    planned = source(broker=broker.uri, queue=queue, idColumn="id")
    writer = planned.writer(struct(value=StringType(), id=StringType()), False)
    rows = pa.RecordBatch.from_pydict({"value": list("abcd"), "id": ["1", "1", "2", "3"]})
    with caplog.at_level("WARNING", "bmq.spark"):
        writer.commit([writer.write(iter([rows]))])
    assert "1 rows of a partition, and 0 rows of a sample of 3 in different partitions" in caplog.text
    assert [m.data for m in broker.drain(queue, expect=3)] == [b"a", b"c", b"d"]


#: The column that has a role if an option says so, and otherwise none.
@pytest.mark.parametrize("name", ["id", "guid"])
@pytest.mark.parametrize("way", ["writer", "streamWriter", "write_partition"])
def test_no_column_is_an_identity_because_of_its_name(
    way: str, name: str, broker: BrokerThread, queue: str
) -> None:
    """Rows that are equal in this column are separate messages: within a write, and in the next one."""
    values = {"value": list("abc"), name: ["0" * 32, "0" * 32, "1" * 32]}
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    schema = struct(**dict.fromkeys(values, StringType()))
    for _ in range(2):
        if way == "write_partition":
            bmq.spark.write_partition(queue=queue, broker=broker.uri, properties=[name])(iter(rows))
        else:
            planned = source(broker=broker.uri, queue=queue, propertyColumns=name)
            writer: Any = getattr(planned, way)(schema, False)
            writer.write(iter([pa.RecordBatch.from_pydict(values)]))
    found = broker.drain(queue, expect=6)
    assert sorted(m.data for m in found) == [b"a", b"a", b"b", b"b", b"c", b"c"]
    assert {m.properties[name] for m in found} == {"0" * 32, "1" * 32}


@pytest.mark.parametrize("name", ["id", "guid"])
def test_a_column_without_a_role_is_refused(name: str) -> None:
    with pytest.raises(
        bmq.UsageError, match=f"column '{name}' cannot be written to a queue.*guidColumn, idColumn"
    ):
        source(queue=f"bmq://{DOMAIN}/q").writer(struct(value=StringType(), **{name: StringType()}), False)


def test_columns_are_found_in_any_letter_case(broker: BrokerThread, queue: str) -> None:
    frame = pa.RecordBatch.from_pydict({"Value": ["x"], "CustomerId": [7], "Queue": [queue]})
    schema = struct(Value=StringType(), CustomerId=LongType(), Queue=StringType())
    writer = source(broker=broker.uri, propertyColumns="customerid").writer(schema, False)
    writer.write(iter([frame]))
    write = bmq.spark.write_partition(
        broker=broker.uri, queue_column="queue", properties=["customerID"], schema=schema
    )
    write(iter(frame.to_pylist()))
    messages = broker.drain(queue, expect=2)
    assert [(m.data, dict(m.properties)) for m in messages] == [(b"x", {"CustomerId": 7})] * 2


def test_columns_that_differ_in_case_alone_are_distinguished() -> None:
    schema = struct(value=StringType(), id=StringType(), ID=StringType())
    with pytest.raises(bmq.UsageError, match="no column 'Id'"):
        source(queue=f"bmq://{DOMAIN}/q", propertyColumns="id,Id").writer(schema, False)
    source(queue=f"bmq://{DOMAIN}/q", propertyColumns="id,ID").writer(schema, False)


def test_an_aborted_write_reports_its_posted_rows(
    broker: BrokerThread, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = source(broker=broker.uri, queue=queue).writer(struct(value=StringType()), False)
    done = writer.write(iter([pa.RecordBatch.from_pydict({"value": list("abc")})]))
    with caplog.at_level("WARNING", "bmq.spark"):
        writer.abort([done, None])
    assert "1 of 2 tasks were complete, with 3 rows, which stay posted" in caplog.text


def failing(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield from [batch] * 20
    raise RuntimeError("half way, on purpose")


def test_the_error_of_a_failed_task_has_the_number_of_posted_rows(broker: BrokerThread, queue: str) -> None:
    writer = source(broker=broker.uri, queue=queue).writer(struct(value=StringType()), False)
    with pytest.raises(RuntimeError, match="half way") as info:
        writer.write(failing(pa.RecordBatch.from_pydict({"value": list("abc")})))
    (note,) = info.value.__notes__
    text = "partition 0, attempt 0: 60 rows were read before, and may be posted; the broker had acknowledged "
    assert note.startswith(text)


def test_batches_may_differ_in_the_storage_of_their_columns(broker: BrokerThread, queue: str) -> None:
    """Empty batches, dictionaries, wide strings, views; 1 byte, and 60 MiB."""
    texts = pa.array(["ä", None, "𝄞"])
    longest = "x" * (60 << 20)
    given = [
        (pa.array([], pa.string()), pa.array([], pa.string())),
        (pa.array(["a", "b", "c"]), texts),
        (pa.array(["d", "d", "e"]).dictionary_encode(), texts.dictionary_encode()),
        (pa.array(["f", "g", "h"], pa.large_string()), texts.cast(pa.large_string())),
        (pa.array([b"\xff", b"j", b"k"], pa.large_binary()), pa.nulls(3)),
        (pa.array([longest, "l", "m"]), texts.cast(pa.string_view())),
    ]
    batches = [pa.RecordBatch.from_arrays(list(each), names=["value", "text"]) for each in given]
    schema = struct(value=StringType(), text=StringType())
    writer = source(broker=broker.uri, queue=queue, propertyColumns="text").writer(schema, False)
    assert writer.write(iter(batches)).report.acknowledged == 15
    got = broker.drain(queue, expect=15)
    assert [m.data for m in got] == [
        value.encode() if isinstance(value, str) else value
        for values, _ in given
        for value in values.to_pylist()
    ]
    assert [dict(m.properties) for m in got] == [
        {"text": text} if text else {} for _, texts in given for text in texts.to_pylist()
    ]


def test_columns_as_they_are_stored_make_the_same_guids(broker: BrokerThread, queue: str) -> None:
    """A repeated task may receive different batches."""
    schema = struct(value=StringType(), text=StringType())
    writer = source(broker=broker.uri, queue=queue, propertyColumns="text").writer(schema, False)
    values, texts = pa.array([f"{n % 50}" for n in range(100)]), pa.array(["x", None] * 50)
    one = pa.RecordBatch.from_arrays([values, texts], names=["value", "text"])
    other = pa.RecordBatch.from_arrays(
        [values.cast(pa.large_string()), texts.dictionary_encode()], names=["value", "text"]
    )
    writer.write(iter([one]))
    writer.write(iter([other.slice(70), other.slice(0, 70)]))
    assert len(broker.drain(queue, expect=100)) == 100


def test_maps_of_many_keys_are_spread(broker: BrokerThread, queue: str) -> None:
    entries = [[(f"k{n}", n), (f"k{n + 1}", None), ("all", -n)] for n in range(300)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([f"{n}" for n in range(300)]), pa.array(entries, pa.map_(pa.string(), pa.int32()))],
        names=["value", "properties"],
    )
    schema = struct(value=StringType(), properties=MapType(StringType(), IntegerType()))
    source(broker=broker.uri, queue=queue).writer(schema, False).write(iter([batch]))
    got = broker.drain(queue, expect=300)
    assert [dict(m.properties) for m in got] == [{"all": -n, f"k{n}": n} for n in range(300)]
    assert {kind.name for m in got for kind in m.property_types.values()} == {"INT64"}


def test_an_illegal_property_name_is_refused_with_its_row(broker: BrokerThread, queue: str) -> None:
    entries = [[("a", 1)]] * 70 + [[("-b", 1)]]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["x"] * 71), pa.array(entries, pa.map_(pa.string(), pa.int64()))],
        names=["value", "properties"],
    )
    schema = struct(value=StringType(), properties=MapType(StringType(), LongType()))
    writer = source(broker=broker.uri, queue=queue).writer(schema, False)
    with pytest.raises(bmq.InvalidProperty, match="row 70 of the partition: property name '-b' must start"):
        writer.write(iter([batch]))


def test_messages_of_a_key_stay_together(broker: BrokerThread, queue: str) -> None:
    """The bucket equals the bucket of ``post(key=...)``; null means no key."""
    keys = pa.array(["order-17", "", None, "Größe", "x" * 1000])
    batch = pa.RecordBatch.from_arrays([pa.array(list("abcde")), keys], names=["value", "k"])
    schema = struct(value=StringType(), k=StringType())
    source(broker=broker.uri, queue=queue, keyColumn="k").writer(schema, False).write(iter([batch]))
    got = broker.drain(queue, expect=5)
    assert [m.properties.get("bmq_bucket") for m in got[:4]] == [446481201, 0, None, 610058474]
    assert "k" not in got[0].properties

    async def by_hand() -> None:
        async with bmq.connect(broker.uri) as session:
            await (await session.open_queue(queue, write=True)).post(b"e", key="x" * 1000)

    asyncio.run(by_hand())
    (other,) = broker.drain(queue, expect=1)
    assert dict(other.properties) == dict(got[4].properties)


@pytest.mark.parametrize("unit", ["timestamp", "seconds"])
def test_later_messages_wait_for_their_due_time(broker: BrokerThread, queue: str, unit: str) -> None:
    """A mover passes the message on to its queue, unchanged; null means at once."""
    # Halves of a millisecond are rounded up: never early.
    due = round(time.time() * 1000) + 300.5
    times = [due / 1000, None]
    column = (
        pa.array([None if each is None else int(each * 1e6) for each in times], pa.timestamp("us", "UTC"))
        if unit == "timestamp"
        else pa.array(times)
    )
    arrays = [pa.array(["later", "now"]), pa.array([queue, queue]), column, pa.array([7, 8])]
    batch = pa.RecordBatch.from_arrays(arrays, names=["value", "queue", "at", "k"])
    kind = TimestampType() if unit == "timestamp" else DoubleType()
    schema = struct(value=StringType(), queue=StringType(), at=kind, k=LongType())
    options = {"broker": broker.uri, "notBeforeColumn": "at", "keyColumn": "k", "propertyColumns": "k"}
    writer = source(**options).writer(schema, False)
    for _ in range(2):  # a repeated task makes the same GUIDs
        writer.write(iter([batch]))
    (now,) = broker.drain(queue, expect=1)
    assert (now.data, now.properties["k"]) == (b"now", 8)

    async def move() -> float:
        async with bmq.connect(broker.uri) as session:
            waiting = await session.open_queue(delay_queue_of(queue), read=True, default_subscription=False)
            mover = Mover(waiting)
            moving = asyncio.create_task(mover.run())
            await eventually(lambda: mover.moved > 0, 20)
            arrived = time.time()
            moving.cancel()
            return arrived

    assert asyncio.run(move()) * 1000 >= due
    (later,) = broker.drain(queue, expect=1)
    assert (later.data, later.properties["bmq_due"]) == (b"later", int(due + 0.5))
    assert set(later.properties) == {"bmq_due", "bmq_bucket", "k"}


@given(st.lists(st.none() | st.text(max_size=60)), st.lists(st.none() | st.binary(max_size=60)))
def test_buckets_of_columns_are_those_of_keys(texts: list[str | None], blobs: list[bytes | None]) -> None:
    for keys in (pa.array(texts, pa.string()), pa.array(blobs, pa.binary())):
        expected = [None if key is None else key_bucket(key) for key in keys.to_pylist()]
        wide = pa.large_string() if pa.types.is_string(keys.type) else pa.large_binary()
        for stored in (keys, keys.cast(wide), keys.dictionary_encode()):
            assert bucket_column(stored).to_pylist() == expected
        assert bucket_column(keys.slice(1)).to_pylist() == expected[1:]


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_integer_keys_have_the_buckets_of_their_digits(keys: list[int | None]) -> None:
    expected = [None if key is None else key_bucket(key) for key in keys]
    assert bucket_column(pa.array(keys, pa.int64())).to_pylist() == expected


def test_invalid_keys_and_times_are_refused() -> None:
    with pytest.raises(bmq.UsageError, match="not double"):
        bucket_column(pa.array([1.5]))
    with pytest.raises(bmq.UsageError, match="not string"):
        due_column(pa.array(["tomorrow"]))
    with pytest.raises(bmq.UsageError, match="row 0: nan is not a time"):
        due_column(pa.array([float("nan")]))


@pytest.mark.parametrize(
    ("options", "schema", "text"),
    [
        ({"topic": "x"}, ORDERS, "unknown option topic; the option queue names the queue; options: broker"),
        ({}, ORDERS, "column 'CustomerId' cannot be written to a queue; possible columns: 'value'"),
        ({"propertyColumns": "Missing"}, struct(value=StringType()), "no column 'Missing'"),
        ({"valueColumn": "body"}, struct(value=StringType()), "no column 'body'"),
        ({"maxRetries": "many"}, struct(value=StringType()), "option maxRetries='many'"),
        (
            {"ackTimeoutMs": "-1"},
            struct(value=StringType()),
            "ackTimeoutMs='-1': must not be negative",
        ),
        ({"guidMode": "id"}, struct(value=StringType()), "guidMode=id needs idColumn"),
        ({"queue": ""}, struct(value=StringType()), "name a queue"),
        (
            {"keyColumn": "k"},
            struct(value=StringType(), k=DoubleType()),
            "column 'k' is of type double; a key must be string, binary or an integer",
        ),
        ({"keyColumn": "k"}, struct(value=StringType()), "no column 'k'"),
        (
            {"notBeforeColumn": "at"},
            struct(value=StringType(), at=StringType()),
            "column 'at' is of type string; a due time must be a timestamp",
        ),
        (
            {"keyColumn": "k", "propertyColumns": "bmq_bucket"},
            struct(value=StringType(), k=StringType(), bmq_bucket=IntegerType()),
            "bmq_bucket: both a property column",
        ),
    ],
)
def test_unwritable_columns_are_refused_before_the_job(
    options: dict[str, str], schema: StructType, text: str
) -> None:
    with pytest.raises(bmq.UsageError) as info:
        source(**{"queue": f"bmq://{DOMAIN}/q", **options}).writer(schema, False)
    assert text in str(info.value)


def test_a_queue_cannot_be_overwritten() -> None:
    with pytest.raises(bmq.UsageError, match=r'use mode\("append"\)'):
        source(queue=f"bmq://{DOMAIN}/q").writer(ORDERS, True)
    with pytest.raises(bmq.UsageError, match=r'outputMode\("append"\)'):
        source(queue=f"bmq://{DOMAIN}/q").streamWriter(ORDERS, True)


# reading

TYPED = {
    "n": 7,
    "text": "ä",
    "yes": True,
    "raw": b"\xff\x00",
    "short": bmq.PropertyValue(bmq.PropertyType.SHORT, 3),
}


def test_queue_is_read_until_drained(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    broker.post(queue, [bmq.PutMessage(b"x", TYPED), b"y"])
    options = {"broker": broker.uri, "queue": queue, "idleTimeoutMs": 200, "checkpointLocation": tmp_path}
    first, second = rows_of(source(**options))
    assert first["value"] == b"x"
    properties = dict(first["properties"])
    assert json.loads(properties.pop("bmq_types")) == {
        "n": "INT64",
        "yes": "BOOL",
        "raw": "BINARY",
        "short": "SHORT",
    }
    assert properties == {"n": "7", "text": "ä", "yes": "true", "raw": "/wA=", "short": "3"}
    assert (first["queue"], first["subscription"], first["redelivered"]) == (queue, None, False)
    assert len(first["guid"]) == 32
    assert first["receivedAt"].tzinfo is not None
    assert (second["value"], second["properties"], second["error"]) == (b"y", [], None)
    assert bmq.spark.confirm(options) == 2
    assert broker.drain(queue) == []


def test_properties_can_be_a_struct(broker: BrokerThread, queue: str) -> None:
    broker.post(queue, [bmq.PutMessage(b"x", TYPED)])
    fields = struct(n=LongType(), text=StringType(), yes=BooleanType(), raw=BinaryType(), short=LongType())
    fields.add("missing", LongType())
    schema = struct(properties=fields, value=BinaryType())
    (row,) = rows_of(source(broker=broker.uri, queue=queue, idleTimeoutMs=200), schema)
    assert row["properties"] == {
        "n": 7, "text": "ä", "yes": True, "raw": b"\xff\x00", "short": 3, "missing": None,
    }  # fmt: skip
    assert "properties STRUCT<n BIGINT>" in source(queue=queue, propertiesSchema="n BIGINT").schema()
    assert "properties MAP<STRING, STRING>" in source(queue=queue).schema()


BAD = b"\xff" * 40


def post_bad_between(broker: BrokerThread, queue: str) -> None:
    """Post a message with a wrong compression flag, between two good messages."""
    broker.post(queue, [b"good"])
    broker.call(lambda _: post_bytes(broker.uri, queue, BAD, PutFlags(0), zipped=True))
    broker.post(queue, [b"too"])


def test_an_undecodable_message_is_a_row_with_its_reason(broker: BrokerThread, queue: str) -> None:
    post_bad_between(broker, queue)
    rows = rows_of(source(broker=broker.uri, queue=queue, idleTimeoutMs=200))
    assert [row["value"] for row in rows] == [b"good", BAD, b"too"]
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert rows[1]["properties"] is None
    assert len(rows[1]["guid"]) == 32


def test_drop_omits_an_undecodable_message(
    broker: BrokerThread, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    post_bad_between(broker, queue)
    rows = rows_of(source(broker=broker.uri, queue=queue, idleTimeoutMs=200, onInvalidMessage="drop"))
    assert [row["value"] for row in rows] == [b"good", b"too"]
    assert f"of {queue} cannot be decoded, and is omitted" in caplog.text


def test_fail_names_an_undecodable_message(broker: BrokerThread, queue: str) -> None:
    post_bad_between(broker, queue)
    with pytest.raises(bmq.ProtocolError, match=f"message [0-9A-F]{{32}} of {queue} cannot be decoded"):
        rows_of(source(broker=broker.uri, queue=queue, idleTimeoutMs=200, onInvalidMessage="fail"))


def test_dead_letters_receive_an_undecodable_message(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    post_bad_between(broker, queue)
    options = {"broker": broker.uri, "queue": queue, "idleTimeoutMs": 200, "checkpointLocation": tmp_path}
    options |= {"onInvalidMessage": "deadLetters", "deadLetterQueue": f"{queue}-dead"}
    assert [row["value"] for row in rows_of(source(**options))] == [b"good", b"too"]
    (letter,) = broker.drain(f"{queue}-dead", expect=1)
    assert letter.data == BAD
    assert letter.properties["bmq_dead_queue"] == queue
    bmq.spark.confirm(options)
    assert broker.drain(queue) == []


@pytest.mark.timeout(30)
def test_max_messages_counts_only_decodable_messages(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    for _ in range(10):
        broker.call(lambda _: post_bytes(broker.uri, queue, BAD, PutFlags(0), zipped=True))
    broker.post(queue, [f"{n}".encode() for n in range(25)])
    options = {"broker": broker.uri, "queue": queue, "idleTimeoutMs": 60_000, "checkpointLocation": tmp_path}
    options |= {"onInvalidMessage": "deadLetters", "deadLetterQueue": f"{queue}-dead", "maxMessages": 20}
    assert len(rows_of(source(**options))) == 20
    assert len(broker.drain(f"{queue}-dead", expect=10)) == 10
    bmq.spark.confirm(options)
    assert len(broker.drain(queue, expect=5)) == 5


def test_count_ends_the_read_and_the_rest_stays(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    broker.post(queue, [f"{n}".encode() for n in range(10)])
    options = {"broker": broker.uri, "queue": queue, "maxMessages": 4, "checkpointLocation": tmp_path}
    rows = rows_of(source(**options), struct(value=BinaryType()))
    assert [row["value"] for row in rows] == [b"0", b"1", b"2", b"3"]
    bmq.spark.confirm(options)
    assert [m.data for m in broker.drain(queue, expect=6)] == [f"{n}".encode() for n in range(4, 10)]


def test_subscriptions_select_and_are_named(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    broker.post(queue, [bmq.PutMessage(b"x", {"n": n}) for n in range(30)])
    named = json.dumps({"small": "n < 10", "big": "n >= 20"})
    options = {"broker": broker.uri, "queue": queue, "idleTimeoutMs": 200, "checkpointLocation": tmp_path}
    rows = rows_of(source(expression=named, **options))
    assert sorted((row["subscription"], int(dict(row["properties"])["n"])) for row in rows) == [
        *(("big", n) for n in range(20, 30)),
        *(("small", n) for n in range(10)),
    ]
    bmq.spark.confirm({**options, "expression": named})
    assert len(broker.drain(queue, expect=10)) == 10


def test_several_queues_are_one_source(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    for number in (1, 2):
        broker.post(f"{queue}-{number}", [b"x"] * number)
    options = {"broker": broker.uri, "queue": f"{queue}-1, {queue}-2", "checkpointLocation": tmp_path}
    rows = rows_of(source(idleTimeoutMs=200, **options))
    assert sorted(row["queue"] for row in rows) == [f"{queue}-1", f"{queue}-2", f"{queue}-2"]
    assert bmq.spark.confirm(options) == 3
    assert broker.drain(f"{queue}-1") == broker.drain(f"{queue}-2") == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": ""}, "option queue is missing"),
        ({"queue": "x"}, "bmq://"),
        ({"expression": "n <"}, "n <"),
        ({"expression": "{'a': 1}"}, "must be a JSON object"),
        ({"confirm": "maybe"}, "must be one of explicit, onStore, never"),
        ({"confirm": "onStore"}, "needs option checkpointLocation"),
        ({"confirm": "never", "checkpointLocation": "x"}, "needs no checkpointLocation"),
        ({"maxMessages": "0"}, "`int` >= 1"),
        (
            {"startingOffsets": "earliest"},
            "unknown option startingOffsets; a queue has no offsets: a read has the messages",
        ),
        (
            {"onInvalidMessage": "ignore"},
            "onInvalidMessage must be one of fail, drop, deadLetters, row, not 'ignore'",
        ),
        ({"onInvalidMessage": "deadLetters"}, "needs option deadLetterQueue"),
        ({"deadLetterQueue": f"bmq://{DOMAIN}/dead"}, "needs onInvalidMessage=deadLetters"),
        (
            {"onInvalidMessage": "deadLetters", "deadLetterQueue": f"bmq://{DOMAIN}/dead"},
            "and therefore needs checkpointLocation",
        ),
    ],
)
def test_unreadable_sources_are_refused_before_the_job(options: dict[str, str], text: str) -> None:
    with pytest.raises(bmq.UsageError) as info:
        source(**{"queue": f"bmq://{DOMAIN}/q", **options}).reader(WHOLE)
    assert text.lower() in str(info.value).lower()
    with pytest.raises(bmq.UsageError, match="a queue has no column 'key'; its columns are: value, prop"):
        source(queue=f"bmq://{DOMAIN}/q").reader(struct(key=BinaryType()))


@pytest.mark.parametrize(
    ("kind", "name"),
    [(CharType(3), "char(3)"), (VarcharType(3), "varchar(3)"), (DoubleType(), "double")],
)
def test_a_type_that_no_property_has_is_refused_by_name(kind: DataType, name: str, tmp_path: Path) -> None:
    planned = source(queue=f"bmq://{DOMAIN}/q", checkpointLocation=tmp_path)
    schema = struct(value=BinaryType(), properties=struct(code=kind))
    text = re.escape(f"property 'code' cannot be read as {name}; possible types are boolean")
    with pytest.raises(bmq.UsageError, match=text):
        planned.reader(schema)
    with pytest.raises(bmq.UsageError, match=text):
        planned.streamReader(schema).initialOffset()


# reading as a stream


class NewQuery:
    """The relevant calls of the engine of pyspark 4.2 and later."""

    def __init__(self, broker: BrokerThread, queue: str, folder: Path, **options: Any) -> None:
        options = {"pollTimeoutMs": 300, "lingerMs": 100, **options}
        (folder / "metadata").write_text('{"id":"one"}')
        self._source = source(broker=broker.uri, queue=queue, checkpointLocation=folder, **options)
        self.runner = self._source.streamReader(WHOLE)
        self.start: dict[str, int] = self.runner.initialOffset()

    def latest(self) -> dict[str, int]:
        return travelled(self.runner.latestOffset(self.start, self.runner.getDefaultReadLimit()))

    def unproven(self, last: list[str]) -> list[str]:
        """Return the unconfirmed rest of the last batch, after a later trigger without messages."""
        return []

    def rows(self, start: dict[str, int], end: dict[str, int]) -> list[str]:
        worker = travelled(self._source.streamReader(WHOLE))
        partitions = travelled(self.runner.partitions(start, end))
        return [row["value"].decode() for part in partitions for row in read(worker, part)]

    def arrived(self) -> dict[str, int]:
        """Poll until a message has arrived."""
        while (end := self.latest()) == self.start:
            pass
        return end

    def batch(self) -> list[str]:
        """A committed micro-batch."""
        end = self.latest()
        rows = self.rows(self.start, end)
        self.start = end
        return rows

    def die(self, broker: BrokerThread) -> None:
        """As by SIGKILL: the connection is gone, and stop is not called."""
        for connection in broker.call(lambda b: list(b._connections)):
            broker.call(lambda b, c=connection: c.transport.abort())
        self.runner.stop()


class OldQuery(NewQuery):
    """The engine of pyspark 4.0 and 4.1: latestOffset has no arguments, and commit is called later."""

    def latest(self) -> dict[str, int]:
        end = travelled(self.runner.latestOffset())
        if end != self.start:
            self.runner.commit(self.start)
        return end

    def unproven(self, last: list[str]) -> list[str]:
        return last


Query = OldQuery if ReadMaxRows is None else NewQuery


def numbers(first: int, last: int) -> list[str]:
    return [f"{n}" for n in range(first, last)]


def post_numbers(broker: BrokerThread, queue: str, first: int, last: int) -> None:
    broker.post(queue, [text.encode() for text in numbers(first, last)])


def left_in(broker: BrokerThread, queue: str) -> list[str]:
    return [m.data.decode() for m in broker.drain(queue)]


def test_stream_confirms_committed_messages_only(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    query = Query(broker, queue, tmp_path, maxMessagesPerTrigger=6)
    post_numbers(broker, queue, 0, 10)
    assert query.batch() == numbers(0, 6)
    assert query.latest() == {"messages": 10}  # proves the first six, and hands out the rest
    query.runner.stop()
    assert left_in(broker, queue) == numbers(6, 10)


def test_a_batch_has_at_most_max_messages_per_trigger(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    query = Query(broker, queue, tmp_path, maxMessagesPerTrigger=4)
    post_numbers(broker, queue, 0, 10)
    assert [query.batch() for _ in range(4)] == [numbers(0, 4), numbers(4, 8), numbers(8, 10), []]
    query.runner.stop()
    assert left_in(broker, queue) == query.unproven(numbers(8, 10))


def test_engine_receives_the_limits_of_a_trigger(tmp_path: Path) -> None:
    options = {"checkpointLocation": tmp_path, "maxMessagesPerTrigger": 4}
    reader = source(queue=f"bmq://{DOMAIN}/q", **options).streamReader(WHOLE)
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)


def test_a_crash_replays_exactly_the_logged_range(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    query = Query(broker, queue, tmp_path)
    post_numbers(broker, queue, 0, 5)
    assert query.batch() == numbers(0, 5)
    post_numbers(broker, queue, 5, 12)
    start, end = query.start, query.latest()
    query.runner.stop()  # in the middle of the batch
    post_numbers(broker, queue, 12, 15)

    again = Query(broker, queue, tmp_path)
    assert again.rows(start, end) == numbers(5, 12)
    again.start = end  # committed
    assert again.batch() == numbers(12, 15)  # messages are not handed out again
    assert again.batch() == []
    again.runner.stop()
    assert left_in(broker, queue) == again.unproven(numbers(12, 15))


def test_a_lost_connection_neither_loses_nor_duplicates_messages(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    query = Query(broker, queue, tmp_path, maxMessagesPerTrigger=6)
    post_numbers(broker, queue, 0, 10)
    batch = query.batch()
    rows = list(batch)
    for connection in broker.call(lambda b: list(b._connections)):
        broker.call(lambda b, c=connection: c.transport.abort())
    post_numbers(broker, queue, 10, 20)
    while len(rows) < 20:  # no message arrives while the connection is being restored
        batch = query.batch()
        rows += batch
    assert rows == numbers(0, 20)
    assert query.batch() == []
    query.runner.stop()
    assert left_in(broker, queue) == query.unproven(batch)


def test_available_now_drains_and_ends(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    query = Query(broker, queue, tmp_path, idleTimeoutMs=300, maxMessagesPerTrigger=6)
    query.runner.prepareForTriggerAvailableNow()
    post_numbers(broker, queue, 0, 10)
    assert [query.batch(), query.batch(), query.batch()] == [numbers(0, 6), numbers(6, 10), []]
    post_numbers(broker, queue, 10, 11)
    assert query.batch() == []
    query.runner.stop()


@pytest.mark.usefixtures("uncounted")
def test_a_slow_sink_is_no_drained_queue(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    """The window of the consumer is full for longer than ``idleTimeoutMs``."""
    query = Query(broker, queue, tmp_path, idleTimeoutMs=100, maxMessagesPerTrigger=5)
    query.runner.prepareForTriggerAvailableNow()
    post_numbers(broker, queue, 0, 40)
    rows = []
    while batch := query.batch():
        rows += batch
        time.sleep(0.4)  # the sink: nothing to wait for, since nothing happens
    assert rows == numbers(0, 40)
    query.runner.stop()


def test_messages_of_the_start_in_other_hands_are_a_warning(
    broker: BrokerThread, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    post_numbers(broker, queue, 0, 5)
    other = source(broker=broker.uri, queue=queue, idleTimeoutMs=100)
    receiver = SourceReceiver(parse(ReadOptions, other.options))

    async def hold() -> None:
        await receiver.open()
        await receiver.take(5, 10)

    run(hold())
    assert rows_of(other) == []
    run(receiver.close())
    assert f"{queue}: the broker counted 5 messages at the start, and delivered 0" in caplog.text


#: Messages that are selected, of those in the queue.
@pytest.mark.parametrize(("expression", "most"), [("", 10), ("n == 1", 5)])
@pytest.mark.parametrize("way", ["read", "availableNow"])
def test_a_run_ends_with_the_messages_of_its_start(
    way: str, expression: str, most: int, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    """A producer posts more often than ``idleTimeoutMs``, and goes on for as long as the run takes."""
    items = [bmq.PutMessage(f"{n}".encode(), {"n": n % 2}) for n in range(10)]
    broker.post(queue, items)
    options = {"expression": expression, "idleTimeoutMs": 2000}
    with broker.posting(queue, items, 0.2):
        if way == "read":
            rows = [
                row["value"].decode() for row in rows_of(source(broker=broker.uri, queue=queue, **options))
            ]
        else:
            query = NewQuery(broker, queue, tmp_path, **options)
            query.runner.prepareForTriggerAvailableNow()
            rows = []
            while batch := query.batch():
                rows += batch
            query.runner.stop()
    wanted = [f"{n}" for n in range(10) if not expression or n % 2]
    assert rows[:most] == wanted
    assert len(rows) < most + 50  # the messages of about ten seconds


def test_available_now_ends_at_a_count(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    query = Query(broker, queue, tmp_path, maxMessages=8, maxMessagesPerTrigger=6)
    query.runner.prepareForTriggerAvailableNow()
    post_numbers(broker, queue, 0, 10)
    assert [query.batch(), query.batch(), query.batch()] == [numbers(0, 6), numbers(6, 8), []]
    query.runner.stop()


def test_a_batch_is_split_into_partitions(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    query = Query(broker, queue, tmp_path, numPartitions=3)
    post_numbers(broker, queue, 0, 10)
    end = query.latest()
    assert len(query.runner.partitions({"messages": 0}, end)) == 3
    assert query.rows({"messages": 0}, end) == numbers(0, 10)
    query.runner.stop()


def test_a_batch_has_at_most_max_bytes_per_trigger(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    texts = ["a" * 1000, "b" * 1000, "c" * 5000, "d" * 600, "e" * 400, "f", "g"]
    broker.post(queue, [text.encode() for text in texts])
    query = Query(broker, queue, tmp_path, maxBytesPerTrigger="2k")
    assert [[row[0] for row in query.batch()] for _ in range(5)] == [
        ["a", "b"],
        ["c"],
        ["d", "e", "f", "g"],
        [],
        [],
    ]
    query.runner.stop()
    assert left_in(broker, queue) == query.unproven(texts[3:])


def test_a_small_batch_is_held_back(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    query = Query(broker, queue, tmp_path, minMessagesPerTrigger=5, maxTriggerDelay="1h", pollTimeoutMs=50)
    post_numbers(broker, queue, 0, 3)
    assert [query.batch() for _ in range(10)] == [[]] * 10
    post_numbers(broker, queue, 3, 6)
    while not (rows := query.batch()):
        pass
    assert rows == numbers(0, 6)
    query.runner.stop()


def test_a_small_batch_goes_after_a_delay(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    query = Query(broker, queue, tmp_path, minMessagesPerTrigger=5, maxTriggerDelay="500ms", pollTimeoutMs=50)
    post_numbers(broker, queue, 0, 3)
    begun = time.monotonic()
    while not (rows := query.batch()):
        pass
    assert rows == numbers(0, 3)
    assert time.monotonic() - begun > 0.4
    query.runner.stop()


def test_a_batch_that_is_full_is_not_held_back(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    options = {"minMessagesPerTrigger": 5, "maxTriggerDelay": "1h", "maxBytesPerTrigger": 2}
    query = Query(broker, queue, tmp_path, **options)
    post_numbers(broker, queue, 0, 4)
    assert [query.batch(), query.batch()] == [numbers(0, 2), numbers(2, 4)]
    query.runner.stop()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maxTriggerDelay": "soon"}, "a number with ms, s, m, h or d, such as 30s"),
        ({"maxBytesPerTrigger": "0"}, "at least 1"),
        ({"maxBytesPerTrigger": "many"}, "must be bytes, or a number with k, m or g, such as 64m"),
        ({"minMessagesPerTrigger": "7", "maxMessagesPerTrigger": "6"}, "no batch can reach this number"),
    ],
)
def test_impossible_limits_are_refused(tmp_path: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(bmq.UsageError, match=text):
        source(queue=f"bmq://{DOMAIN}/q", checkpointLocation=tmp_path, **options).streamReader(
            WHOLE
        ).initialOffset()


@pytest.mark.parametrize("option", ["idleTimeoutMs", "maxMessages", "minMessagesPerTrigger"])
def test_options_unsupported_by_an_old_engine_are_refused_by_name(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.spark.stream_reader.READ_LIMITS", False)
    query = source(queue=f"bmq://{DOMAIN}/q", checkpointLocation=tmp_path, **{option: 1})
    with pytest.raises(bmq.UsageError, match=rf"option {option} needs pyspark 4\.2 or newer, and this is \d"):
        query.streamReader(WHOLE).initialOffset()


def test_filters_are_refused_by_name_where_spark_pushes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pyspark.sql.datasource.EqualTo", raising=False)
    monkeypatch.setattr("pyspark.__version__", "4.0.1")
    asked = source(queue=f"bmq://{DOMAIN}/q", pushFilters="true")
    with pytest.raises(bmq.UsageError, match=r"pushFilters needs pyspark 4\.1 or newer, and this is 4\.0\.1"):
        asked.reader(WHOLE)


def logged(folder: Path) -> list[str]:
    """Return the complete batches, by their first and last number."""
    names = [path.stem for path in folder.rglob("*.arrow")]
    return sorted(f"{int(name[:20])}-{int(name[21:])}" for name in names)


def test_the_time_between_triggers_is_used_for_receiving(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    """While Spark processes a batch, two more are written; batches unknown to Spark are received again."""
    query = Query(broker, queue, tmp_path, maxMessagesPerTrigger=4)
    post_numbers(broker, queue, 0, 4)
    start, end = query.start, query.latest()
    post_numbers(broker, queue, 4, 20)
    while len(logged(tmp_path)) < 3:
        assert query.latest() == end  # no further message is handed out before the commit of this batch
    assert logged(tmp_path) == ["0-4", "4-8", "8-12"]
    query.die(broker)

    again = Query(broker, queue, tmp_path, maxMessagesPerTrigger=6)
    assert again.rows(start, end) == numbers(0, 4)
    again.start = end  # committed
    rows: list[str] = []
    while batch := again.batch():
        rows += batch
    assert rows == numbers(4, 20)
    again.runner.stop()
    assert left_in(broker, queue) == []


def test_batch_received_before_a_cut_is_delivered_once(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    query = Query(broker, queue, tmp_path, maxMessagesPerTrigger=4)
    post_numbers(broker, queue, 0, 20)
    rows = query.batch()
    while len(logged(tmp_path)) < 3:
        query.runner.reportLatestOffset()
    broker.call(lambda b: b.faults.disconnect())
    while len(rows) < 20:
        rows += query.batch()
    assert rows == numbers(0, 20)
    assert query.batch() == []
    query.runner.stop()
    assert left_in(broker, queue) == query.unproven(numbers(16, 20))


def test_old_engine_without_a_commit_confirms_no_message(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    query = OldQuery(broker, queue, tmp_path)
    post_numbers(broker, queue, 0, 10)
    assert query.latest() == {"messages": 10}
    broker.call(lambda b: b.faults.disconnect())
    post_numbers(broker, queue, 10, 12)
    while query.latest() != {"messages": 12}:
        pass  # redelivered: the first ten, before the rest
    query.runner.stop()
    assert sorted(map(int, left_in(broker, queue))) == list(range(12))


def test_old_engine_confirms_committed_messages_only(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    query = OldQuery(broker, queue, tmp_path, maxMessagesPerTrigger=6)
    post_numbers(broker, queue, 0, 10)
    assert query.batch() == numbers(0, 6)
    assert query.batch() == numbers(6, 10)
    query.runner.stop()
    assert left_in(broker, queue) == numbers(6, 10)


def test_old_engine_gets_messages_received_ahead(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    """The engine does not report its progress: the complete log is its next batch."""
    query = OldQuery(broker, queue, tmp_path, maxMessagesPerTrigger=4)
    post_numbers(broker, queue, 0, 20)
    rows = query.batch()
    while len(logged(tmp_path)) < 3:
        query.runner.reportLatestOffset()
    start = query.start
    query.die(broker)

    again = OldQuery(broker, queue, tmp_path, maxMessagesPerTrigger=4)
    again.start = start
    while len(rows) < 20:
        rows += again.batch()
        again.runner.commit(again.start)
    assert rows == numbers(0, 20)
    again.runner.stop()
    assert left_in(broker, queue) == []


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that is full when a file reaches the given size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("engine", dict.fromkeys([Query, OldQuery]))
def test_half_a_batch_in_the_log_is_no_batch(
    broker: BrokerThread, queue: str, tmp_path: Path, engine: type[NewQuery]
) -> None:
    text = "x" * 8_000_000
    broker.post(queue, [text.encode()])
    query = engine(broker, queue, tmp_path)
    with files_of_at_most(4_000_000), pytest.raises(OSError, match="too large"):
        query.arrived()
    query.runner.stop()
    again = engine(broker, queue, tmp_path)
    while not (rows := again.batch()):
        pass
    assert rows == [text]
    again.runner.stop()


def test_log_drops_long_committed_batches(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    query = Query(broker, queue, tmp_path)
    kept: list[list[str]] = []
    for n in range(20):
        post_numbers(broker, queue, n, n + 1)
        assert query.batch() == [f"{n}"]
        kept.append(sorted(path.name for path in tmp_path.rglob("*.arrow")))
    # One file a batch; after eight committed batches and the newest, each new batch replaces the oldest.
    assert [len(each) for each in kept] == [*range(1, 10), *[9] * 11]
    assert kept[-1] == [f"{n:020d}-{n + 1:020d}.arrow" for n in range(11, 20)]
    query.runner.stop()


def test_progress_counts_received_messages(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    query = Query(broker, queue, tmp_path, maxMessagesPerTrigger=4)
    assert query.runner.reportLatestOffset() is None
    post_numbers(broker, queue, 0, 10)
    assert query.latest() == {"messages": 4}
    while query.runner.reportLatestOffset() != {"messages": 10}:
        pass  # the batch is received meanwhile
    query.runner.stop()


def test_a_missing_log_is_an_error(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    query = Query(broker, queue, tmp_path)
    with pytest.raises(bmq.StateError, match=r"messages 3 to 9 .* are in its checkpoint, but not in"):
        query.runner.partitions({"messages": 3}, {"messages": 9})


def test_a_process_that_ends_closes_the_sessions_of_its_readers(broker: BrokerThread) -> None:
    """Spark does not always stop a reading stream."""
    session = run(ConnectionOptions(broker=broker.uri).open())
    shutdown()  # as at the end of the process
    assert session.state is bmq.SessionState.CLOSED


def test_two_queries_cannot_share_a_log(
    broker: BrokerThread, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.spark.log._LOCK_PATIENCE", 0.1)
    one, other = Query(broker, queue, tmp_path), Query(broker, queue, tmp_path)
    one.latest()
    with pytest.raises(bmq.StateError, match="another query or source uses the log"):
        other.latest()
    one.runner.stop()


def test_several_receivers_share_a_queue(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    """One receiver is cut off meanwhile; its messages are redelivered to the receivers, none twice."""
    others = broker.call(lambda b: set(b._connections))
    query = Query(broker, queue, tmp_path, numReceivers=3, maxMessagesPerTrigger=20)
    post_numbers(broker, queue, 0, 30)
    last = query.batch()
    rows = list(last)

    async def receivers(b: bmq.broker.Broker) -> list[Any]:
        """Return the receivers, after the posting sessions have gone."""
        await eventually(lambda: len(set(b._connections) - others) == 3)
        return list(set(b._connections) - others)

    first, *_ = broker.call(receivers)
    broker.call(lambda b: first.transport.abort())
    post_numbers(broker, queue, 30, 60)
    while len(rows) < 60:
        last = query.batch()
        rows += last
    assert sorted(map(int, rows)) == list(range(60))
    assert query.batch() == []
    query.runner.stop()
    assert sorted(left_in(broker, queue)) == sorted(query.unproven(last))


@pytest.mark.usefixtures("uncounted")
def test_a_wait_for_silence_starts_again_after_a_reconnect() -> None:
    """The connection is restored within the first wait, its queue is open in the third."""
    sim = Simulation(seed=1)
    sim.network.set(latency=(0.1, 0.1))
    server = sim.broker()
    options = parse(ReadOptions, {"broker": server.uri, "queue": SIMULATED, "idletimeoutms": "300"})

    async def post(count: int) -> None:
        async with bmq.connect(server.uri) as session:
            await (await session.open_queue(SIMULATED, write=True)).post_many([b"x"] * count)

    async def read() -> int:
        receiver = SourceReceiver(options)
        await receiver.open()
        await post(1)
        assert (
            sum(each.batch.num_rows for each in await receiver.take(1, options.idle_timeout, drains=True))
            == 1
        )
        for connection in sim.network.connections:
            connection.cut()
        rows = sum(each.batch.num_rows for each in await receiver.take(10, options.idle_timeout, drains=True))
        await receiver.close()
        return rows

    async def main() -> None:
        assert await sim.process("reader", read).wait() == 1, "the unconfirmed message comes again"

    sim.run(main)


@pytest.mark.usefixtures("uncounted")
def test_a_lost_broker_is_no_drained_queue(broker: BrokerThread, queue: str) -> None:
    broker.post(queue, [b"x"])
    given = {"broker": broker.uri, "queue": queue, "idletimeoutms": "200", "reconnecttimeoutms": "1000"}
    options = parse(ReadOptions, given)
    receiver = SourceReceiver(options)

    async def until_gone() -> None:
        await receiver.open()
        assert (
            sum(each.batch.num_rows for each in await receiver.take(10, options.idle_timeout, drains=True))
            == 1
        )
        broker.call(lambda b: b.stop())
        await receiver.take(10, options.idle_timeout, drains=True)

    with pytest.raises(bmq.SessionClosed):
        run(until_gone())
