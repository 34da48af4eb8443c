# SPDX-License-Identifier: Apache-2.0
"""Streaming queries to be killed: files into a queue, with failures in every third task, and back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from bmq.arrow.decoding import RecordBatch
from tests.spark.conftest import start_spark

PARTITIONS = 3


def failing(rows: int) -> Any:
    """A function for mapInArrow: the first try of every third task fails half way through its rows."""

    def fail(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        fails = context.attemptNumber() == 0 and context.partitionId() % 3 == 1
        seen = 0
        for batch in batches:
            if fails and seen >= rows // 2:
                raise RuntimeError("half way, on purpose")
            yield batch
            seen += batch.num_rows

    return fail


def out(spark: SparkSession, broker: str, queue: str, folder: Path, rows: int) -> Any:
    """Files into a queue, a file a batch, of so many rows."""
    part = rows // PARTITIONS
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(max(1, min(10_000, part // 10))))
    stream = spark.readStream.schema("value STRING, n BIGINT").option("maxFilesPerTrigger", 1)
    frame = (
        stream.parquet(str(folder / "in"))
        .repartition(PARTITIONS)
        .mapInArrow(failing(part), "value STRING, n BIGINT")
    )
    return frame.writeStream.format("bmq").options(broker=broker, queue=queue, propertyColumns="n")


def into(spark: SparkSession, broker: str, queue: str, folder: Path, rows: int) -> Any:
    """A queue into Parquet, at most so many rows a batch."""
    options = {"broker": broker, "queue": queue, "checkpointLocation": str(folder / "checkpoint")}
    options |= {"maxMessagesPerTrigger": str(rows), "propertiesSchema": "n BIGINT"}
    frame = spark.readStream.format("bmq").options(**options).load().select("guid", "properties.n")
    return frame.writeStream.format("parquet").option("path", str(folder / "out"))


def main(way: str, broker: str, queue: str, folder: Path, rows: int) -> None:
    spark = start_spark("local[2,3]")
    writer = {"out": out, "into": into}[way](spark, broker, queue, folder, rows)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]))
