# SPDX-License-Identifier: Apache-2.0
"""A queue as a stream of Arrow batches for any thread. The session runs in a separate thread."""

from __future__ import annotations

import importlib
import ssl as ssl_module
import sys
import threading
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from bmq import _checks, admin
from bmq._loop import LoopThread
from bmq.arrow.backlog import ANSWER_TIMEOUT, Drained, InitialBacklog
from bmq.arrow.tables import Tables
from bmq.client.connect import connect
from bmq.client.keywords import TablesOptions
from bmq.errors import SessionClosed, StateError, TimedOut, UsageError
from bmq.protocol.client.core import SessionState
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.client.options import CredentialsSource, SessionOptions
    from bmq.client.session import Session
    from bmq.subscriptions import ExpressionInput

pa: Any = importlib.import_module("pyarrow")

T = TypeVar("T")

RecordBatch = Any
RecordBatchReader = Any

# Default limit for readers that confirm late, and therefore hold all their rows.
_NO_LIMIT = 2**31 - 1
_NO_LIMIT_BYTES = 2**40
# Timeout for closing, in seconds.
_PATIENCE = 10.0


class Confirm(StrEnum):
    """When a reader confirms its rows."""

    #: Confirm each batch when the next one is requested, and the last one at the end of the stream.
    NEXT = "next"
    #: Confirm all rows at the end of the stream; none if the stream is not read to its end.
    END = "end"
    #: Confirm no rows: they are redelivered.
    NEVER = "never"


