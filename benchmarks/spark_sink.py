# SPDX-License-Identifier: Apache-2.0
"""Rows a second of the Spark sink, next to the same client and to the official one, in one run.

    python benchmarks/spark_sink.py [--quick] [--rounds 3] [--output NAME]

One partition at a time, so one core of Python: ``format("bmq")`` (Arrow), ``foreachPartition`` with
``write_partition`` (rows), the same with the official client and every acknowledgement awaited, and this
client alone, without Spark, with ``post_many`` and ``post_table``. Rows come from a cached DataFrame and have
two properties; jobs of 10,000, 100,000 and 1,000,000 rows show how it grows, and the resident memory of the
worker whether it stays flat. The processor time of Python a row (of Spark's workers, or of the client) hardly
depends on what else the machine does.
Measures with the broker that ``BMQ_BROKER_URI`` names, else with an embedded broker in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from harness import HERE, Job, broker, fresh_queue, machine
from processes import Watch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

PAYLOAD = 256
SIZES = (10_000, 100_000, 1_000_000)
NAMES = {"CustomerId": 1234, "OrderType": "EXPRESS"}


def start_spark(master: str = "local[1]") -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(HERE.parent)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "3g")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Rows of one partition, computed before the clock starts. No two are equal."""
    value = F.rpad(F.concat(F.lit("row "), "id"), PAYLOAD, ".")
    columns = [value.alias("value"), *(F.lit(text).alias(name) for name, text in NAMES.items())]
    frame = spark.range(0, count, 1, 1).select(*columns).cache()
    frame.count()
    return frame


def resident() -> int:
    """This process's memory, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def watched(items: Iterable[Any], count: int, memory: Any) -> Iterator[Any]:
    """Note the worker's memory after a tenth and at the end."""
    for number, item in enumerate(items):
        if number == count // 10:
            memory.add({"early": resident()})
        yield item
    memory.add({"late": resident()})


class Merge:
    """Of an accumulator of dictionaries; Spark asks for these two methods."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
        return {**one, **other}


def data_source(frame: DataFrame, uri: str, queue: str, count: int) -> dict[str, Any]:
    writer = frame.write.format("bmq").mode("append").options(broker=uri, queue=queue)
    writer.option("propertyColumns", ",".join(NAMES)).save()
    return {}


def plain_sink(frame: DataFrame, uri: str, queue: str, count: int) -> dict[str, Any]:
    from bmq.spark import write_partition

    write = write_partition(queue=queue, broker=uri, properties=list(NAMES))
    frame.foreachPartition(write)
    return {}


def plain_sink_memory(frame: DataFrame, uri: str, queue: str, count: int) -> dict[str, Any]:
    from bmq.spark import write_partition

    write = write_partition(queue=queue, broker=uri, properties=list(NAMES))
    memory: Any = frame.sparkSession.sparkContext.accumulator({}, Merge())  # type: ignore[type-var]
    frame.foreachPartition(lambda part: write(watched(part, count, memory)))
    return dict(memory.value)


def official_sink(frame: DataFrame, uri: str, queue: str, count: int) -> dict[str, Any]:
    def post(part: Iterable[Any]) -> None:
        import blazingmq

        session = blazingmq.Session(lambda event: None, broker=uri)
        session.open_queue(queue, write=True)
        lock, done = threading.Condition(), [0]

        def acknowledged(ack: Any) -> None:
            with lock:
                done[0] += 1
                lock.notify()

        posted = 0
        for row in part:
            properties = {name: row[name] for name in NAMES}
            session.post(queue, row.value.encode(), properties=properties, on_ack=acknowledged)
            posted += 1
            if posted % 1000 == 0:  # as bounded as ours
                with lock:
                    lock.wait_for(lambda least=posted - 8000: done[0] > least)
        with lock:
            lock.wait_for(lambda: done[0] == posted)
        session.close_queue(queue)
        session.stop()

    frame.foreachPartition(post)
    return {}


SINKS: dict[str, Callable[[DataFrame, str, str, int], dict[str, Any]]] = {
    'format("bmq"), Arrow': data_source,
    "write_partition, rows": plain_sink,
    "official client, rows": official_sink,
}


def measure(sink: Any, frame: DataFrame, uri: str, count: int) -> dict[str, Any]:
    job = fresh_queue(Job("raw", "drain", count))
    with Watch() as watch:
        started = time.perf_counter()
        extra = sink(frame, uri, job.queue, count)
        seconds = time.perf_counter() - started
    job.run(uri)  # every row is there, or this fails; and the next measurement finds an empty broker
    return {
        "rate": count / seconds,
        "seconds": seconds,
        "cpu_us": watch.cpu.get("worker", 0.0) / count * 1e6,
        **extra,
    }


def client_alone(uri: str, case: str, count: int) -> dict[str, Any]:
    job = fresh_queue(Job("ours", case, count, size=PAYLOAD, properties=True))
    result = job.run(uri)
    more = 1 if case == "post_table" else 0
    replace(job, client="raw", case="drain", count=count + more).run(uri)
    return {"rate": result["rate"], "cpu_us": result["cpu_us"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", help="how many rows a job has")
    parser.add_argument("--quick", action="store_true", help="no job of a million rows, one round")
    parser.add_argument("--rounds", type=int, default=3, help="each measurement is made so often")
    parser.add_argument("--output", help="write the numbers to NAME.json")
    options = parser.parse_args()
    sizes = options.sizes or (SIZES[:2] if options.quick else SIZES)
    rounds = 1 if options.quick else options.rounds

    console = Console()
    results: dict[str, dict[int, list[dict[str, Any]]]] = {}
    with broker() as (uri, what):
        spark = start_spark()
        warm = rows(spark, 1000)
        for sink in SINKS.values():
            measure(sink, warm, uri, 1000)  # workers, JIT, sessions
        for count in sizes:
            frame = rows(spark, count)
            for _ in range(rounds):
                for name, sink in SINKS.items():
                    results.setdefault(name, {}).setdefault(count, []).append(
                        measure(sink, frame, uri, count)
                    )
                for case in ("post_table", "post_many"):
                    alone = client_alone(uri, case, count)
                    results.setdefault(f"this client alone, {case}", {}).setdefault(count, []).append(alone)
            memory = measure(plain_sink_memory, frame, uri, count)
            results.setdefault("memory", {})[count] = [memory]
            frame.unpersist()
        spark.stop()

    here = machine()
    table = Table(title=f"rows a second on one core, median of {rounds}; {what}; {here['cpu']}")
    table.add_column("")
    for count in sizes:
        table.add_column(f"{count:,} rows", justify="right")
    for name, by_count in results.items():
        if name != "memory":
            medians = [statistics.median(each["rate"] for each in by_count[count]) for count in sizes]
            table.add_row(name, *(f"{rate:,.0f}" for rate in medians))
            costs = [statistics.median(each["cpu_us"] for each in by_count[count]) for count in sizes]
            table.add_row("  us of Python a row", *(f"{cost:.1f}" for cost in costs))
    for when, text in (("early", "a tenth of the rows"), ("late", "all rows")):
        values = [results["memory"][count][0][when] / 2**20 for count in sizes]
        table.add_row(f"worker's memory after {text}, MiB", *(f"{value:,.0f}" for value in values))
    console.print(table)
    if options.output:
        with open(f"{options.output}.json", "w") as file:
            json.dump({"machine": here, "broker": what, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
