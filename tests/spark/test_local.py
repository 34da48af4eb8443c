# SPDX-License-Identifier: Apache-2.0
"""Real Spark in one process: all reads and writes of a queue."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import bmq
import bmq.spark
from bmq.wire.put import DecodedPut
from tests.fakes.broker import Peer, ScriptedBroker
from tests.spark.bench import Stage, numbers


def orders(spark: SparkSession, count: int, parts: int = 3) -> DataFrame:
    return spark.range(0, count, 1, parts).select(
        F.concat(F.lit("order "), "id").alias("body"),
        (F.col("id") % 10).cast("int").alias("CustomerId"),
        F.when(F.col("id") % 2 == 0, "EXPRESS").alias("OrderType"),
    )


def bodies(stage: Stage, count: int, suffix: str = "") -> list[int]:
    """Return the numbers of the orders in a queue, after this many have arrived."""
    return sorted(int(m.data.split()[-1]) for m in stage.drain(count, suffix))


def sink(frame: DataFrame, stage: Stage, **options: str) -> Any:
    given = {**stage.target, "valueColumn": "body", "propertyColumns": "CustomerId,OrderType", **options}
    return frame.write.format("bmq").mode("append").options(**given)


@pytest.mark.statement("8.5")
def test_a_batch_write_reaches_subscribers(spark: SparkSession, stage: Stage) -> None:
    sink(orders(spark, 1000), stage).save()
    selected = stage.drain(50, expression='CustomerId == 4 && OrderType == "EXPRESS"')
    assert sorted(int(m.data.split()[1]) for m in selected) == [n for n in range(1000) if n % 10 == 4]
    assert {dict(m.properties)["CustomerId"] for m in selected} == {4}
    rest = stage.drain(900)
    assert len(rest) == 900
    assert all(("OrderType" in m.properties) == (m.properties["CustomerId"] % 2 == 0) for m in rest)


def test_a_second_thread_writes_once_it_has_a_session(spark: SparkSession, stage: Stage) -> None:
    """Spark finds a format in Python through the session of the thread in Java that writes."""
    frame = orders(spark, 10)

    def save(number: int) -> None:
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
        sink(frame, stage).save()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(save, range(4)))
    assert bodies(stage, 40) == sorted([*range(10)] * 4)
    with ThreadPoolExecutor(1) as pool:  # the functions of bmq do not need it
        pool.submit(bmq.spark.write, frame, value="body", **stage.target).result()
    assert bodies(stage, 10) == list(range(10))


def test_writes_outside_of_the_format_return_summaries(spark: SparkSession, stage: Stage) -> None:
    frame, total = orders(spark, 1000), bmq.spark.summary_accumulator(spark)
    options: dict[str, Any] = {**stage.target, "value": "body", "properties": ["CustomerId", "OrderType"]}
    write = bmq.spark.write_partition(**options, summary=total)
    frame.foreachPartition(write)
    for summary in (total.value, bmq.spark.write(frame, **options)):
        assert (summary.partitions, summary.rows, summary.acknowledged, summary.retried) == (3, 1000, 1000, 0)
        assert summary.bytes == sum(len(f"order {n}") for n in range(1000))
        assert str(summary).startswith("1,000 rows, 1,000 acknowledged in 3 partitions")
    frame.foreachPartition(write)  # another action is another write
    assert bodies(stage, 3000) == sorted([*range(1000)] * 3)


def comparable(events: list[list[DecodedPut]]) -> list[DecodedPut]:
    """Messages in the order of their data, without GUIDs and the numbers of a session.

    A session numbers its queues, and the sequences of property names that it has met.
    """
    plain = [
        put._replace(guid=b"", queue_id=0, schema_id=put.schema_id > 0) for event in events for put in event
    ]
    return sorted(plain, key=lambda put: put.data)


@pytest.mark.statement("8.4", "8.10")
def test_applications_and_partitions_post_the_same_put_events(
    spark: SparkSession, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application, ``foreachPartition`` and ``format("bmq")``: the same rows are the same bytes."""
    events: list[list[DecodedPut]] = []
    answer = ScriptedBroker.posted

    def posted(script: ScriptedBroker, puts: list[DecodedPut]) -> None:
        events.append(puts)
        answer(script, puts)

    monkeypatch.setattr(ScriptedBroker, "posted", posted)
    peer = Peer()
    stage.broker.call(lambda _: peer.start())
    columns = ["CustomerId", "OrderType"]
    target = {"queue": stage.queue, "broker": peer.uri}
    frame = orders(spark, 1000).withColumn("CustomerId", F.col("CustomerId").cast("long"))
    rows = [
        bmq.PutMessage(row.body.encode(), {name: row[name] for name in columns if row[name] is not None})
        for row in frame.collect()
    ]

    async def post(_: object) -> None:
        async with bmq.connect(peer.uri) as session:
            await (await session.open_queue(stage.queue, write=True)).post_many(rows)

    try:
        stage.broker.call(post)
        by_hand = comparable(events)
        write = bmq.spark.write_partition(**target, value="body", properties=columns)
        for act in (lambda: frame.foreachPartition(write), sink(frame, stage, **target).save):
            events.clear()
            act()
            assert 3 <= len(events) < 30  # a partition is one stream of PUT events, far fewer than its rows
            assert len({put.guid for event in events for put in event}) == 1000
            assert comparable(events) == by_hand
        told = [connection.script.identity for connection in peer.connections]
        kinds = {
            (each.client_type, each.sdk_language, each.sdk_version, each.features) for each in told if each
        }
        assert len(kinds) == 1, "the partitions are posted by the client of applications"
        assert None not in told
    finally:
        stage.broker.call(lambda _: peer.stop())


