# SPDX-License-Identifier: Apache-2.0
"""The plain sink, called as Spark does, without a JVM."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    TimestampType,
)

import bmq
from bmq.arrow.decoding import pa
from bmq.spark import connection, write_partition
from bmq.spark.partition import TaskScope, post_partition
from tests.fakes.broker import Peer
from tests.spark.brokers import DOMAIN, BrokerThread
from tests.spark.readers import struct
from tests.waiting import eventually

ORDERS = [
    Row(body=f"order {n}", CustomerId=n % 7, OrderType="EXPRESS" if n % 3 else None, weight=1.5)
    for n in range(2500)
]


def sink(broker: BrokerThread, queue: str, **options: Any) -> Any:
    options = {"value": "body", "properties": ["CustomerId", "OrderType"], **options}
    return write_partition(queue=queue, broker=broker.uri, **options)


@pytest.mark.statement("8.4")
def test_rows_become_messages_with_properties(broker: BrokerThread, queue: str) -> None:
    sink(broker, queue)(iter(ORDERS))
    messages = broker.drain(queue, expect=len(ORDERS))
    assert [m.data for m in messages] == [f"order {n}".encode() for n in range(2500)]
    assert dict(messages[0].properties) == {"CustomerId": 0}  # null is an absent property
    assert dict(messages[1].properties) == {"CustomerId": 1, "OrderType": "EXPRESS"}


def test_keys_and_times_of_rows(broker: BrokerThread, queue: str) -> None:
    """A datetime without a time zone is local, as in Spark."""
    at = datetime(2001, 9, 9, 1, 46, 40)
    rows = [Row(body="a", k=17, at=at), Row(body="b", k=b"order-17", at=at.astimezone(UTC))]
    rows += [Row(body="c", k="17", at=1e9), Row(body="d", k=None, at=None)]
    columns = {"properties": [], "key_column": "k", "not_before_column": "at"}
    for row in rows:
        sink(broker, queue, **columns)(iter([row]))
    (now,) = broker.drain(queue, expect=1)
    assert (now.data, dict(now.properties)) == (b"d", {})
    later = broker.drain(f"{queue}.delayed", expect=3)
    assert [m.properties["bmq_bucket"] for m in later] == [1185206396, 446481201, 1185206396]
    local = int(at.timestamp() * 1000)
    assert [m.properties["bmq_due"] for m in later] == [local, local, 10**12]
    assert {m.properties["bmq_destination"] for m in later} == {queue}
    with pytest.raises(bmq.UsageError, match="row 0 of the partition: 'soon' is not a time"):
        sink(broker, queue, **columns)(iter([Row(body="x", k=None, at="soon")]))


def test_entries_of_maps_and_structs_become_properties(broker: BrokerThread, queue: str) -> None:
    rows = [Row(body="x", tags={"a": 1, "b": None}, more=Row(c="d", e=None))]
    sink(broker, queue, properties=["tags", "more"])(iter(rows))
    (message,) = broker.drain(queue, expect=1)
    assert dict(message.properties) == {"a": 1, "c": "d"}


def test_neighbours_may_have_values_of_different_types(broker: BrokerThread, queue: str) -> None:
    values = [1, "one", True, b"1", None, bytearray(b"2"), {"a": 1}, {"a": "x", "b": None}, Row(c=False), 2]
    rows = [Row(body=f"{n}" if n % 2 else b"%d" % n, p=value) for n, value in enumerate(values * 20)]
    sink(broker, queue, properties=["p"])(iter(rows))
    got = broker.drain(queue, expect=200)
    assert [int(m.data) for m in got] == list(range(200))
    plain = [{"p": 1}, {"p": "one"}, {"p": True}, {"p": b"1"}, {}, {"p": b"2"}]
    assert [dict(m.properties) for m in got] == [*plain, {"a": 1}, {"a": "x"}, {"c": False}, {"p": 2}] * 20


def test_entries_of_several_maps_are_distinguished_by_row(broker: BrokerThread, queue: str) -> None:
    rows = [
        Row(body="x", one={"a": 1}, two={"b": 2}, b=None),
        Row(body="y", one={"b": 3}, two={"a": "4", "b": 5}, b=None),
        Row(body="z", one={"b": 3}, two={}, b=6),
    ]
    sink(broker, queue, properties=["one", "two", "b"])(iter(rows))
    got = [dict(m.properties) for m in broker.drain(queue, expect=3)]
    assert got == [{"a": 1, "b": 2}, {"a": "4", "b": 3}, {"b": 6}]


def test_a_column_names_the_queue(broker: BrokerThread, queue: str) -> None:
    rows = [Row(body=f"{n}", to=f"{queue}-{n % 2}") for n in range(10)]
    write_partition(broker=broker.uri, value="body", queue_column="to")(iter(rows))
    assert [m.data for m in broker.drain(f"{queue}-0", expect=5)] == [b"0", b"2", b"4", b"6", b"8"]
    assert [m.data for m in broker.drain(f"{queue}-1", expect=5)] == [b"1", b"3", b"5", b"7", b"9"]


async def test_an_empty_partition_opens_no_connection() -> None:
    async with Peer() as peer:
        write = write_partition(queue=f"bmq://{DOMAIN}/q", broker=peer.uri)
        report = await asyncio.to_thread(write.post, iter([]), TaskScope("job", 7, attempt=2))
        assert peer.connections == []
    assert (report.partition, report.attempt) == (7, 2)
    assert (report.rows, report.acknowledged, report.bytes) == (0, 0, 0)


def test_one_session_serves_all_partitions(broker: BrokerThread, queue: str) -> None:
    write = sink(broker, queue)
    connected = []
    for partition in range(4):
        write.post(iter(ORDERS[:10]), TaskScope("job", partition))
        connected.append(broker.call(lambda b: {id(c) for c in b._connections}))
    assert len(connected[0]) == 1
    assert connected.count(connected[0]) == 4
    assert len(broker.drain(queue, expect=40)) == 40


def test_an_idle_session_is_closed(broker: BrokerThread, queue: str) -> None:
    connection.shutdown()
    write = sink(broker, queue, idle_timeout=0.05)
    write(iter(ORDERS[:10]))
    broker.call(lambda b: eventually(lambda: not b._connections))
    write(iter(ORDERS[10:20]))
    assert len(broker.drain(queue, expect=20)) == 20


def test_a_forked_child_does_not_use_its_parents_sessions(broker: BrokerThread, queue: str) -> None:
    mine = connection.session_thread()
    mine.forked = True  # what a child sees after a fork
    other = connection.session_thread()
    assert other is not mine
    connection.shutdown()
    mine.forked = False
    mine.end(10)


# repeated tasks


def shuffled(rows: list[Any], seed: int) -> list[Any]:
    rows = list(rows)
    random.Random(seed).shuffle(rows)
    return rows


def test_repeated_task_in_any_order_adds_no_message(broker: BrokerThread, queue: str) -> None:
    # Each four times.
    rows = [Row(body=f"row {n % 200}", CustomerId=n % 3, OrderType=None) for n in range(2400)]
    write = sink(broker, queue)
    partial = itertools.islice(shuffled(rows, 1), 1700)
    write.post(partial, TaskScope("job", 3, attempt=0))  # died here
    write.post(iter(shuffled(rows, 2)), TaskScope("job", 3, attempt=1))
    write.post(iter(shuffled(rows, 3)), TaskScope("job", 3, attempt=2))
    got = sorted((m.data, m.properties["CustomerId"]) for m in broker.drain(queue, expect=2400))
    assert got == sorted((row.body.encode(), row.CustomerId) for row in rows)


@pytest.mark.parametrize(
    ("other", "options"),
    [(TaskScope("other", 3), {}), (TaskScope("job", 4), {}), (TaskScope("job", 3), {"write_name": "second"})],
    ids=["another job", "another partition", "another write"],
)
def test_equal_rows_of_another_write_are_different_messages(
    broker: BrokerThread, queue: str, other: TaskScope, options: dict[str, str]
) -> None:
    sink(broker, queue).post(iter(ORDERS[:100]), TaskScope("job", 3))
    sink(broker, queue, **options).post(iter(ORDERS[:100]), other)
    assert len(broker.drain(queue, expect=200)) == 200


def test_entries_of_maps_are_distinguished_by_name_in_a_repeated_task(
    broker: BrokerThread, queue: str
) -> None:
    one, other = Row(body="x", more={"weight": 1}), Row(body="x", more={"height": 1})
    write = write_partition(queue=queue, broker=broker.uri, value="body", properties=["more"])
    write.post(iter([one]), TaskScope("job", 3, attempt=0))  # died here
    write.post(iter([other, one]), TaskScope("job", 3, attempt=1))
    got = [dict(m.properties) for m in broker.drain(queue, expect=2)]
    assert sorted(got, key=str) == [{"height": 1}, {"weight": 1}]


def test_every_call_is_a_separate_write_unless_named(broker: BrokerThread, queue: str) -> None:
    for _ in range(2):
        sink(broker, queue)(iter(ORDERS[:10]))
    assert len(broker.drain(queue, expect=20)) == 20
    for _ in range(2):
        sink(broker, queue, write_name="nightly 2013-07-08")(iter(ORDERS[:10]))
    assert len(broker.drain(queue, expect=10)) == 10


def test_ids_make_rows_that_change_idempotent(broker: BrokerThread, queue: str) -> None:
    for attempt in range(3):
        rows = [Row(body=f"{n} at {attempt}", key=n) for n in range(50)]
        write_partition(queue=queue, broker=broker.uri, value="body", id_column="key")(iter(rows))
    assert [m.data for m in broker.drain(queue, expect=50)] == [f"{n} at 0".encode() for n in range(50)]


def test_an_id_is_one_message_in_each_queue(broker: BrokerThread, queue: str) -> None:
    for uri in (queue, f"{queue}-other"):
        write_partition(queue=uri, broker=broker.uri, value="body", id_column="key")(
            iter([Row(body="x", key=1)])
        )
    found = [broker.drain(uri, expect=1)[0].guid for uri in (queue, f"{queue}-other")]
    assert len(set(found)) == 2


def test_a_row_without_an_id_is_named(broker: BrokerThread, queue: str) -> None:
    rows = [Row(body="x", key=n if n != 150 else None) for n in range(200)]
    with pytest.raises(bmq.UsageError, match="row 150 of the partition: column 'key' is null"):
        write_partition(queue=queue, broker=broker.uri, value="body", id_column="key")(iter(rows))


def test_rows_are_read_as_they_are_posted(broker: BrokerThread, queue: str) -> None:
    """A partition may be larger than memory."""
    count = 40_000
    stored: list[int] = []

    def rows() -> Iterator[Row]:
        for number in range(count):
            if number == count // 2:
                stored.append(broker.call(lambda running: len(running.queues[queue])))
            yield Row(body=f"{number}")

    sink(broker, queue, properties=[])(rows())
    assert stored[0] > 10_000


def test_a_rate_holds_rows_back(broker: BrokerThread, queue: str) -> None:
    started = time.monotonic()
    sink(broker, queue, rate=200.0)(iter(ORDERS[:60]))  # twenty at once, and twenty more twice
    assert time.monotonic() - started >= 0.19
    assert [message.data for message in broker.drain(queue)] == [row.body.encode() for row in ORDERS[:60]]
    with pytest.raises(bmq.UsageError, match="rate must be a number of messages a second"):
        sink(broker, queue, rate=0.0)


def test_a_repeated_id_is_one_message_and_is_counted(broker: BrokerThread, queue: str) -> None:
    rows = [Row(body=f"{n}", key=n % 10) for n in range(30)]
    write = write_partition(queue=queue, broker=broker.uri, value="body", id_column="key")
    report = write.post(iter(rows), TaskScope("job"))
    assert (report.rows, report.acknowledged, report.repeated) == (30, 10, 20)
    assert len(broker.drain(queue, expect=10)) == 10


def test_random_guids_do_not_deduplicate(broker: BrokerThread, queue: str) -> None:
    write = sink(broker, queue, guid_mode="random")
    for _ in range(2):
        write.post(iter(ORDERS[:10]), TaskScope("job"))
    assert len(broker.drain(queue, expect=20)) == 20


def test_guids_carry_the_version_of_clients(broker: BrokerThread, queue: str) -> None:
    for mode in ("content", "random", "id"):
        sink(broker, queue, guid_mode=mode, id_column="CustomerId")(iter(ORDERS[:7]))
    messages = broker.drain(queue, expect=21)
    assert {int(m.guid[0], 16) >> 2 for m in messages} == {1}
    assert len({m.guid for m in messages}) == 21


# failures


def test_an_unreachable_broker_is_named_within_the_deadline() -> None:
    write = write_partition(queue=f"bmq://{DOMAIN}/q", broker="tcp://127.0.0.1:1", connect_timeout=0.5)
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


async def test_rows_that_are_posted_again_keep_their_order() -> None:
    rows = [Row(value=f"{n}") for n in range(50)]
    async with Peer() as peer:
        peer.hold.add("PUT")
        write = write_partition(queue=f"bmq://{DOMAIN}/q", broker=peer.uri, retry_interval=0.01)
        writing = asyncio.create_task(asyncio.to_thread(write.post, iter(rows), TaskScope("job")))
        await eventually(lambda: peer.connections and len(peer.connection.script.puts) == 50, 30)
        script = peer.connection.script
        puts, script.puts = script.puts, []
        # The broker takes every other row, and says so in an order of its own.
        peer.connection.send(script.ack(puts[::2], bmq.AckStatus.SUCCESS))
        peer.connection.send(script.ack(puts[:0:-2], bmq.AckStatus.STORAGE_FAILURE))
        peer.answer("PUT")
        report = await writing
        await asyncio.to_thread(connection.shutdown)
    assert (report.acknowledged, report.retried) == (50, 25)
    assert peer.posted == list(range(1, 50, 2))


async def test_a_repeatedly_refused_row_is_named() -> None:
    async with Peer() as peer:
        peer.hold.add("PUT")
        write = write_partition(
            queue=f"bmq://{DOMAIN}/q", broker=peer.uri, max_retries=2, retry_interval=0.01
        )
        row = Row(value="x")
        writing = asyncio.create_task(asyncio.to_thread(write.post, iter([row]), TaskScope("job", 5)))
        for count in (1, 2, 3):
            await eventually(lambda: peer.connections and peer.connection.script.puts, 30)
            script = peer.connection.script
            puts, script.puts = script.puts, []
            assert len(puts) == 1, count
            peer.connection.send(script.ack(puts, bmq.AckStatus.STORAGE_FAILURE))
        with pytest.raises(bmq.PostError, match=r"row 0 of partition 5 .*after 2 retries: STORAGE_FAILURE"):
            await writing
        await asyncio.to_thread(connection.shutdown)


def test_a_full_queue_is_waited_for_and_keeps_the_order_of_rows(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty times the limit, and slices behind slices: no retry is counted, and no row overtakes another."""
    uri = f"bmq://bmq.test.small.priority/emptied-{uuid.uuid4().hex}"
    write = write_partition(queue=uri, broker=broker.uri, max_retries=0, ack_timeout=60)
    consumer = broker.start_draining(uri, 200)
    with caplog.at_level("WARNING", "bmq.spark"):
        report = write.post((Row(value=f"{n}") for n in range(200)), TaskScope("job"))
    assert [int(data) for data in consumer()] == list(range(200))
    assert (report.acknowledged, report.retried) == (200, 0)
    assert report.waited > 0
    assert f"{report.waited:.1f} s of waiting for room" in str(report)
    told = [line.getMessage() for line in caplog.records if "is full" in line.getMessage()]
    assert told == [f"{uri} is full: rows wait for free space, up to 60 s"]


