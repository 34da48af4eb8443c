# SPDX-License-Identifier: Apache-2.0
"""Received messages as batches of rows. Needs the extra ``bmq[arrow]``."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from bmq import _checks
from bmq._dead_letters import Poison, PoisonKind, PutAside, check_dead_letters, short, widen
from bmq._live import live
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.arrow.consumer import MAX_BYTES, ColumnConsumer, Receipt, Taken
from bmq.arrow.decoding import MAP, TableDecoder, guid_texts, pieces, to_arrow
from bmq.client.keywords import ConsumerLimits, checked_limits
from bmq.client.posts import QueueBase
from bmq.errors import ProtocolError, TimedOut, UsageError
from bmq.protocol.client.subscription import SubscriptionOptions
from bmq.wire.constants import PushFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.printable import described

if TYPE_CHECKING:
    from bmq.client.queue import Queue
    from bmq.subscriptions import ExpressionInput

pa: Any = importlib.import_module("pyarrow")
pc: Any = importlib.import_module("pyarrow.compute")

logger = Log("bmq.tables")

#: Batches, schemas and column types of pyarrow, which has no type hints.
RecordBatch = Any
ArrowSchema = Any
ArrowType = Any

#: Columns about a message besides payload and properties.
_METADATA: dict[str, ArrowType] = {
    "guid": pa.string(),
    "redelivered": pa.bool_(),
    "received_at": pa.timestamp("us", tz="UTC"),
    "error": pa.string(),
}
_MOST_ROWS = 2**31 - 1
_ON_INVALID: Final = ("skip", "discard", "row", "fail")
# Batches within the default limits: one batch in progress, a second ready, and a third in transit.
_BATCHES_UNCONFIRMED = 3
_UNCONFIRMED_BYTES = 4 * MAX_BYTES


class _RowBuffer:
    """Rows built from messages, handed out in part.

    Args:
        batch: rows.
        receipt: confirms the rows.
        failures: messages to raise as errors, each with the following row.
    """

    def __init__(
        self, batch: RecordBatch, receipt: Receipt, failures: deque[tuple[int, ProtocolError]]
    ) -> None:
        self._batch = batch
        self._receipt = receipt
        self._position = 0
        self.failures = failures

    @property
    def rows(self) -> int:
        """Number of remaining rows."""
        return int(self._batch.num_rows) - self._position

    def next(self, most: int) -> tuple[RecordBatch, Receipt] | None:
        """Return the next rows, at most ``most``; None if no rows are left.

        Raises:
            ProtocolError: the next message must be raised as an error.
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
    """Unreadable messages, confirmed together with all rows.

    Meanwhile the broker counts them against the consumer's limits, so the limits are raised.

    Args:
        consumer: the consumer of the messages.
    """

    def __init__(self, consumer: ColumnConsumer) -> None:
        self._consumer = consumer
        self._usual = consumer.options.max_unconfirmed_messages, consumer.options.max_unconfirmed_bytes
        self._receipts: list[Receipt] = []
        self._size = 0

    def add(self, receipt: Receipt, size: int) -> None:
        """Record messages with a total of ``size`` bytes."""
        self._receipts.append(receipt)
        self._size += size

    def confirm(self) -> None:
        """Confirm all messages."""
        for receipt in self._receipts:
            self._consumer.line.confirm_taken(receipt)
        self._receipts.clear()
        self._size = 0

    async def make_room(self) -> None:
        """Raise the limits if these messages take more than half of them.

        Raises:
            ConfigureQueueError, RequestTimeout, StateError: as for :meth:`bmq.Consumer.configure`.
        """
        # All messages may belong to one expression of several.
        parts = len(self._consumer.expressions)
        usage = sum(len(each.guids) for each in self._receipts) * parts, self._size * parts
        if short(self._consumer, self._usual, *usage):
            await widen(self._consumer, self._usual, *usage)