def test_a_load_has_the_documented_schema(spark: SparkSession, queue: str) -> None:
    assert spark.read.format("bmq").option("queue", queue).load().schema.simpleString() == (
        "struct<value:binary,properties:map<string,string>,guid:string,queue:string,"
        "subscription:string,redelivered:boolean,receivedAt:timestamp,error:string>"
    )


def add_file(folder: Path, first: int, last: int) -> None:
    lines = [f'{{"body": "order {n}", "CustomerId": {n % 10}}}' for n in range(first, last)]
    folder.mkdir(exist_ok=True)
    (folder / f"{first}.json").write_text("\n".join(lines))


def incoming(spark: SparkSession, stage: Stage) -> Any:
    stream = spark.readStream.schema("body STRING, CustomerId INT").option("maxFilesPerTrigger", 1)
    return stream.json(str(stage.folder / "in")).writeStream


def run(writer: Any, stage: Stage) -> Any:
    writer = writer.option("checkpointLocation", str(stage.folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert not query.isActive
    return query


def uncommit(stage: Stage, batch: int) -> None:
    """As if the driver had died between the end of a batch and Spark's own note of it."""
    for name in (f"{batch}", f".{batch}.crc"):
        (stage.folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)


def test_stream_is_written_and_continues_after_a_restart(spark: SparkSession, stage: Stage) -> None:
    options = {**stage.target, "valueColumn": "body", "propertyColumns": "CustomerId"}
    add_file(stage.folder / "in", 0, 500)
    add_file(stage.folder / "in", 500, 1000)
    run(incoming(spark, stage).format("bmq").options(**options), stage)
    uncommit(stage, 1)
    add_file(stage.folder / "in", 1000, 1500)
    run(incoming(spark, stage).format("bmq").options(**options), stage)
    assert bodies(stage, 1500) == list(range(1500))


def test_writes_in_foreach_batch(spark: SparkSession, stage: Stage) -> None:
    """A named write is repeated with its batch; writes without a name are always separate writes."""
    plain, alike = ({**stage.target, "queue": stage.queue + suffix} for suffix in ("-plain", "-alike"))

    def save(frame: DataFrame, batch: int) -> None:
        body = frame.select("body")
        write = bmq.spark.write_partition(**plain, value="body", write_name="plain")
        frame.foreachPartition(write)
        for name in ("first", "second"):
            sink(body, stage, propertyColumns="", writeName=name).save()
        once = bmq.spark.write_partition(**alike, value="body")
        for _ in range(2):
            frame.foreachPartition(once)
            bmq.spark.write(frame, **alike, value="body")
            sink(body, stage, propertyColumns="", **alike).save()

    add_file(stage.folder / "in", 0, 100)
    for _ in range(2):
        run(incoming(spark, stage).foreachBatch(save), stage)
        assert bodies(stage, 600, "-alike") == sorted([*range(100)] * 6)
        uncommit(stage, 0)  # the batch is repeated as a whole
    assert bodies(stage, 100, "-plain") == list(range(100))
    assert bodies(stage, 200) == sorted([*range(100), *range(100)])


def test_stream_is_read_and_continues_after_a_restart(spark: SparkSession, stage: Stage) -> None:
    options = {"maxMessagesPerTrigger": "40", "numPartitions": "2", "idleTimeoutMs": "500"}
    options |= {**stage.target, "checkpointLocation": str(stage.folder / "checkpoint")}
    for first, last, batches in ((0, 100, [40, 40, 20]), (100, 150, [40, 10])):
        stage.post(first, last)
        stream = spark.readStream.format("bmq").options(**options).load()
        writer = stream.writeStream.format("parquet").option("path", str(stage.folder / "out"))
        progress = [each for each in run(writer, stage).recentProgress if each["numInputRows"]]
        assert [each["numInputRows"] for each in progress] == batches
        assert f'"messages": {last}' in progress[-1]["sources"][0]["endOffset"].replace(":1", ": 1")
        uncommit(stage, 2)  # the sink has it already
    rows = spark.read.parquet(str(stage.folder / "out")).select("value").collect()
    assert sorted(int(row.value) for row in rows) == list(range(150))
    assert stage.left() == []


# plans: each sees all rows of a read, and no row leaves the queue without a confirmation


ROWS = 300


def fails_after_its_last_row(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0:
        raise RuntimeError("behind the last row, on purpose")


def self_join(read: DataFrame) -> int:
    counts = read.groupBy("queue").count()
    return int(read.join(counts, "queue").where(f"count = {ROWS}").count())


def cached(read: DataFrame) -> int:
    kept = read.cache()
    first = kept.count()
    kept.unpersist(True)
    assert read.count() == first
    return first


#: What is done with a read, and how many rows there must be.
PLANS: dict[str, tuple[Callable[[DataFrame], int], int]] = {
    "count": (lambda read: read.count(), ROWS),
    "sort": (lambda read: len(read.orderBy("guid").collect()), ROWS),
    "range partitions": (lambda read: read.repartitionByRange(3, "guid").count(), ROWS),
    "hash partitions": (lambda read: read.repartition(3, "guid").count(), ROWS),
    "self join": (self_join, ROWS),
    "join of two scans": (lambda read: read.alias("a").join(read.alias("b"), "guid").count(), ROWS),
    "broadcast join": (lambda read: read.join(F.broadcast(read.select("guid")), "guid").count(), ROWS),
    "union with itself": (lambda read: read.union(read).select("guid").distinct().count(), ROWS),
    "failure behind the last row": (
        lambda read: read.select("guid").mapInArrow(fails_after_its_last_row, "guid STRING").count(),
        ROWS,
    ),
    "cache and again": (cached, ROWS),
    "limit": (lambda read: len(read.limit(5).collect()), 5),
    "take": (lambda read: len(read.take(1)), 1),
    "is empty": (lambda read: int(read.isEmpty()), 0),
    "show": (lambda read: read.show(2) or 0, 0),
    "explain": (lambda read: read.orderBy("guid").explain() or 0, 0),
}


@pytest.fixture
def full(stage: Stage) -> Stage:
    stage.post(0, ROWS)
    return stage


def load(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    return spark.read.format("bmq").options(**options).load()


@pytest.mark.statement("8.5")
@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_no_plan_loses_a_row_or_takes_one_out(spark: SparkSession, full: Stage, adaptive: str) -> None:
    stored = adaptive == "true"
    options = full.options(numPartitions=2) if stored else full.options(checkpointLocation="")
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    got = {name: act(load(spark, options)) for name, (act, _) in PLANS.items()}
    assert got == {name: expected for name, (_, expected) in PLANS.items()}
    if stored:
        assert full.confirm() == ROWS
    assert full.left() == ([] if stored else numbers(0, ROWS))


#: Another application, on the same folder.
OTHER = """
import sys
import bmq.spark
from tests.spark.conftest import start_spark
broker, queue, folder, end = sys.argv[1:]
options = {"broker": broker, "queue": queue, "idleTimeoutMs": "200", "checkpointLocation": folder}
frame = start_spark("local[1]").read.format("bmq").options(**options).load()
for ask in (frame.count, lambda: bmq.spark.confirm(options)):
    try:
        print("OTHER", ask())
    except Exception as error:
        print("OTHER", " ".join(str(error).split()))
    if end == "die":
        import os, signal
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def other(*arguments: str) -> list[str]:
    command = [sys.executable, "-c", OTHER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return [line for line in done.stdout.splitlines() if line.startswith("OTHER")]


def test_application_neither_shares_a_read_nor_confirms_another(spark: SparkSession, full: Stage) -> None:
    where = (full.broker.uri, full.queue, str(full.options()["checkpointLocation"]))
    assert other(*where, "die") == [f"OTHER {ROWS}"]
    with pytest.raises(bmq.StateError, match="this application has not read the rows since"):
        full.confirm()
    assert load(spark, full.options()).count() == ROWS
    reading, confirming = other(*where, "")
    assert "both would write the same rows" in reading
    assert "not read the rows since" in confirming
    assert full.confirm() == ROWS
    assert full.left() == []


def test_rows_are_confirmed_once_they_are_written(spark: SparkSession, full: Stage) -> None:
    """The written rows determine the confirmations; the others are part of the next read."""
    small, rest = str(full.folder / "small"), str(full.folder / "rest")
    rows = load(spark, full.options())
    rows.where("CAST(CAST(value AS STRING) AS INT) < 100").write.parquet(small)
    assert full.confirm(spark.read.parquet(small)) == 100
    load(spark, full.options()).write.parquet(rest)
    assert full.confirm() == ROWS - 100
    stored = spark.read.parquet(small, rest)
    assert (stored.count(), stored.select("guid").distinct().count()) == (ROWS, ROWS)
    assert full.left() == []


def to_parquet(spark: SparkSession, stage: Stage, sink: str = "own", **trigger: Any) -> int:
    """Run a stream into files, with a checkpoint; return how many messages the files have."""
    options = {**stage.target, "checkpointLocation": str(stage.folder / "own")}
    options |= {"pollTimeoutMs": "5000", "lingerMs": "300"}
    stream = spark.readStream.format("bmq").options(**options).load()
    checkpoint = str(stage.folder / sink)
    writer = stream.writeStream.format("parquet").option("path", f"{checkpoint}-out")
    writer.option("checkpointLocation", checkpoint).trigger(**trigger).start().awaitTermination()
    return spark.read.parquet(f"{checkpoint}-out").select("guid").distinct().count()


def test_trigger_once_confirms_its_stored_messages(spark: SparkSession, full: Stage) -> None:
    assert to_parquet(spark, full, once=True) == ROWS
    assert full.left() == []


def test_a_query_with_another_checkpoint_is_refused(spark: SparkSession, full: Stage) -> None:
    """The refusal comes before any message is received, and the first query continues."""
    with pytest.raises(Exception, match=r"no query has its checkpoint in .*own, the checkpointLocation of"):
        to_parquet(spark, full, "another", availableNow=True)
    assert to_parquet(spark, full, availableNow=True) == ROWS
    full.post(0, 20)
    with pytest.raises(Exception, match="readStream has the checkpointLocation of another query"):
        to_parquet(spark, full, "another-2", availableNow=True)
    assert to_parquet(spark, full, availableNow=True) == ROWS + 20
    assert full.left() == []