def test_two_partitions_wait_for_the_same_room(broker: BrokerThread) -> None:
    uri = f"bmq://bmq.test.small.priority/shared-{uuid.uuid4().hex}"
    write = write_partition(queue=uri, broker=broker.uri, ack_timeout=60)
    consumer = broker.start_draining(uri, 200)

    def post(partition: int) -> Any:
        return write.post((Row(value=f"{partition} {n}") for n in range(100)), TaskScope("job", partition))

    with ThreadPoolExecutor() as pool:
        reports = list(pool.map(post, range(2)))
    assert sorted(consumer()) == sorted(b"%d %d" % (p, n) for p in range(2) for n in range(100))
    assert [report.acknowledged for report in reports] == [100, 100]


async def test_waiting_ends_when_a_row_is_refused_for_another_reason() -> None:
    """Full first, then the storage fails, then all is well: only the failure counts as a retry."""
    slice_ = pa.RecordBatch.from_pydict({"value": ["a", "b", "c", "d", "e"]})
    async with Peer() as peer:
        peer.hold.add("PUT")
        options = {"queue": f"bmq://{DOMAIN}/q", "retry_interval": 0.01, "max_retries": 1}
        settings = write_partition(broker=peer.uri, **options).options
        writing = asyncio.create_task(
            asyncio.to_thread(post_partition, iter([(0, slice_)]), settings, TaskScope("job"))
        )
        for status, expected in (
            (bmq.AckStatus.LIMIT_BYTES, 5),
            (bmq.AckStatus.LIMIT_MESSAGES, 1),
            (bmq.AckStatus.STORAGE_FAILURE, 1),
            (bmq.AckStatus.SUCCESS, 5),
        ):
            await eventually(
                lambda count=expected: peer.connections and len(peer.connection.script.puts) >= count, 30
            )
            script = peer.connection.script
            puts, script.puts = script.puts, []
            assert len(puts) == expected, status
            peer.connection.send(script.ack(puts, status))
        report = await writing
        await asyncio.to_thread(connection.shutdown)
    assert (report.acknowledged, report.retried) == (5, 5)


