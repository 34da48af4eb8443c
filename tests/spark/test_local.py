# SPDX-License-Identifier: Apache-2.0
"""Real Spark in one process: all reads and writes of a queue."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import bmq.spark
from bmq.wire.put import DecodedPut
from tests.fakes.broker import Connection, Peer, ScriptedBroker
from tests.spark.brokers import BrokerThread

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.timeout(400),  # a JVM and Pythons start, which takes a minute on a busy machine
]


#: Whether Spark reports availableNow and committed offsets to a source: from pyspark 4.2 on.
TOLD = find_spec("pyspark.sql.streaming.datasource") is not None
IDLE = {"idleTimeoutMs": "500"} if TOLD else {}


def orders(spark: SparkSession, count: int, parts: int = 3) -> DataFrame:
    return spark.range(0, count, 1, parts).select(
        F.concat(F.lit("order "), "id").alias("body"),
        (F.col("id") % 10).cast("int").alias("CustomerId"),
        F.when(F.col("id") % 2 == 0, "EXPRESS").alias("OrderType"),
    )


def bodies(broker: BrokerThread, queue: str, count: int) -> list[int]:
    """Return the numbers of the orders in a queue, after this many have arrived."""
    return sorted(int(m.data.split()[-1]) for m in broker.drain(queue, expect=count))


def sink(frame: DataFrame, broker: BrokerThread, queue: str, **options: str) -> Any:
    options = {"valueColumn": "body", "propertyColumns": "CustomerId,OrderType", **options}
    return frame.write.format("bmq").options(broker=broker.uri, queue=queue, **options)


# batches


@pytest.mark.statement("8.5")
def test_a_batch_write_reaches_subscribers(spark: SparkSession, broker: BrokerThread, queue: str) -> None:
    sink(orders(spark, 1000), broker, queue).mode("append").save()
    selected = broker.drain(queue, expect=50, expression='CustomerId == 4 && OrderType == "EXPRESS"')
    assert sorted(int(m.data.split()[1]) for m in selected) == [n for n in range(1000) if n % 10 == 4]
    assert {dict(m.properties)["CustomerId"] for m in selected} == {4}
    rest = broker.drain(queue, expect=900)
    assert len(rest) == 900
    assert all(("OrderType" in m.properties) == (m.properties["CustomerId"] % 2 == 0) for m in rest)


def test_a_second_thread_writes_once_it_has_a_session(
    spark: SparkSession, broker: BrokerThread, queue: str
) -> None:
    """Spark finds a format in Python through the session of the thread in Java that writes."""
    frame = orders(spark, 10)

    def save(number: int) -> None:
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
        sink(frame, broker, queue).mode("append").save()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(save, range(4)))
    assert bodies(broker, queue, 40) == sorted([*range(10)] * 4)
    with ThreadPoolExecutor(1) as pool:  # the functions of bmq do not need it
        pool.submit(bmq.spark.write, frame, queue=queue, broker=broker.uri, value="body").result()
    assert bodies(broker, queue, 10) == list(range(10))


def test_the_plain_sink_counts(spark: SparkSession, broker: BrokerThread, queue: str) -> None:
    summary = bmq.spark.summary_accumulator(spark)
    write = bmq.spark.write_partition(
        queue=queue,
        broker=broker.uri,
        value="body",
        properties=["CustomerId", "OrderType"],
        summary=summary,
    )
    frame = orders(spark, 1000)
    frame.foreachPartition(write)
    assert (summary.value.partitions, summary.value.rows, summary.value.acknowledged) == (3, 1000, 1000)
    frame.foreachPartition(write)  # another action is another write
    assert len(bodies(broker, queue, 2000)) == 2000


def test_the_helper_returns_a_summary(spark: SparkSession, broker: BrokerThread, queue: str) -> None:
    options = {"value": "body", "properties": ["CustomerId"]}
    summary = bmq.spark.write(orders(spark, 1000), queue=queue, broker=broker.uri, **options)
    assert (summary.partitions, summary.rows, summary.acknowledged, summary.retried) == (3, 1000, 1000, 0)
    assert summary.bytes == sum(len(f"order {n}") for n in range(1000))
    assert str(summary).startswith("1,000 rows, 1,000 acknowledged in 3 partitions")
    assert bodies(broker, queue, 1000) == list(range(1000))


class KeepsPosts(Peer):
    """A broker that keeps the PUT events and the identity of each connection."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[list[DecodedPut]] = []
        self.seen = 0

    def accept(self) -> Connection:
        script = ScriptedBroker()
        answer = script.posted

        def posted(puts: list[DecodedPut]) -> None:
            self.events.append(puts)
            answer(puts)

        script.posted = posted  # type: ignore[method-assign]
        return Connection(self, script)

    def take(self) -> tuple[list[list[DecodedPut]], set[tuple[object, ...]]]:
        """Return the events since the last call, and what the clients said about themselves."""
        events, self.events = self.events, []
        told = [connection.script.identity for connection in self.connections[self.seen :]]
        self.seen = len(self.connections)
        return events, {
            (each.client_type, each.sdk_language, each.sdk_version, each.protocol_version, each.features)
            for each in told
            if each is not None
        }


