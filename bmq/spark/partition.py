# SPDX-License-Identifier: Apache-2.0
"""What a task of ``foreachPartition(bmq.spark.write_partition(...))`` does: posts rows as PUT events."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._pace import Pace
from bmq.arrow.decoding import RecordBatch, pa
from bmq.client.address import find_broker
from bmq.client.posts import FailedPost, PostReport
from bmq.client.queue import Queue
from bmq.conventions import BUCKET, DESTINATION, DUE, delay_queue_of
from bmq.errors import AckStatus, Error, PostError, RequestTimeout, UsageError
from bmq.protocol.deadlines import backoff
from bmq.spark.connection import SharedSession, session_thread
from bmq.spark.guids import GuidMaker, GuidMode
from bmq.spark.options import WriteOptions
from bmq.spark.rows import (
    LETTER_PROPERTIES,
    LETTER_VALUE,
    InvalidRow,
    RowColumns,
    RowLetter,
    RowValidator,
    bucket_column,
    due_column,
    letter_of,
    letter_tables,
    name_row,
    source_guids,
    spread_maps,
    without_views,
)
from bmq.spark.schema import check_queue
from bmq.spark.summary import PartitionReport

if TYPE_CHECKING:
    from bmq.arrow.encoding import EncodedPosts

__all__ = ["TaskScope", "batches_of", "names_of", "post_partition", "task_scope"]


logger = Log("bmq.spark")
_limit = LogLimit(logger)
#: Maximum number of Python rows in a slice, and the approximate number of bytes.
SLICE_ROWS = 1000
SLICE_BYTES = 1024 * 1024
_SLICES_IN_FLIGHT = 8
_LONGEST_PAUSE = 30.0
# Write name in the GUIDs of dead letters. The NUL keeps it distinct from every user-defined name.
_LETTERS = "dead letters\0"
# After these statuses, the same post will never succeed.
_FINAL = frozenset({AckStatus.INVALID_ARGUMENT, AckStatus.NOT_SUPPORTED})
# These statuses mean that the queue is full now; waiting helps.
_FULL = frozenset({AckStatus.LIMIT_MESSAGES, AckStatus.LIMIT_BYTES})
# Seconds between two attempts with a full queue: after the first refusal, and at most.
_FIRST_LOOK, _LONGEST_LOOK = 0.05, 1.0
_Rows = Iterator[tuple[int, RecordBatch] | InvalidRow]


class TaskScope(NamedTuple):
    """Identity of a task in GUIDs and reports.

    Attributes:
        write: identity of the write; "" if its name is the identity.
        partition: number of the partition.
        attempt: number of earlier attempts; not part of GUIDs.
    """

    write: str
    partition: int = 0
    attempt: int = 0


def task_scope(name: str, own: str, *, one_a_batch: bool = False) -> TaskScope:
    """Return the scope of the running task.

    Args:
        name: name of the write; "" for none. Writes of one name are one write, in a stream in each batch.
        own: identity of a write without a name: the same in all tasks and their repetitions.
        one_a_batch: whether a batch has a single write, as a stream into a queue has, so that a repeated
            batch adds no messages without a name.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return TaskScope("" if name else own)
    write = "" if name else f"{own}/{context.stageId()}"  # each action of a program is another write
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if query is not None and batch is not None and (name or one_a_batch):
        write = f"{query}/{batch}"
    return TaskScope(write, context.partitionId(), context.attemptNumber())


def batches_of(
    first: Any, rows: Iterator[Any], options: WriteOptions, types: dict[str, Any] | None
) -> Iterator[tuple[int, RecordBatch] | InvalidRow]:
    """Return the rows of a partition in batches, with the position of their first row, and the invalid rows.

    Args:
        first: first row, or first batch of Arrow.
        rows: the others.
        options: options of the sink, with the names of the columns.
        types: property types of the columns; None to derive them from the values.
    """
    position = 0
    if isinstance(first, pa.RecordBatch):
        for batch in itertools.chain([first], rows):
            yield position, batch
            position += batch.num_rows
        return
    names = names_of(first)
    columns = RowColumns(options, names, types)
    taken, wanted = [first], 100
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


def names_of(first: Any) -> list[str]:
    """Return the columns of a partition with this first row or batch of Arrow.

    Raises:
        UsageError: the row does not name its columns.
    """
    if isinstance(first, pa.RecordBatch):
        return list(first.schema.names)
    if isinstance(first, dict):
        return list(cast("dict[str, Any]", first))
    names = getattr(first, "__fields__", None)
    if names is None:
        raise UsageError(
            "rows must be pyspark.sql.Row or dictionaries, which name their columns, not "
            f"{type(first).__name__}"
        )
    return list(names)