def test_restored_connection_loses_and_duplicates_no_row(broker: BrokerThread, queue: str) -> None:
    def rows() -> Any:
        for n in range(20_000):
            if n in (5000, 12_000):
                broker.call(lambda b: b.restart(graceful=False))
            yield Row(value=f"{n}")

    report = write_partition(queue=queue, broker=broker.uri).post(rows(), TaskScope("job"))
    assert report.acknowledged == 20_000
    assert report.reconnects >= 1
    got = sorted(int(m.data) for m in broker.drain(queue, expect=20_000))
    assert got == list(range(20_000))


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (Row(body=None, p=1), "row 150 of the partition: column 'body' is null"),
        (Row(body="", p=1), "row 150 of the partition: column 'body' has 0 bytes"),
        (Row(body=12, p=1), "row 150 of the partition: column 'body' is of type int"),
        (Row(body="x", p=1.5), "row 150 of the partition: column 'p' holds a value of type float"),
        (
            Row(body="x", p=2**70),
            "row 150 of the partition: property 'p': 1180591620717411303424 does not fit",
        ),
    ],
    ids=str,
)
def test_a_row_that_cannot_be_posted_is_named(broker: BrokerThread, queue: str, row: Row, text: str) -> None:
    rows = [Row(body="x", p=1)] * 150 + [row]
    with pytest.raises(bmq.UsageError) as info:
        sink(broker, queue, properties=["p"])(iter(rows))
    assert text in str(info.value)


