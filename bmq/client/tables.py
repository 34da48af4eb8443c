# SPDX-License-Identifier: Apache-2.0
"""Received messages as batches of rows. Needs the extra ``bmq[arrow]``."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np

from bmq import _checks, _world
from bmq.client._columns import ColumnConsumer, Receipt, Taken
from bmq.client._definition import checked_options
from bmq.errors import ProtocolError, UsageError
from bmq.wire.constants import PushFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.push_columns import PushColumns
from bmq.wire.push_table import MAP, Decoded, TableDecoder, guid_texts, to_arrow

if TYPE_CHECKING:
    from bmq.client.queue import Queue
    from bmq.subscriptions import Selector

__all__ = ["Tables", "TablesOptions"]

pa: Any = importlib.import_module("pyarrow")

#: A batch, a schema and the type of a column, of pyarrow, which has no type hints.
RecordBatch = Any
ArrowSchema = Any
ArrowType = Any

#: What a row may say of its message besides payload and properties.
_METADATA: dict[str, ArrowType] = {
    "guid": pa.string(),
    "redelivered": pa.bool_(),
    "received_at": pa.timestamp("us", tz="UTC"),
}
# A batch has at most so many bytes, unless it is one message.
_MAX_BYTES = 64 * 1024 * 1024
_MOST_ROWS = 2**31 - 1
# By default there is room for what is being handled, what is ready, and what is under way.
_BATCHES_UNCONFIRMED = 3
_UNCONFIRMED_BYTES = 4 * _MAX_BYTES


class TablesOptions(TypedDict, total=False):
    """What rows are, and how many come together: for :meth:`bmq.Queue.tables` and :mod:`bmq.arrow`.

    Attributes:
        properties: the properties that become columns, with the type of each: a mapping of names to Arrow
            types or to their names, or a ``pyarrow.Schema``. There are bool, int8 to int64, string and
            binary. A value of another type is null, but everything becomes a string: binary as Base64.
            None, the default, makes one column ``properties``, a map of strings.
        value: the name of the column with the payload, which is binary.
        metadata: more columns: ``guid`` (the 32 digits of :attr:`bmq.Message.guid`), ``redelivered``, and
            ``received_at`` (when the message arrived here). A mapping gives the columns other names.
        max_rows: how many rows a batch has at most; 10,000 by default.
        priority: the highest matching priority gets a message; None for the queue's.
        max_unconfirmed_messages: how many delivered messages may be unconfirmed; None for three batches.
        max_unconfirmed_bytes: how many bytes of them; None for 256 MiB.
    """

    properties: Mapping[str, ArrowType] | ArrowSchema | None
    value: str
    metadata: Iterable[str] | Mapping[str, str]
    max_rows: int
    priority: int | None
    max_unconfirmed_messages: int | None
    max_unconfirmed_bytes: int | None


class _Unreadable:
    """The unreadable messages among those that were taken: each message is read twice at most.

    Attributes:
        rows: how many messages, from the first one that is left, were read; 0 if none was.
    """

    __slots__ = ("_errors", "_passed", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self._passed = 0
        self._errors: deque[tuple[int, ProtocolError]] = deque()

    @property
    def first(self) -> tuple[int, ProtocolError | None]:
        """The place of the first unreadable message, and its error; behind the last one if there is none."""
        if not self._errors:
            return self.rows, None
        row, error = self._errors[0]
        return row - self._passed, error

    def found(self, rows: int, errors: Mapping[int, ProtocolError]) -> None:
        """Note the errors of messages that were read."""
        self.rows, self._passed = rows, 0
        self._errors = deque(sorted(errors.items()))

    def passed(self, rows: int) -> None:
        """Note that messages are left behind."""
        self.rows = max(0, self.rows - rows)
        self._passed += rows
        while self._errors and self._errors[0][0] < self._passed:
            self._errors.popleft()


class _RowMaker:
    """Makes batches of what was taken.

    Attributes:
        schema: the columns.
        max_rows: how many rows a batch has at most.
    """

    def __init__(
        self,
        uri: str,
        limit: int,
        *,
        properties: Mapping[str, ArrowType] | ArrowSchema | None = None,
        value: str = "value",
        metadata: Iterable[str] | Mapping[str, str] = (),
        max_rows: int = 10_000,
    ) -> None:
        kinds = _kinds(properties)
        columns = _names(metadata)
        unknown = [name for name in columns if name not in _METADATA]
        if unknown:
            raise UsageError(f"no metadata {', '.join(unknown)}; there is: {', '.join(_METADATA)}")
        self.max_rows = max_rows
        self._uri = uri
        self._metadata = tuple(columns)
        self._decoder = TableDecoder(kinds, limit=limit)
        fields = [pa.field(value, pa.binary())]
        if kinds is None:
            fields.append(pa.field("properties", MAP))
        else:
            fields += [pa.field(name, kind) for name, kind in kinds.items()]
        fields += [pa.field(column, _METADATA[name]) for name, column in columns.items()]
        names = [field.name for field in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(
                f"several columns are called {', '.join(twice)}: name the payload's otherwise with value=, "
                "or leave the property or the metadata out"
            )
        self.schema = pa.schema(fields)

    def make(self, taken: Taken, now: float, known: _Unreadable) -> tuple[RecordBatch, int]:
        """Make a batch of the first messages, of all if possible; return how many it has.

        Args:
            taken: the messages, one at least.
            now: the event loop's time when they were taken.
            known: the unreadable ones among them, as far as they were read before.

        Raises:
            ProtocolError: the first message is malformed; the error names it.
        """
        columns = taken.columns
        decoded: Decoded | None = None
        if not known.rows:
            decoded = self._decoder.decode(columns)
            known.found(decoded.rows, decoded.errors)
        first, error = known.first
        if error is not None and not first:
            guid = guid_to_text(columns.guids[0].tobytes())
            raise ProtocolError(
                f"message {guid} of {self._uri} cannot be read, and stays unconfirmed: {error.reason}"
            ) from error
        if decoded is None or first < decoded.rows:
            taken = taken.part(0, first)
            columns = taken.columns
            decoded = self._decoder.decode(columns)
        if decoded.rows < columns.count:
            taken = taken.part(0, decoded.rows)
            columns = taken.columns
        arrays = [decoded.payload, *decoded.properties]
        arrays += [self._about(name, columns, taken, now) for name in self._metadata]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema), decoded.rows

    def _about(self, name: str, columns: PushColumns, taken: Taken, now: float) -> Any:
        if name == "guid":
            return guid_texts(columns.guids)
        if name == "redelivered":
            return to_arrow((columns.flags & PushFlags.OUT_OF_ORDER) != 0)
        counts = [count for count, _ in taken.arrivals]
        clock = _world.time() - now
        times = [int((clock + arrived) * 1e6) for _, (arrived, _) in taken.arrivals]
        return to_arrow(np.repeat(np.array(times, np.int64), counts)).cast(_METADATA[name])


def _names(metadata: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    """The column of each metadatum."""
    given: Any = metadata
    if isinstance(given, Mapping):
        return {
            _checks.text("the name of a metadatum", name): _checks.text("the name of a column", column)
            for name, column in _checks.mapping("metadata", cast("Mapping[str, str]", given)).items()
        }
    return {name: name for name in _checks.texts("metadata", metadata)}


def _kinds(properties: Any) -> dict[str, ArrowType] | None:
    """The type of each property."""
    if properties is None:
        return None
    if isinstance(properties, pa.Schema):
        return dict(zip(properties.names, properties.types, strict=True))
    kinds: dict[str, ArrowType] = {}
    for name, kind in _checks.mapping("properties", properties, "Arrow types by name").items():
        _checks.text("the name of a property", name)
        try:
            kinds[name] = pa.field(name, kind).type  # takes the names of types, too
        except Exception:  # whatever pyarrow makes of it
            raise UsageError(f"property {name!r}: {_checks.shown(kind)} is no Arrow type") from None
    return kinds


class Tables:
    """What a queue delivers, as batches of rows. Made by :meth:`bmq.Queue.tables`.

    ``async with`` (or ``await``) activates it; receiving does too::

        async with queue.tables(properties={"CustomerId": pa.int64()}) as tables:
            async for batch in tables:
                await save(batch)
                tables.confirm()

    Nothing is confirmed but by :meth:`confirm`. What is not confirmed is delivered again, here after a
    reconnect, and to others once this is closed. It is for one task.

    Attributes:
        schema: the columns, a ``pyarrow.Schema``.
    """

    def __init__(
        self,
        queue: Queue,
        selector: Selector = None,
        *,
        properties: Mapping[str, ArrowType] | ArrowSchema | None = None,
        value: str = "value",
        metadata: Iterable[str] | Mapping[str, str] = (),
        max_rows: int = 10_000,
        priority: int | None = None,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
    ) -> None:
        if not callable(getattr(type(queue), "subscribe", None)):
            raise UsageError(f"queue is an open bmq.Queue, not {_checks.shown(queue)}")
        max_rows = _checks.integer("max_rows", max_rows, 1, _MOST_ROWS)
        value = _checks.text("value", value)
        limit = queue._driver.options.max_message_size
        self._maker = _RowMaker(
            queue.uri, limit, properties=properties, value=value, metadata=metadata, max_rows=max_rows
        )
        self.schema: ArrowSchema = self._maker.schema
        if max_unconfirmed_messages is None:
            max_unconfirmed_messages = _BATCHES_UNCONFIRMED * max_rows
        options = checked_options(
            max_unconfirmed_messages,
            _UNCONFIRMED_BYTES if max_unconfirmed_bytes is None else max_unconfirmed_bytes,
            queue._options.priority if priority is None else priority,
        )
        self._consumer = ColumnConsumer(queue, selector, options)
        # Taken and not handed out; handed out and not confirmed.
        self._rest: Taken | None = None
        self._unreadable = _Unreadable()
        self._out: deque[Receipt] = deque()

    @property
    def buffered(self) -> int:
        """How many messages wait for the application."""
        return self._consumer.buffered + (self._rest.columns.count if self._rest is not None else 0)

    @property
    def unconfirmed(self) -> int:
        """How many rows were handed out and are not confirmed."""
        return sum(len(each.guids) for each in self._out)

    @property
    def closed(self) -> bool:
        """Whether no more messages will arrive."""
        return self._consumer.closed

    async def receive(self, timeout: float | None = None, *, max_rows: int | None = None) -> RecordBatch:
        """Wait until there is a message, then return all that are there, up to ``max_rows``.

        A batch has at most 64 MiB, unless it is one message.

        Args:
            timeout: seconds to wait for the first; None waits without bound.
            max_rows: how many rows this one has at most; None for as many as any.

        Returns:
            A ``pyarrow.RecordBatch`` with at least one row.

        Raises:
            TimedOut: nothing arrived in time.
            QueueClosed: this, the queue or the session was closed.
            ProtocolError: the next message is malformed, or decompresses to more than the session allows. It
                is left out, and stays unconfirmed; receiving again goes on behind it.

        Cancelling it loses nothing.
        """
        timeout = _checks.timeout(timeout)
        max_rows = _checks.optional(_checks.integer, "max_rows", max_rows, 1)
        consumer = self._consumer
        if self._rest is not None:
            if consumer._turn.clock() >= consumer._turn.until:
                await consumer._turn.wait()
        else:
            await consumer.wait(timeout)
            self._rest = consumer.take(self._most(max_rows), _MAX_BYTES)
            self._unreadable = _Unreadable()
        taken, self._rest = self._rest, None
        rows = 1
        try:
            batch, rows = self._maker.make(taken, self._consumer._connection.now(), self._unreadable)
            self._out.append(taken.part(0, rows).receipt())
        finally:
            self._unreadable.passed(rows)
            if rows < taken.columns.count:
                self._rest = taken.part(rows, taken.columns.count)
        return batch

    def _most(self, rows: int | None) -> int:
        return self._maker.max_rows if rows is None else min(rows, self._maker.max_rows)

    def __aiter__(self) -> AsyncIterator[RecordBatch]:
        self._consumer._connection.check_loop()
        return self

    async def __anext__(self) -> RecordBatch:
        consumer = self._consumer
        while self._rest is None and not consumer.buffered:
            consumer._stop_if_closed()
            await consumer._arrival()
        return await self.receive()

    def confirm(self, rows: int | None = None) -> int:
        """Confirm rows that were handed out; return how many.

        Args:
            rows: how many, those first that were handed out first; None for all.

        Buffered, and sent at the end of the current turn of the event loop. After the queue or the session is
        closed it has no effect: the messages will be delivered again.

        Raises:
            UsageError: this is not the event loop that the session belongs to.
        """
        rows = _checks.optional(_checks.integer, "rows", rows)
        confirmed, left = 0, self.unconfirmed if rows is None else rows
        while self._out and left > confirmed:
            receipt = self._out.popleft()
            count = min(left - confirmed, len(receipt.guids))
            if count < len(receipt.guids):
                self._out.appendleft(receipt.part(count, len(receipt.guids)))
                receipt = receipt.part(0, count)
            self._consumer.confirm_taken(receipt)
            confirmed += count
        return confirmed

    def release(self) -> None:
        """Leave it to others to confirm the rows that were handed out: :meth:`confirm` knows them no more.

        For a program that keeps their GUIDs and gives these to :meth:`bmq.Queue.confirm`.
        """
        self._out.clear()

    async def open(self) -> Tables:
        """Tell the broker about the subscription; ``async with`` and ``await`` do the same.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the subscription is taken back.

        Cancelling it takes the subscription back.
        """
        await self._consumer.open()
        return self

    async def close(self) -> None:
        """Take the subscription back. What is not confirmed stays unconfirmed until the queue is closed.

        Idempotent. Cancelling it leaves the subscription taken back, at the latest when the queue is closed.

        Raises:
            RequestTimeout: no answer in time; the subscription is taken back in the background.
        """
        self._rest = None
        await self._consumer.close()

    def __await__(self) -> Generator[object, None, Tables]:
        return self.open().__await__()

    async def __aenter__(self) -> Tables:
        return await self.open()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        what = " | ".join(filter(None, self._consumer.expressions)) or "everything"
        return f"<bmq.arrow.Tables of {what!r} on {self._consumer.queue.uri}, {self.buffered} waiting>"
