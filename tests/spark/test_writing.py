# SPDX-License-Identifier: Apache-2.0
"""Columns and rows into a queue: ``format("bmq")`` and the plain sink, called as Spark does."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, types

import bmq
import bmq.spark
from bmq.arrow.decoding import pa
from bmq.spark import PartitionReport, connection, write_partition
from bmq.spark.partition import TaskScope
from bmq.wire.keys import key_bucket
from tests.fakes.broker import Peer
from tests.spark.bench import NOWHERE, BrokerThread, Stage, Write, both, columns_to, source, struct, travelled
from tests.waiting import eventually

SCHEMA = struct(
    value=types.StringType(),
    CustomerId=types.IntegerType(),
    properties=types.MapType(types.StringType(), types.LongType()),
)
VALUE = struct(value=types.StringType())


def batches(count: int) -> Iterator[pa.RecordBatch]:
    rows = range(count)
    maps = pa.array(
        [[("all", -n), (f"k{n}", n), ("no", None)] for n in rows], pa.map_(pa.string(), pa.int64())
    )
    ids = pa.array([n if n % 2 else None for n in rows], pa.int32())
    whole = pa.record_batch({"value": [f"order {n}" for n in rows], "CustomerId": ids, "properties": maps})
    yield from (whole.slice(first, 1000) for first in range(0, count, 1000))


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_arrow_batches_become_messages(stage: Stage, kind: str) -> None:
    options = {**stage.target, "propertyColumns": "CustomerId"}
    writer = travelled(getattr(source(**options), kind)(SCHEMA, False))
    message = travelled(writer.write(batches(3500)))
    assert (message.report.rows, message.report.acknowledged) == (3500, 3500)
    got = stage.drain(3500)
    assert [m.data for m in got] == [f"order {n}".encode() for n in range(3500)]
    assert [dict(m.properties) for m in got] == [
        {"all": -n, f"k{n}": n} | ({"CustomerId": n} if n % 2 else {}) for n in range(3500)
    ]
    kinds = {name: kind.name for name, kind in got[1].property_types.items()}
    assert kinds == {"all": "INT64", "k1": "INT64", "CustomerId": "INT32"}
    more = (3,) if kind == "streamWriter" else ()
    writer.commit([message, None], *more)
    writer.abort([None], *more)


def test_the_writer_of_a_save_is_one_job(stage: Stage) -> None:
    options = {**stage.target, "propertyColumns": "CustomerId"}
    one, other = (source(**options).writer(SCHEMA, False) for _ in range(2))
    for writer in (one, travelled(one), other):
        writer.write(batches(10))
    assert len(stage.drain(20)) == 20


def test_the_option_queue_wins_over_the_column(stage: Stage) -> None:
    schema = struct(value=types.StringType(), queue=types.StringType())
    columns_to(stage, schema, [pa.record_batch({"value": ["x"], "queue": [f"{stage.queue}-no"]})])
    assert len(stage.drain(1)) == 1


def test_rows_with_equal_ids_are_a_warning(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    planned = source(**stage.target, idColumn="id")
    writer: Any = planned.writer(struct(value=types.StringType(), id=types.StringType()), False)
    rows = pa.record_batch({"value": list("abcd"), "id": ["1", "1", "2", "3"]})
    with caplog.at_level("WARNING", "bmq.spark"):
        writer.commit([writer.write(iter([rows]))])
    assert "1 rows of a partition, and 0 rows of a sample of 3 in different partitions" in caplog.text
    assert [m.data for m in stage.drain(3)] == [b"a", b"c", b"d"]


@pytest.mark.parametrize("name", ["id", "guid"])
@pytest.mark.parametrize("way", ["writer", "streamWriter", "write_partition"])
def test_no_column_is_an_identity_because_of_its_name(way: str, name: str, stage: Stage) -> None:
    """Rows that are equal in this column are separate messages: within a write, and in the next one."""
    rows = pa.record_batch({"value": list("abc"), name: ["0" * 32, "0" * 32, "1" * 32]})
    schema = struct(value=types.StringType(), **{name: types.StringType()})
    for _ in range(2):
        if way == "write_partition":
            write = bmq.spark.write_partition(**stage.target, properties=[name])
            write(iter(rows.to_pylist()))
        else:
            planned = source(**stage.target, propertyColumns=name)
            getattr(planned, way)(schema, False).write(iter([rows]))
    found = stage.drain(6)
    assert sorted(m.data for m in found) == [b"a", b"a", b"b", b"b", b"c", b"c"]
    assert {m.properties[name] for m in found} == {"0" * 32, "1" * 32}


def test_columns_are_found_in_any_letter_case(stage: Stage) -> None:
    frame = pa.record_batch({"Value": ["x"], "CustomerId": [7], "Queue": [stage.queue]})
    schema = struct(Value=types.StringType(), CustomerId=types.LongType(), Queue=types.StringType())
    columns_to(stage, schema, [frame], queue="", propertyColumns="customerid")
    write = bmq.spark.write_partition(
        broker=stage.broker.uri, queue_column="queue", properties=["customerID"], schema=schema
    )
    write(iter(frame.to_pylist()))
    messages = stage.drain(2)
    assert [(m.data, dict(m.properties)) for m in messages] == [(b"x", {"CustomerId": 7})] * 2


def test_an_aborted_write_reports_its_posted_rows(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    writer: Any = source(**stage.target).writer(VALUE, False)
    done = writer.write(iter([pa.record_batch({"value": list("abc")})]))
    with caplog.at_level("WARNING", "bmq.spark"):
        writer.abort([done, None])
    assert "1 of 2 tasks were complete, with 3 rows, which stay posted" in caplog.text


def test_the_error_of_a_failed_task_has_the_number_of_posted_rows(stage: Stage) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from [pa.record_batch({"value": list("abc")})] * 20
        raise RuntimeError("half way, on purpose")

    writer: Any = source(**stage.target).writer(VALUE, False)
    with pytest.raises(RuntimeError, match="half way") as info:
        writer.write(failing())
    (note,) = info.value.__notes__
    assert note.startswith(
        "partition 0, attempt 0: 60 rows were read before, and may be posted; the broker had acknowledged "
    )


@both
def test_keys_and_times_of_messages(write: Write, stage: Stage) -> None:
    """The bucket equals the bucket of ``post(key=...)``; messages with a due time are in the delay queue."""
    texts, numbers = ["order-17", "", None, "Größe"], [17, -(1 << 63), None, 0]
    # Halves of a millisecond are rounded up: never early. Null means at once.
    times = [1e9 + 0.0625, None, None, 1e9]
    stamps = pa.array([at and int(at * 1e6) for at in times], pa.timestamp("us", "UTC"))
    seconds = pa.array(times)
    for keys, key_kind, column, kind in (
        (pa.array(texts), types.StringType(), stamps, types.TimestampType()),
        (pa.array(texts).dictionary_encode(), types.StringType(), seconds, types.DoubleType()),
        (pa.array(texts, pa.large_string()), types.StringType(), seconds, types.DoubleType()),
        (pa.array(texts).cast(pa.binary()), types.BinaryType(), seconds, types.DoubleType()),
        (pa.array(numbers), types.LongType(), seconds, types.DoubleType()),
    ):
        batch = pa.record_batch({"value": list("abcd"), "k": keys, "at": column})
        schema = struct(value=types.StringType(), k=key_kind, at=kind)
        options = {"keyColumn": "k", "notBeforeColumn": "at", "writeName": f"{keys.type}"}
        for _ in range(2):  # a repeated task makes the same GUIDs
            write(stage, schema, [batch.slice(0, 1), batch.slice(1)], **options)
        buckets = [{} if key is None else {"bmq_bucket": key_bucket(key)} for key in keys.to_pylist()]
        now = stage.drain(2)
        assert [(m.data, dict(m.properties)) for m in now] == [(b"b", buckets[1]), (b"c", {})]
        later = stage.drain(2, ".delayed")
        assert [(m.data, dict(m.properties)) for m in later] == [
            (b"a", {**buckets[0], "bmq_due": 10**12 + 63, "bmq_destination": stage.queue}),
            (b"d", {**buckets[3], "bmq_due": 10**12, "bmq_destination": stage.queue}),
        ]


def test_a_time_without_a_time_zone_is_local_in_rows(stage: Stage) -> None:
    write = bmq.spark.write_partition(**stage.target, not_before_column="at")
    at = datetime(2001, 9, 9, 1, 46, 40)
    write(iter([Row(value="x", at=each) for each in (at, at.astimezone(UTC))]))
    later = stage.drain(2, ".delayed")
    assert [m.properties["bmq_due"] for m in later] == [int(at.timestamp() * 1000)] * 2
    with pytest.raises(bmq.UsageError, match="row 0 of the partition: 'soon' is not a time"):
        write(iter([Row(value="x", at="soon")]))


# the plain sink


ORDERS = [
    Row(body=f"order {n}", CustomerId=n % 7, OrderType="EXPRESS" if n % 3 else None, weight=1.5)
    for n in range(2500)
]


def sink(stage: Stage, **options: Any) -> Any:
    options = {"value": "body", "properties": ["CustomerId", "OrderType"], **options}
    return write_partition(**stage.target, **options)


def test_entries_of_maps_and_structs_become_properties(stage: Stage) -> None:
    rows = [
        Row(body="v", one={"a": 1, "b": None}, two=Row(c="d", e=None), b=None),
        Row(body="x", one={"a": 1}, two={"b": 2}, b=None),
        Row(body="y", one={"b": 3}, two={"a": "4", "b": 5}, b=None),
        Row(body="z", one={"b": 3}, two={}, b=6),
    ]
    sink(stage, properties=["one", "two", "b"])(iter(rows))
    got = [dict(m.properties) for m in stage.drain(4)]
    assert got == [{"a": 1, "c": "d"}, {"a": 1, "b": 2}, {"a": "4", "b": 3}, {"b": 6}]


def test_neighbours_may_have_values_of_different_types(stage: Stage) -> None:
    values = [1, "one", True, b"1", None, bytearray(b"2"), {"a": 1}, {"a": "x", "b": None}, Row(c=False), 2]
    rows = [Row(body=f"{n}" if n % 2 else b"%d" % n, p=value) for n, value in enumerate(values * 20)]
    sink(stage, properties=["p"])(iter(rows))
    got = stage.drain(200)
    assert [int(m.data) for m in got] == list(range(200))
    plain = [{"p": 1}, {"p": "one"}, {"p": True}, {"p": b"1"}, {}, {"p": b"2"}]
    assert [dict(m.properties) for m in got] == [*plain, {"a": 1}, {"a": "x"}, {"c": False}, {"p": 2}] * 20


def test_a_column_names_the_queue(stage: Stage) -> None:
    rows = [Row(body=f"{n}", to=f"{stage.queue}-{n % 2}") for n in range(10)]
    write_partition(broker=stage.broker.uri, value="body", queue_column="to")(iter(rows))
    assert [m.data for m in stage.drain(5, "-0")] == [b"0", b"2", b"4", b"6", b"8"]
    assert [m.data for m in stage.drain(5, "-1")] == [b"1", b"3", b"5", b"7", b"9"]


def test_one_session_serves_all_partitions(stage: Stage) -> None:
    write = sink(stage)
    connected = []
    for partition in range(4):
        write.post(iter(ORDERS[:10]), TaskScope("job", partition))
        connected.append(stage.broker.call(lambda b: {id(c) for c in b._connections}))
    assert len(connected[0]) == 1
    assert connected.count(connected[0]) == 4
    assert len(stage.drain(40)) == 40


def test_an_idle_session_is_closed(stage: Stage) -> None:
    connection.shutdown()
    write = sink(stage, idle_timeout=0.05)
    write(iter(ORDERS[:10]))
    stage.broker.call(lambda b: eventually(lambda: not b._connections))
    write(iter(ORDERS[10:20]))
    assert len(stage.drain(20)) == 20


def test_a_forked_child_does_not_use_its_parents_sessions(stage: Stage) -> None:
    mine = connection.session_thread()
    mine.forked = True  # what a child sees after a fork
    other = connection.session_thread()
    assert other is not mine
    connection.shutdown()
    mine.forked = False
    mine.end(10)


def test_a_rate_holds_rows_back(stage: Stage) -> None:
    started = time.monotonic()
    sink(stage, rate=200.0)(iter(ORDERS[:60]))  # twenty at once, and twenty more twice
    assert time.monotonic() - started >= 0.19
    assert [message.data for message in stage.drain(60)] == [row.body.encode() for row in ORDERS[:60]]


def test_the_memory_of_a_partition_does_not_grow_with_its_rows(stage: Stage) -> None:
    batch = pa.record_batch({"value": [bytes(8 * 1024)] * 128})  # a MiB
    held: list[int] = []

    def rows(arrow: bool) -> Iterator[Any]:
        for _ in range(64):
            yield from [batch] if arrow else batch.to_pylist()
            held.append(pa.total_allocated_bytes() - before)

    for arrow in (True, False):
        before = pa.total_allocated_bytes()
        report = write_partition(**stage.target).post(rows(arrow), TaskScope("job"))
        assert report.acknowledged == 64 * 128
        stage.drain(64 * 128)
    assert max(held) < 32 * batch.nbytes


@pytest.mark.parametrize(
    ("other", "options"),
    [
        (TaskScope("other", 3), {}),
        (TaskScope("job", 4), {}),
        (TaskScope("job", 3), {"write_name": "second"}),
        (TaskScope("job", 3), {"guid_mode": "random"}),
    ],
    ids=["another job", "another partition", "another write", "random"],
)
def test_equal_rows_of_another_write_are_different_messages(
    stage: Stage, other: TaskScope, options: dict[str, str]
) -> None:
    sink(stage).post(iter(ORDERS[:100]), TaskScope("job", 3))
    sink(stage, **options).post(iter(ORDERS[:100]), other)
    assert len(stage.drain(200)) == 200


def test_every_call_is_a_separate_write_unless_named(stage: Stage) -> None:
    for name, count in (("", 20), ("nightly 2013-07-08", 10)):
        for _ in range(2):
            sink(stage, write_name=name)(iter(ORDERS[:10]))
        assert len(stage.drain(count)) == count


def test_an_id_is_one_message_in_each_queue_whatever_the_row(stage: Stage) -> None:
    guids: set[str] = set()
    for suffix in ("", "-other"):
        target = {**stage.target, "queue": stage.queue + suffix}
        write = write_partition(**target, value="body", id_column="key")
        for attempt in range(3):
            rows = [Row(body=f"{n} at {attempt}", key=n % 10) for n in range(30)]
            report = write.post(iter(rows), TaskScope(f"job {attempt}"))
            assert (report.rows, report.acknowledged, report.repeated) == (30, 10, 20)
        messages = stage.drain(10, suffix)
        assert [m.data for m in messages] == [f"{n} at 0".encode() for n in range(10)]
        guids |= {m.guid for m in messages}
    assert len(guids) == 20


def test_guids_carry_the_version_of_clients(stage: Stage) -> None:
    for mode in ("content", "random", "id"):
        sink(stage, guid_mode=mode, id_column="CustomerId")(iter(ORDERS[:7]))
    assert {int(m.guid[0], 16) >> 2 for m in stage.drain(21)} == {1}


def test_entries_of_maps_are_distinguished_by_name_in_a_repeated_task(stage: Stage) -> None:
    one, other = Row(body="x", more={"weight": 1}), Row(body="x", more={"height": 1})
    write = write_partition(**stage.target, value="body", properties=["more"])
    write.post(iter([one]), TaskScope("job", 3, attempt=0))  # died here
    write.post(iter([other, one]), TaskScope("job", 3, attempt=1))
    got = [dict(m.properties) for m in stage.drain(2)]
    assert sorted(got, key=str) == [{"height": 1}, {"weight": 1}]


# failures


def test_an_unreachable_broker_is_named_within_the_deadline() -> None:
    write = write_partition(queue=NOWHERE, broker="tcp://127.0.0.1:1", connect_timeout=0.5)
    started = time.monotonic()
    with pytest.raises(bmq.ConnectionFailed, match=r"tcp://127\.0\.0\.1:1 .*within 0\.5 s"):
        write(iter([Row(value="x")]))
    assert time.monotonic() - started < 25, "the default is 30 s"


def test_a_queue_that_stays_full_fails_the_task_and_names_the_row(broker: BrokerThread) -> None:
    uri = "bmq://bmq.test.small.priority/full"
    write = write_partition(queue=uri, broker=broker.uri, ack_timeout=0.2)
    with pytest.raises(
        bmq.PostError,
        match=r"row 11 of partition 5 .*: LIMIT_MESSAGES: the queue has been full for 0\.2 s, and 9 rows",
    ) as info:
        write.post((Row(value=f"{n}") for n in range(20)), TaskScope("job", 5))
    assert info.value.status is bmq.AckStatus.LIMIT_MESSAGES
    assert info.value.queue_uri == uri
    copy = cloudpickle.loads(cloudpickle.dumps(info.value))
    assert (str(copy), copy.status, copy.queue_uri) == (str(info.value), info.value.status, uri)


@asynccontextmanager
async def scripted(
    rows: list[Any], **options: Any
) -> AsyncIterator[tuple[Peer, asyncio.Task[PartitionReport]]]:
    """Write rows to a broker that acknowledges nothing by itself."""
    async with Peer() as peer:
        peer.hold.add("PUT")
        write = write_partition(queue=NOWHERE, broker=peer.uri, retry_interval=0.01, **options)
        try:
            yield peer, asyncio.create_task(asyncio.to_thread(write.post, iter(rows), TaskScope("job", 5)))
        finally:
            await asyncio.to_thread(connection.shutdown)


async def acknowledge(peer: Peer, count: int, *answers: tuple[slice, bmq.AckStatus]) -> None:
    """Wait for messages, exactly so many, and acknowledge parts of them."""
    await eventually(lambda: peer.connections and len(peer.connection.script.puts) >= count, 30)
    script = peer.connection.script
    puts, script.puts = script.puts, []
    assert len(puts) == count, answers
    for part, status in answers:
        peer.connection.send(script.ack(puts[part], status))


async def test_an_empty_partition_opens_no_connection() -> None:
    async with scripted([]) as (peer, writing):
        report = await writing
        assert peer.connections == []
    assert (report.partition, report.rows, report.acknowledged, report.bytes) == (5, 0, 0, 0)


async def test_rows_that_are_posted_again_keep_their_order() -> None:
    async with scripted([Row(value=f"{n}") for n in range(50)]) as (peer, writing):
        # The broker takes every other row, and says so in an order of its own.
        every_other = (slice(None, None, 2), bmq.AckStatus.SUCCESS)
        await acknowledge(peer, 50, every_other, (slice(None, 0, -2), bmq.AckStatus.STORAGE_FAILURE))
        peer.answer("PUT")
        report = await writing
    assert (report.acknowledged, report.retried) == (50, 25)
    assert peer.posted == list(range(1, 50, 2))


async def test_a_repeatedly_refused_row_is_named() -> None:
    async with scripted([Row(value="x")], max_retries=2) as (peer, writing):
        for _ in range(3):
            await acknowledge(peer, 1, (slice(None), bmq.AckStatus.STORAGE_FAILURE))
        with pytest.raises(bmq.PostError, match=r"row 0 of partition 5 .*after 2 retries: STORAGE_FAILURE"):
            await writing


async def test_waiting_ends_when_a_row_is_refused_for_another_reason() -> None:
    """Full first, then the storage fails, then all is well: only the failure counts as a retry."""
    async with scripted([pa.record_batch({"value": list("abcde")})], max_retries=1) as (peer, writing):
        for count, status in (
            (5, bmq.AckStatus.LIMIT_BYTES),
            (1, bmq.AckStatus.LIMIT_MESSAGES),
            (1, bmq.AckStatus.STORAGE_FAILURE),
            (5, bmq.AckStatus.SUCCESS),
        ):
            await acknowledge(peer, count, (slice(None), status))
        report = await writing
    assert (report.acknowledged, report.retried) == (5, 5)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_full_queue_is_waited_for_and_keeps_the_order_of_rows(
    partitions: int, broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty times the limit, and slices behind slices: no retry is counted, and no row overtakes another."""
    uri = f"bmq://bmq.test.small.priority/emptied-{uuid.uuid4().hex}"
    write = write_partition(queue=uri, broker=broker.uri, max_retries=0, ack_timeout=60)

    def post(partition: int) -> PartitionReport:
        rows = (Row(value=f"{partition} {n}") for n in range(200))
        return write.post(rows, TaskScope("job", partition))

    with caplog.at_level("WARNING", "bmq.spark"), ThreadPoolExecutor() as pool:
        consuming = pool.submit(broker.drain, uri, expect=200 * partitions)
        reports = list(pool.map(post, range(partitions)))
    found = [message.data for message in consuming.result()]
    for partition, report in enumerate(reports):
        mine = b"%d " % partition
        assert [data for data in found if data.startswith(mine)] == [mine + b"%d" % n for n in range(200)]
        assert (report.acknowledged, report.retried) == (200, 0)
        assert report.waited > 0
        assert f"{report.waited:.1f} s of waiting for room" in str(report)
    told = {line.getMessage() for line in caplog.records if "is full" in line.getMessage()}
    assert told == {f"{uri} is full: rows wait for free space, up to 60 s"}


def test_restored_connection_loses_and_duplicates_no_row(stage: Stage) -> None:
    def rows() -> Any:
        for n in range(20_000):
            if n in (5000, 12_000):
                stage.broker.call(lambda b: b.restart(graceful=False))
            yield Row(value=f"{n}")

    report = write_partition(**stage.target).post(rows(), TaskScope("job"))
    assert report.acknowledged == 20_000
    assert report.reconnects >= 1
    got = sorted(int(m.data) for m in stage.drain(20_000))
    assert got == list(range(20_000))
