# SPDX-License-Identifier: Apache-2.0
"""Spark beside its floors, in one run: the bare client in processes of its own, and Spark doing nothing.

    python benchmarks/spark_floors.py [--rows 300000] [--rounds 5] [--only write stream] [--output NAME]

* ``write``: the wall time of a write. The bare clients are as many processes as the write has tasks; their
  time contains the start of Python, the imports and the connection. Spark's floor is a sink of the same kind
  that discards the rows.
* ``cold``: the same for the first write of a Spark, which starts its Python processes.
* ``stream``: a stream into Parquet, beside a Python source that yields the same rows in the same triggers,
  and the bare client that receives the rows.
* ``tasks``: the same rows in 8 tasks and in 200, by ``format("bmq")`` and by the sink that discards, with
  pyspark's daemon and with ``bmq.spark.daemon``.
* ``memory``: the resident memory of a Python worker, by parts of a partition of rows of 1 KiB.

The cases of a section take turns. Uses the broker of ``BMQ_BROKER_URI``, or an embedded broker in a separate
process. ``--add`` adds the rounds to NAME.json; ``spark_page.py`` puts NAME.json into the documentation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import spark_source
from harness import HERE, Job, broker, environment, fresh_queue, machine
from processes import Watch
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from report import Grid
from rich.console import Console
from spark_jobs import PAYLOAD, PROPERTIES, start_spark
from spark_sink import data_source, plain_sink, rows
from spark_source import Bench

CORES = 2
TASKS = (8, 200)
TRIGGER = 100_000
DAEMON = {"spark.python.daemon.module": "bmq.spark.daemon"}
#: Bytes of a row, and rows of a partition, of the section ``memory``.
ROW, PARTITIONS = 1024, (50_000, 100_000, 300_000)

BMQ, DISCARD = 'format("bmq")', "a sink that discards"
MANY, TABLE, TABLES = (f"bare client, {case}" for case in ("post_many", "post_table", "tables"))
ROWS, NOTHING = "write_partition", "foreachPartition that discards"
QUERY, LOCAL = "stream into Parquet", "a source of generated rows"

Sink = Callable[[DataFrame, str, str], None]
Rounds = dict[str, list[dict[str, Any]]]
#: Each case with its floors. "+" joins two floors that take turns: their times add up.
FLOORS: dict[str, tuple[str, ...]] = {
    BMQ: (MANY, TABLE, DISCARD),
    ROWS: (MANY, NOTHING, f"{NOTHING} + {MANY}"),
    f"{BMQ}, cold": (MANY, f"{DISCARD}, cold", f"{DISCARD}, cold + {MANY}"),
    QUERY: (LOCAL, f"{LOCAL} + {TABLES}"),
    **{
        f"{name}, {TASKS[1]} tasks{more}": (f"{name}, {TASKS[0]} tasks{more}",)
        for more in ("", ", with bmq.spark.daemon")
        for name in (BMQ, DISCARD)
    },
}


class Discard(DataSource):
    """A sink like ``format("bmq")`` that discards the rows: Spark's own cost of a write."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return Discarded()


