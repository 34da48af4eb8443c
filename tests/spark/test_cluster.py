# SPDX-License-Identifier: Apache-2.0
"""Real Spark on two executors, after a shuffle: repeated tasks neither lose nor duplicate a row.

A repeated task runs on another executor about every second time, and receives the same rows in another order,
which never happens in a single process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import bmq
import bmq.spark
from tests.spark import soak
from tests.spark.bench import Stage

ROWS = 12_000


def shuffled(spark: SparkSession) -> DataFrame:
    """Rows that reach their partition through a shuffle; every third one occurs more than once."""
    numbers = spark.range(0, ROWS, 1, 4).select(
        F.when(F.col("id") % 3 == 0, F.col("id") % 99).otherwise(F.col("id")).alias("n")
    )
    return numbers.select(F.concat(F.lit("row "), "n").alias("value"), "n").repartition(3)


def attempt() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def half_way(items: Iterable[Any], count: int, end: Callable[[], None]) -> Iterator[Any]:
    """Items of which the first attempt gets as many, and ends."""
    for number, item in enumerate(items):
        if number == count and attempt() == 0:
            end()
        yield item


def fail() -> None:
    raise RuntimeError("half way, on purpose")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("way", ["a killed worker", "a failing data source"])
def test_tasks_that_end_half_way_lose_no_row(way: str, cluster: SparkSession, stage: Stage) -> None:
    rows = shuffled(cluster)
    if way == "a killed worker":
        write = bmq.spark.write_partition(**stage.target, properties=["n"])
        rows.foreachPartition(lambda rows: write(half_way(rows, ROWS // 6, die)))
    else:
        cluster.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        frame = rows.mapInArrow(lambda batches: half_way(batches, 2, fail), "value STRING, n BIGINT")
        sink = frame.write.format("bmq").mode("append").options(**stage.target)
        sink.option("propertyColumns", "n").save()
    found = sorted(int(m.data.split()[1]) for m in stage.drain(ROWS))
    assert found == sorted(n % 99 if n % 3 == 0 else n for n in range(ROWS))


@pytest.mark.timeout(2 * soak.PATIENCE)
def test_killed_drivers_and_executors_copy_every_message_once() -> None:
    assert bmq.run(soak.run(kills=2, every=2, seconds=soak.PATIENCE, broker=None, rate=soak.RATE, say=print))
