# SPDX-License-Identifier: Apache-2.0
# pyright: basic
"""A Spark pipeline that ends in a queue, and another one that starts there, on the embedded broker.

    make demo-spark            # or: python examples/spark_pipeline.py

The first job reads four days of New York departures from ``examples/data``, leaves out what was cancelled,
and writes every flight to a fanout queue, with the columns worth selecting by as properties. Two asyncio
consumers of the application ``alerts`` receive their part, by subscription. The second job reads the same
queue as a stream, as the application ``archive``, and writes Parquet. Totals by airline go to a queue of
their own, which a batch read drains. In the end everything has to add up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

import bmq
import bmq.spark
from bmq.broker import Broker, DomainConfig, Limits, Mode

DATA = Path(__file__).parent / "data" / "departures.csv"
FLIGHTS = "bmq://departures/flights"
TOTALS = "bmq://totals/airlines"
LATE = "dep_delay > 60"
PROPERTIES = ["carrier", "origin", "dest", "dep_delay"]

ROOM = Limits(messages=100_000, bytes=2**28)
DOMAINS = [
    DomainConfig(
        name="departures",
        mode=Mode.FANOUT,
        app_ids=("alerts", "archive"),
        domain_limits=ROOM,
        queue_limits=ROOM,
        message_ttl=3600,
    ),
    DomainConfig(name="totals", mode=Mode.PRIORITY, domain_limits=ROOM, queue_limits=ROOM, message_ttl=3600),
]


class Loop:
    """An event loop beside Spark, whose calls block: for the broker and the consumers."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def start(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.start(work).result()


async def alerts(uri: str, tally: dict[str, int], total: int) -> None:
    """Two consumers of one application: one takes the late flights, the other one what is left."""
    async with bmq.connect(uri) as session:
        queue = await session.open_queue(f"{FLIGHTS}?id=alerts", read=True, default_subscription=False)

        complete = asyncio.Event()

        async def consume(consumer: bmq.Consumer, name: str) -> None:
            async for message in consumer:
                async with message:
                    tally[name] += 1
                if sum(tally.values()) == total:
                    complete.set()

        async with (
            queue.subscribe(LATE, priority=2) as late,
            queue.subscribe(priority=1) as rest,
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(consume(late, "late")), group.create_task(consume(rest, "rest"))]
            await complete.wait()
            for task in tasks:
                task.cancel()


def start_spark() -> SparkSession:
    bmq.spark.check_java()
    # Spark's workers start python3 from PATH unless they are told otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("departures")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def departed(spark: SparkSession) -> DataFrame:
    """The flights that left, cleaned."""
    rows = spark.read.csv(str(DATA), header=True, inferSchema=True)
    return rows.where("status != 'cancelled'").dropDuplicates(["scheduled", "carrier", "flight"])


def main() -> int:
    console = Console()
    loop = Loop()
    broker = Broker(domains=DOMAINS)
    loop.run(broker.start())
    with console.status("starting Spark"):
        spark = start_spark()
    started = time.perf_counter()

    flights = departed(spark).cache()
    expected = {
        "late": flights.where(LATE).count(),
        "rest": flights.where(f"NOT coalesce({LATE}, false)").count(),
    }
    total = sum(expected.values())
    tally = {"late": 0, "rest": 0}
    consumers = loop.start(alerts(broker.uri, tally, total))

    messages = flights.withColumn("value", F.to_json(F.struct("*"))).select("value", *PROPERTIES)
    summary = bmq.spark.write(
        messages, queue=FLIGHTS, broker=broker.uri, properties=PROPERTIES, progress=console.is_terminal
    )
    console.print(f"posted: {summary}")

    by_airline = flights.groupBy("airline").agg(
        F.count("*").alias("flights"),
        F.sum(F.expr(f"int({LATE})")).alias("late"),
        F.round(F.avg("arr_delay")).cast("int").alias("mean_arr_delay"),
    )
    totals = by_airline.withColumn("value", F.to_json(F.struct("*")))
    (
        totals.write.format("bmq")
        .mode("append")
        .options(broker=broker.uri, queue=TOTALS, propertyColumns="airline,flights,late,mean_arr_delay")
        .save()
    )

    with tempfile.TemporaryDirectory() as folder:
        checkpoint, archive = f"{folder}/checkpoint", f"{folder}/archive"
        stream = spark.readStream.format("bmq").options(
            broker=broker.uri,
            queue=f"{FLIGHTS}?id=archive",
            checkpointLocation=checkpoint,
            maxMessagesPerTrigger="1000",
            propertiesSchema="carrier STRING, origin STRING, dep_delay INT",
        )
        query = (
            stream.load()
            .select(F.col("value").cast("string").alias("flight"), "properties.*", "guid", "receivedAt")
            .writeStream.format("parquet")
            .option("path", archive)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches = sum(1 for each in query.recentProgress if each["numInputRows"])
        archived = spark.read.parquet(archive)
        stored, stored_late = archived.count(), archived.where(LATE).count()
        distinct = archived.select("guid").distinct().count()

    reader = spark.read.format("bmq").options(broker=broker.uri, queue=TOTALS, idleTimeoutMs="500")
    drained = reader.option("propertiesSchema", "airline STRING, flights BIGINT, late BIGINT").load().cache()
    airlines, counted, counted_late = drained.select(
        F.count("*"), F.sum("properties.flights"), F.sum("properties.late")
    ).first() or (0, 0, 0)
    consumers.result(timeout=60)

    table = Table(title=f"{DATA.name}: {time.perf_counter() - started:.1f} s in all")
    table.add_column("who")
    table.add_column("what")
    table.add_column("messages", justify="right")
    table.add_column("of them late", justify="right")
    late = expected["late"]
    table.add_row("first job", "rows written and acknowledged", f"{summary.acknowledged:,}", f"{late:,}")
    table.add_row("consumer 1", f"subscribed to {LATE}", f"{tally['late']:,}", f"{tally['late']:,}")
    table.add_row("consumer 2", "subscribed to the rest", f"{tally['rest']:,}", "0")
    table.add_row("second job", f"read in {batches} batches, in Parquet", f"{stored:,}", f"{stored_late:,}")
    table.add_row("batch read", f"totals of {airlines} airlines, summed", f"{counted:,}", f"{counted_late:,}")
    console.print(table)

    adds_up = (
        summary.acknowledged == total
        and tally == expected
        and (stored, stored_late, distinct) == (total, late, total)
        and (counted, counted_late) == (total, late)
    )
    console.print("[green]it adds up" if adds_up else "[red]it does not add up")
    spark.stop()
    loop.run(broker.stop())
    return 0 if adds_up else 1


if __name__ == "__main__":
    sys.exit(main())
