# SPDX-License-Identifier: Apache-2.0
"""Rows a second into Spark and out of it, beside the bare client, the official client and Spark alone.

    python benchmarks/spark.py [--rows 300000] [--cores 2] [--rounds 5] [--only NAME] [--output NAME]

All cases take turns in each round. Rows have 256 bytes and two properties.

* A write: ``format("bmq")`` and ``write_partition``, beside a sink that discards the rows, the same rows
  posted by the official client, and this client alone, by ``post_table`` and ``post_many``.
* A batch read and a stream, into Parquet, beside the same rows generated in Spark's workers, and this client
  and the official client alone.
* The driver's part of a stream: it receives all messages and writes the log, from one queue and from eight,
  beside this client, which only receives and confirms.

The rate of a stream covers the time between its first row and its last. Processor time does not depend on
other work of the machine as much as the rate. Uses the broker of ``BMQ_BROKER_URI``, or an embedded broker in
a separate process; its queues must hold all rows.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from harness import HERE, Job, broker, broker_name, fresh_queue, write_tables
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, StructField, StructType

import bmq
import bmq.spark

SIZE, PART, WARM, TRIGGER = 256, 10_000, 20_000, 100_000
PROPERTIES = {"CustomerId": 1234, "OrderType": "EXPRESS"}
SCHEMA = "CustomerId BIGINT, OrderType STRING"
ROLES = ("client", "worker", "source", "jvm")


class Watch:
    """Processor time and memory of the JVM and of Spark's Python processes; Spark starts and ends them.

    Attributes:
        cpu: seconds used, by role: ``jvm``, ``source`` (the process that receives a stream) and ``worker``.
        memory: maximum resident bytes of a worker.
    """

    def __init__(self) -> None:
        self.cpu: dict[str, float] = {}
        self.memory = 0
        self._roles: dict[int, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._first = self._look()
        self._last = dict(self._first)
        self.memory = 0
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._last |= self._look()
        for process, ticks in self._last.items():
            used = (ticks - self._first.get(process, 0)) / os.sysconf("SC_CLK_TCK")
            role = self._roles[process]
            self.cpu[role] = self.cpu.get(role, 0.0) + used

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            self._last |= self._look()

    def _look(self) -> dict[int, int]:
        """Return the ticks of each process below this one."""
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
                ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
        found: dict[int, int] = {}
        for process, used in ticks.items():
            at = process
            while at in parents and at != os.getpid():
                at = parents[at]
            if at == os.getpid() and process != at:
                with suppress(OSError, IndexError):
                    role = self._roles.setdefault(process, _role(process))
                    found[process] = used
                    if role == "worker":
                        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
                        self.memory = max(self.memory, pages * os.sysconf("SC_PAGE_SIZE"))
        return found


def _role(process: int) -> str:
    command = Path(f"/proc/{process}/cmdline").read_text()
    if "java" in command.split("\0")[0]:
        return "jvm"
    return "source" if "python_streaming_source_runner" in command else "worker"


def start_spark(cores: int) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(HERE.parent)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    builder = SparkSession.builder.master(f"local[{cores}]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


# the sinks


def data_source(frame: DataFrame, uri: str, queue: str) -> None:
    writer = frame.write.format("bmq").mode("append").options(broker=uri, queue=queue)
    writer.option("propertyColumns", ",".join(PROPERTIES)).save()


def plain_sink(frame: DataFrame, uri: str, queue: str) -> None:
    frame.foreachPartition(bmq.spark.write_partition(queue=queue, broker=uri, properties=list(PROPERTIES)))


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


SINKS: dict[str, Callable[[DataFrame, str, str], None]] = {
    'format("bmq")': data_source,
    "write_partition": plain_sink,
    "official client in Spark": official_sink,
    "Spark alone, rows discarded": no_sink,
}


# Spark's own cost of a source: generated rows with the columns of a read


def posted() -> pa.RecordBatch:
    """Return the rows that are posted repeatedly, with distinct values."""
    columns: dict[str, Any] = {"value": [f"row {at} ".ljust(SIZE, ".").encode() for at in range(PART)]}
    return pa.record_batch(columns | {name: [value] * PART for name, value in PROPERTIES.items()})


def generated(count: int) -> Iterator[pa.RecordBatch]:
    """Yield rows with the columns of the source."""
    batch = posted()
    fields = [pa.field("CustomerId", pa.int64()), pa.field("OrderType", pa.string())]
    texts = {"guid": "40000000000000000000000000000000", "queue": "bmq://bmq.test.mem.priority/benchmark"}
    whole = {
        "value": batch["value"],
        "properties": pa.StructArray.from_arrays([batch["CustomerId"], batch["OrderType"]], fields=fields),
        **{name: pa.repeat(pa.scalar(text), PART) for name, text in texts.items()},
        "subscription": pa.nulls(PART, pa.string()),
        "redelivered": pa.repeat(pa.scalar(False), PART),
        "receivedAt": pa.repeat(pa.scalar(datetime.now(), pa.timestamp("us", tz="UTC")), PART),
        "error": pa.nulls(PART, pa.string()),
    }
    for start in range(0, count, PART):
        yield pa.record_batch(whole).slice(0, min(PART, count - start))


DDL = (
    "value BINARY, properties STRUCT<CustomerId: BIGINT, OrderType: STRING>, guid STRING, queue STRING, "
    "subscription STRING, redelivered BOOLEAN, receivedAt TIMESTAMP, error STRING"
)


class Rows(DataSource):
    """A stream of generated rows, in triggers of a fixed size."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> str:
        return DDL

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return RowsReader(int(self.options["count"]))


class RowsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, count: int) -> None:
        self._count = count

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadMaxRows:
        return ReadMaxRows(TRIGGER)

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: the number of rows ends the stream."""

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        return {"rows": min(start["rows"] + limit.max_rows, self._count)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(end["rows"] - start["rows"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from generated(partition.value)


class Bench:
    """The measurements with a number of cores and rows."""

    def __init__(self, uri: str, cores: int, count: int) -> None:
        self.uri, self.cores, self.count = uri, cores, count
        self.folder = Path(tempfile.mkdtemp(prefix="spark-"))
        self.spark = start_spark(cores)
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import it
        self.spark.dataSource.register(Rows)

    def close(self) -> None:
        self.spark.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cases(self) -> dict[str, Callable[[], dict[str, Any]]]:
        found: dict[str, Callable[[], dict[str, Any]]] = {}
        for name, sink in SINKS.items():
            found[f"write: {name}"] = lambda sink=sink: self.write(sink)
        for case in ("post_table", "post_many"):
            found[f"write: client alone, {case}"] = lambda case=case: self.post_alone(case)
        found["read: batch"] = self.batch
        found["read: Spark alone, batch"] = self.generated_batch
        found["read: stream"] = lambda: self.stream("bmq", self.stream_options())
        found["read: Spark alone, stream"] = lambda: self.stream("rows", {"count": self.count})
        for client, case in (
            ("ours", "consume_tables"),
            ("ours", "consume_batches"),
            ("official", "consume"),
        ):
            what = f"client alone, {case}" if client == "ours" else "official client alone"
            found[f"read: {what}"] = lambda client=client, case=case: self.receive_alone(client, case)
        for queues, name in ((1, "one queue"), (8, "eight queues")):
            found[f"driver: {name}"] = lambda queues=queues: self.driver(queues)
            found[f"driver: only received, {name}"] = lambda queues=queues: self.receive(queues)
        return found

    def write(self, sink: Callable[[DataFrame, str, str], None]) -> dict[str, Any]:
        value = F.rpad(F.concat(F.lit("row "), "id"), SIZE, ".")
        columns = [value.alias("value"), *(F.lit(text).alias(name) for name, text in PROPERTIES.items())]
        frame = self.spark.range(0, self.count, 1, self.cores).select(*columns).cache()
        frame.count()  # the rows are computed before the clock starts
        job = fresh_queue(Job("raw", "drain", self.count))
        with Watch() as watch:
            started = time.perf_counter()
            sink(frame, self.uri, job.queue)
            seconds = time.perf_counter() - started
        frame.unpersist()
        if sink is not no_sink:
            job.run(self.uri)  # fails unless every row has arrived
        return self.result(seconds, watch)

    def post_alone(self, case: str) -> dict[str, Any]:
        job = fresh_queue(Job("ours", case, self.count, size=SIZE, properties=True))
        result = job.run(self.uri)
        more = 1 if case == "post_table" else 0
        replace(job, client="raw", case="drain", count=self.count + more).run(self.uri)
        return {"rate": result["rate"], "cpu_us": {"client": result["cpu_us"]}}

    def filled(self, client: str, case: str) -> Job:
        """Return a job with a queue that has all rows."""
        job = fresh_queue(Job(client, case, self.count, size=SIZE, properties=True))
        bmq.run(self.fill(job.queue, self.count))
        return job

    async def fill(self, uri: str, count: int) -> None:
        batch = posted()
        parts = (batch.slice(0, min(PART, count - start)) for start in range(0, count, PART))
        table = pa.RecordBatchReader.from_batches(batch.schema, parts)
        async with bmq.connect(self.uri) as session:
            queue = await session.open_queue(uri, write=True)
            (await queue.post_table(table, value="value", properties=list(PROPERTIES))).raise_for_failures()

    def filled_queues(self, number: int) -> list[str]:
        """Return so many queues that have all rows together."""
        uris = [fresh_queue(Job("raw", "drain", self.count)).queue for _ in range(number)]
        for uri in uris:
            bmq.run(self.fill(uri, self.count // number))
        return uris

    def driver(self, queues: int) -> dict[str, Any]:
        """Receive and log as Spark's driver does, here: without the tasks that read the log."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        options = {"broker": self.uri, "queue": ",".join(self.filled_queues(queues)), "logpath": str(folder)}
        options["maxmessagespertrigger"] = str(TRIGGER)
        source = bmq.spark.BmqDataSource(options)
        reader: Any = source.streamReader(StructType([StructField("value", BinaryType())]))
        reader.prepareForTriggerAvailableNow()
        at: dict[str, int] = reader.initialOffset()
        began, busy = time.perf_counter(), time.process_time()
        while at["messages"] < self.count // queues * queues:
            at = reader.latestOffset(at)
        result = self.alone(time.perf_counter() - began, time.process_time() - busy)
        reader.latestOffset(at)
        reader.stop()
        return result

    def receive(self, queues: int) -> dict[str, Any]:
        """Receive and confirm from several queues in one process."""
        uris = self.filled_queues(queues)

        async def drain(session: bmq.Session, uri: str) -> None:
            window = 3 * TRIGGER
            queue = await session.open_queue(uri, read=True, max_unconfirmed_messages=window)
            left = self.count // queues
            while left:
                batch = await queue.receive_many(PART)
                left -= len(batch)
                batch.confirm()

        async def drain_all() -> dict[str, Any]:
            async with bmq.connect(self.uri) as session:
                began, busy = time.perf_counter(), time.process_time()
                await asyncio.gather(*(drain(session, uri) for uri in uris))
                return self.alone(time.perf_counter() - began, time.process_time() - busy)

        return bmq.run(drain_all())

    def alone(self, seconds: float, busy: float) -> dict[str, Any]:
        return {"rate": self.count / seconds, "cpu_us": {"client": busy / self.count * 1e6}}

    def receive_alone(self, client: str, case: str) -> dict[str, Any]:
        result = self.filled(client, case).run(self.uri)
        return {"rate": result["rate"], "cpu_us": {"client": result["cpu_us"]}}

    def batch(self) -> dict[str, Any]:
        folder = tempfile.mkdtemp(dir=self.folder)
        options = {"broker": self.uri, "queue": self.filled("raw", "drain").queue, "confirm": "onStore"}
        options |= {"propertiesSchema": SCHEMA, "maxMessages": str(self.count), "checkpointLocation": folder}
        frame = self.spark.read.format("bmq").options(**options, numPartitions=self.cores).load()
        return self.save(frame, lambda: bmq.spark.confirm(options))

    def generated_batch(self) -> dict[str, Any]:
        cores, count = self.cores, self.count

        def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if batch.num_rows:
                    yield from generated(count // cores)

        return self.save(self.spark.range(0, cores, 1, cores).mapInArrow(make, DDL))

    def save(self, frame: DataFrame, after: Callable[[], object] = lambda: None) -> dict[str, Any]:
        path = str(self.folder / "batch")
        with Watch() as watch:
            started = time.perf_counter()
            frame.write.format("parquet").mode("overwrite").save(path)
            after()
            seconds = time.perf_counter() - started
        assert self.spark.read.parquet(path).count() == self.count
        return self.result(seconds, watch)

    def stream_options(self) -> dict[str, Any]:
        found = {"broker": self.uri, "queue": self.filled("raw", "drain").queue, "idleTimeoutMs": 5000}
        found |= {"propertiesSchema": SCHEMA, "numReceivers": self.cores, "numPartitions": self.cores}
        return found | {"maxMessagesPerTrigger": TRIGGER, "maxMessages": self.count}

    def stream(self, kind: str, options: dict[str, Any]) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        reader = self.spark.readStream.format(kind).options(**options)
        frame = reader.option("checkpointLocation", str(folder / "checkpoint")).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        with Watch() as watch:
            query = writer.option("path", str(folder / "out")).trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                raise SystemExit(
                    f"the stream of {kind} failed, for example on a busy machine: {error}"
                ) from error
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        assert sum(each["numInputRows"] for each in progress) == self.count
        shutil.rmtree(folder, ignore_errors=True)
        first, last = (datetime.fromisoformat(progress[at]["timestamp"]) for at in (0, -1))
        seconds = (last - first).total_seconds() + progress[-1]["durationMs"]["triggerExecution"] / 1000
        return self.result(seconds, watch)

    def result(self, seconds: float, watch: Watch) -> dict[str, Any]:
        cpu = {role: used / self.count * 1e6 for role, used in watch.cpu.items()}
        return {"rate": self.count / seconds, "cpu_us": cpu, "mib": watch.memory / 2**20}


def row(name: str, rounds: list[dict[str, Any]]) -> list[str]:
    def median(value: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(map(value, rounds))

    costs = [median(lambda one, role=role: one["cpu_us"].get(role, 0.0)) for role in ROLES]
    memory = median(lambda one: one.get("mib", 0.0))
    cells = [name, f"{median(lambda one: one['rate']):,.0f}", *(f"{us:.1f}" if us else "" for us in costs)]
    return [*cells, f"{sum(costs):.1f}", f"{memory:.0f}" if memory else ""]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--cores", type=int, default=2, help="of Spark")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--output", type=Path, default=Path("build/spark"), metavar="NAME")
    options = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {}
    with broker() as (uri, what):
        bench = Bench(uri, options.cores, min(options.rows, WARM))
        try:
            for number in range(options.rounds + 1):  # the first round starts processes and compiles
                for name, case in bench.cases().items():
                    if options.only in name and (number or "alone" not in name or "Spark" in name):
                        result = case()
                        if number:
                            results.setdefault(name, []).append(result)
                bench.count = options.rows
        finally:
            bench.close()
    columns = [
        "case",
        "rows a second",
        *(f"CPU us a row: {role}" for role in ROLES),
        "all",
        "MiB of a worker",
    ]
    rows = [row(name, rounds) for name, rounds in results.items()]
    about = f"broker: {broker_name(what)}; {options.rows:,} rows, {options.cores} cores of Spark"
    about += f"; median of {options.rounds} rounds"
    write_tables(options.output, {"spark": (columns, rows)}, about=about, runs=results)


if __name__ == "__main__":
    main()
