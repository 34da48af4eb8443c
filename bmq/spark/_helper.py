# SPDX-License-Identifier: Apache-2.0
"""Write a whole DataFrame, with a summary, log lines and a progress bar."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import Accumulator, AccumulatorParam

from bmq._logging import Log
from bmq.errors import UsageError
from bmq.spark._arrow import RecordBatch, pa
from bmq.spark._partition import write_partition
from bmq.spark._summary import PartitionReport, Summary
from bmq.spark._writer import ArrowPartition

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["summary_accumulator", "write"]

logger = Log("bmq.spark")

_REPORT = (
    "partition INT, attempt INT, rows BIGINT, acknowledged BIGINT, repeated BIGINT, dropped BIGINT, "
    "dead_letters BIGINT, retried BIGINT, waited DOUBLE, bytes BIGINT, seconds DOUBLE, reconnects BIGINT, "
    "by_id BOOLEAN, sample BINARY"
)
_KINDS = {
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
}
_POLL = 0.25
_LOG_EVERY = 10.0


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
    context = _context(spark)
    if context is None:
        raise UsageError(
            "Spark Connect has no accumulators: bmq.spark.write(df, ...) returns the same summary there"
        )
    return context.accumulator(Summary(), _Summaries())


_REPORT_SCHEMA: Any = pa.schema(
    [(name, _KINDS[kind]) for name, kind in (column.split() for column in _REPORT.split(", "))]
)


def write(
    df: DataFrame,
    *,
    queue: str = "",
    broker: str | None = None,
    value: str = "value",
    properties: Sequence[str] = (),
    progress: bool = False,
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
        progress: show a progress bar (with rich, which ``bmq[cli]`` installs), or else log lines. Not
            available with Spark Connect, which has its own progress bar.
        options: other arguments of :func:`bmq.spark.write_partition`, except ``schema`` and ``summary``.

    Raises:
        UsageError: a column cannot be posted, and nothing was posted; or rows of one message in different
            partitions had the same GUID, see :meth:`Summary.check`.
        PySparkException: the job failed; its text contains the task's error.
    """
    plan = write_partition(
        queue=queue, broker=broker, value=value, properties=properties, schema=df.schema, **options
    )
    settings = replace(plan.settings, columns=plan.settings.columns.resolved(df.columns))
    used = df.select(*dict.fromkeys(settings.columns.named()))
    context = _context(df.sparkSession)
    live = summary_accumulator(df.sparkSession) if context is not None else None
    partition = ArrowPartition(settings, used.schema)

    def post(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        report = partition.post(batches)
        if live is not None:
            live.add(Summary([report]))
        yield pa.RecordBatch.from_pylist([asdict(report)], schema=_REPORT_SCHEMA)

    frame: Any = used
    started = time.monotonic()
    with ExitStack() as stack:
        if progress and context is not None and live is not None:
            stack.enter_context(_Progress(context, live))
        rows = frame.mapInArrow(post, _REPORT).collect()
    reports = [PartitionReport(**row.asDict()) for row in rows]
    summary = Summary(reports, wall_seconds=time.monotonic() - started)
    logger.info("%s: %s", settings.queue or "several queues", summary)
    summary.check()
    return summary


def _context(spark: SparkSession) -> SparkContext | None:
    """Return the context, which provides the progress of jobs; None with Spark Connect."""
    try:
        return spark.sparkContext
    except Exception:  # Spark Connect raises different classes in different versions
        return None


class _Progress:
    """Reports the progress of the running job, from a separate thread."""

    def __init__(self, context: SparkContext, live: Accumulator[Summary]) -> None:
        self._context = context
        self._live = live
        self._before = set(context.statusTracker().getActiveStageIds())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bmq.spark progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _tasks(self) -> tuple[int, int]:
        """Return the number of finished tasks, and of all tasks."""
        tracker = self._context.statusTracker()
        done = total = 0
        for stage in sorted(set(tracker.getActiveStageIds()) - self._before):
            info = tracker.getStageInfo(stage)
            if info is not None:
                done += info.numCompletedTasks
                total += info.numTasks
        return done, total

    def _run(self) -> None:
        try:
            from rich.progress import Progress
        except ImportError:
            self._log()
            return
        with Progress(transient=False) as bar:
            task = bar.add_task("posting", total=None)
            while not self._ended.wait(_POLL):
                done, total = self._tasks()
                if total:
                    bar.update(task, total=total, completed=done, description=self._text())
            total = max(self._live.value.partitions, 1)
            bar.update(task, total=total, completed=total, description=self._text())

    def _log(self) -> None:
        while not self._ended.wait(_LOG_EVERY):
            done, total = self._tasks()
            logger.info("%d of %d tasks done, %s", done, total, self._text())

    def _text(self) -> str:
        return f"{self._live.value.acknowledged:,} rows acknowledged"
