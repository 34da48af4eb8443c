# SPDX-License-Identifier: Apache-2.0
"""Rows a second of the Spark source, beside the bare client, the official client and Spark's own ceiling.

    python benchmarks/spark_source.py [--quick] [--sizes 10000 ...] [--cores 1 2] [--rounds 5] [--output NAME]

Each row has 256 bytes and two properties, which are read as columns. The cases are a batch read, a stream of
many triggers (``availableNow``), and both into Parquet; beside them, in the same rounds, this client alone,
as messages and as tables, the official client alone, and the same rows generated in Spark's workers and
discarded, as a DataFrame and as a stream with the same triggers. With ``--cores 1``, all processes except the
broker are bound to one core; otherwise a batch has as many tasks, and a stream as many sessions, as cores.
The rate of a stream covers the time between its first row and its last; "with start" covers the time from
``start()`` to the end of the query. Uses the broker of ``BMQ_BROKER_URI``, or an embedded broker in a
separate process; its queues must hold all messages of a job.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from harness import HERE, Job, fresh_queue
from processes import Watch
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
from spark_jobs import PAYLOAD, Cases, main, start_spark

import bmq
import bmq.spark
from bmq.client.raw import RawBatch
from bmq.spark._ledger import Ledger
from bmq.spark._log import BatchLog
from bmq.spark._raw import Source, guid_keys, raw_rows, raw_schema
from bmq.spark._rows import RowMaker, source_ddl
from bmq.wire.constants import PushFlags
from bmq.wire.properties import encode_properties
from bmq.wire.push_columns import PushColumns

TRIGGERS = (10_000, 100_000)
PART = 10_000
WARM = 20_000
PROPERTIES = "CustomerId BIGINT, OrderType STRING"
QUEUE = "bmq://bmq.test.mem.priority/benchmark-0123456789abcdef0123456789abcdef"


def posted() -> pa.RecordBatch:
    """Return the rows that are posted repeatedly, with distinct values."""
    values = [f"row {number} ".ljust(PAYLOAD, ".").encode() for number in range(PART)]
    customers = pa.array([1234] * PART, pa.int64())
    return pa.record_batch({"value": values, "CustomerId": customers, "OrderType": ["EXPRESS"] * PART})


async def fill(uri: str, queue: str, count: int) -> None:
    """Post this number of rows."""
    batch = posted()
    parts = (batch.slice(0, min(PART, count - start)) for start in range(0, count, PART))
    table = pa.RecordBatchReader.from_batches(batch.schema, parts)
    async with bmq.connect(uri) as session:
        target = await session.open_queue(queue, write=True)
        report = await target.post_table(table, value="value", properties=["CustomerId", "OrderType"])
        report.raise_for_failures()


def received(queue: str) -> Iterator[pa.RecordBatch]:
    """Yield rows as the source builds them, for ever; after 32 of these, GUIDs repeat."""
    batch = posted()
    digits = pa.py_buffer(np.random.default_rng(1).bytes(16 * PART + 16).hex().upper().encode())
    ends = pa.py_buffer(np.arange(0, 32 * PART + 1, 32, dtype=np.int32))
    fields = [pa.field("CustomerId", pa.int64()), pa.field("OrderType", pa.string())]
    now = pa.scalar(datetime.now(), pa.timestamp("us", tz="UTC"))
    columns = {
        "value": batch["value"],
        "properties": pa.StructArray.from_arrays([batch["CustomerId"], batch["OrderType"]], fields=fields),
        "guid": pa.nulls(PART, pa.string()),
        "queue": pa.repeat(pa.scalar(queue), PART),
        "subscription": pa.nulls(PART, pa.string()),
        "redelivered": pa.repeat(pa.scalar(False), PART),
        "receivedAt": pa.repeat(now, PART),
        "error": pa.nulls(PART, pa.string()),
    }
    for number in itertools.count():
        columns["guid"] = pa.StringArray.from_buffers(PART, ends, digits.slice(number % 32))
        yield pa.record_batch(columns)


class Rows(DataSource):
    """The same rows as a stream, generated in the workers: Spark's own cost of such a source."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> str:
        return source_ddl(PROPERTIES)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return RowsReader(int(self.options["count"]), int(self.options["trigger"]))


class RowsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A number of rows, in triggers of a fixed size."""

    def __init__(self, count: int, trigger: int) -> None:
        self._count, self._trigger = count, trigger

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadMaxRows:
        return ReadMaxRows(self._trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: the number of rows ends the stream."""

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        return {"rows": min(start["rows"] + limit.max_rows, self._count)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(end["rows"] - start["rows"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from made(partition.value)


def made(count: int) -> Iterator[pa.RecordBatch]:
    batches = received(QUEUE)
    for start in range(0, count, PART):
        yield next(batches).slice(0, min(PART, count - start))


class Bench:
    """The measurements of one process, with a number of cores and rows."""

    def __init__(self, uri: str, cores: int, count: int) -> None:
        self.uri, self.cores, self.count = uri, cores, count
        self.folder = Path(tempfile.mkdtemp(prefix="spark-source-"))
        self.spark: SparkSession = start_spark(cores)
        self.spark.dataSource.register(Rows)

    def close(self) -> None:
        self.spark.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def job(self, client: str, case: str) -> Job:
        job = fresh_queue(Job(client, case, self.count, size=PAYLOAD, properties=True))
        bmq.run(fill(self.uri, job.queue, self.count))
        return job

    def alone(self, client: str, case: str) -> dict[str, Any]:
        result = self.job(client, case).run(self.uri)
        return {"rate": result["rate"], "cpu_us": {"client": result["cpu_us"]}}

    def batch(self, out: str) -> dict[str, Any]:
        queue = self.job("raw", "drain").queue
        folder = tempfile.mkdtemp(dir=self.folder)
        options = {"broker": self.uri, "queue": queue, "checkpointLocation": folder, "confirm": "onStore"}
        options |= {"propertiesSchema": PROPERTIES, "maxMessages": str(self.count)}
        reader = self.spark.read.format("bmq").options(**options, numPartitions=self.cores)
        result = self._save(reader.load(), out, lambda: bmq.spark.confirm(options))
        shutil.rmtree(folder, ignore_errors=True)
        return result

    def local(self, out: str) -> dict[str, Any]:
        cores, count = self.cores, self.count

        def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if batch.num_rows:
                    yield from made(count // cores)

        frame = self.spark.range(0, cores, 1, cores).mapInArrow(make, source_ddl(PROPERTIES))
        return self._save(frame, out)

    def _save(self, frame: DataFrame, out: str, after: Callable[[], object] = lambda: None) -> dict[str, Any]:
        with Watch() as watch:
            started = time.perf_counter()
            frame.write.format(out).mode("overwrite").save(str(self.folder / "batch"))
            after()
            seconds = time.perf_counter() - started
        if out == "parquet":
            found = self.spark.read.parquet(str(self.folder / "batch")).count()
            assert found == self.count, found
        return self._result(seconds, watch)

    def stream(self, out: str, trigger: int) -> dict[str, Any]:
        def options() -> dict[str, Any]:
            found = {"broker": self.uri, "queue": self.job("raw", "drain").queue, "idleTimeoutMs": 5000}
            found |= {"propertiesSchema": PROPERTIES, "numReceivers": self.cores, "numPartitions": self.cores}
            return found | {"maxMessagesPerTrigger": trigger, "maxMessages": self.count}

        return self._patiently("bmq", options, out)

    def local_stream(self, out: str, trigger: int) -> dict[str, Any]:
        return self._patiently("rows", lambda: {"count": self.count, "trigger": trigger}, out)

    def _patiently(self, kind: str, options: Callable[[], dict[str, Any]], out: str) -> dict[str, Any]:
        """Retry: on a busy machine, Spark's ten seconds for a process to start can be too short."""
        for _ in range(4):
            with suppress(StreamingQueryException):
                return self._stream(kind, options(), out)
        return self._stream(kind, options(), out)

    def _stream(self, kind: str, options: dict[str, Any], out: str) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        reader = self.spark.readStream.format(kind).options(**options)
        frame = reader.option("checkpointLocation", str(folder / "checkpoint")).load()
        writer = frame.writeStream.format(out).option("checkpointLocation", str(folder / "checkpoint"))
        writer = writer.option("path", str(folder / "out")).trigger(availableNow=True)
        with Watch() as watch:
            started = time.perf_counter()
            query = writer.start()
            query.awaitTermination()
            seconds = time.perf_counter() - started
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        found = sum(each["numInputRows"] for each in progress)
        assert found == self.count, found
        if out == "parquet":
            assert self.spark.read.parquet(str(folder / "out")).count() == self.count
        shutil.rmtree(folder, ignore_errors=True)
        first = datetime.fromisoformat(progress[0]["timestamp"])
        last = datetime.fromisoformat(progress[-1]["timestamp"])
        steady = (last - first).total_seconds() + progress[-1]["durationMs"]["triggerExecution"] / 1000
        triggers: dict[str, float] = {}
        for name in progress[-1]["durationMs"]:
            triggers[name] = statistics.median(each["durationMs"].get(name, 0) for each in progress)
        result = self._result(steady, watch)
        every = [(each["numInputRows"], each["durationMs"]) for each in progress]
        return {**result, "with_start": self.count / seconds, "trigger_ms": triggers, "triggers": every}

    def _result(self, seconds: float, watch: Watch) -> dict[str, Any]:
        return {
            "rate": self.count / seconds,
            "seconds": seconds,
            "cpu_us": {role: used / self.count * 1e6 for role, used in watch.cpu.items()},
            "memory": watch.memory,
        }

    def cases(self) -> dict[str, Callable[[], dict[str, Any]]]:
        found: dict[str, Callable[[], dict[str, Any]]] = {
            "client, tables": lambda: self.alone("ours", "consume_tables"),
            "client, tables, confirmed in the end": lambda: self.alone("ours", "consume_tables_as_a_task"),
            "client, tables, stored as a batch": lambda: self.alone("ours", "consume_tables_stored"),
            "client, batches": lambda: self.alone("ours", "consume_batches"),
            "official client": lambda: self.alone("official", "consume"),
        }
        for out, text in (("noop", ""), ("parquet", " into Parquet")):
            found[f"batch{text}"] = lambda out=out: self.batch(out)
            found[f"Spark's ceiling, batch{text}"] = lambda out=out: self.local(out)
            for trigger in TRIGGERS:
                # Small triggers have equal costs, so a limited number is enough.
                if trigger <= self.count <= 50 * trigger:
                    name = f"stream of {trigger:,}{text}"
                    found[name] = lambda out=out, trigger=trigger: self.stream(out, trigger)
                    found[f"Spark's ceiling, {name}"] = lambda out=out, trigger=trigger: self.local_stream(
                        out, trigger
                    )
        return found


def stages() -> dict[str, float]:
    """Return the processor time a row, in us, of a stream's process besides receiving, and of its log."""
    rng = np.random.default_rng(1)
    area = encode_properties({"CustomerId": 1234, "OrderType": "EXPRESS"}, new=True)
    flags = int(PushFlags.MESSAGE_PROPERTIES)
    values = posted()["value"].to_pylist()
    pushes = [(0, (0,), rng.bytes(16), flags, 1, 0, area + value) for value in values]
    raw = RawBatch(PushColumns.of(pushes), np.zeros(PART, np.int64))
    sources: list[Source] = [(QUEUE, None)]
    schema = raw_schema(sources)
    batch = raw_rows(raw, 0, schema)
    maker = RowMaker(from_arrow_schema(next(received(QUEUE)).schema))
    keys = [np.frombuffer(rng.bytes(16 * PART), "V16").tolist() for _ in range(10)]
    with tempfile.TemporaryDirectory(dir=HERE.parent / "build") as folder:
        log = BatchLog(folder)

        def write() -> str:
            file = log.begin(0, batch.schema)
            for _ in range(10):
                file.write([batch])
            return file.finish().path

        def known() -> None:
            ledger = Ledger()
            for each in keys:
                ledger.arrive(QUEUE, each)

        def read() -> None:
            rows, found = log.read(path)
            for each in rows:
                for made in maker.make(each, found):
                    pa.RecordBatchStreamWriter(pa.BufferOutputStream(), made.schema).write_batch(made)

        path = write()
        parts: dict[str, Callable[[], Any]] = {
            "the columns of the log": lambda: [raw_rows(raw, 0, schema) for _ in range(10)],
            "GUIDs out of their column": lambda: [guid_keys(batch) for _ in range(10)],
            "the columns of Spark's schema (in a worker)": lambda: [
                list(maker.make(batch, sources)) for _ in range(10)
            ],
            "whether they are known": known,
            "the log, written and synchronised": write,
            "the log, read, decoded and written to a stream (in a worker)": read,
        }
        found: dict[str, float] = {}
        for name, part in parts.items():
            part()
            started = time.process_time()
            for _ in range(5):
                part()
            found[name] = (time.process_time() - started) / (5 * 10 * PART) * 1e6
    return found


def measure(uri: str, cores: int, count: int, rounds: int, only: str) -> Cases:
    """Make all measurements for one number of cores and rows, in this process."""
    bench = Bench(uri, cores, count)
    results: Cases = {}
    try:
        if not only:
            results["batch, cold"] = [bench.batch("noop")]
        for number in range(rounds + 1):
            bench.count = count if number else min(count, WARM)  # the first round warms Spark up
            for name, case in bench.cases().items():
                if only in name and (number or "client" not in name):
                    result = case()
                    if number:
                        results.setdefault(name, []).append(result)
    finally:
        bench.close()
    return results


if __name__ == "__main__":
    main(__doc__, __file__, measure, lambda: {"stages": stages()})
