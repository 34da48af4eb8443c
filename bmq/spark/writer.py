# SPDX-License-Identifier: Apache-2.0
"""The writers of ``format("bmq")``, batch and stream, :func:`bmq.spark.write`, and what they report."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from bmq._logging import Log
from bmq.arrow.decoding import RecordBatch, pa
from bmq.errors import UsageError
from bmq.spark.options import WriteOptions
from bmq.spark.schema import check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bmq.spark.partition import TaskScope

__all__ = [
    "BatchWriter",
    "PartitionReport",
    "StreamWriter",
    "Summary",
    "WritePartition",
    "summary_accumulator",
    "write",
]

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # pyspark 4.0 streams rows
        DataSourceStreamArrowWriter = DataSourceStreamWriter

logger = Log("bmq.spark")


@dataclass
class Posted(WriterCommitMessage):
    """A task's message to the driver.

    Attributes:
        report: report of the partition.
    """

    report: PartitionReport


_Sample = bytes  # a field of the report has this name


@dataclass(slots=True, kw_only=True)
class PartitionReport:
    """Report about the rows of a partition.

    Attributes:
        partition: number of the partition.
        attempt: number of Spark's earlier attempts.
        rows: rows read.
        acknowledged: messages acknowledged by the broker: stored now, or stored before under the same GUID.
        repeated: rows not posted because an earlier row of the partition had the same id.
        by_id: whether an id column is the identity of the messages.
        dropped: rows that could not be posted and were dropped.
        dead_letters: rows that could not be posted and whose dead letters the broker acknowledged.
        retried: posts repeated after a negative acknowledgement, except for a full queue.
        waited: seconds for which rows waited for space in a full queue.
        bytes: posted payload bytes.
        seconds: time from the first row to the last acknowledgement.
        reconnects: number of restored connections.
        sample: eight bytes for each sampled row, with ``guidMode=source`` and ``id``: equal bytes mean equal
            messages.
    """

    partition: int = 0
    attempt: int = 0
    rows: int = 0
    acknowledged: int = 0
    repeated: int = 0
    dropped: int = 0
    dead_letters: int = 0
    retried: int = 0
    waited: float = 0.0
    bytes: int = 0
    seconds: float = 0.0
    reconnects: int = 0
    by_id: bool = False
    sample: _Sample = field(default=b"", repr=False)

    @property
    def rows_per_second(self) -> float:
        """Rows a second of this partition."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def incomplete(self) -> bool:
        """Whether rows became no message of their own."""
        return bool(self.repeated or self.dropped or self.dead_letters)

    def __str__(self) -> str:
        return f"partition {self.partition}: {_counts(self)} in {self.seconds:.2f} s, {_rates(self)}"


