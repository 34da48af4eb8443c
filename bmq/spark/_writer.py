# SPDX-License-Identifier: Apache-2.0
"""The writers for Spark, batch and stream, from Arrow batches, or from rows in versions that pass rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from bmq._logging import Log
from bmq.spark._arrow import RecordBatch
from bmq.spark._columns import check_columns
from bmq.spark._sink_settings import SinkSettings
from bmq.spark._summary import PartitionReport, Summary

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # pyspark 4.0 streams rows
        DataSourceStreamArrowWriter = DataSourceStreamWriter

__all__ = ["ArrowPartition", "BatchWriter", "Posted", "StreamWriter"]

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

    def __init__(self, settings: SinkSettings, schema: StructType) -> None:
        self.settings = settings
        self._types = check_columns(schema, settings.columns)
        # One id for all tasks and their repetitions, and a different id for each write.
        self._own = uuid.uuid4().hex

    def post(self, batches: Iterator[Any], *, one_a_batch: bool = False) -> PartitionReport:
        """Post all rows and wait for all acknowledgements; ``one_a_batch`` as for :func:`task_scope`."""
        # Only the tasks need the client; the processes that plan and commit do not.
        from bmq.spark._partition import WritePartition, task_scope
        from bmq.spark._posting import post_partition

        settings = self.settings
        scope = task_scope(settings.write_name, self._own, one_a_batch=one_a_batch)
        first = next(batches, None)
        if first is None:
            return PartitionReport(partition=scope.partition, attempt=scope.attempt)
        if hasattr(first, "__fields__"):
            return WritePartition(settings, self._types, None).post(_chain(first, batches), scope)
        return post_partition(_numbered(_chain(first, batches)), settings, scope)


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
        summary = _summary(messages)
        logger.info("%s: %s", _target(self._partition), summary)
        summary.check()

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
        """Log the summary of the batch. All rows are already posted.

        Raises:
            UsageError: rows had the same GUID; see :meth:`Summary.check`.
        """
        summary = _summary(messages)
        logger.info("%s: batch %d: %s", _target(self._partition), batchId, summary)
        summary.check()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the failure of the batch. Posted rows stay posted, and are recognised in a repetition."""
        logger.warning("%s: batch %d aborted: %s", _target(self._partition), batchId, _aborted(messages))


def _target(partition: ArrowPartition) -> str:
    return partition.settings.queue or f"the queues in column {partition.settings.columns.queue}"


def _aborted(messages: Sequence[WriterCommitMessage | None]) -> str:
    done = _summary(messages)
    return (
        f"{done.partitions} of {len(messages)} tasks were complete, with {done.acknowledged:,} rows, which "
        "stay posted. Rows of incomplete tasks may be posted, too: a failed task's error has their number"
    )


def _summary(messages: Sequence[WriterCommitMessage | None]) -> Summary:
    return Summary([each.report for each in messages if isinstance(each, Posted)])
