# SPDX-License-Identifier: Apache-2.0
"""Received messages as batches of rows. Needs the extra ``bmq[arrow]``."""

from __future__ import annotations

import importlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

import numpy as np

from bmq import _checks, _world
from bmq._log_limit import LogLimit
from bmq.client._columns import ColumnConsumer, Receipt, Taken
from bmq.client._definition import checked_options
from bmq.client._open_queue import OpenQueue, end_of
from bmq.client.dead_letters import described
from bmq.client.poison import Poison, PoisonKind, PutAside, check_dead_letters
from bmq.errors import ProtocolError, TimedOut, UsageError
from bmq.wire.columns import Array
from bmq.wire.constants import PushFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.push_table import MAP, TableDecoder, guid_texts, to_arrow

if TYPE_CHECKING:
    from bmq.client.queue import Queue
    from bmq.protocol.client.subscription import SubscriptionOptions
    from bmq.subscriptions import Selector

__all__ = ["Tables", "TablesOptions"]

pa: Any = importlib.import_module("pyarrow")

logger = logging.getLogger("bmq.tables")

#: A batch, a schema and the type of a column, of pyarrow, which has no type hints.
RecordBatch = Any
ArrowSchema = Any
ArrowType = Any

#: What a row may say of its message besides payload and properties.
_METADATA: dict[str, ArrowType] = {
    "guid": pa.string(),
    "redelivered": pa.bool_(),
    "received_at": pa.timestamp("us", tz="UTC"),
    "error": pa.string(),
}
# A batch has at most so many bytes, unless it is one message.
_MAX_BYTES = 64 * 1024 * 1024
_MOST_ROWS = 2**31 - 1
_ON_INVALID: Final = ("discard", "row", "fail")
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
        metadata: more columns: ``guid`` (the 32 digits of :attr:`bmq.Message.guid`), ``redelivered``,
            ``received_at`` (when the message arrived here), and ``error`` (only with ``on_invalid="row"``). A
            mapping gives the columns other names.
        max_rows: how many rows a batch has at most; 10,000 by default.
        priority: the highest matching priority gets a message; None for the queue's.
        max_unconfirmed_messages: how many delivered messages may be unconfirmed; None for three batches.
        max_unconfirmed_bytes: how many bytes of them; None for 256 MiB.
        on_invalid: the fate of a message that cannot be read, because it is malformed or is larger than the
            session allows once it is decompressed. ``"discard"``, the default, leaves the message out,
            confirms it and logs one line a minute. ``"row"`` makes it a row: the payload column holds all
            bytes as they travelled, properties are null, and a column ``error`` has the reason, which is
            null for every other row. ``"fail"`` raises ProtocolError and leaves the message unconfirmed.
        dead_letters: a queue open for writing that receives unreadable messages; :class:`bmq.arrow.Source`
            takes a URI. Each message is confirmed once its dead letter is acknowledged. None for no such
            queue. Goes with ``on_invalid="discard"`` alone.
    """

    properties: Mapping[str, ArrowType] | ArrowSchema | None
    value: str
    metadata: Iterable[str] | Mapping[str, str]
    max_rows: int
    priority: int | None
    max_unconfirmed_messages: int | None
    max_unconfirmed_bytes: int | None
    on_invalid: str
    dead_letters: Queue | str | None


class _Made:
    """Rows that were made of messages, and of which some are not handed out yet.

    Args:
        batch: the rows.
        receipt: what confirms them.
        failures: messages that are to be raised as errors, each with the row in front of which it came.
    """

    __slots__ = ("_batch", "_position", "_receipt", "failures")

    def __init__(
        self, batch: RecordBatch, receipt: Receipt, failures: deque[tuple[int, ProtocolError]]
    ) -> None:
        self._batch = batch
        self._receipt = receipt
        self._position = 0
        self.failures = failures

    @property
    def rows(self) -> int:
        """How many rows are left."""
        return int(self._batch.num_rows) - self._position

    def next(self, most: int) -> tuple[RecordBatch, Receipt] | None:
        """Return the next rows, ``most`` of them at most; None if none is left.

        Raises:
            ProtocolError: the next message is one that is to be raised.
        """
        start, stop = self._position, self._batch.num_rows
        if self.failures:
            stop, error = self.failures[0]
            if stop == start:
                self.failures.popleft()
                raise error
        stop = min(stop, start + most)
        if stop == start:
            return None
        self._position = stop
        if not start and stop == self._batch.num_rows:
            return self._batch, self._receipt
        return self._batch.slice(start, stop - start), self._receipt.part(start, stop)


class _Late:
    """Unreadable messages that are confirmed when all rows are.

    The broker counts them against the limits of the consumer meanwhile, so the limits grow.

    Args:
        options: the limits of the consumer.
    """

    def __init__(self, options: SubscriptionOptions) -> None:
        self._most, self._most_bytes = options.max_unconfirmed_messages, options.max_unconfirmed_bytes
        self._receipts: list[Receipt] = []
        self._count = self._size = 0

    def add(self, receipt: Receipt, size: int) -> None:
        """Note messages of ``size`` bytes together."""
        self._receipts.append(receipt)
        self._count += len(receipt.guids)
        self._size += size

    def confirm(self, consumer: ColumnConsumer) -> None:
        """Confirm all."""
        for receipt in self._receipts:
            consumer.line.confirm_taken(receipt)
        self._receipts.clear()
        self._count = self._size = 0

    async def make_room(self, consumer: ColumnConsumer) -> None:
        """Have the limits without these messages as they were, to a half at least.

        They grow by twice as much as is needed now, so that thousands of messages take few requests.

        Raises:
            ConfigureQueueError, RequestTimeout, StateError: as :meth:`bmq.Consumer.configure`.
        """
        options = consumer.options
        # One expression of several may have all of them.
        parts = len(consumer.expressions)
        count, size = self._count * parts, self._size * parts
        room, space = options.max_unconfirmed_messages - count, options.max_unconfirmed_bytes - size
        if room * 2 <= self._most or space * 2 <= self._most_bytes:
            await consumer.configure(
                max_unconfirmed_messages=min(self._most + 2 * count, _checks.INT32_MAX),
                max_unconfirmed_bytes=min(self._most_bytes + 2 * size, _checks.INT64_MAX),
            )


class _RowMaker:
    """Makes batches of what was taken.

    Attributes:
        schema: the columns.
        max_rows: how many rows a batch has at most.
    """

    def __init__(
        self,
        limit: int,
        *,
        errors: bool,
        properties: Mapping[str, ArrowType] | ArrowSchema | None = None,
        value: str = "value",
        metadata: Iterable[str] | Mapping[str, str] = (),
        max_rows: int = 10_000,
    ) -> None:
        kinds = _kinds(properties)
        columns = _names(metadata)
        if errors:
            columns.setdefault("error", "error")
        elif "error" in columns:
            raise UsageError(
                'the column "error" needs on_invalid="row": otherwise an unreadable message is no row'
            )
        unknown = [name for name in columns if name not in _METADATA]
        if unknown:
            raise UsageError(f"no metadata {', '.join(unknown)}; there is: {', '.join(_METADATA)}")
        self.max_rows = max_rows
        self._errors = errors
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

    def make(self, taken: Taken, now: float) -> tuple[RecordBatch, int, dict[int, ProtocolError]]:
        """Make rows of the first messages, of all if possible.

        Args:
            taken: the messages, one at least.
            now: the event loop's time when they were taken.

        Returns:
            The rows, of how many messages they are, and the errors of those that cannot be read, by their
            number. An unreadable message is a row only if there is a column for errors.
        """
        decoded = self._decoder.decode(taken.columns)
        rows, errors, payload = decoded.rows, decoded.errors, decoded.payload
        if rows < taken.columns.count:
            taken = taken.part(0, rows)
        columns = taken.columns
        if errors and self._errors:
            raw = pa.array([columns.data(row) for row in errors], pa.binary())
            places = np.arange(rows)
            places[list(errors)] = np.arange(rows, rows + len(errors))
            payload = pa.concat_arrays([payload, raw]).take(to_arrow(places))
        arrays = [payload, *decoded.properties]
        arrays += [self._about(name, taken, now, errors) for name in self._metadata]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if errors and not self._errors:
            batch = batch.filter(to_arrow(_readable(rows, errors)))
        return batch, rows, errors

    def _about(self, name: str, taken: Taken, now: float, errors: dict[int, ProtocolError]) -> Any:
        columns = taken.columns
        if name == "error":
            texts: list[str | None] = [None] * columns.count
            for row, error in errors.items():
                texts[row] = described(error)
            return pa.array(texts, pa.string())
        if name == "guid":
            return guid_texts(columns.guids)
        if name == "redelivered":
            return to_arrow((columns.flags & PushFlags.OUT_OF_ORDER) != 0)
        counts = [count for count, _ in taken.arrivals]
        clock = _world.time() - now
        times = [int((clock + arrived) * 1e6) for _, (arrived, _) in taken.arrivals]
        return to_arrow(np.repeat(np.array(times, np.int64), counts)).cast(_METADATA[name])


def _readable(rows: int, errors: Iterable[int]) -> Array:
    """Return a truth value for each row: whether it has no error."""
    valid = np.ones(rows, bool)
    valid[list(errors)] = False
    return valid


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
    """What a queue delivers, as batches of rows. Created by :meth:`bmq.Queue.tables`.

    ``async with`` (or ``await``) activates it; receiving does too::

        async with queue.tables(properties={"CustomerId": pa.int64()}) as tables:
            async for batch in tables:
                await save(batch)
                tables.confirm()

    Rows are confirmed by :meth:`confirm` alone. Messages that are not confirmed are delivered again, here
    after a reconnect, and to others once this is closed. Messages that cannot be read are no rows: see
    ``on_invalid`` of :class:`TablesOptions`. It is for one task.

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
        on_invalid: str = "discard",
        dead_letters: Queue | str | None = None,
    ) -> None:
        _checks.instance("queue", queue, OpenQueue, "an open bmq.Queue")
        max_rows = _checks.integer("max_rows", max_rows, 1, _MOST_ROWS)
        value = _checks.text("value", value)
        limit = end_of(queue).max_message_size
        on_invalid = _checks.one_of("on_invalid", on_invalid, _ON_INVALID)
        if dead_letters is not None:
            if on_invalid != "discard":
                raise UsageError(f'dead_letters goes with on_invalid="discard", not with {on_invalid!r}')
            dead_letters = check_dead_letters(dead_letters, queue)
        self._fails = on_invalid == "fail"
        self._aside = PutAside("tables", dead_letters, logger)
        # Unreadable messages that are confirmed with rows; None where they are confirmed at once.
        self._late: _Late | None = None
        self._lines = LogLimit(logger)
        self._maker = _RowMaker(
            limit,
            errors=on_invalid == "row",
            properties=properties,
            value=value,
            metadata=metadata,
            max_rows=max_rows,
        )
        self.schema: ArrowSchema = self._maker.schema
        if max_unconfirmed_messages is None:
            max_unconfirmed_messages = _BATCHES_UNCONFIRMED * max_rows
        options = checked_options(
            max_unconfirmed_messages,
            _UNCONFIRMED_BYTES if max_unconfirmed_bytes is None else max_unconfirmed_bytes,
            end_of(queue).options.priority if priority is None else priority,
        )
        self._consumer = ColumnConsumer(queue, selector, options)
        # Taken; made rows and not handed out; handed out and not confirmed.
        self._rest: Taken | None = None
        self._made: _Made | None = None
        self._out: deque[Receipt] = deque()

    @property
    def buffered(self) -> int:
        """How many messages wait for the application."""
        rest, made = self._rest, self._made
        return (
            self._consumer.buffered
            + (rest.columns.count if rest is not None else 0)
            + (made.rows + len(made.failures) if made is not None else 0)
        )

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
            TimedOut: no message that can be read arrived in time.
            QueueClosed: this, the queue or the session was closed.
            ProtocolError: with ``on_invalid="fail"``: the next message is malformed, or decompresses to more
                than the session allows. It stays unconfirmed; receiving again goes on behind it.

        Cancelling it loses nothing.
        """
        timeout = _checks.timeout(timeout)
        return await self._receive(timeout, _checks.optional(_checks.integer, "max_rows", max_rows, 1))

    async def _receive(
        self, timeout: float | None, max_rows: int | None, *, idle: bool = False
    ) -> RecordBatch:
        """Receive rows.

        Args:
            timeout: seconds to wait for the first row.
            max_rows: how many rows to return at most.
            idle: whether a message that is left out counts as an arrival, which starts the timeout again.
        """
        consumer, line = self._consumer, self._consumer.line
        most = self._maker.max_rows if max_rows is None else min(max_rows, self._maker.max_rows)
        began, left = line.connection.now(), timeout
        late: int | None = None
        while True:
            if self._made is not None or self._rest is not None:
                if line.turn.clock() >= line.turn.until:
                    await line.turn.wait()
            else:
                if self._late is not None:
                    await self._late.make_room(consumer)
                await consumer.wait(left)
            before = self.buffered
            batch = self._hand_out(most)
            if batch is not None:
                return batch
            if timeout is None or idle:
                continue
            left = max(0.0, began + timeout - line.connection.now())
            if not left:
                # The time is over: messages that are here already are looked at, and no others.
                late = (before if late is None else late) - before + self.buffered
                if late <= 0:
                    raise TimedOut(f"no message of {consumer.queue.uri} that can be read arrived in time")

    def _hand_out(self, most: int) -> RecordBatch | None:
        """Return rows of messages that are here; None if none of those that were looked at is a row.

        Raises:
            ProtocolError: the next message cannot be read, and is to be raised.
        """
        made = self._made
        if made is None:
            if self._rest is None:
                self._rest = self._consumer.line.take(most, _MAX_BYTES)
            made = self._make(self._rest)
        try:
            part = made.next(most)
        finally:
            self._made = made if made.rows or made.failures else None
        if part is None:
            return None
        batch, receipt = part
        self._out.append(receipt)
        return batch

    def _make(self, taken: Taken) -> _Made:
        """Make rows of messages that were taken, and get those out of the way that cannot be read."""
        batch, rows, errors = self._maker.make(taken, self._consumer.line.connection.now())
        self._rest = taken.part(rows, taken.columns.count) if rows < taken.columns.count else None
        if rows < taken.columns.count:
            taken = taken.part(0, rows)
        receipt, failures = taken.receipt(), deque[tuple[int, ProtocolError]]()
        if batch.num_rows < rows:
            valid = _readable(rows, errors)
            self._leave_out(taken, receipt.where(~valid), dict(sorted(errors.items())), failures)
            receipt = receipt.where(valid)
        return _Made(batch, receipt, failures)

    def _leave_out(
        self,
        taken: Taken,
        receipt: Receipt,
        errors: dict[int, ProtocolError],
        failures: deque[tuple[int, ProtocolError]],
    ) -> None:
        """Decide on the messages that are no rows."""
        uri = self._consumer.queue.uri
        if self._fails:
            for place, (row, error) in enumerate(errors.items()):
                guid = guid_to_text(taken.columns.guids[row].tobytes())
                failure = ProtocolError(
                    f"message {guid} of {uri} cannot be read, and stays unconfirmed: {error.reason}"
                )
                failure.__cause__ = error
                failures.append((row - place, failure))
        elif self._late is not None:
            self._late.add(receipt, sum(len(taken.columns.data(row)) for row in errors))
            row, error = next(iter(errors.items()))
            self._lines.error(
                PoisonKind.UNREADABLE,
                "tables: message %s of %s is left out: %s",
                guid_to_text(taken.columns.guids[row].tobytes()),
                uri,
                described(error),
            )
        else:
            messages = self._consumer.line.messages_of(taken, list(errors))
            for message, error in zip(messages, errors.values(), strict=True):
                self._aside.take(message, Poison(PoisonKind.UNREADABLE, described(error)))

    def __aiter__(self) -> AsyncIterator[RecordBatch]:
        self._consumer.line.connection.check_loop()
        return self

    async def __anext__(self) -> RecordBatch:
        line = self._consumer.line
        while True:
            if not self.buffered:
                line.stop_if_closed()
                await line.arrival()
                continue
            if line.turn.clock() >= line.turn.until:
                await line.turn.wait()
                if not self.buffered:
                    continue
            batch = self._hand_out(self._maker.max_rows)
            if batch is not None:
                return batch

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
            self._consumer.line.confirm_taken(receipt)
            confirmed += count
        if self._late is not None and not self._out:
            self._late.confirm(self._consumer)
        return confirmed

    def release(self) -> None:
        """Leave it to others to confirm the rows that were handed out: :meth:`confirm` knows them no more.

        For a program that keeps their GUIDs and gives these to :meth:`bmq.Queue.confirm`.
        """
        self._out.clear()

    def _confirm_late(self) -> None:
        """Confirm unreadable messages with the rows, not at once: for readers that may confirm nothing."""
        self._late = _Late(self._consumer.options)

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

        Dead letters that are not acknowledged are waited for, five seconds at most.

        Idempotent. Cancelling it leaves the subscription taken back, at the latest when the queue is closed.

        Raises:
            RequestTimeout: no answer in time; the subscription is taken back in the background.
        """
        self._rest = self._made = None
        try:
            await self._put_aside()
        finally:
            await self._consumer.close()

    async def _put_aside(self) -> None:
        """Wait a while for the acknowledgements of dead letters."""
        await self._aside.close()

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