@dataclass(slots=True)
class Summary:
    """Sum of the reports of a write.

    Attributes:
        reports: reports of the partitions, in the order of arrival.
        wall_seconds: duration of the whole write, if measured; 0 otherwise.
    """

    reports: list[PartitionReport] = field(default_factory=list["PartitionReport"])
    wall_seconds: float = 0.0

    @property
    def partitions(self) -> int:
        """Number of written partitions."""
        return len(self.reports)

    @property
    def rows(self) -> int:
        """Rows read."""
        return sum(each.rows for each in self.reports)

    @property
    def acknowledged(self) -> int:
        """Acknowledged messages."""
        return sum(each.acknowledged for each in self.reports)

    @property
    def repeated(self) -> int:
        """Rows not posted because an earlier row of the partition had the same id."""
        return sum(each.repeated for each in self.reports)

    @property
    def dropped(self) -> int:
        """Rows that could not be posted and were dropped."""
        return sum(each.dropped for each in self.reports)

    @property
    def dead_letters(self) -> int:
        """Rows that could not be posted and became dead letters."""
        return sum(each.dead_letters for each in self.reports)

    @property
    def retried(self) -> int:
        """Posts repeated after a negative acknowledgement."""
        return sum(each.retried for each in self.reports)

    @property
    def waited(self) -> float:
        """Seconds for which rows of all partitions waited for space in a full queue."""
        return sum(each.waited for each in self.reports)

    @property
    def bytes(self) -> int:
        """Posted payload bytes."""
        return sum(each.bytes for each in self.reports)

    @property
    def reconnects(self) -> int:
        """Number of restored connections."""
        return sum(each.reconnects for each in self.reports)

    @property
    def seconds(self) -> float:
        """Duration: measured, or else the duration of the slowest partition."""
        return self.wall_seconds or max((each.seconds for each in self.reports), default=0.0)

    @property
    def rows_per_second(self) -> float:
        """Rows a second of the whole write."""
        return self.rows / self.seconds if self.seconds else 0.0

    def check(self) -> None:
        """Check that no rows of different partitions had the same GUID, so that the broker lost none of them.

        The check uses a sample of the rows, and almost certainly finds frequent cases. Equal ids
        (``id_column``) are a warning in the log.

        Raises:
            UsageError: rows of one message (``guid_column``) are equal.
        """
        seen: dict[int, int] = {}
        merged = 0
        for report in self.reports:
            for key in memoryview(report.sample).cast("Q"):
                merged += seen.setdefault(key, report.partition) != report.partition
        if any(report.by_id for report in self.reports):
            repeated = self.repeated
            if merged or repeated:
                logger.warning(
                    "rows with equal ids are one message, and the broker keeps the first: %s rows of a "
                    "partition, and %s rows of a sample of %s in different partitions",
                    f"{repeated:,}",
                    f"{merged:,}",
                    f"{len(seen) + merged:,}",
                )
        elif merged:
            raise UsageError(
                "rows of one message (guidColumn) in different partitions are equal in value and "
                f"properties: {merged} of a sample of {len(seen) + merged} rows. The broker has kept only "
                "one row of each set of equal rows, and all other rows. Add a number (posexplode) to the "
                "value or to a property, drop duplicates (dropDuplicates) if one row is enough, or use "
                "guidMode=content, with which a repeated write or batch may post rows again"
            )

    def add(self, reports: Iterable[PartitionReport]) -> Summary:
        """Add reports; return this summary."""
        self.reports.extend(reports)
        return self

    def __str__(self) -> str:
        word = "partition" if self.partitions == 1 else "partitions"
        return f"{_counts(self)} in {self.partitions} {word}, {self.seconds:.2f} s, {_rates(self)}"


def _counts(of: PartitionReport | Summary) -> str:
    parts = [
        (of.repeated, f"{of.repeated:,} with a repeated id"),
        (of.dropped, f"{of.dropped:,} invalid and dropped"),
        (of.dead_letters, f"{of.dead_letters:,} invalid and posted as dead letters"),
        (of.retried, f"{of.retried:,} retried"),
        (of.waited, f"{of.waited:.1f} s of waiting for room"),
        (of.reconnects, f"{of.reconnects} reconnects"),
    ]
    first = f"{of.rows:,} rows, {of.acknowledged:,} acknowledged"
    return ", ".join([first, *(text for count, text in parts if count)])


def _rates(of: PartitionReport | Summary) -> str:
    megabytes = of.bytes / of.seconds / 1e6 if of.seconds else 0.0
    return f"{of.rows_per_second:,.0f} rows/s, {megabytes:.1f} MB/s"


class WritePartition:
    """Posts the rows of a partition. Created by :func:`write_partition`, and pickled for the workers.

    Args:
        options: options of the sink.
        types: property types of the columns; None to derive them from the values.
        summary: accumulator for reports; None for none.
    """

    def __init__(
        self,
        options: WriteOptions,
        types: dict[str, Any] | None,
        summary: Accumulator[Summary] | None = None,
    ) -> None:
        self.options = options
        self._types = types
        self._summary = summary
        # One id for all tasks and their repetitions, and a different id for each write.
        self._own = uuid.uuid4().hex

    def __call__(self, rows: Iterable[Any]) -> None:
        """Post the rows of one partition and wait for all acknowledgements."""
        report = self.post(iter(rows))
        if self._summary is not None:
            self._summary.add(Summary([report]))

    def post(
        self, rows: Iterator[Any], scope: TaskScope | None = None, *, one_a_batch: bool = False
    ) -> PartitionReport:
        """Post rows and return a report.

        Args:
            rows: ``pyspark.sql.Row``, dictionaries or batches of Arrow.
            scope: scope instead of the running task's.
            one_a_batch: as for :func:`bmq.spark.partition.task_scope`.

        Raises:
            PostError, ConnectionFailed, UsageError, RequestTimeout: as for :func:`write_partition`.
        """
        # Only the tasks need the client; the processes that plan and commit do not.
        from bmq.spark.partition import batches_of, names_of, post_partition, task_scope

        scope = scope or task_scope(self.options.write_name, self._own, one_a_batch=one_a_batch)
        first = next(rows, None)
        if first is None:
            return PartitionReport(partition=scope.partition, attempt=scope.attempt)
        options = self.options.resolved(names_of(first))
        return post_partition(batches_of(first, rows, options, self._types), options, scope)