def post_partition(
    batches: Iterator[tuple[int, RecordBatch] | InvalidRow], options: WriteOptions, scope: TaskScope
) -> PartitionReport:
    """Post the rows of a partition and wait for all acknowledgements.

    Args:
        batches: rows with the position of the first row, and known invalid rows.
        options: options of the sink.
        scope: identity of the task.

    Raises:
        ConnectionFailed: the broker could not be reached, or a lost connection was not restored.
        PostError: a message was not accepted, despite the retries; the error names the row.
        UsageError: a row cannot be posted, and the options do not handle such rows.
        RequestTimeout: no outcome in time.
    """
    report = PartitionReport(partition=scope.partition, attempt=scope.attempt)
    try:
        _PartitionWriter(options, scope, report).write(batches)
    except BaseException as error:
        error.add_note(
            f"partition {scope.partition}, attempt {scope.attempt}: {report.rows:,} rows were read "
            f"before, and may be posted; the broker had acknowledged {report.acknowledged:,}"
        )
        raise
    logger.log(logging.WARNING if report.incomplete else logging.INFO, "%s", report)
    return report


class _PartitionWriter:
    """Posts one partition: several slices are in flight, and every acknowledgement is awaited.

    The task's thread pulls batches of rows and encodes them in slices, and the event loop posts the slices.
    Only a few slices wait between the two, so memory stays flat for partitions of any size.
    """

    def __init__(self, options: WriteOptions, scope: TaskScope, report: PartitionReport) -> None:
        self._thread = session_thread()
        self._options = options
        self._scope = scope
        self._report = report
        # GUIDs by mode, queue, and name of the write.
        self._makers: dict[tuple[GuidMode, str, str], GuidMaker] = {}
        self._validator = RowValidator(options) if options.keeps_invalid_rows else None
        self._queues: dict[str, Queue] = {}
        self._flight: deque[Future[None]] = deque()
        self._told = False
        self._turn = asyncio.Lock()
        # For each queue, a lock held by the slice that waits for free space. Later slices follow in order.
        self._rooms: dict[str, asyncio.Lock] = {}
        # Times of the last outcome, and of the last acknowledgement.
        self._heard = self._moved = 0.0
        self._shared: SharedSession

    def write(self, batches: _Rows) -> None:
        """Post all batches."""
        options = self._options
        self._shared = self._thread.run(self._thread.acquire(options, options.wire_compression))
        try:
            self._feed(batches)
        finally:
            while self._flight:
                self._flight.popleft().cancel()
            self._thread.soon(self._thread.release, self._shared, options.session_idle)

    def _feed(self, batches: _Rows) -> None:
        started = time.monotonic()
        report, options = self._report, self._options
        reconnects = self._shared.session.stats().reconnects
        for each in self._paced(batches):
            if isinstance(each, InvalidRow):
                report.rows += 1
                self._put_aside([each])
                continue
            first, whole = each
            report.rows += whole.num_rows
            for batch, places in self._sifted(whole, first):
                for uri, rows, positions in self._by_queue(batch, places):
                    for where, those, at in self._by_time(uri, rows, positions):
                        self._encode(where, those, at)
        while self._flight:
            self._land()
        report.seconds = time.monotonic() - started
        report.sample = b"".join(
            maker.sample() for (*_, name), maker in self._makers.items() if name == options.write_name
        )
        report.by_id = options.guids is GuidMode.ID
        report.reconnects = self._shared.session.stats().reconnects - reconnects

    def _paced(self, batches: _Rows) -> _Rows:
        """Limit rows to the configured rate, in portions of a tenth of a second."""
        rate = self._options.rate
        if rate is None:
            yield from batches
            return
        pace, step = Pace(rate), max(1, int(rate / 10))
        for each in batches:
            if isinstance(each, InvalidRow):
                yield each
                continue
            first, whole = each
            for at in range(0, whole.num_rows, step):
                piece = whole.slice(at, step)
                self._thread.run(pace.wait(piece.num_rows))
                yield first + at, piece

    def _sifted(self, whole: RecordBatch, first: int) -> Iterator[tuple[RecordBatch, Sequence[int]]]:
        """Turn maps into columns and handle invalid rows; return the remaining rows and their positions."""
        validator = self._validator
        for each in spread_maps(without_views(whole), self._options, first):
            if isinstance(each, InvalidRow):
                self._put_aside([each])
                continue
            start, batch = each
            positions: Sequence[int] = range(start, start + batch.num_rows)
            parts = list(validator.check(batch, start)) if validator is not None else []
            if invalid := [part for part in parts if isinstance(part, InvalidRow)]:
                self._put_aside(invalid)
                bad = {row.position for row in invalid}
                positions = [at for at in positions if at not in bad]
                batch = batch.take(pa.array([at - start for at in positions], pa.int64()))
            yield batch, positions

    def _by_queue(
        self, batch: RecordBatch, positions: Sequence[int]
    ) -> Iterator[tuple[str, RecordBatch, Sequence[int]]]:
        """Split rows by target; return the rows of each target and their positions in the partition."""
        options = self._options
        if options.queue:
            yield options.queue, batch, positions
            return
        targets = _values(batch, options.queue_column, "queue", positions)
        rows: dict[str, list[int]] = {}
        for at, uri in enumerate(targets):
            rows.setdefault(uri, []).append(at)
        for uri, numbers in rows.items():
            yield uri, batch.take(pa.array(numbers)), [positions[at] for at in numbers]

    def _by_time(
        self, uri: str, batch: RecordBatch, positions: Sequence[int]
    ) -> Iterator[tuple[str, RecordBatch, Sequence[int]]]:
        """Split rows into immediate and delayed ones; add the properties of their columns."""
        options = self._options
        if options.key_column:
            batch = batch.append_column(BUCKET, bucket_column(batch.column(options.key_column)))
        if not options.not_before_column:
            yield uri, batch, positions
            return
        due = due_column(batch.column(options.not_before_column), lambda at: name_row(positions[at]))
        if due.null_count:
            now = np.flatnonzero(np.asarray(due.is_null())).tolist()
            yield uri, batch.take(pa.array(now)), [positions[at] for at in now]
        if due.null_count < len(due):
            self._check(uri, positions[0])
            later = np.flatnonzero(np.asarray(due.is_valid())).tolist()
            rows = batch.append_column(DUE, due).take(pa.array(later))
            rows = rows.append_column(DESTINATION, pa.array([uri] * len(later), pa.string()))
            yield delay_queue_of(uri), rows, [positions[at] for at in later]

    def _encode(self, uri: str, batch: RecordBatch, positions: Sequence[int]) -> None:
        """Encode rows for one queue and pass them to the loop, slice by slice."""
        if not batch.num_rows:
            return
        options = self._options
        maker = self._maker(options.guids, uri, options.write_name, positions[0])
        guid: Any = maker.of_contents
        if maker.mode is GuidMode.ID:
            made = maker.of_ids(_values(batch, options.id_column, "id", positions))
            keep = [at for at, each in enumerate(made) if each is not None]
            self._report.repeated += len(made) - len(keep)
            batch = batch.take(pa.array(keep, pa.int64()))
            positions = [positions[at] for at in keep]
            guid = _taking(made)
        if maker.mode is GuidMode.SOURCE:
            sources = source_guids(batch.column(options.guid_column), lambda at: name_row(positions[at]))
            guid = maker.of_messages(sources)
        added = [name for name in (BUCKET, DUE, DESTINATION) if name in batch.schema.names]
        properties = dict.fromkeys((*options.property_columns, *added))
        self._submit(uri, batch, options.value_column, tuple(properties), guid, positions)

    def _submit(
        self,
        uri: str,
        table: Any,
        value: str,
        properties: Sequence[str],
        guid: Any,
        positions: Sequence[int],
        *,
        letters: bool = False,
    ) -> None:
        start = 0
        for posts in self._queues[uri].encode_table(
            table,
            value=value,
            properties=properties,
            guid=guid,
            name_row=lambda at: name_row(positions[at]),
        ):
            if len(self._flight) >= _SLICES_IN_FLIGHT:
                self._land()
            if not letters:
                self._report.bytes += posts.payload_bytes
            where = positions[start : start + len(posts)]
            self._flight.append(self._thread.submit(self._post(uri, posts, where, letters=letters)))
            start += len(posts)

    def _put_aside(self, rows: list[InvalidRow]) -> None:
        """Drop rows, or create their dead letters."""
        options, report = self._options, self._report
        if not self._told:
            self._told = True
            what = "dropped" if not options.dead_letter_queue else f"put into {options.dead_letter_queue}"
            logger.warning(
                "row %d of partition %d cannot be posted, and is %s, like all rows that cannot be posted: %s",
                rows[0].position,
                self._scope.partition,
                what,
                rows[0].reason,
            )
        if not options.dead_letter_queue:
            report.dropped += len(rows)
            return
        letters = list(map(letter_of, rows))
        if options.guids is GuidMode.ID:
            self._post_letters([each for each in letters if each.row.id is not None], GuidMode.ID)
            self._post_letters([each for each in letters if each.row.id is None], GuidMode.CONTENT)
        else:
            self._post_letters(letters, options.guids)

    def _post_letters(self, letters: list[RowLetter], mode: GuidMode) -> None:
        """Post dead letters, with GUIDs that a repeated task computes again."""
        uri = self._options.dead_letter_queue
        if not letters:
            return
        maker = self._maker(mode, uri, _LETTERS + self._options.write_name, letters[0].row.position)
        guid: Any = maker.of_contents
        if mode is GuidMode.ID:
            # Rows of different queues may have the same id.
            made = maker.of_ids([("dead letter", each.row.queue, each.row.id) for each in letters])
            self._report.repeated += made.count(None)
            letters = [letter for letter, each in zip(letters, made, strict=True) if each is not None]
            guid = _taking(made)
        elif mode is GuidMode.SOURCE:
            guid = maker.of_messages([each.row.guid for each in letters])
        for table, positions in letter_tables(letters):
            self._submit(uri, table, LETTER_VALUE, LETTER_PROPERTIES, guid, positions, letters=True)

    def _land(self) -> None:
        """Wait for the oldest slice."""
        future = self._flight.popleft()
        began = time.monotonic()
        while True:
            patience = max(began, self._heard) + self._options.ack_timeout - time.monotonic()
            try:
                future.result(max(0.0, patience))
                return
            except TimeoutError as error:
                if isinstance(error, Error):
                    raise
                if patience > 0:
                    continue  # outcomes of other rows may have arrived meanwhile
            future.cancel()
            broker = find_broker(self._options.broker)
            raise RequestTimeout(
                f"partition {self._scope.partition}: no outcome for rows posted "
                f"{self._options.ack_timeout:g} s ago; broker {broker}, "
                f"{self._report.acknowledged} rows acknowledged before"
            )

    def _maker(self, mode: GuidMode, uri: str, write_name: str, row: int) -> GuidMaker:
        """Return the GUIDs for a queue; the first call for the queue opens it."""
        maker = self._makers.get((mode, uri, write_name))
        if maker is None:
            self._check(uri, row)
            maker = GuidMaker(mode, uri, self._scope.write, self._scope.partition, write_name)
            self._makers[mode, uri, write_name] = maker
            self._queues[uri] = self._thread.run(self._shared.writer(uri))
        return maker

    @staticmethod
    def _check(uri: str, row: int) -> None:
        try:
            check_queue(uri)
        except UsageError as error:
            raise type(error)(f"{name_row(row)}: {error}") from None

    # in the loop

    async def _post(self, uri: str, posts: EncodedPosts, positions: Sequence[int], *, letters: bool) -> None:
        """Post until all messages are acknowledged, or until a message has been refused too often."""
        queue = await self._shared.writer(uri)
        room = self._rooms.setdefault(uri, asyncio.Lock())
        async with room:
            pass  # earlier slices have found space
        left = list(range(len(posts)))
        for attempt in itertools.count():
            failures = await self._try(queue, posts, left, letters=letters)
            if failures and all(each.error.status in _FULL for each in failures):
                since = time.monotonic()
                async with room:
                    left = [each.index for each in failures]
                    left, failures = await self._fill(queue, posts, left, positions, since, letters=letters)
            else:
                left = [each.index for each in failures]
            if not left:
                return
            self._raise_if_final(failures, positions, attempt)
            delay = backoff(attempt + 1, self._options.retry_interval, _LONGEST_PAUSE)
            logger.warning(
                "%d messages to %s were not accepted (%s); posting the messages again in %g s",
                len(left),
                queue.uri,
                failures[0].error.status.name,
                delay,
            )
            await asyncio.sleep(delay)
            self._report.retried += len(left)
            if queue.closed:
                queue = await self._shared.writer(queue.uri)

    async def _try(
        self, queue: Queue, posts: EncodedPosts, rows: list[int], *, letters: bool
    ) -> list[FailedPost]:
        """Post some rows of a slice once; return the refused rows by their position in the slice."""
        some = posts if len(rows) == len(posts) else posts.select(rows)
        outcome = await self._post_in_turn(queue, some)
        self._heard = time.monotonic()
        if outcome.acknowledged:
            self._moved = self._heard
        if letters:
            self._report.dead_letters += outcome.acknowledged
        else:
            self._report.acknowledged += outcome.acknowledged
        failures = sorted(outcome.failures, key=lambda each: each.index)
        return [replace(each, index=rows[each.index]) for each in failures]

    async def _fill(
        self,
        queue: Queue,
        posts: EncodedPosts,
        left: list[int],
        positions: Sequence[int],
        since: float,
        *,
        letters: bool,
    ) -> tuple[list[int], list[FailedPost]]:
        """Post rows into a full queue: first one row, and twice as many after each accepted post.

        Returns:
            The remaining rows with their errors; both empty if all rows were accepted. Any other error than a
            full queue ends the loop, too.

        Raises:
            PostError: no row was accepted within ``ack_timeout``.
        """
        width, pause = 1, _FIRST_LOOK
        began = time.monotonic()
        failures: list[FailedPost] = []
        try:
            while left:
                patience = max(self._moved, since) + self._options.ack_timeout - time.monotonic()
                if patience <= 0:
                    error = failures[0].error
                    why = (
                        f": {error.status.name}: the queue has been full for "
                        f"{self._options.ack_timeout:g} s, and {len(left)} rows wait for room. Let the "
                        "consumers catch up, raise the queue's limit, or increase ackTimeoutMs"
                    )
                    raise self._refused(positions[left[0]], error, why)
                if pause:
                    _limit.warning(
                        queue.uri,
                        "%s is full: rows wait for free space, up to %g s",
                        queue.uri,
                        self._options.ack_timeout,
                    )
                    await asyncio.sleep(min(pause, patience))
                if queue.closed:
                    queue = await self._shared.writer(queue.uri)
                tried, left = left[:width], left[width:]
                failures = await self._try(queue, posts, tried, letters=letters)
                left = [*(each.index for each in failures), *left]
                if any(each.error.status not in _FULL for each in failures):
                    break
                accepted = len(tried) - len(failures)
                width = max(1, accepted if failures else 2 * width)
                pause = 0.0 if not failures else _FIRST_LOOK if accepted else min(2 * pause, _LONGEST_LOOK)
        finally:
            self._report.waited += time.monotonic() - began
        return left, failures

    def _refused(self, row: int, error: PostError, why: str) -> PostError:
        return PostError(
            f"row {row} of partition {self._scope.partition} was not accepted by {error.queue_uri}{why}",
            status=error.status,
            guid=error.guid,
            queue_uri=error.queue_uri,
        )

    async def _post_in_turn(self, queue: Queue, posts: EncodedPosts) -> PostReport:
        """Post without mixing slices, so that messages keep the order of the rows."""
        posted = asyncio.Event()

        def slices() -> Iterator[EncodedPosts]:
            yield posts
            posted.set()

        async with self._turn:
            task = asyncio.ensure_future(queue.post_encoded(slices()))
            task.add_done_callback(lambda _: posted.set())
            try:
                await posted.wait()
            except asyncio.CancelledError:
                task.cancel()
                raise
        return await task

    def _raise_if_final(self, failures: list[FailedPost], positions: Sequence[int], attempt: int) -> None:
        options = self._options
        final = next((each for each in failures if each.error.status in _FINAL), None)
        if final is None and not self._shared.usable:
            final = failures[0]  # the session gave up: a retry cannot help
        if final is None and attempt < options.max_retries:
            return
        failed = final or next((each for each in failures if each.error.status not in _FULL), failures[0])
        error = failed.error
        tries = f" after {attempt} retries" if attempt else ""
        why = f"{tries}: {error.status.name} ({error}); {len(failures)} rows failed together with this row"
        raise self._refused(positions[failed.index], error, why)


def _taking(made: list[bytes | None]) -> Callable[[list[bytes]], np.ndarray[Any, Any]]:
    """Return a function that returns the next GUIDs for the next rows."""
    left = iter([each for each in made if each is not None])

    def take(rows: list[bytes]) -> np.ndarray[Any, Any]:
        return np.frombuffer(b"".join(islice(left, len(rows))), "V16")

    return take


def _values(batch: RecordBatch, name: str, what: str, positions: Sequence[int]) -> list[Any]:
    """Return the values of a column without nulls."""
    column = batch.column(name)
    values: list[Any] = column.to_pylist()
    if column.null_count:
        raise UsageError(
            f"{name_row(positions[values.index(None)])}: column {name!r} is null, and every row needs a "
            f"value for its {what}"
        )
    return values