def _names(metadata: Iterable[str] | Mapping[str, str], *, errors: bool) -> dict[str, str]:
    """The column of each metadata field."""
    given: Any = metadata
    if isinstance(given, Mapping):
        columns = {
            _checks.text("the name of a metadatum", name): _checks.text("the name of a column", column)
            for name, column in _checks.mapping("metadata", cast("Mapping[str, str]", given)).items()
        }
    else:
        columns = {name: name for name in _checks.texts("metadata", metadata)}
    if errors:
        columns.setdefault("error", "error")
    elif "error" in columns:
        raise UsageError(
            'the column "error" needs on_invalid="row": only then an unreadable message becomes a row'
        )
    unknown = [name for name in columns if name not in _METADATA]
    if unknown:
        raise UsageError(f"unknown metadata {', '.join(unknown)}; known names: {', '.join(_METADATA)}")
    return columns


def _about(name: str, taken: Taken, now: float, errors: dict[int, ProtocolError]) -> Any:
    """Return the column of a metadata field."""
    columns = taken.columns
    if name == "error":
        texts = [described(errors[row]) if row in errors else None for row in range(columns.count)]
        return pa.array(texts, pa.string())
    if name == "guid":
        return guid_texts(columns.guids)
    if name == "redelivered":
        return to_arrow((columns.flags & PushFlags.OUT_OF_ORDER) != 0)
    return to_arrow(taken.received_at(now)).cast(_METADATA[name])


def _kinds(properties: Any) -> dict[str, ArrowType] | None:
    """The type of each property."""
    if properties is None:
        return None
    if isinstance(properties, pa.Schema):
        return dict(zip(properties.names, properties.types, strict=True))
    kinds: dict[str, ArrowType] = {}
    for name, kind in _checks.mapping("properties", properties, "names to Arrow types").items():
        _checks.text("the name of a property", name)
        try:
            kinds[name] = pa.field(name, kind).type  # accepts names of types, too
        except Exception:  # any exception of pyarrow
            raise UsageError(f"property {name!r}: {_checks.shown(kind)} is not an Arrow type") from None
    return kinds


