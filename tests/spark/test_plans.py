# SPDX-License-Identifier: Apache-2.0
"""Real Spark: each plan sees all rows of a read, and no row leaves the queue without a confirmation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import bmq
import bmq.spark
from tests.spark.brokers import BrokerThread

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.timeout(400),  # a JVM and Pythons start, which takes a minute on a busy machine
]

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


def post(broker: BrokerThread, queue: str, count: int = ROWS) -> None:
    broker.post(queue, [b"%d" % number for number in range(count)])


def load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("bmq").options(**options).load()


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_no_plan_loses_a_row_or_takes_one_out(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path, adaptive: str
) -> None:
    post(broker, queue)
    options = {"broker": broker.uri, "queue": queue, "idleTimeoutMs": "200", "numPartitions": "2"}
    if adaptive == "true":
        options["checkpointLocation"] = str(tmp_path)
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    got = {name: act(load(spark, options)) for name, (act, _) in PLANS.items()}
    assert got == {name: expected for name, (_, expected) in PLANS.items()}
    if adaptive == "true":
        assert bmq.spark.confirm(options) == ROWS
    assert len(broker.drain(queue, idle=0.3)) == (0 if adaptive == "true" else ROWS)


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
    done = subprocess.run(
        [sys.executable, "-c", OTHER, *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    return [line for line in done.stdout.splitlines() if line.startswith("OTHER")]


def test_application_neither_shares_a_read_nor_confirms_foreign_messages(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    post(broker, queue)
    options = {"broker": broker.uri, "queue": queue, "idleTimeoutMs": "200"}
    options["checkpointLocation"] = str(tmp_path)
    assert other(broker.uri, queue, str(tmp_path), "die") == [f"OTHER {ROWS}"]
    with pytest.raises(bmq.StateError, match="this application has not read the rows since"):
        bmq.spark.confirm(options)
    assert load(spark, options).count() == ROWS
    refused = other(broker.uri, queue, str(tmp_path), "")
    assert ["both would write the same rows" in refused[0], "not read the rows since" in refused[1]] == [
        True,
        True,
    ]
    assert bmq.spark.confirm(options) == ROWS
    assert broker.drain(queue, idle=0.3) == []


def test_rows_are_confirmed_once_they_are_written(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    """The written rows determine the confirmations; the others are part of the next read."""
    post(broker, queue)
    options = {"broker": broker.uri, "queue": queue, "idleTimeoutMs": "200"}
    options["checkpointLocation"] = str(tmp_path / "reads")
    number = F.col("value").cast("string").cast("int")
    load(spark, options).where(number < 100).write.parquet(str(tmp_path / "small"))
    assert bmq.spark.confirm(options, spark.read.parquet(str(tmp_path / "small"))) == 100
    load(spark, options).write.parquet(str(tmp_path / "rest"))
    assert bmq.spark.confirm(options) == ROWS - 100
    stored = spark.read.parquet(str(tmp_path / "small"), str(tmp_path / "rest"))
    assert (stored.count(), stored.select("guid").distinct().count()) == (ROWS, ROWS)
    assert broker.drain(queue, idle=0.3) == []


def test_view_in_sql_confirms_no_message(spark: SparkSession, broker: BrokerThread, queue: str) -> None:
    post(broker, queue, 20)
    given = f"broker '{broker.uri}', queue '{queue}', idleTimeoutMs '200'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW waiting USING bmq OPTIONS ({given})")
    for _ in range(2):
        assert spark.sql("SELECT count(*) FROM waiting").first()[0] == 20  # type: ignore[index]
    assert len(broker.drain(queue, expect=20)) == 20


def test_trigger_once_confirms_its_stored_messages(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    post(broker, queue, 50)
    options = {"broker": broker.uri, "queue": queue, "checkpointLocation": str(tmp_path / "checkpoint")}
    options |= {"pollTimeoutMs": "5000", "lingerMs": "300"}
    stream = spark.readStream.format("bmq").options(**options).load()
    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(once=True).start().awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 50
    assert broker.drain(queue, idle=1.0) == []


def test_a_query_with_another_checkpoint_than_its_source_is_refused(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    """The refusal comes before any message is received, and the first query continues."""
    own, another = str(tmp_path / "own"), str(tmp_path / "another")

    def run(ours: str, sinks: str) -> None:
        stream = spark.readStream.format("bmq").options(broker=broker.uri, queue=queue)
        stream = stream.option("checkpointLocation", ours).option("pollTimeoutMs", "5000").load()
        writer = stream.writeStream.format("parquet").option("path", f"{sinks}-out")
        writer.option("checkpointLocation", sinks).trigger(availableNow=True).start().awaitTermination()

    post(broker, queue, 20)
    with pytest.raises(Exception, match=r"no query has its checkpoint in .*own, the checkpointLocation of"):
        run(own, another)
    run(own, own)
    post(broker, queue, 20)
    with pytest.raises(Exception, match="readStream has the checkpointLocation of another query"):
        run(own, f"{another}-2")
    run(own, own)
    assert spark.read.parquet(f"{own}-out").select("guid").distinct().count() == 40
    assert broker.drain(queue, idle=0.3) == []