def without_guids(events: list[list[DecodedPut]]) -> list[tuple[object, ...]]:
    """Return the messages of events, in the order of their data, without the numbers of a session.

    A session numbers its queues, and the sequences of property names that it has met.
    """
    messages = [
        put._replace(guid=b"", queue_id=0, schema_id=put.schema_id > 0) for event in events for put in event
    ]
    return sorted(messages, key=lambda put: put.data)


@pytest.mark.statement("8.4", "8.10")
def test_applications_and_partitions_post_the_same_put_events(
    spark: SparkSession, broker: BrokerThread
) -> None:
    """An application, ``foreachPartition`` and ``format("bmq")``: the same rows are the same bytes."""
    peer = KeepsPosts()
    broker.call(lambda _: peer.start())
    uri = "bmq://bmq.test.mem.priority/orders"
    frame = orders(spark, 1000).withColumn("CustomerId", F.col("CustomerId").cast("long"))
    rows = [row.asDict() for row in frame.collect()]

    async def post() -> None:
        async with bmq.connect(peer.uri) as session:
            queue = await session.open_queue(uri, write=True)
            await queue.post_many(
                [
                    bmq.PutMessage(
                        row["body"].encode(),
                        {name: row[name] for name in ("CustomerId", "OrderType") if row[name] is not None},
                    )
                    for row in rows
                ]
            )

    try:
        broker.call(lambda _: post())
        posted, client = peer.take()
        assert len(without_guids(posted)) == 1000
        columns = ["CustomerId", "OrderType"]
        frame.foreachPartition(
            bmq.spark.write_partition(queue=uri, broker=peer.uri, value="body", properties=columns)
        )
        from_partitions = peer.take()
        target = frame.write.format("bmq").option("broker", peer.uri).option("queue", uri)
        target.options(valueColumn="body", propertyColumns=",".join(columns)).mode("append").save()
        from_source = peer.take()
    finally:
        broker.call(lambda _: peer.stop())
    for events, told in (from_partitions, from_source):
        assert told == client, "the partitions are posted by the client of applications"
        assert without_guids(events) == without_guids(posted)
        guids = {put.guid for event in events for put in event}
        assert len(guids) == 1000
        # A partition is one stream of PUT events, far fewer than its rows.
        assert 3 <= len(events) < 30


