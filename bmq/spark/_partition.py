# SPDX-License-Identifier: Apache-2.0
"""The plain sink: a function for ``foreachPartition``."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from bmq import _checks
from bmq._pace import checked_rate
from bmq.client.address import parse_addresses
from bmq.errors import UsageError
from bmq.spark._arrow import RecordBatch
from bmq.spark._batches import RowColumns
from bmq.spark._columns import Columns, check_columns
from bmq.spark._guids import GuidMode
from bmq.spark._invalid import InvalidRow
from bmq.spark._options import parse_compression, parse_guid_mode, parse_on_invalid_row
from bmq.spark._portal import ConnectionSettings
from bmq.spark._posting import SLICE_BYTES, SLICE_ROWS, Scope, post_partition
from bmq.spark._security import Security
from bmq.spark._sink_settings import OnInvalidRow, SinkSettings, name_row
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
        # One id for all tasks and their repetitions, and a different id for each call of write_partition.
        self._own = uuid.uuid4().hex

    def __call__(self, rows: Iterable[Any]) -> None:
        """Post the rows of one partition and wait for all acknowledgements."""
        report = self.post(iter(rows))
        if self._summary is not None:
            self._summary.add(Summary([report]))

    def post(self, rows: Iterator[Any], scope: Scope | None = None) -> PartitionReport:
        """Post rows and return a report.

        Args:
            rows: ``pyspark.sql.Row`` or dictionaries.
            scope: scope in place of the running task's.

        Raises:
            PostError, ConnectionFailed, UsageError, RequestTimeout: as for :func:`write_partition`.
        """
        scope = scope or task_scope(self.settings.write_name, self._own, distinct_stages=True)
        first = next(rows, None)
        if first is None:
            return PartitionReport(partition=scope.partition, attempt=scope.attempt)
        names = _names(first)
        settings = replace(self.settings, columns=self.settings.columns.resolved(names))
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
            "rows must be pyspark.sql.Row or dictionaries, which name their columns, not "
            f"{type(row).__name__}"
        )
    return list(names)


def row_batches(
    first: Any, rows: Iterator[Any], names: Sequence[str], columns: RowColumns
) -> Iterator[tuple[int, RecordBatch] | InvalidRow]:
    """Collect rows into batches with limits for rows and, approximately, bytes."""
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


def task_scope(name: str, own: str, *, distinct_stages: bool = False, one_a_batch: bool = False) -> Scope:
    """Return the scope of the running task.

    Args:
        name: name of the write; "" for none. Writes of one name are one write, in a stream in each batch.
        own: identity of a write without a name: the same in all tasks and their repetitions.
        distinct_stages: whether two stages with the same ``own`` are two writes.
        one_a_batch: whether a batch has a single write, as a stream into a queue has, so that a repeated
            batch adds no messages without a name.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    write = "" if name else own
    if context is None:
        return Scope(write)
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if query is not None and batch is not None and (name or one_a_batch):
        write = f"{query}/{batch}"
    elif not name and distinct_stages:
        write = f"{own}/{context.stageId()}"
    return Scope(write, context.partitionId(), context.attemptNumber())


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
    * ``source`` derives a GUID from the row's source message (``guid_column``), the target queue, the write
      name, the row's value and properties, and the number of earlier equal rows of the same message in the
      partition. Write, batch and partition are not included: rows repeated with other partitions, by another
      query or from a new checkpoint have the same GUIDs. Equal rows of one message in different partitions
      (after ``explode``, ``union`` or a join) have the same GUID, and the broker keeps only one of them. The
      write then fails with an error (with ``foreachPartition``, only ``check`` of its summary raises the
      error). Add a number (``posexplode``) to the value or to a property of these rows. A row with a null
      GUID has the GUID of ``content``.
    * ``content`` derives a GUID from the write, the partition, the target queue, the row's value and
      properties, and the number of earlier equal rows in the partition. Two writes are different, unless both
      have the same ``write_name`` (inside ``foreachBatch``: and the same batch). A repeated task has the same
      rows in its partition, though perhaps in another order, and so computes the same GUIDs. The partition is
      included because equal rows in different partitions are different messages; otherwise all but one would
      be lost. A batch or named write repeated with other partitions (another ``numPartitions``, another
      ``repartition``) therefore posts its rows again. Use ``source`` or ``id`` in this case, or finish the
      batch before the change.
    * Rows with other values after each computation (``rand()``, ``current_timestamp()``, ``uuid()``, a
      non-deterministic UDF) get new GUIDs with ``content`` and ``source``, and are posted again. Give these
      rows an id.
    * In ``foreachBatch``, a batch that is repeated after a failure of the driver is a new write, and posts
      its rows again, unless the write has a name. Give each write in a ``foreachBatch`` its own name.
    * ``id`` derives a GUID from the target queue and the column ``id_column`` alone. Two rows with the same
      id are one message, even in different jobs: the broker drops the second within the window. Equal ids
      within a write are a warning in the log.
    * ``random`` creates new GUIDs each time. A repeated task posts its rows again.

    Args:
        queue: URI of the target queue.
        broker: address of the broker, or several separated by commas. If None, the address in BMQ_BROKER_URI
            in the environment of the task, or ``tcp://localhost:30114`` if not set.
        value: column with the payload, string or binary.
        properties: columns that become properties of the same name: boolean, byte, short, int, bigint, string
            or binary. Each entry of a map or struct column becomes a property. A null value omits the
            property.
        queue_column: column with the target queue of each row, in place of ``queue``.
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
        credentials: ``MODULE:NAME`` of a function or class that returns :class:`bmq.Credentials`, in place of
            the arguments above.
        tls_ca_file: trusted authorities in place of the system's: a PEM file on the worker.
        tls_cert_file: client certificate: a PEM file on the worker.
        tls_key_file: key of the client certificate, if in a separate file.
        tls_server_name: name in the broker's certificate, if different from the address.

    Raises:
        UsageError: an argument is not legal, or (with ``schema``) a column cannot be posted.

    The returned function raises, in the task:
        ConnectionFailed: the broker could not be reached; the message names the address.
        PostError: a row was not accepted; the error names status, queue and row.
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
    except UsageError:
        raise UsageError("password must be a str without NUL and lone surrogates") from None
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
        raise UsageError(
            f"summary must come from bmq.spark.summary_accumulator(spark), not {_checks.shown(summary)}"
        )
    types = check_columns(schema, columns) if schema is not None else None
    return WritePartition(settings, types, summary)


def _checked_schema(schema: object) -> StructType:
    from pyspark.sql.types import StructType  # only needed here

    return _checks.instance("schema", schema, StructType, "the schema of a DataFrame")
