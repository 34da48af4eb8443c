# SPDX-License-Identifier: Apache-2.0
"""Spark with this client, the official client, and alone: several cases in a process, see ``common.py``.

Each case that reads takes the messages that the case before it has written.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import PROPERTIES, Job, Meter, Result, answer, job
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, StructField, StructType

import bmq
import bmq.spark

SIZE, PART, CORES, TRIGGERS, WARM = 256, 10_000, 2, 3, 3_000
SCHEMA = "CustomerId BIGINT, OrderType STRING"
EIGHT = 8
# How many times the messages of a case a driver receives.
SUSTAINED = 4
DDL = (
    "value BINARY, properties STRUCT<CustomerId: BIGINT, OrderType: STRING>, guid STRING, queue STRING, "
    "subscription STRING, redelivered BOOLEAN, receivedAt TIMESTAMP, error STRING"
)


class Watch:
    """Wall time and the processor time of all processes below this one; Spark starts and ends them."""

    def __init__(self) -> None:
        self.wall, self.ticks = time.perf_counter(), self._look()

    def result(self, rows: int) -> Result:
        wall = time.perf_counter() - self.wall
        seconds = (self._look() - self.ticks) / os.sysconf("SC_CLK_TCK")
        return {"rate": rows / wall, "cpu_us": seconds / rows * 1e6}

    def _look(self) -> int:
        """Return the ticks of each process below this one, and of those which ended below them."""
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
                ticks[int(folder.name)] = sum(map(int, fields[11:15]))

        def below(process: int) -> bool:
            while process in parents and process != os.getpid():
                process = parents[process]
            return process == os.getpid()

        return sum(used for process, used in ticks.items() if process != os.getpid() and below(process))


def start_spark() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    builder = SparkSession.builder.master(f"local[{CORES}]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import it
    spark.dataSource.register(Rows)
    return spark


# Spark's own cost of a source: generated rows with the columns of a read


def posted() -> pa.RecordBatch:
    """Return rows with distinct values."""
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
        return ReadMaxRows(-(-self._count // TRIGGERS))

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: the number of rows ends the stream."""

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        return {"rows": min(start["rows"] + limit.max_rows, self._count)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(end["rows"] - start["rows"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from generated(partition.value)


class Spark:
    """A Spark, the number of rows of a case, and the queues that were filled last."""

    def __init__(self, broker: str, folder: Path) -> None:
        self.broker, self.folder, self.count = broker, folder, WARM
        self.spark = start_spark()
        self.queues: list[str] = []

    def new_queues(self, number: int = 1) -> list[str]:
        self.queues = [f"bmq://bmq.test.mem.priority/benchmark-{uuid.uuid4().hex}" for _ in range(number)]
        return self.queues

    # writes

    def written(self, sink: Callable[[DataFrame, str], None]) -> Result:
        (queue,) = self.new_queues()
        value = F.rpad(F.concat(F.lit("row "), "id"), SIZE, ".")
        columns = [value.alias("value"), *(F.lit(text).alias(name) for name, text in PROPERTIES.items())]
        frame = self.spark.range(0, self.count, 1, CORES).select(*columns).cache()
        frame.count()  # the rows are computed before the time starts
        watch = Watch()
        sink(frame, queue)
        result = watch.result(self.count)
        frame.unpersist()
        return result

    def by_format(self, frame: DataFrame, queue: str) -> None:
        writer = frame.write.format("bmq").mode("append").options(broker=self.broker, queue=queue)
        writer.option("propertyColumns", ",".join(PROPERTIES)).save()

    def by_partition(self, frame: DataFrame, queue: str) -> None:
        names = list(PROPERTIES)
        frame.foreachPartition(bmq.spark.write_partition(queue=queue, broker=self.broker, properties=names))

    def by_official(self, frame: DataFrame, queue: str) -> None:
        broker = self.broker

        def post(rows: Iterable[Any]) -> None:
            import blazingmq

            session = blazingmq.Session(lambda event: None, broker=broker)
            session.open_queue(queue, write=True)
            lock, done = threading.Condition(), [0]

            def acknowledged(ack: Any) -> None:
                with lock:
                    done[0] += 1
                    lock.notify()

            posted = 0
            for row in rows:
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

    def fill(self, number: int) -> Result:
        """Post the columns to so many queues with the client alone."""
        meter = Meter()
        for uri in self.new_queues(number):
            bmq.run(self.post_table(uri, self.count // number))
        return meter.result(self.count)

    async def post_table(self, uri: str, count: int) -> None:
        batch = posted()
        parts = (batch.slice(0, min(PART, count - start)) for start in range(0, count, PART))
        table = pa.RecordBatchReader.from_batches(batch.schema, parts)
        async with bmq.connect(self.broker) as session:
            queue = await session.open_queue(uri, write=True)
            (await queue.post_table(table, value="value", properties=list(PROPERTIES))).raise_for_failures()

    # reads of what was written last

    def options(self) -> dict[str, Any]:
        limits = {"maxMessages": self.count, "numPartitions": CORES}
        return limits | {"broker": self.broker, "queue": self.queues[0], "propertiesSchema": SCHEMA}

    def batch(self) -> Result:
        place = {"confirm": "onStore", "checkpointLocation": tempfile.mkdtemp(dir=self.folder)}
        options = {name: str(value) for name, value in (self.options() | place).items()}
        return self.saved(
            lambda: self.spark.read.format("bmq").options(**options).load(),
            lambda: bmq.spark.confirm(options),
        )

    def generated_batch(self) -> Result:
        count = self.count // CORES

        def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if batch.num_rows:
                    yield from generated(count)

        return self.saved(lambda: self.spark.range(0, CORES, 1, CORES).mapInArrow(make, DDL))

    def saved(self, load: Callable[[], DataFrame], after: Callable[[], object] = lambda: None) -> Result:
        path = str(self.folder / "batch")
        watch = Watch()
        load().write.format("parquet").mode("overwrite").save(path)
        after()
        result = watch.result(self.count)
        assert self.spark.read.parquet(path).count() == self.count
        return result

    def stream(self, kind: str, options: dict[str, Any]) -> Result:
        """Return the rate between the start of the first trigger and the end of the last."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        checkpoint = {"checkpointLocation": str(folder / "checkpoint")}
        frame = self.spark.readStream.format(kind).options(**options, **checkpoint).load()
        writer = frame.writeStream.format("parquet").options(**checkpoint)
        watch = Watch()
        query = writer.option("path", str(folder / "out")).trigger(availableNow=True).start()
        query.awaitTermination()
        result = watch.result(self.count)
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        assert sum(each["numInputRows"] for each in progress) == self.count
        first, last = (datetime.fromisoformat(progress[at]["timestamp"]) for at in (0, -1))
        seconds = (last - first).total_seconds() + progress[-1]["durationMs"]["triggerExecution"] / 1000
        return result | {"rate": self.count / seconds}

    def stream_of_bmq(self) -> Result:
        more = {"maxMessagesPerTrigger": -(-self.count // TRIGGERS), "numReceivers": CORES}
        return self.stream("bmq", self.options() | more | {"idleTimeoutMs": 5000})

    # the driver

    def sustained(self, read: Callable[[int], Result]) -> Result:
        """Return the rate of a read from the queues, with more messages: the start counts too."""
        each = SUSTAINED * self.count // len(self.queues)
        for uri in self.queues:
            bmq.run(self.post_table(uri, each - self.count // len(self.queues)))
        return read(each)

    def driver(self, each: int) -> Result:
        """Receive and log as Spark's driver does, here: without the tasks that read the log."""
        options = {"broker": self.broker, "queue": ",".join(self.queues)}
        options |= {"logpath": tempfile.mkdtemp(dir=self.folder), "maxmessagespertrigger": str(10 * PART)}
        source = bmq.spark.BmqDataSource(options)
        reader: Any = source.streamReader(StructType([StructField("value", BinaryType())]))
        reader.prepareForTriggerAvailableNow()
        at: dict[str, int] = reader.initialOffset()
        meter = Meter()
        while at["messages"] < each * len(self.queues):
            at = reader.latestOffset(at)
        result = meter.result(at["messages"])
        reader.latestOffset(at)
        reader.stop()
        return result

    def receive(self, each: int) -> Result:
        """Receive and confirm from all queues in one session, and do nothing else."""

        async def drain(session: bmq.Session, uri: str) -> None:
            queue = await session.open_queue(uri, read=True, max_unconfirmed_messages=30 * PART)
            left = each
            while left:
                batch = await queue.receive_many(PART)
                left -= len(batch)
                batch.confirm()

        async def drain_all() -> Result:
            async with bmq.connect(self.broker) as session:
                meter = Meter()
                await asyncio.gather(*(drain(session, uri) for uri in self.queues))
                return meter.result(each * len(self.queues))

        return bmq.run(drain_all())


def main(job: Job) -> None:
    """Run a round for each line of the standard input."""
    with tempfile.TemporaryDirectory(prefix="spark-") as folder:
        here = Spark(job["broker"], Path(folder))
        cases: list[tuple[str, Callable[[], Result]]] = [
            ("write", lambda: here.written(here.by_format)),
            ("batch", here.batch),
            ("write_partition", lambda: here.written(here.by_partition)),
            ("stream", here.stream_of_bmq),
            ("post_table", lambda: here.fill(1)),
            ("driver, one queue", lambda: here.sustained(here.driver)),
            ("official write", lambda: here.written(here.by_official)),
            ("received, one queue", lambda: here.sustained(here.receive)),
            ("", lambda: here.fill(EIGHT)),
            ("driver, eight queues", lambda: here.sustained(here.driver)),
            ("", lambda: here.fill(EIGHT)),
            ("received, eight queues", lambda: here.sustained(here.receive)),
            ("Spark batch", here.generated_batch),
            ("Spark stream", lambda: here.stream("rows", {"count": here.count})),
        ]
        for _, case in cases:
            case()  # starts processes and compiles
        here.count = job["count"]
        for _ in sys.stdin:
            answer({name: result for name, case in cases if (result := case()) and name})
        here.spark.stop()


if __name__ == "__main__":
    main(job())
