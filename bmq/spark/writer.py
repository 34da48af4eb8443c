# SPDX-License-Identifier: Apache-2.0
"""The writers of ``format("bmq")``, batch and stream, and :func:`bmq.spark.write` for a whole DataFrame."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from bmq._logging import Log
from bmq.arrow.decoding import RecordBatch, pa
from bmq.errors import UsageError
from bmq.spark.options import WriteOptions
from bmq.spark.schema import check_columns
from bmq.spark.summary import PartitionReport, Summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ArrowPartition", "BatchWriter", "StreamWriter", "summary_accumulator", "write"]

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType
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


class ArrowPartition:
    """Posts a partition of Arrow batches, or of rows. Pickled for the workers."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self._types = check_columns(schema, options.roles)
        # One id for all tasks and their repetitions, and a different id for each write.
        self._own = uuid.uuid4().hex

    def post(self, batches: Iterator[Any], *, one_a_batch: bool = False) -> PartitionReport:
        """Post all rows and wait for all acknowledgements; ``one_a_batch`` as for :func:`task_scope`."""
        # Only the tasks need the client; the processes that plan and commit do not.
        from bmq.spark.partition import WritePartition, post_partition, task_scope

        options = self.options
        scope = task_scope(options.write_name, self._own, one_a_batch=one_a_batch)
        first = next(batches, None)
        if first is None:
            return PartitionReport(partition=scope.partition, attempt=scope.attempt)
        if hasattr(first, "__fields__"):
            return WritePartition(options, self._types, None).post(_chain(first, batches), scope)
        return post_partition(_numbered(_chain(first, batches)), options, scope)


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _numbered(batches: Iterator[RecordBatch]) -> Iterator[tuple[int, RecordBatch]]:
    position = 0
    for batch in batches:
        yield position, batch
        position += batch.num_rows


class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("bmq")``."""

    def __init__(self, partition: ArrowPartition) -> None:
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

    def __init__(self, partition: ArrowPartition) -> None:
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


def _target(partition: ArrowPartition) -> str:
    return partition.options.queue or f"the queues in column {partition.options.roles.queue}"


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
    used = df.select(*dict.fromkeys(sink.roles.named()))
    partition = ArrowPartition(sink, used.schema)

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
