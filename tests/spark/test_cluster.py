# SPDX-License-Identifier: Apache-2.0
"""Real Spark on two executors, after a shuffle: repeated tasks neither lose nor duplicate a row.

A repeated task runs on another executor about every second time, and receives the same rows in another order,
which never happens in a single process.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import bmq.spark
from bmq.arrow.decoding import RecordBatch
from bmq.spark.partition import TaskScope
from tests.spark.brokers import BrokerThread

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.timeout(400),  # a JVM and Pythons start, which takes a minute on a busy machine
]

ROWS = 12_000


def shuffled(spark: SparkSession) -> DataFrame:
    """Rows that reach their partition through a shuffle; every third one occurs more than once."""
    numbers = spark.range(0, ROWS, 1, 4).select(
        F.when(F.col("id") % 3 == 0, F.col("id") % 99).otherwise(F.col("id")).alias("n")
    )
    return numbers.select(F.concat(F.lit("row "), "n").alias("value"), "n").repartition(3)


EXPECTED = sorted(n % 99 if n % 3 == 0 else n for n in range(ROWS))


def got(broker: BrokerThread, queue: str) -> list[int]:
    return sorted(int(m.data.split()[1]) for m in broker.drain(queue, expect=ROWS, idle=1.0))


class Disturbed:
    """A function for foreachPartition: the partition's rows, disturbed half way."""

    def __init__(self, write: Any, disturb: Callable[[TaskContext], None]) -> None:
        self.write = write
        self.disturb = disturb

    def __call__(self, rows: Iterable[Any]) -> None:
        self.write(disturbed(rows, self.disturb, ROWS // 6))


def disturbed(rows: Iterable[Any], disturb: Callable[[TaskContext], None], after: int) -> Iterator[Any]:
    context = TaskContext.get()
    assert context is not None
    for number, row in enumerate(rows):
        if number == after:
            disturb(context)
        yield row


def fail_once(context: TaskContext) -> None:
    if context.attemptNumber() == 0:
        raise RuntimeError("half way, on purpose")


def test_tasks_failing_half_way_lose_no_row(cluster: SparkSession, broker: BrokerThread, queue: str) -> None:
    write = bmq.spark.write_partition(queue=queue, broker=broker.uri, properties=["n"])
    shuffled(cluster).foreachPartition(Disturbed(write, fail_once))
    assert got(broker, queue) == EXPECTED


def test_a_speculative_duplicate_adds_no_message(
    cluster: SparkSession, broker: BrokerThread, queue: str
) -> None:
    """Two copies of a task at the same time, on two executors, each with the rows in its own order.

    Spark starts no speculative copy on the host of the original, and here all is one host: so both are tasks.
    """
    write = bmq.spark.write_partition(queue=queue, broker=broker.uri, properties=["n"])
    rows = [Row(value=f"row {n}", n=n) for n in EXPECTED]

    def copy(seeds: Iterator[int]) -> None:
        for seed in seeds:
            mine = list(rows)
            random.Random(seed).shuffle(mine)
            write.post(iter(mine), TaskScope("job", 0, attempt=seed))

    cluster.sparkContext.parallelize([0, 1], 2).foreachPartition(copy)
    assert got(broker, queue) == EXPECTED


def test_tasks_of_the_data_source_failing_half_way_lose_no_row(
    cluster: SparkSession, broker: BrokerThread, queue: str
) -> None:
    def failing(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        return disturbed(batches, fail_once, 2)

    cluster.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    frame = shuffled(cluster).mapInArrow(failing, "value STRING, n BIGINT")
    write = frame.write.format("bmq").mode("append").options(broker=broker.uri, queue=queue)
    write.option("propertyColumns", "n").save()
    assert got(broker, queue) == EXPECTED


def test_a_restart_from_the_checkpoint_loses_no_row(
    cluster: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    cluster.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")  # else nothing is half way
    shuffled(cluster).write.json(str(tmp_path / "in"))
    (tmp_path / "out of order").touch()
    sign = str(tmp_path / "out of order")

    def failing(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        def disturb(context: TaskContext) -> None:
            if Path(sign).exists() and context.partitionId() != 1:
                raise RuntimeError("half way, on purpose")

        return disturbed(batches, disturb, 2)

    def go() -> None:
        stream = cluster.readStream.schema("value STRING, n BIGINT").json(str(tmp_path / "in"))
        frame = stream.repartition(3).mapInArrow(failing, "value STRING, n BIGINT")
        writer = frame.writeStream.format("bmq").options(broker=broker.uri, queue=queue)
        writer = writer.option("propertyColumns", "n").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(120)

    with pytest.raises(Exception, match="half way, on purpose"):
        go()
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()
    (tmp_path / "out of order").unlink()
    go()
    assert got(broker, queue) == EXPECTED


def test_executors_that_are_killed_lose_no_row(
    cluster: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    """Their cached rows are lost with them, and computed again."""
    broker.post(queue, [b"%d" % number for number in range(300)])
    options = {"broker": broker.uri, "queue": queue, "idleTimeoutMs": "200", "numPartitions": "2"}
    options["checkpointLocation"] = str(tmp_path)
    kept = cluster.read.format("bmq").options(**options).load().cache()
    assert kept.count() == 300
    killed = executors()
    assert len(killed) == 2
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert kept.count() == 300
    assert kept.orderBy("guid").select("guid").distinct().count() == 300
    assert bmq.spark.confirm(options) == 300
    assert broker.drain(queue, idle=0.3) == []


def executors() -> list[int]:
    """The executors of this process's local cluster."""
    parents: dict[int, int] = {}
    found: list[int] = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                command = (path / "cmdline").read_bytes()
                stat = (path / "stat").read_text()
            except OSError:
                continue
            parents[int(path.name)] = int(stat[stat.rindex(")") :].split()[2])
            if b"CoarseGrainedExecutorBackend" in command and b"java" in command.split(b"\0")[0]:
                found.append(int(path.name))
    return [each for each in sorted(found) if os.getpid() in ancestors(each, parents)]


def ancestors(process: int, parents: dict[int, int]) -> list[int]:
    """The processes above a process; a child may have a lower number than its parent."""
    found: list[int] = []
    while process in parents and process not in found:
        found.append(process)
        process = parents[process]
    return found
