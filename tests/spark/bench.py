# SPDX-License-Identifier: Apache-2.0
"""A broker, and readers, writers and streams of ``format("bmq")``, called as Spark calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, types
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

import bmq
import bmq.spark
from bmq.arrow.decoding import RecordBatch, pa
from bmq.spark import BmqDataSource, PartitionReport
from bmq.spark.log import BatchLog, raw_schema
from bmq.testing import BackgroundBroker
from tests.poison.poisons import POISONS, flood

DOMAIN = "bmq.test.mem.priority"
#: A queue for tests that never reach it.
NOWHERE = f"bmq://{DOMAIN}/nowhere"


class BrokerThread(BackgroundBroker):
    """An embedded broker, in a thread because the code under test blocks, with actions through a client."""

    def drain(
        self, uri: str, *, idle: float = 0.5, expect: int = 0, expression: str = ""
    ) -> list[bmq.Message]:
        """Receive and confirm what is in a queue; wait for ``expect`` messages, and for more after."""

        async def drained(_: object) -> list[bmq.Message]:
            messages: list[bmq.Message] = []
            async with bmq.connect(self.uri) as session:
                opened = await session.open_queue(
                    uri, read=True, max_unconfirmed_messages=1_000_000, default_subscription=False
                )
                queue = opened.subscribe(expression or None)
                with suppress(TimeoutError):
                    while True:
                        patience = 30.0 if len(messages) < expect else idle
                        batch = await queue.receive_many(10_000, timeout=patience)
                        batch.confirm()
                        messages += batch
            return messages

        return self.call(drained)

    def post(self, uri: str, items: Sequence[Any]) -> None:
        self.call(lambda _: self._post(uri, items))

    @contextmanager
    def posting(self, uri: str, item: Any, pause: float) -> Iterator[None]:
        """Post a message again and again, with a pause after each."""

        async def on_and_on() -> None:
            while True:
                await self._post(uri, [item])
                await asyncio.sleep(pause)

        task = self.call(lambda _: asyncio.ensure_future(on_and_on()))
        try:
            yield
        finally:
            self.call(lambda _: task.cancel())

    async def _post(self, uri: str, items: Sequence[Any]) -> None:
        async with bmq.connect(self.uri) as session:
            queue = await session.open_queue(uri, write=True)
            (await queue.post_many(items)).raise_for_failures()


def struct(**columns: types.DataType) -> StructType:
    return StructType([types.StructField(name, kind) for name, kind in columns.items()])


WHOLE = struct(
    value=types.BinaryType(),
    properties=types.MapType(types.StringType(), types.StringType()),
    guid=types.StringType(),
    queue=types.StringType(),
    subscription=types.StringType(),
    redelivered=types.BooleanType(),
    receivedAt=types.TimestampType(),
    error=types.StringType(),
)


def source(**options: Any) -> BmqDataSource:
    return BmqDataSource(CaseInsensitiveDict({key: str(value) for key, value in options.items()}))


def travelled(value: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(value))


def numbers(first: int, last: int) -> list[str]:
    return [f"{n}" for n in range(first, last)]


UNREADABLE = [
    POISONS[name]
    for name in ("no zlib", "zlib cut off", "properties that cannot be decoded", "a property twice")
]
#: The data of messages that cannot be decoded.
BAD = [poison.data for poison in UNREADABLE]


class Stage:
    """A queue for one test, and a folder for what reads and streams keep."""

    def __init__(self, broker: BrokerThread, queue: str, folder: Path) -> None:
        self.broker = broker
        self.queue = queue
        self.folder = folder
        self.target = {"broker": broker.uri, "queue": queue}
        self.dead = {"onInvalidMessage": "deadLetters", "deadLetterQueue": f"{queue}-dead"}

    def post(self, first: int, last: int) -> None:
        self.broker.post(self.queue, [text.encode() for text in numbers(first, last)])

    def post_values(self, values: Iterable[int]) -> None:
        """Post numbers as texts, and as the property ``n``."""
        self.broker.post(self.queue, [bmq.PutMessage(b"%d" % n, {"n": n}) for n in values])

    def post_bad(self, times: int = 1) -> None:
        async def post(_: Any) -> None:
            async with bmq.connect(self.broker.uri) as session:
                await flood(await session.open_queue(self.queue, write=True), UNREADABLE * times)

        self.broker.call(post)

    def post_bad_between(self) -> None:
        """Post messages that cannot be decoded, between two good messages."""
        self.broker.post(self.queue, [b"good"])
        self.post_bad()
        self.broker.post(self.queue, [b"too"])

    def drain(self, expect: int, suffix: str = "", expression: str = "") -> list[bmq.Message]:
        """Take messages from the queue, or from a queue with this suffix to its name."""
        return self.broker.drain(self.queue + suffix, expect=expect, expression=expression)

    def left(self, queue: str = "") -> list[str]:
        """Take the messages of a queue; return their texts, in the order of numbers."""
        texts = [m.data.decode() for m in self.broker.drain(queue or self.queue, idle=0.3)]
        return sorted(texts, key=lambda text: (len(text), text))

    def letters(self) -> list[bytes]:
        """Take the dead letters, and return their data; each has the reason and the queue."""
        letters = self.drain(len(BAD), "-dead")
        assert all(letter.properties["bmq_dead_error"] for letter in letters)
        assert {letter.properties["bmq_dead_queue"] for letter in letters} == {self.queue}
        return [letter.data for letter in letters]

    # batch reads, stored in the folder

    def options(self, **more: Any) -> dict[str, Any]:
        return {**self.target, "idleTimeoutMs": 150, "checkpointLocation": self.folder / "reads", **more}

    def rows(self, **more: Any) -> list[dict[str, Any]]:
        return rows_of(source(**self.options(**more)))

    def values(self, **more: Any) -> list[str]:
        return [row["value"].decode() for row in self.rows(**more)]

    def confirm(self, rows: Any = None, **more: Any) -> int:
        return bmq.spark.confirm(self.options(**more), rows)


# writing

Write = Callable[..., PartitionReport]


def columns_to(
    stage: Stage, schema: StructType, batches: Sequence[RecordBatch], **options: Any
) -> PartitionReport:
    """Write Arrow batches, as Spark hands them over."""
    writer: Any = source(**{**stage.target, **options}).writer(schema, False)
    report: PartitionReport = writer.write(iter(batches)).report
    return report


def rows_to(
    stage: Stage, schema: StructType, batches: Sequence[RecordBatch], **options: Any
) -> PartitionReport:
    """Write the same, row by row."""
    rows: list[Any] = []
    for batch in batches:
        for row in batch.to_pylist():
            values = {name: row[name] for name in schema.fieldNames()}
            rows.append(Row(**{k: dict(v) if isinstance(v, list) else v for k, v in values.items()}))
    return columns_to(stage, schema, rows, **options)


both = pytest.mark.parametrize("write", [columns_to, rows_to], ids=["columns", "rows"])


# reading


def read(reader: Any, partition: Any) -> list[dict[str, Any]]:
    return [row for batch in reader.read(partition) for row in batch.to_pylist()]


def rows_of(planned: BmqDataSource, schema: StructType = WHOLE) -> list[dict[str, Any]]:
    """Plan a read as Spark does, and run its tasks."""
    reader = planned.reader(schema)
    partitions = travelled(reader.partitions())
    worker = travelled(reader)
    return [row for each in partitions for row in read(worker, each)]


# reading as a stream


class Query:
    """The relevant calls of the engine of pyspark 4.2 and later, about one query."""

    def __init__(
        self, stage: Stage, folder: Path | None = None, schema: StructType = WHOLE, **options: Any
    ) -> None:
        self.folder = folder or stage.folder
        self.folder.mkdir(exist_ok=True)
        if not (self.folder / "metadata").exists():
            (self.folder / "metadata").write_text('{"id":"one"}')
        given = {**stage.target, "checkpointLocation": self.folder, "pollTimeoutMs": 300, "lingerMs": 50}
        self._source = source(**{**given, **options})
        self._schema = schema
        self.runner: Any = self._source.streamReader(schema)
        self.start: dict[str, Any] = self.runner.initialOffset()

    def latest(self) -> dict[str, Any]:
        end: dict[str, Any] = travelled(self.runner.latestOffset(self.start, None))
        return end

    def arrived(self) -> dict[str, Any]:
        """Ask until a message has arrived."""
        while (end := self.latest()) == self.start:
            pass
        return end

    def records(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        worker = travelled(self._source.streamReader(self._schema))
        partitions = travelled(self.runner.partitions(start, end))
        return [row for part in partitions for row in read(worker, part)]

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        return [row["value"].decode() for row in self.records(start, end)]

    def batch(self) -> list[str]:
        """A committed micro-batch."""
        end = self.latest()
        rows = self.rows(self.start, end)
        self.start = end
        return rows

    def upto(self, count: int) -> list[str]:
        """Batches until they have this many rows."""
        rows: list[str] = []
        while len(rows) < count:
            rows += self.batch()
        return rows

    def stop(self) -> None:
        self.runner.stop()


class OldQuery(Query):
    """The engine of pyspark 4.0 and 4.1: latestOffset has no arguments, and commit is called later."""

    def latest(self) -> dict[str, Any]:
        end: dict[str, Any] = travelled(self.runner.latestOffset())
        if end != self.start:
            self.runner.commit(self.start)
        return end


def cut(broker: BrokerThread) -> None:
    for connection in broker.call(lambda b: list(b._connections)):
        broker.call(lambda b, c=connection: c.transport.abort())


def logged_file(folder: Path, rows: int, batches: int = 1, payload: bytes = b"payload") -> Path:
    """Write a file of a stream's log, with so many rows in each of its batches; return its path."""
    schema = raw_schema([(NOWHERE, None)])
    file = BatchLog(str(folder)).begin(0, schema)
    columns = [pa.array([payload] * rows, pa.binary()), pa.array([bytes(16)] * rows, pa.binary(16))]
    plain = [pa.array([0] * rows, schema.field(at).type) for at in range(2, len(schema))]
    for _ in range(batches):
        file.write([pa.RecordBatch.from_arrays([*columns, *plain], schema=schema)])
    return Path(file.finish().path)
