# SPDX-License-Identifier: Apache-2.0
"""The writers of ``format("bmq")``, batch and stream, :func:`bmq.spark.write`, and what they report."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from bmq import _checks
from bmq._logging import Log
from bmq.errors import UsageError
from bmq.spark.options import WriteOptions, arguments
from bmq.spark.schema import RecordBatch, check_columns, pa
from bmq.spark.summary import PartitionReport, Summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from bmq.spark.partition import TaskScope

__all__ = [
    "BatchWriter",
    "StreamWriter",
    "WritePartition",
    "summary_accumulator",
    "write",
    "write_partition",
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


def write_partition(
    *,
    queue: str = "",
    broker: str | None = None,
    value: str = "value",
    properties: Sequence[str] = (),
    queue_column: str = "",
    id_column: str = "",
    guid_column: str = "",
    key_column: str = "",
    not_before_column: str = "",
    guid_mode: str | None = None,
    write_name: str = "",
    schema: StructType | None = None,
    summary: Accumulator[Summary] | None = None,
    compression: str = "none",
    max_retries: int = 5,
    retry_interval: float = 0.2,
    connect_timeout: float = 10.0,
    reconnect_timeout: float = 120.0,
    ack_timeout: float = 300.0,
    idle_timeout: float = 30.0,
    rate: float | None = None,
    on_invalid_row: str = "fail",
    dead_letter_queue: str = "",
    user: str = "",
    password: str = "",
    password_env: str = "",
    mechanism: str = "",
    credentials: str = "",
    tls_ca_file: str = "",
    tls_cert_file: str = "",
    tls_key_file: str = "",
    tls_server_name: str = "",
    session: Mapping[str, Any] | None = None,
) -> WritePartition:
    """Return a function for ``foreachPartition`` that posts the rows of a partition.

    ::

        df.foreachPartition(
            bmq.spark.write_partition(
                queue="bmq://bmq.test.mem.priority/orders",
                broker="tcp://localhost:30114",
                value="body",
                properties=["CustomerId", "OrderType"],
            )
        )

    A partition is done when all rows are acknowledged. A worker process uses one session for all its
    partitions. The function also works inside ``foreachBatch``.

    GUIDs determine the effect of a repeated task. No column takes part in a GUID because of its name alone:
    ``guid_column`` and ``id_column`` name the column.

    * The broker drops a message whose GUID it has seen within the deduplication window of the queue's domain
      (five minutes by default). A task repeated within the window adds no messages if it computes the same
      GUIDs. A task repeated after the window posts its rows again.
    * ``content``, the default, derives a GUID from the write, the partition, the target queue, the row, and
      the number of earlier equal rows in the partition. Two writes are different, unless both have the same
      ``write_name`` (inside ``foreachBatch``: and the same batch). A write repeated with other partitions
      posts its rows again.
    * ``source`` derives a GUID from the row's source message (``guid_column``), the target queue, the write
      name and the row. Other partitions, another query or a new checkpoint do not change the GUID. Equal rows
      of one message in different partitions (after ``explode``, ``union`` or a join) are one message for the
      broker. The write then fails with an error (with ``foreachPartition``, only ``check`` of its summary
      raises the error): add a number (``posexplode``) to these rows. A row with a null GUID has the GUID of
      ``content``.
    * ``id`` derives a GUID from the target queue and the column ``id_column`` alone. Two rows with the same
      id are one message, even in different jobs. Equal ids within a write are a warning in the log.
    * ``random`` creates new GUIDs each time. A repeated task posts its rows again.
    * Rows with other values after each computation (``rand()``, ``current_timestamp()``, a non-deterministic
      UDF) get new GUIDs with ``content`` and ``source``, and are posted again. Give these rows an id.
    * In ``foreachBatch``, a batch that is repeated after a failure of the driver is a new write, and posts
      its rows again, unless the write has a name. Give each write in a ``foreachBatch`` its own name.

    Args:
        queue: URI of the target queue.
        broker: address of the broker, or several separated by commas. If None, the address in BMQ_BROKER_URI
            in the environment of the task, or ``tcp://localhost:30114`` if not set.
        value: column with the payload, string or binary.
        properties: columns that become properties of the same name: boolean, byte, short, int, bigint, string
            or binary. Each entry of a map or struct column becomes a property. A null value omits the
            property.
        queue_column: column with the target queue of each row, instead of ``queue``.
        id_column: column with the id of each row.
        guid_column: column with the GUID of each row's source message.
        key_column: column with the ordering key of each row: messages with equal keys go to one member of a
            consumer group, see :meth:`bmq.Queue.group`. The key determines the property ``bmq_bucket``; null
            means no key.
        not_before_column: column with the due time of each row's message: a timestamp, or seconds since 1970.
            Messages with a due time are posted to the delay queue of their target,
            ``bmq://DOMAIN/NAME.delayed``; messages with null go to the target. A delay relative to now would
            change in a repeated task, and change the GUID. Compute the due time in the DataFrame.
        guid_mode: ``content``, ``source``, ``id`` or ``random``; by default ``id`` with ``id_column``, else
            ``source`` with ``guid_column``, else ``content``.
        write_name: name of the write: a repeated write of this name, in ``foreachBatch`` in a repeated batch,
            adds no messages. Without a name, each call of write_partition, and each action that uses it, is
            a separate write.
        schema: schema of the DataFrame. With a schema, the columns are checked in this call, and narrow
            integers keep their type (int is INT32, short and byte are SHORT). Without a schema, all integers
            are INT64.
        summary: accumulator of :func:`bmq.spark.summary_accumulator` that collects the reports of the
            partitions.
        compression: ``none`` or ``zlib``.
        max_retries: number of retries after a negative acknowledgement before the task fails; a full queue
            does not count.
        retry_interval: seconds before the first retry, doubled each time.
        connect_timeout: seconds until an unreachable broker is an error.
        reconnect_timeout: seconds until a lost connection is an error.
        ack_timeout: seconds without an outcome, or with a full queue that accepts no row, until the task
            fails.
        idle_timeout: seconds until the idle session of a worker is closed.
        rate: maximum number of rows a second of each partition; None for no limit.
        on_invalid_row: handling of rows that cannot be posted: ``fail`` fails the task, ``drop`` omits and
            counts the row, ``deadLetters`` posts the row to ``dead_letter_queue`` with the reason.
        dead_letter_queue: URI of the queue for invalid rows.
        user: user name, if the broker requires authentication.
        password: password, or the data of another mechanism. The password travels with the job.
        password_env: environment variable with the password, on the worker.
        mechanism: authentication mechanism, by default BASIC.
        credentials: ``MODULE:NAME`` of a function or class that returns :class:`bmq.Credentials`, instead of
            the arguments above.
        tls_ca_file: trusted authorities instead of the system's: a PEM file on the worker.
        tls_cert_file: client certificate: a PEM file on the worker.
        tls_key_file: key of the client certificate, if in a separate file.
        tls_server_name: name in the broker's certificate, if different from the address.
        session: further fields of :class:`bmq.SessionOptions` by name, such as ``{"liveness": 30}``.

    Raises:
        UsageError: an argument is not legal, or (with ``schema``) a column cannot be posted.

    The returned function raises, in the task:
        ConnectionFailed: the broker could not be reached; the message names the address.
        PostError: a row was not accepted; the error names status, queue and row.
        UsageError: a row cannot be posted.
        RequestTimeout: no outcome in time.
    """
    given = dict(locals())  # every argument by its name
    del given["schema"], given["summary"]
    given["session"] = {} if session is None else session
    options = arguments(given)
    types = None
    if schema is not None:
        from pyspark.sql.types import StructType  # only needed here

        schema = _checks.instance("schema", schema, StructType, "the schema of a DataFrame")
        types = check_columns(schema, options)
    if summary is not None and not callable(getattr(type(summary), "add", None)):
        raise UsageError(
            f"summary must come from bmq.spark.summary_accumulator(spark), not {_checks.shown(summary)}"
        )
    return WritePartition(options, types, summary)


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