class Discarded(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def discarded(frame: DataFrame, uri: str, queue: str) -> None:
    frame.write.format("discard").mode("append").save()


def consumed(frame: DataFrame, uri: str, queue: str) -> None:
    def nothing(part: Iterable[Any]) -> None:
        for _ in part:
            pass

    frame.foreachPartition(nothing)


SINKS: dict[str, Sink] = {BMQ: data_source, DISCARD: discarded, ROWS: plain_sink, NOTHING: consumed}


def bare(uri: str, case: str, queue: str, count: int, files: list[str]) -> float:
    """Return the seconds of processes of the bare client, one a file, with their start."""
    job = {"broker": uri, "queue": queue, "case": case, "size": PAYLOAD, "properties": PROPERTIES}
    program, where = str(HERE / "clients" / "part.py"), environment()
    each = count // len(files)
    began = time.perf_counter()
    parts = [
        subprocess.Popen(
            [sys.executable, program, json.dumps({**job, "file": file, "count": each})], env=where
        )
        for file in files
    ]
    failures = [part.wait(300) for part in parts]
    if any(failures):
        raise SystemExit(f"the bare client failed: {case}")
    return time.perf_counter() - began


def files_of(folder: Path, count: int, parts: int) -> dict[str, list[str]]:
    """Write the rows of each process into files, for both ways to post."""
    found: dict[str, list[str]] = {"post_many": [], "post_table": []}
    each = count // parts
    for number in range(parts):
        first = number * each
        values = [f"row {at}".ljust(PAYLOAD, ".").encode() for at in range(first, first + each)]
        flat, path = folder / f"{number}.rows", folder / f"{number}.arrow"
        flat.write_bytes(b"".join(values))
        columns: dict[str, Any] = {"value": values}
        columns |= {name: [value] * each for name, value in PROPERTIES.items()}
        table = pa.table(columns)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
            out.write_table(table, max_chunksize=10_000)
        found["post_many"].append(str(flat))
        found["post_table"].append(str(path))
    return found


def note(results: Rounds, name: str, count: int, seconds: float, **more: Any) -> None:
    results.setdefault(name, []).append({"rate": count / seconds, "seconds": seconds, **more})
    print(f"{name}: {seconds:.2f} s, {count / seconds:,.0f} a second", flush=True)


def posted(frame: DataFrame, uri: str, name: str, count: int, results: Rounds) -> None:
    """Write a DataFrame, note the time, and empty the queue."""
    sink = SINKS[name.split(", ")[0]]
    job = fresh_queue(Job("raw", "drain", count))
    with Watch() as watch:
        began = time.perf_counter()
        sink(frame, uri, job.queue)
        seconds = time.perf_counter() - began
    note(results, name, count, seconds, cpu=watch.cpu)
    if sink in (data_source, plain_sink):
        job.run(uri)


def fresh_spark(options: Mapping[str, str] | None = None) -> SparkSession:
    """Return a Spark without a Python process, in the same JVM."""
    start_spark(CORES).stop()
    spark = start_spark(CORES, options)
    spark.dataSource.register(Discard)
    return spark


def write(uri: str, count: int, rounds: int, results: Rounds) -> None:
    frame = rows(fresh_spark(), count, CORES)
    with tempfile.TemporaryDirectory() as folder:
        files = files_of(Path(folder), count, CORES)
        for number in range(rounds + 1):
            found: Rounds = results if number else {}  # the first round starts processes and compiles
            for name in SINKS:
                posted(frame, uri, name, count, found)
            bares(uri, count, files, found)
    start_spark(CORES).stop()


def bares(uri: str, count: int, files: dict[str, list[str]], results: Rounds) -> None:
    for case, parts in files.items():
        job = fresh_queue(Job("raw", "drain", count))
        note(results, f"bare client, {case}", count, bare(uri, case, job.queue, count, parts))
        job.run(uri)


def cold(uri: str, count: int, rounds: int, results: Rounds) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = files_of(Path(folder), count, CORES)
        for number in range(rounds + 1):
            for name in (DISCARD, BMQ):
                frame = rows(fresh_spark(), count, CORES)
                posted(frame, uri, f"{name}, cold", count, results if number else {})
            bares(uri, count, files, results if number else {})
    start_spark(CORES).stop()


def stream(uri: str, count: int, rounds: int, results: Rounds) -> None:
    cloudpickle.register_pickle_by_value(spark_source)  # the workers cannot import it
    bench = Bench(uri, CORES, min(count, TRIGGER))
    bench.stream("parquet", TRIGGER)
    bench.local_stream("parquet", TRIGGER)
    bench.count = count
    for _ in range(rounds):
        for name, case in ((QUERY, bench.stream), (LOCAL, bench.local_stream)):
            found = case("parquet", TRIGGER)
            more = {key: found[key] for key in ("with_start", "cpu_us", "triggers")}
            note(results, name, count, found["seconds"], **more)
        queue = bench.job("raw", "drain").queue
        note(results, TABLES, count, bare(uri, "tables", queue, count, [""]))
    bench.close()


def tasks(uri: str, count: int, rounds: int, results: Rounds) -> None:
    for options, with_daemon in ((None, ""), (DAEMON, ", with bmq.spark.daemon")):
        spark = fresh_spark(options)
        frames = {each: rows(spark, count, each) for each in TASKS}
        for number in range(rounds + 1):
            for each, frame in frames.items():
                for name in (BMQ, DISCARD):
                    title = f"{name}, {each} tasks{with_daemon}"
                    posted(frame, uri, title, count, results if number else {})
        spark.stop()


def large(spark: SparkSession, count: int) -> DataFrame:
    """Return rows of 1 KiB in one partition. The text of each row differs, and Spark cannot compress it."""
    parts = [F.sha2(F.concat(F.lit(f"{part} "), "id"), 512) for part in range(ROW // 128)]
    properties = (F.lit(text).alias(key) for key, text in PROPERTIES.items())
    return spark.range(0, count, 1, 1).select(F.concat(*parts).alias("value"), *properties)


def memory(uri: str, count: int, rounds: int, results: Rounds) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for size in PARTITIONS:
            jobs = {name: fresh_queue(Job("raw", "drain", size)) for name in (DISCARD, ROWS, BMQ)}
            options = {"broker": uri, "queue": jobs[BMQ].queue, "checkpointLocation": f"{folder}/{size}"}
            options |= {"confirm": "onStore", "propertiesSchema": spark_source.PROPERTIES}
            for name in (*jobs, "read"):
                spark = fresh_spark()
                with Watch() as watch:
                    began = time.perf_counter()
                    if name == "read":  # what the write has posted
                        found = spark.read.format("bmq").options(**options, numPartitions="1").load()
                        found.write.format("noop").mode("overwrite").save()
                    else:
                        SINKS[name](large(spark, size), uri, jobs[name].queue)
                    seconds = time.perf_counter() - began
                mib = watch.memory["worker"] / 2**20
                note(results, f"{name}, {size:,} rows", size, seconds, mib=mib)
                print(f"  {mib:.0f} MiB", flush=True)
            jobs[ROWS].run(uri)
    start_spark(CORES).stop()


SECTIONS = {each.__name__: each for each in (write, cold, stream, tasks, memory)}


def beside(results: dict[str, Rounds]) -> Grid:
    """Return each case beside its floors: medians, and the ratios within one round."""
    lines: list[list[str]] = []
    for cases in results.values():
        for name, floors in FLOORS.items():
            for floor in floors if name in cases else ():
                ones, others = cases[name], [cases[each] for each in floor.split(" + ")]
                times = [sum(each["seconds"] for each in found) for found in zip(*others, strict=False)]
                ratios = [time / one["seconds"] for one, time in zip(ones, times, strict=False)]
                middle = statistics.median(one["seconds"] for one in ones)
                shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
                lines.append([name, f"{middle:.2f}", floor, f"{statistics.median(times):.2f}", shown])
    return Grid("", ("case", "s", "floor", "s of the floor", "part of the floor's rate"), lines)


def resident(cases: Rounds) -> Grid:
    """Return the largest resident memory of a Python worker, by rows of a partition."""
    names = dict.fromkeys(name.partition(", ")[0] for name in cases)
    sizes = [f"{size:,} rows" for size in PARTITIONS]
    lines = [
        [name, *(f"{max(each['mib'] for each in cases[f'{name}, {size}']):.0f}" for size in sizes)]
        for name in names
    ]
    return Grid("", ("MiB of a worker, rows of 1 KiB", *sizes), lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--output", default="", help="write the results to NAME.json")
    parser.add_argument("--add", action="store_true", help="add rounds to those in NAME.json")
    options = parser.parse_args()
    file = Path(f"{options.output}.json")
    document: dict[str, Any] = {"results": {}}
    grids: dict[str, Grid] = {}
    if options.output and file.exists():
        document = json.loads(file.read_text())
    with broker() as (uri, what):
        for name in options.only:
            found: Rounds = document["results"].get(name, {}) if options.add else {}
            SECTIONS[name](uri, options.rows, options.rounds, found)
            document["results"][name] = found
            grids = {"floors": beside(document["results"])}
            if "memory" in document["results"]:
                grids["resident"] = resident(document["results"]["memory"])
            document["tables"] = {key: asdict(grid) for key, grid in grids.items()}
            document |= {"machine": machine(), "broker": what, "rows": options.rows}
            if options.output:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(document, indent=1))
    for grid in grids.values():
        Console().print(grid.printed())


if __name__ == "__main__":
    main()