@live
class Tables:
    """The messages of a queue, as batches of rows. Created by :meth:`bmq.Queue.tables`.

    ``async with`` (or ``await``) activates the subscription, and so does receiving::

        async with queue.tables(properties={"CustomerId": pa.int64()}) as tables:
            async for batch in tables:
                await save(batch)
                tables.confirm()

    Only :meth:`confirm` confirms rows. Unconfirmed messages are redelivered: here after a reconnect, or to
    other consumers after this object is closed. Unreadable messages are handled as ``on_invalid`` of
    :class:`TablesOptions` says. For use by one task.

    Attributes:
        schema: columns, a ``pyarrow.Schema``.
    """

    def __init__(
        self,
        queue: Queue,
        expression: ExpressionInput = None,
        *,
        properties: Mapping[str, ArrowType] | ArrowSchema | None = None,
        value: str = "value",
        metadata: Iterable[str] | Mapping[str, str] = (),
        max_rows: int = 10_000,
        on_invalid: str = "skip",
        dead_letters: Queue | str | None = None,
        **limits: Unpack[ConsumerLimits],
    ) -> None:
        _checks.instance("queue", queue, QueueBase, "an open bmq.Queue")
        max_rows = _checks.integer("max_rows", max_rows, 1, _MOST_ROWS)
        value = _checks.text("value", value)
        limit = queue.session.options.max_message_size
        on_invalid = _checks.one_of("on_invalid", on_invalid, _ON_INVALID)
        if dead_letters is not None:
            if on_invalid != "skip":
                raise UsageError(f"dead_letters cannot be combined with on_invalid={on_invalid!r}")
            dead_letters = check_dead_letters(dead_letters, queue)
        self._on_invalid = on_invalid
        self._aside = PutAside("tables", dead_letters, logger, discard=on_invalid == "discard")
        # Unreadable messages to confirm with the rows; None to confirm these at once.
        self._late: _Late | None = None
        self._lines = LogLimit(logger)
        self._max_rows = max_rows
        kinds = _kinds(properties)
        columns = _names(metadata, errors=on_invalid == "row")
        self._metadata = tuple(columns)
        self._decoder = TableDecoder(kinds, limit=limit)
        fields = [
            (value, pa.binary()),
            *([("properties", MAP)] if kinds is None else kinds.items()),
            *((column, _METADATA[name]) for name, column in columns.items()),
        ]
        names = [name for name, _ in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(
                f"several columns are named {', '.join(twice)}: rename the payload's column with value=, "
                "or omit the property or the metadata"
            )
        self.schema: ArrowSchema = pa.schema(fields)
        most = min(_BATCHES_UNCONFIRMED * max_rows, _checks.INT32_MAX)
        usual = SubscriptionOptions(most, _UNCONFIRMED_BYTES, queue._options.priority)
        options = checked_limits(limits, usual)
        self._consumer = ColumnConsumer(queue, expression, options)
        # Received messages; built rows not handed out.
        self._rest: Taken | None = None
        self._made: _RowBuffer | None = None

    @property
    def buffered(self) -> int:
        """Number of messages waiting for the application."""
        rest, made = self._rest, self._made
        return (
            self._consumer.buffered
            + (rest.columns.count if rest is not None else 0)
            + (made.rows + len(made.failures) if made is not None else 0)
        )

    @property
    def _begun(self) -> bool:
        """Whether taken messages are not handed out yet."""
        return self._rest is not None or self._made is not None

    @property
    def unconfirmed(self) -> int:
        """Number of rows handed out and not yet confirmed."""
        return self._consumer.unconfirmed

    @property
    def closed(self) -> bool:
        """Whether no more messages will arrive."""
        return self._consumer.closed

    async def receive(self, timeout: float | None = None, *, max_rows: int | None = None) -> RecordBatch:
        """Wait for the first message, then return all arrived messages, up to ``max_rows``.

        A batch has at most 64 MiB, unless the batch is a single message.

        Args:
            timeout: seconds to wait for the first message; None for no limit.
            max_rows: maximum number of rows in this batch; None for the usual maximum.

        Returns:
            A ``pyarrow.RecordBatch`` with at least one row.

        Raises:
            TimedOut: no readable message arrived in time.
            QueueClosed: this object, the queue or the session was closed.
            ProtocolError: with ``on_invalid="fail"``: the next message is malformed, or exceeds the session's
                limit when decompressed. The message stays unconfirmed; the next call continues with the
                following message.

        Cancelling the call loses no message.
        """
        timeout = _checks.timeout(timeout)
        return await self._receive(timeout, _checks.optional(_checks.integer, "max_rows", max_rows, 1))

    async def _receive(
        self, timeout: float | None, max_rows: int | None, *, idle: bool = False
    ) -> RecordBatch:
        """Receive rows.

        Args:
            timeout: seconds to wait for the first row.
            max_rows: maximum number of rows.
            idle: whether an omitted message counts as an arrival and restarts the timeout.
        """
        consumer, line = self._consumer, self._consumer.line
        most = self._max_rows if max_rows is None else min(max_rows, self._max_rows)
        began, left = line.connection.loop.time(), timeout
        late: int | None = None
        while True:
            if self._begun:
                if line.turn.clock() >= line.turn.until:
                    await line.turn.wait()
            else:
                if self._late is not None:
                    await self._late.make_room()
                await consumer.wait(left)
            before = self.buffered
            batch = self._hand_out(most)
            if batch is not None:
                return batch
            if timeout is None or idle:
                continue
            left = max(0.0, began + timeout - line.connection.loop.time())
            if not left:
                # After the timeout, only messages already here are examined.
                late = (before if late is None else late) - before + self.buffered
                if late <= 0:
                    raise TimedOut(f"no readable message of {consumer.queue.uri} arrived in time")

    def _hand_out(self, most: int) -> RecordBatch | None:
        """Return rows of arrived messages; None if no examined message is a row.

        Raises:
            ProtocolError: the next message is unreadable, and must be raised as an error.
        """
        made = self._made
        if made is None:
            if self._rest is None:
                self._rest = self._consumer.take(most)
            made = self._make(self._rest)
        try:
            part = made.next(most)
        finally:
            self._made = made if made.rows or made.failures else None
        if part is None:
            return None
        batch, receipt = part
        self._consumer.hand_out(receipt)
        return batch

    def _make(self, taken: Taken) -> _RowBuffer:
        """Build rows from messages, and remove unreadable messages."""
        now = self._consumer.line.connection.loop.time()
        decoded = self._decoder.decode(taken.columns)
        rows, errors, payload = decoded.rows, decoded.errors, decoded.payload
        rest = None
        if rows < taken.columns.count:  # more rows would become too large
            rest, taken = taken.part(rows, taken.columns.count), taken.part(0, rows)
        columns, receipt, failures = taken.columns, taken.receipt(), deque[tuple[int, ProtocolError]]()
        as_rows = self._on_invalid == "row"
        if errors and as_rows:
            payload = pc.if_else(
                decoded.readable(), payload, pieces(columns.buffer, columns.starts, columns.stops)
            )
        about = [_about(name, taken, now, errors) for name in self._metadata]
        batch = pa.RecordBatch.from_arrays([payload, *decoded.properties, *about], schema=self.schema)
        self._rest = rest
        if errors and not as_rows:
            batch = batch.filter(decoded.readable())
            valid = decoded.valid()
            self._leave_out(taken, receipt.where(~valid), dict(sorted(errors.items())), failures)
            receipt = receipt.where(valid)
        return _RowBuffer(batch, receipt, failures)

    def _leave_out(
        self,
        taken: Taken,
        receipt: Receipt,
        errors: dict[int, ProtocolError],
        failures: deque[tuple[int, ProtocolError]],
    ) -> None:
        """Decide about unreadable messages."""
        uri = self._consumer.queue.uri
        if self._on_invalid == "fail":
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
                "tables: message %s of %s is omitted: %s",
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
                line.raise_if_closed(StopAsyncIteration)
                await line.arrival()
                continue
            if line.turn.clock() >= line.turn.until:
                await line.turn.wait()
                if not self.buffered:
                    continue
            batch = self._hand_out(self._max_rows)
            if batch is not None:
                return batch

    def confirm(self, rows: int | None = None) -> int:
        """Confirm rows handed out; return the number.

        Args:
            rows: number of rows, the earliest first; None for all.

        Buffered, and sent at the end of the current turn of the event loop. After the queue or the session is
        closed, a call has no effect: the broker redelivers the messages.

        Raises:
            UsageError: the call is outside the session's event loop.
        """
        confirmed = self._consumer.confirm(_checks.optional(_checks.integer, "rows", rows))
        if self._late is not None and not self._consumer.unconfirmed:
            self._late.confirm()
        return confirmed

    def release(self) -> None:
        """Leave the confirmation of handed-out rows to other code; :meth:`confirm` skips them.

        For a program with its own record of GUIDs, confirmed by :meth:`bmq.Queue.confirm`.
        """
        self._consumer.release()

    def _confirm_late(self) -> None:
        """Confirm discarded messages together with the rows, for readers with later confirmations."""
        if self._on_invalid == "discard":
            self._late = _Late(self._consumer)

    async def open(self) -> Tables:
        """Send the subscription to the broker; ``async with`` and ``await`` do the same.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the subscription is withdrawn.

        Cancelling the call withdraws the subscription.
        """
        await self._consumer.open()
        return self

    async def close(self) -> None:
        """Withdraw the subscription. Unconfirmed messages stay unconfirmed until the queue is closed.

        The call waits up to five seconds for the acknowledgements of dead letters.

        Idempotent. Cancelling the call withdraws the subscription nevertheless, at the latest when the queue
        is closed.

        Raises:
            RequestTimeout: no answer in time; the subscription is withdrawn in the background.
        """
        self._rest = self._made = None
        try:
            await self._aside.close()
        finally:
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
