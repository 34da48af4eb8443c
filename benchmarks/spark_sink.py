# SPDX-License-Identifier: Apache-2.0
"""Rows a second of the Spark sink, beside the same client and the official client, in one run.

    python benchmarks/spark_sink.py [--quick] [--sizes 10000 5000000] [--cores 1 2] [--output NAME]

A partition for each core: ``format("bmq")`` (Arrow), ``foreachPartition`` with ``write_partition`` (rows),
the same with the official client and every acknowledgement awaited, and this client alone, without Spark,
with ``post_many`` and ``post_table``. Rows come from a cached DataFrame, are all different, and have two
properties. The same rows, passed to Python as
Arrow and discarded, are Spark's ceiling. The processor time per row and process hardly depends on other work
of
the machine; the maximum resident memory of a worker shows whether memory stays flat.
Measures with the broker of ``BMQ_BROKER_URI``, or with an embedded broker in a separate process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from harness import Job, fresh_queue
from processes import Watch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_jobs import PAYLOAD, PROPERTIES, Cases, main, start_spark

Sink = Callable[[DataFrame, str, str], None]


def rows(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    """Different rows, computed before the clock starts."""
    value = F.rpad(F.concat(F.lit("row "), "id"), PAYLOAD, ".")
    columns = [value.alias("value"), *(F.lit(text).alias(name) for name, text in PROPERTIES.items())]
    frame = spark.range(0, count, 1, partitions).select(*columns).cache()
    frame.count()
    return frame


def data_source(frame: DataFrame, uri: str, queue: str) -> None:
    writer = frame.write.format("bmq").mode("append").options(broker=uri, queue=queue)
    writer.option("propertyColumns", ",".join(PROPERTIES)).save()


def plain_sink(frame: DataFrame, uri: str, queue: str) -> None:
    from bmq.spark import write_partition

    frame.foreachPartition(write_partition(queue=queue, broker=uri, properties=list(PROPERTIES)))


def official_sink(frame: DataFrame, uri: str, queue: str) -> None:
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
            properties = {name: row[name] for name in PROPERTIES}
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


def no_sink(frame: DataFrame, uri: str, queue: str) -> None:
    def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from ()

    frame.mapInArrow(nothing, frame.schema).write.format("noop").mode("overwrite").save()


SINKS: dict[str, Sink] = {
    'format("bmq"), Arrow': data_source,
    "write_partition, rows": plain_sink,
    "official client, rows": official_sink,
    "Spark's ceiling, Arrow": no_sink,
}


def measured(sink: Sink, frame: DataFrame, uri: str, count: int) -> dict[str, Any]:
    job = fresh_queue(Job("raw", "drain", count))
    with Watch() as watch:
        started = time.perf_counter()
        sink(frame, uri, job.queue)
        seconds = time.perf_counter() - started
    if sink is not no_sink:
        job.run(uri)  # fails unless every row has arrived; the next measurement starts with an empty broker
    return {
        "rate": count / seconds,
        "seconds": seconds,
        "cpu_us": {role: used / count * 1e6 for role, used in watch.cpu.items()},
        "memory": watch.memory,
    }


def alone(uri: str, case: str, count: int) -> dict[str, Any]:
    job = fresh_queue(Job("ours", case, count, size=PAYLOAD, properties=True))
    result = job.run(uri)
    more = 1 if case == "post_table" else 0
    replace(job, client="raw", case="drain", count=count + more).run(uri)
    return {"rate": result["rate"], "cpu_us": {"client": result["cpu_us"]}}


def measure(uri: str, cores: int, count: int, rounds: int, only: str) -> Cases:
    """All measurements for a number of cores and rows, in this process."""
    spark = start_spark(cores)
    results: Cases = {}
    warm, frame = rows(spark, 20_000, cores), rows(spark, count, cores)
    chosen = {name: sink for name, sink in SINKS.items() if only in name}
    for sink in chosen.values():
        measured(sink, warm, uri, 20_000)  # workers, JIT, sessions
    for _ in range(rounds):
        for name, sink in chosen.items():
            results.setdefault(name, []).append(measured(sink, frame, uri, count))
        for case in ("post_table", "post_many"):
            if only in (name := f"this client alone, {case}"):
                results.setdefault(name, []).append(alone(uri, case, count))
    spark.stop()
    return results


if __name__ == "__main__":
    main(__doc__, __file__, measure)