class Source:
    """A queue as a stream of Arrow batches that the program confirms::

        broker = "tcp://localhost:30114"
        with bmq.arrow.Source(broker, "bmq://DOMAIN/QUEUE") as source:
            table = source.reader.read_all()
            pq.write_table(table, "orders.parquet")
            source.confirm()

    Polars, DuckDB and others also accept the source itself, which has ``__arrow_c_stream__``. The source
    connects when created, and can be read once, by one thread at a time. Messages are received in the
    background. The stream ends with the messages that were in the queue at the first read, by the broker's
    count, although producers go on. Rows without a confirmation are redelivered after the source is closed,
    to other readers or later.

    Args:
        uri: address of the broker, as for :class:`bmq.connect`.
        queue: URI of the queue; for a fanout queue with ``?id=APPID``.
        expression: selects messages, as for :meth:`bmq.Queue.subscribe`; None for all messages.
        max_messages: maximum number of rows; None for no limit.
        idle_timeout: seconds without a message, while connected, after which the stream ends in any case;
            None for a stream without an end, except for ``max_messages``.
        confirm: when rows are confirmed without a call of :meth:`confirm`.
        credentials: as for :class:`bmq.connect`.
        ssl: as for :class:`bmq.connect`.
        server_hostname: as for :class:`bmq.connect`.
        session: options of the session.
        options: columns and batch sizes; see :class:`TablesOptions`. If ``confirm`` is not ``next``, the
            default limits of unconfirmed messages and bytes are as large as needed, and unreadable messages
            are confirmed together with the rows. ``dead_letters`` is the URI of a queue.

    Raises:
        ConnectionFailed, AuthenticationError, NegotiationError: the broker cannot be reached, or refuses.
        OpenQueueError, ConfigureQueueError, RequestTimeout: the queue cannot be read.
        InvalidURI, InvalidExpression, UsageError: an argument is not legal.

    Attributes:
        schema: columns, a ``pyarrow.Schema``.
    """

    def __init__(
        self,
        uri: str,
        queue: str,
        *,
        expression: ExpressionInput = None,
        max_messages: int | None = None,
        idle_timeout: float | None = 2.0,
        confirm: Confirm | str = Confirm.NEVER,
        credentials: CredentialsSource | None = None,
        ssl: ssl_module.SSLContext | None = None,
        server_hostname: str | None = None,
        session: SessionOptions | None = None,
        **options: Unpack[TablesOptions],
    ) -> None:
        self._confirm = Confirm(_checks.one_of("confirm", confirm, map(str, Confirm)))
        max_messages = _checks.optional(_checks.integer, "max_messages", max_messages, 1)
        idle_timeout = _checks.timeout(idle_timeout, "idle_timeout")
        if self._confirm is not Confirm.NEXT:
            options.setdefault("max_unconfirmed_messages", max_messages or _NO_LIMIT)
            options.setdefault("max_unconfirmed_bytes", _NO_LIMIT_BYTES)
        self._left = max_messages
        self._idle = idle_timeout
        self._guard = threading.Lock()
        self._closed = False
        self._reader: RecordBatchReader = None
        self._thread = LoopThread("bmq.arrow")
        self._session: Session | None = None
        self._tables: Tables | None = None
        self._drained = Drained()
        self._backlog: InitialBacklog | None = None
        connection = {"credentials": credentials, "ssl": ssl, "server_hostname": server_hostname}
        try:
            tables = self._tables = self._thread.run(
                self._open(uri, queue, expression, session, connection, options)
            )
        except BaseException:
            self.close()
            raise
        self.schema = tables.schema

    async def _open(
        self,
        uri: str,
        queue_uri: str,
        expression: ExpressionInput,
        options: SessionOptions | None,
        connection: dict[str, Any],
        tables: TablesOptions,
    ) -> Tables:
        self._session = session = await connect(uri, options=options, **connection)
        queue = await session.open_queue(queue_uri, read=True, default_subscription=False)
        self._drained = Drained(queue)
        letters = tables.get("dead_letters")
        if letters is not None:
            aside = _checks.text("dead_letters", letters)
            if QueueUri.parse(aside).canonical == QueueUri.parse(queue.uri).canonical:
                raise UsageError(f"dead letters of {queue.uri} would return to it; name another queue")
            tables = {**tables, "dead_letters": await session.open_queue(aside, write=True)}
        made = Tables(queue, expression, **tables)
        if self._idle is not None:
            address = partial(
                admin.connect,
                uri,
                timeout=ANSWER_TIMEOUT,
                process_name="bmq.arrow",
                **connection,
            )
            self._backlog = InitialBacklog(address, [queue.uri], selects=expression is not None)
            made._consumer.backlog = self._backlog
        if self._confirm is not Confirm.NEXT and letters is None:
            made._confirm_late()
        return await made

    # reading

    @property
    def reader(self) -> RecordBatchReader:
        """The stream, a ``pyarrow.RecordBatchReader``. Always the same object.

        Errors are raised while reading, as by :meth:`Tables.receive`.
        """
        if self._reader is None:
            self._reader = pa.RecordBatchReader.from_batches(self.schema, self._batches())
        return self._reader

    def _batches(self) -> Iterator[RecordBatch]:
        """Yield the batches of the reader."""
        while True:
            if self._confirm is Confirm.NEXT:
                self.confirm()
            if self._closed:
                raise StateError("the source is closed")
            batch = None if self._left == 0 else self._thread.run(self._receive())
            if batch is None:
                break
            if self._left is not None:
                self._left -= batch.num_rows
            yield batch
        if self._confirm is Confirm.END:
            self.confirm()

    async def _receive(self) -> RecordBatch | None:
        assert self._tables is not None
        while True:
            if self._backlog is not None and self._idle is not None and not self._tables._begun:
                await self._backlog.ask(self._idle)
                if self._backlog.taken(self._drained.reconnected):
                    return None
            try:
                return await self._tables._receive(self._idle, self._left, idle=True)
            except TimedOut:
                if self._drained.after_silence():
                    if self._backlog is not None:
                        self._backlog.report(self._drained.reconnected)
                    return None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the stream for any reader of Arrow."""
        return self.reader.__arrow_c_stream__(requested_schema)

    # confirming

    def confirm(self) -> int:
        """Confirm all rows that were handed out; return their number.

        Raises:
            StateError: the source is closed.
            SessionClosed: the connection is permanently lost; the rows are redelivered.
        """
        if self._closed:
            raise StateError("the source is closed: the broker redelivers unconfirmed rows")
        return self._thread.run(self._confirm_all())

    async def _confirm_all(self) -> int:
        if self._session is None or self._session.state is SessionState.CLOSED:
            raise SessionClosed("the session has ended: the broker redelivers the rows")
        assert self._tables is not None
        return self._tables.confirm()

    # closing

    def close(self) -> None:
        """Send confirmations, return unconfirmed messages to the queue, and disconnect. Idempotent."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
        self._reader = None
        try:
            if self._session is not None:
                self._thread.run(self._end(self._session))
        finally:
            self._thread.end(_PATIENCE)

    async def _end(self, session: Session) -> None:
        if self._tables is not None:
            await self._tables._aside.close()
        await session.close(timeout=_PATIENCE)

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def reader(
    uri: str,
    queue: str,
    *,
    confirm: Confirm | str = Confirm.NEXT,
    expression: ExpressionInput = None,
    max_messages: int | None = None,
    idle_timeout: float | None = 2.0,
    credentials: CredentialsSource | None = None,
    ssl: ssl_module.SSLContext | None = None,
    server_hostname: str | None = None,
    session: SessionOptions | None = None,
    **options: Unpack[TablesOptions],
) -> RecordBatchReader:
    """Return a queue as a ``pyarrow.RecordBatchReader``, for Polars, DuckDB, pandas and others.

    The reader belongs to a :class:`Source`, whose documentation has the details of arguments and errors. The
    connection closes when the stream ends or fails; otherwise, when the reader is garbage-collected. For
    control over the connection, use a :class:`Source` in a ``with`` block.

    Args:
        uri: address of the broker.
        queue: URI of the queue; for a fanout queue with ``?id=APPID``.
        confirm: ``next``: each batch is confirmed when the next one is requested, and the last one at the end
            of the stream. The reader has received the confirmed rows, though perhaps not stored them.
            ``end``: all rows are confirmed at the end of the stream; none if the stream is not read to its
            end. ``never``: no row is confirmed; the messages are redelivered.
        expression: selects messages; None for all messages.
        max_messages: maximum number of rows; None for no limit.
        idle_timeout: seconds without a message after which the stream ends in any case; None for a stream
            without an end.
        credentials: as for :class:`bmq.connect`.
        ssl: as for :class:`bmq.connect`.
        server_hostname: as for :class:`bmq.connect`.
        session: options of the session.
        options: columns and batch sizes; see :class:`TablesOptions`.

    Raises:
        Error: as for :class:`Source`.
    """
    source = Source(
        uri,
        queue,
        confirm=confirm,
        expression=expression,
        max_messages=max_messages,
        idle_timeout=idle_timeout,
        credentials=credentials,
        ssl=ssl,
        server_hostname=server_hostname,
        session=session,
        **options,
    )
    return pa.RecordBatchReader.from_batches(source.schema, _Alone(source))


class _Alone:
    """The batches of a source with a single user: the source closes after the last batch."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._batches = source._batches()

    def __iter__(self) -> Iterator[RecordBatch]:
        return self

    def __next__(self) -> RecordBatch:
        try:
            return next(self._batches)
        except BaseException:
            self._source.close()
            raise

    def __del__(self) -> None:
        # At the end of the program, the session ends, too; its thread has already ended.
        if not sys.is_finalizing():
            self._source.close()