class DiesOnce:
    """A function for foreachPartition; its process is killed in the middle of the first attempt."""

    def __init__(self, write: Any) -> None:
        self.write = write

    def __call__(self, rows: Iterable[Any]) -> None:
        self.write(self._until_killed(rows))

    @staticmethod
    def _until_killed(rows: Iterable[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        for number, row in enumerate(rows):
            if number == 3000 and context.attemptNumber() == 0 and context.partitionId() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield row


def test_killed_task_is_repeated_without_duplicates(
    spark: SparkSession, broker: BrokerThread, queue: str
) -> None:
    write = bmq.spark.write_partition(queue=queue, broker=broker.uri, value="body")
    orders(spark, 15_000).foreachPartition(DiesOnce(write))
    assert bodies(broker, queue, 15_000) == list(range(15_000))


@pytest.mark.statement("8.5")
def test_a_batch_read_drains_the_queue(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    broker.post(queue, [bmq.PutMessage(f"{n}".encode(), {"n": n}) for n in range(500)])
    options = {"broker": broker.uri, "queue": queue, "checkpointLocation": str(tmp_path)}
    reader = spark.read.format("bmq").options(**options, idleTimeoutMs="500")
    rows = reader.option("expression", "n < 100").load().collect()
    assert bmq.spark.confirm(options) == 100
    assert sorted(int(row.value) for row in rows) == list(range(100))
    assert rows[0].properties["n"] == bytes(rows[0].value).decode()
    typed = reader.options(propertiesSchema="n BIGINT", expression="").load()
    assert typed.agg(F.sum("properties.n")).first()[0] == sum(range(100, 500))
    assert bmq.spark.confirm(options) == 400
    assert broker.drain(queue, idle=0.1) == []


# streams

ORDER = "body STRING, CustomerId INT"


def add_file(folder: Path, first: int, last: int) -> None:
    """Add a file to a directory watched by a stream."""
    lines = [f'{{"body": "order {n}", "CustomerId": {n % 10}}}' for n in range(first, last)]
    folder.mkdir(exist_ok=True)
    part = folder / f".{first}.json"
    part.write_text("\n".join(lines))
    part.rename(folder / f"{first}.json")


def incoming(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(ORDER).option("maxFilesPerTrigger", 1).json(str(folder))


def run(query_writer: Any) -> Any:
    query = query_writer.trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert not query.isActive
    return query


def test_stream_is_written_and_continues_after_a_restart(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    def go() -> None:
        stream = incoming(spark, tmp_path / "in").writeStream.format("bmq")
        stream = stream.options(broker=broker.uri, queue=queue, valueColumn="body")
        stream = stream.option("propertyColumns", "CustomerId")
        run(stream.option("checkpointLocation", str(tmp_path / "checkpoint")))

    add_file(tmp_path / "in", 0, 500)
    add_file(tmp_path / "in", 500, 1000)
    go()
    # As if the driver had died between the last acknowledgement and Spark's own note of it.
    commits = tmp_path / "checkpoint" / "commits"
    for name in ("1", ".1.crc"):
        (commits / name).unlink(missing_ok=True)
    add_file(tmp_path / "in", 1000, 1500)
    go()
    assert bodies(broker, queue, 1500) == list(range(1500))


def test_writes_in_foreach_batch(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    """A named write is repeated with its batch; writes without a name are always separate writes."""
    plain, alike, uri = f"{queue}-plain", f"{queue}-alike", broker.uri

    def save(frame: DataFrame, batch: int) -> None:
        options = {"broker": uri, "value": "body"}
        frame.foreachPartition(bmq.spark.write_partition(queue=plain, write_name="plain", **options))
        for name in ("first", "second"):
            write = frame.select("body").write.format("bmq").mode("append")
            write.options(broker=uri, queue=queue, valueColumn="body", writeName=name).save()
        once = bmq.spark.write_partition(queue=alike, **options)
        for _ in range(2):
            frame.foreachPartition(once)
            bmq.spark.write(frame, queue=alike, **options)
            write = frame.select("body").write.format("bmq").mode("append")
            write.options(broker=uri, queue=alike, valueColumn="body").save()

    add_file(tmp_path / "in", 0, 100)
    for attempt in range(2):
        writer = incoming(spark, tmp_path / "in").writeStream.foreachBatch(save)
        run(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
        assert bodies(broker, alike, 600) == sorted([*range(100)] * 6)
        if attempt == 0:  # the batch is repeated as a whole
            for name in ("0", ".0.crc"):
                (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    assert bodies(broker, plain, 100) == list(range(100))
    assert bodies(broker, queue, 200) == sorted([*range(100), *range(100)])


def messages(spark: SparkSession, broker: BrokerThread, queue: str, folder: Path, **options: str) -> Any:
    options = {"checkpointLocation": str(folder / "checkpoint"), **IDLE, **options}
    reader = spark.readStream.format("bmq").options(broker=broker.uri, queue=queue, **options)
    writer = reader.load().writeStream.format("parquet").option("path", str(folder / "out"))
    return writer.option("checkpointLocation", str(folder / "checkpoint"))


def written(spark: SparkSession, folder: Path) -> list[int]:
    rows = spark.read.parquet(str(folder / "out")).select("value").collect()
    return sorted(int(row.value) for row in rows)


def test_stream_is_read_in_batches_and_continues_after_a_restart(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    options = {"maxMessagesPerTrigger": "40", "numPartitions": "2"}
    broker.post(queue, [f"{n}".encode() for n in range(100)])
    query = run(messages(spark, broker, queue, tmp_path, **options))
    counts = [progress["numInputRows"] for progress in query.recentProgress]
    assert [count for count in counts if count] == [40, 40, 20]
    last = [p for p in query.recentProgress if p["numInputRows"]][-1]
    assert '"messages": 100' in last["sources"][0]["endOffset"].replace(":1", ": 1")
    broker.post(queue, [f"{n}".encode() for n in range(100, 150)])
    run(messages(spark, broker, queue, tmp_path, **options))
    assert written(spark, tmp_path) == list(range(150))
    assert broker.drain(queue) == []


def test_stream_runs_until_stopped(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    for first, last in ((0, 100), (100, 150)):
        broker.post(queue, [f"{n}".encode() for n in range(first, last)])
        options = {"maxMessagesPerTrigger": "40", "numPartitions": "2", "logPath": str(tmp_path / "log")}
        reader = spark.readStream.format("bmq").options(broker=broker.uri, queue=queue, **options)
        writer = reader.load().writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            done = 0
            while done < last - first:
                query.awaitTermination(1)
                done = sum(progress["numInputRows"] for progress in query.recentProgress)
        finally:
            query.stop()
        assert max(progress["numInputRows"] for progress in query.recentProgress) <= 40
        assert written(spark, tmp_path) == list(range(last))


def test_a_load_has_the_documented_schema(spark: SparkSession, queue: str) -> None:
    schema = spark.read.format("bmq").option("queue", queue).load().schema
    assert isinstance(schema, StructType)
    assert schema.simpleString() == (
        "struct<value:binary,properties:map<string,string>,guid:string,queue:string,"
        "subscription:string,redelivered:boolean,receivedAt:timestamp,error:string>"
    )