class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("bmq")``."""

    def __init__(self, partition: WritePartition) -> None:
        self._partition = partition

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Post one partition, which is written when all rows are acknowledged."""
        return Posted(self._partition.post(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the summary of the write. All rows are already posted.

        Raises:
            UsageError: rows had the same GUID; see :meth:`Summary.check`.
        """
        _commit(_target(self._partition), messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the failure of the write; posted rows stay posted."""
        logger.warning("%s: aborted: %s", _target(self._partition), _aborted(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("bmq")``."""

    def __init__(self, partition: WritePartition) -> None:
        self._partition = partition

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Post one partition of a micro-batch, which is written when all rows are acknowledged."""
        return Posted(self._partition.post(iterator, one_a_batch=True))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the summary of the batch; see :meth:`BatchWriter.commit`."""
        _commit(f"{_target(self._partition)}: batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the failure of the batch. Posted rows stay posted, and are recognised in a repetition."""
        logger.warning("%s: batch %d aborted: %s", _target(self._partition), batchId, _aborted(messages))


def _commit(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    summary = _summary(messages)
    logger.info("%s: %s", what, summary)
    summary.check()


def _target(partition: WritePartition) -> str:
    return partition.options.queue or f"the queues in column {partition.options.queue_column}"


def _aborted(messages: Sequence[WriterCommitMessage | None]) -> str:
    done = _summary(messages)
    return (
        f"{done.partitions} of {len(messages)} tasks were complete, with {done.acknowledged:,} rows, which "
        "stay posted. Rows of incomplete tasks may be posted, too: a failed task's error has their number"
    )


def _summary(messages: Sequence[WriterCommitMessage | None]) -> Summary:
    return Summary([each.report for each in messages if isinstance(each, Posted)])


class _Summaries(AccumulatorParam[Summary]):
    """Adds summaries."""

    def zero(self, value: Summary) -> Summary:
        return Summary()

    def addInPlace(self, value1: Summary, value2: Summary) -> Summary:
        return value1.add(value2.reports)


def summary_accumulator(spark: SparkSession) -> Accumulator[Summary]:
    """Return an accumulator for the argument ``summary`` of :func:`bmq.spark.write_partition`.

    After ``foreachPartition``, its ``value`` has one report for each partition. A repeated task counts once.

    Raises:
        UsageError: the session uses Spark Connect, which has no accumulators.
    """
    try:
        context = spark.sparkContext
    except Exception:  # Spark Connect raises different classes in different versions
        raise UsageError(
            "Spark Connect has no accumulators: bmq.spark.write(df, ...) returns the same summary there"
        ) from None
    return context.accumulator(Summary(), _Summaries())


def write(
    df: DataFrame,
    *,
    queue: str = "",
    broker: str | None = None,
    value: str = "value",
    properties: Sequence[str] = (),
    **options: Any,
) -> Summary:
    """Post all rows of a DataFrame and return a summary.

    Like ``df.foreachPartition(write_partition(...))``, with three additions: the columns are checked first,
    rows are passed as Arrow batches, and a summary is returned.

    Args:
        df: DataFrame.
        queue: URI of the target queue.
        broker: address of the broker; None as for :class:`bmq.connect`, in the environment of the task.
        value: column with the payload.
        properties: columns that become properties.
        options: other arguments of :func:`bmq.spark.write_partition`, except ``schema`` and ``summary``.

    Raises:
        UsageError: a column cannot be posted, and nothing was posted; or rows of one message in different
            partitions had the same GUID, see :meth:`Summary.check`.
        PySparkException: the job failed; its text contains the task's error.
    """
    from bmq.spark.partition import write_partition

    plan = write_partition(
        queue=queue, broker=broker, value=value, properties=properties, schema=df.schema, **options
    )
    sink = plan.options.resolved(df.columns)
    used = df.select(*dict.fromkeys(sink.columns))
    partition = WritePartition(sink, check_columns(used.schema, sink))

    def post(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        data = msgspec.msgpack.encode(partition.post(batches))
        yield pa.RecordBatch.from_arrays([pa.array([data])], ["report"])

    frame: Any = used
    started = time.monotonic()
    rows = frame.mapInArrow(post, "report BINARY").collect()
    reports = [msgspec.msgpack.decode(row.report, type=PartitionReport) for row in rows]
    summary = Summary(reports, wall_seconds=time.monotonic() - started)
    logger.info("%s: %s", sink.queue or "several queues", summary)
    summary.check()
    return summary