def test_the_session_works_after_a_failure(broker: BrokerThread, queue: str) -> None:
    write = sink(broker, queue, properties=[])
    with pytest.raises(bmq.InvalidPayload):
        write(iter([Row(body=None)]))
    write(iter([Row(body="x")]))
    assert [m.data for m in broker.drain(queue, expect=1)] == [b"x"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": "", "queue_column": ""}, "name a queue"),
        ({"queue": "bmq://bmq.test.mem.fanout/q?id=foo"}, "names an application"),
        ({"queue": "http://x/y"}, "bmq://"),
        ({"guid_mode": "position"}, "guidMode must be one of content, id, random, source, not 'position'"),
        ({"guid_mode": "id"}, "guidMode=id needs idColumn"),
        ({"compression": "brotli"}, "compression must be one of none, zlib, not 'brotli'"),
    ],
)
def test_impossible_options_are_refused_at_once(options: dict[str, str], text: str) -> None:
    with pytest.raises(bmq.UsageError) as info:
        write_partition(**{"queue": f"bmq://{DOMAIN}/q", **options})  # type: ignore[arg-type]
    assert text in str(info.value)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": StringType(), "p": DoubleType()}, "column 'p' is of type double"),
        ({"body": StringType(), "p": DecimalType(10, 2)}, "column 'p' is of type decimal(10,2)"),
        ({"body": StringType(), "p": TimestampType()}, "column 'p' is of type timestamp"),
        ({"body": StringType(), "p": ArrayType(LongType())}, "column 'p' is of type array<bigint>"),
        ({"body": StringType(), "p": struct(a=LongType(), b=DateType())}, "column 'p.b' is of type date"),
        ({"body": StringType(), "p": MapType(StringType(), DoubleType())}, "column 'p[]' is of type double"),
        ({"body": LongType(), "p": LongType()}, "column 'body' is of type bigint"),
        (
            {"body": StringType(), "p": LongType(), "key": MapType(StringType(), LongType())},
            "column 'key' is of type map<string,bigint>; an id must be",
        ),
        ({"other": StringType()}, "no column 'body', 'p'; the DataFrame has: other"),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_posted_is_refused_at_once(columns: dict[str, DataType], text: str) -> None:
    options = {"id_column": "key"} if "key" in columns else {}
    with pytest.raises(bmq.UsageError) as info:
        write_partition(
            queue=f"bmq://{DOMAIN}/q", value="body", properties=["p"], schema=struct(**columns), **options
        )
    assert text in str(info.value)
