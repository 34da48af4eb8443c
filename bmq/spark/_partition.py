# SPDX-License-Identifier: Apache-2.0
"""The plain sink: a function for ``foreachPartition``."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from bmq import _checks
from bmq._pace import checked_rate
from bmq.engine.address import parse_addresses
from bmq.errors import InvalidArgument, UsageError
from bmq.spark._arrow import RecordBatch
from bmq.spark._batches import RowColumns
from bmq.spark._columns import Columns, check_columns
from bmq.spark._guids import GuidMode
from bmq.spark._invalid import InvalidRow, OnInvalidRow
from bmq.spark._options import parse_compression, parse_guid_mode, parse_on_invalid_row
from bmq.spark._portal import ConnectionSettings
from bmq.spark._posting import SLICE_BYTES, SLICE_ROWS, Scope, SinkSettings, name_row, post_partition
from bmq.spark._security import Security
from bmq.spark._summary import PartitionReport, Summary

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql.types import StructType

__all__ = ["WritePartition", "row_batches", "task_scope", "write_partition"]


class WritePartition:
    """Posts the rows of a partition. Created by :func:`write_partition`, and pickled for the workers."""

    def __init__(
        self, settings: SinkSettings, types: dict[str, Any] | None, summary: Accumulator[Summary] | None
    ) -> None:
        self.settings = settings
        self._types = types
        self._summary = summary
        # One id for all tasks and their repetitions, another for every call of write_partition.
        self._job = uuid.uuid4().hex

    def __call__(self, rows: Iterable[Any]) -> None:
        """Post the rows of one partition and wait for every acknowledgement."""
        report = self.post(iter(rows))
        if self._summary is not None:
            self._summary.add(Summary([report]))

    def post(self, rows: Iterator[Any], scope: Scope | None = None) -> PartitionReport:
        """Post rows and say what became of them.

        Args:
            rows: ``pyspark.sql.Row`` or dictionaries.
            scope: instead of what Spark says of the task.

        Raises:
            PostError, ConnectionFailed, UsageError, RequestTimeout: see :func:`write_partition`.
        """
        settings = self.settings
        scope = scope or task_scope(settings.job_id or self._job, distinct_stages=not settings.job_id)
        first = next(rows, None)
        if first is None:
            return PartitionReport(partition=scope.partition, attempt=scope.attempt)
        names = _names(first)
        columns = RowColumns(
            settings.columns,
            names,
            self._types,
            name_row,
            sorts=settings.on_invalid_row is not OnInvalidRow.FAIL,
            queue=settings.queue,
        )
        return post_partition(row_batches(first, rows, names, columns), settings, scope)


def _names(row: Any) -> list[str]:
    if isinstance(row, dict):
        return list(cast("dict[str, Any]", row))
    names = getattr(row, "__fields__", None)
    if names is None:
        raise UsageError(
            f"rows are pyspark.sql.Row or dictionaries, which name their columns, not {type(row).__name__}"
        )
    return list(names)


def row_batches(
    first: Any, rows: Iterator[Any], names: Sequence[str], columns: RowColumns
) -> Iterator[tuple[int, RecordBatch] | InvalidRow]:
    """Gather rows into batches of at most so many rows, and about so many bytes."""
    taken = [first]
    wanted, position = 100, 0
    while taken:
        if isinstance(first, dict):
            taken = [tuple(row[name] for name in names) for row in taken]
        size = 0
        for each in columns.batches(taken, position):
            yield each
            size += each[1].nbytes if isinstance(each, tuple) else 0
        position += len(taken)
        average = max(1, size // len(taken))
        wanted = max(1, min(SLICE_ROWS, SLICE_BYTES // average, 4 * wanted))
        taken = list(islice(rows, wanted))


def task_scope(job: str, *, distinct_stages: bool = False) -> Scope:
    """Return what Spark says of the running task.

    Args:
        job: the job's name outside of a stream; in one, query and batch name it.
        distinct_stages: whether two stages with the same job are two writes.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return Scope(job)
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if query is not None and batch is not None:
        job = f"{query}/{batch}"
    elif distinct_stages:
        job = f"{job}/{context.stageId()}"
    return Scope(job, context.partitionId(), context.attemptNumber())


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
    job_id: str = "",
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
) -> WritePartition:
    """Make a function that posts the rows of a partition, for ``foreachPartition``.

    ::

        df.foreachPartition(
            bmq.spark.write_partition(
                queue="bmq://bmq.test.mem.priority/orders",
                broker="tcp://localhost:30114",
                value="body",
                properties=["CustomerId", "OrderType"],
            )
        )

    A partition counts as done when every row is acknowledged. One session a worker process is used for all
    its partitions. The same works inside ``foreachBatch``.

    GUIDs (``guid_mode``) decide what a repeated task does:

    * The broker drops a message whose GUID it has seen within the deduplication window of the queue's domain
      (five minutes unless configured otherwise). A task that is repeated within it adds nothing, as long as
      it makes the same GUIDs; a repetition after it posts its rows again.
    * ``source`` makes a GUID of the message that a row was read from (the column ``guid`` of a queue), the
      target queue, the write name, the row's value and properties, and how many equal rows of the same
      message came before in the partition. Neither job, batch nor partition is part of the GUID: a batch or a
      job that is repeated with other partitions, by another query or from a new checkpoint makes the same
      GUIDs. Equal rows made from one message (``explode``, ``union``, a join) that are in different
      partitions have one GUID, and the broker keeps one of them: the write fails then, and says so
      (``foreachPartition`` alone does not: see ``check`` of its summary). Give those rows a number
      (``posexplode``) in the value or in a property. A row whose ``guid`` is null has a GUID as ``content``
      makes it.
    * ``content`` makes a GUID of the job (in a stream: query and batch), the partition, the target queue, the
      write name, the row's value and properties, and how many equal rows of the partition came before. A
      repeated task finds the same rows in its partition, though perhaps in another order, and so makes the
      same GUIDs. The partition is part of the GUID because equal rows in different partitions are different
      messages: without it all but one would be lost. So a batch or a job that is repeated with other
      partitions (another ``numPartitions``, another ``repartition``) posts rows again: use ``source`` or
      ``id`` there, or let the batch end before the change.
    * Rows that come out differently when they are computed again (``rand()``, ``current_timestamp()``,
      ``uuid()``, a UDF that is not deterministic) get new GUIDs with ``content`` and ``source``, and are
      posted again: give those an id.
    * Two writes in one ``foreachBatch`` share query and batch. Rows that are equal in both, for the same
      queue, and of the same partition or message, would be posted once: give each write a name of its own.
    * ``id`` makes a GUID of the target queue and an id column alone. Two rows with the same id are one
      message, in whatever job they are: the second is dropped while the window lasts.
    * ``random`` makes new GUIDs every time. A repeated task posts its rows again.

    Args:
        queue: the target queue's URI.
        broker: the broker's address, several separated by commas. If None, the address in BMQ_BROKER_URI
            where the task runs, or ``tcp://localhost:30114`` without the variable.
        value: the column with the payload, string or binary.
        properties: columns that become properties of their own name: boolean, byte, short, int, bigint,
            string or binary. The entries of a map or struct column become one each. Null is an absent
            property.
        queue_column: the column with each row's target queue, instead of ``queue``.
        id_column: the column with each row's id.
        guid_column: the column with the GUID of the message that each row was read from.
        key_column: the column with each row's key: messages of one key go to one member of a consumer group,
            see :meth:`bmq.Queue.group`. It becomes the property ``bmq_bucket``; null is no key.
        not_before_column: the column that says when each row's message is due: a timestamp, or seconds since
            1970. Such a message is posted to the delay queue of its target, ``bmq://DOMAIN/NAME.delayed``;
            one with null to the target. A delay from now would differ when a task is repeated, and so would
            the GUID: compute the time in the DataFrame.
        guid_mode: ``content``, ``source``, ``id`` or ``random``; by default ``id`` with an id column, else
            ``source`` with a column of GUIDs, else ``content``.
        job_id: names the job in GUIDs, so that a job that is run again adds nothing. Without it every call of
            write_partition, and every action it is used in, is a job of its own.
        write_name: tells writes in the same ``foreachBatch`` apart.
        schema: the DataFrame's; with it columns are checked here and now, and narrow integers keep their type
            (int is INT32, short and byte are SHORT). Without it every integer is INT64.
        summary: an accumulator from :func:`bmq.spark.summary_accumulator` that gathers what became of it.
        compression: ``none`` or ``zlib``.
        max_retries: how often a negatively acknowledged message is posted again before the task fails; a full
            queue does not count.
        retry_interval: seconds before the first such retry, doubled each time.
        connect_timeout: seconds until a broker that cannot be reached is an error.
        reconnect_timeout: seconds until a lost connection that cannot be restored is an error.
        ack_timeout: seconds without an outcome, or in front of a full queue that accepts no row, after which
            the task fails.
        idle_timeout: seconds after which the session of a worker is closed when no partition uses it.
        rate: how many rows a second a partition posts at most; None for as many as go.
        on_invalid_row: what becomes of a row that cannot be posted: ``fail`` fails the task, ``drop`` leaves
            it out and counts it, ``deadLetters`` posts it to ``dead_letter_queue`` with the reason.
        dead_letter_queue: the queue for these, a URI.
        user: user name, where the broker wants one.
        password: its password, or what another mechanism wants. It travels with the job.
        password_env: the environment variable that has it instead, on the worker.
        mechanism: the mechanism of authentication, if it is not BASIC.
        credentials: ``MODULE:NAME`` of a function or class that makes :class:`bmq.Credentials`, instead of
            all these.
        tls_ca_file: authorities to trust instead of the system's: a PEM file on the worker.
        tls_cert_file: a certificate to show: a PEM file on the worker.
        tls_key_file: its key, where it is not in the same file.
        tls_server_name: the name in the broker's certificate, where it is not the address's.

    Raises:
        UsageError: an argument is not legal, or (with ``schema``) a column cannot be posted.

    The function it returns raises, in the task:
        ConnectionFailed: the broker could not be reached; the message names the address.
        PostError: a row was not accepted; the message names status, queue and row.
        UsageError: a row cannot be posted.
        RequestTimeout: no outcome in time.
    """
    named = tuple(_checks.texts("properties", [properties] if isinstance(properties, str) else properties))
    texts = {
        "queue": queue,
        "value": value,
        "queue_column": queue_column,
        "id_column": id_column,
        "guid_column": guid_column,
        "key_column": key_column,
        "not_before_column": not_before_column,
        "job_id": job_id,
        "write_name": write_name,
        "dead_letter_queue": dead_letter_queue,
        "user": user,
        "password_env": password_env,
        "mechanism": mechanism,
        "credentials": credentials,
        "tls_ca_file": tls_ca_file,
        "tls_cert_file": tls_cert_file,
        "tls_key_file": tls_key_file,
        "tls_server_name": tls_server_name,
    }
    for name, text in texts.items():
        _checks.text(name, text)
    try:
        _checks.text("password", password)
    except InvalidArgument:
        raise InvalidArgument("password is a str that has UTF-8 and no NUL") from None
    if broker is not None:
        parse_addresses(broker)
    mode = parse_guid_mode(
        _checks.optional(_checks.text, "guid_mode", guid_mode),
        has_id=bool(id_column),
        has_guid=bool(guid_column),
    )
    columns = Columns(
        value=value,
        properties=named,
        queue="" if queue else queue_column,
        id=id_column,
        guid=guid_column if mode is GuidMode.SOURCE else "",
        key=key_column,
        not_before=not_before_column,
    )
    settings = SinkSettings(
        connection=ConnectionSettings(
            broker=broker,
            compression=parse_compression(_checks.text("compression", compression)),
            connect_timeout=_checks.seconds("connect_timeout", connect_timeout, positive=True),
            reconnect_timeout=_checks.seconds("reconnect_timeout", reconnect_timeout, positive=True),
            idle_timeout=_checks.seconds("idle_timeout", idle_timeout),
            security=Security(
                user=user,
                password=password,
                password_env=password_env,
                mechanism=mechanism,
                credentials=credentials,
                tls_ca_file=tls_ca_file,
                tls_cert_file=tls_cert_file,
                tls_key_file=tls_key_file,
                tls_server_name=tls_server_name,
            ),
        ),
        queue=queue,
        columns=columns,
        guid_mode=mode,
        job_id=job_id,
        write_name=write_name,
        rate=None if rate is None else checked_rate(rate),
        on_invalid_row=parse_on_invalid_row(_checks.text("on_invalid_row", on_invalid_row)),
        dead_letter_queue=dead_letter_queue,
        max_retries=_checks.integer("max_retries", max_retries),
        retry_interval=_checks.seconds("retry_interval", retry_interval),
        ack_timeout=_checks.seconds("ack_timeout", ack_timeout, positive=True),
    )
    if schema is not None:
        schema = _checked_schema(schema)
    if summary is not None and not callable(getattr(type(summary), "add", None)):
        raise InvalidArgument(
            f"summary comes from bmq.spark.summary_accumulator(spark), not {_checks.shown(summary)}"
        )
    types = check_columns(schema, columns) if schema is not None else None
    return WritePartition(settings, types, summary)


def _checked_schema(schema: object) -> StructType:
    from pyspark.sql.types import StructType  # needed only here

    return _checks.instance("schema", schema, StructType, "the schema of a DataFrame")
