# SPDX-License-Identifier: Apache-2.0
"""``spark.readStream.format("bmq")``: a queue as an unbounded DataFrame that survives restarts.

Spark's calls, and what each call proves (the documentation has the engine's order of events):

* ``latestOffset(start)``: all messages before ``start`` are in Spark's commit log, so they are confirmed to
  the broker. Then the next batch is handed out, which was received and logged meanwhile.
* ``partitions(start, end)``: reads the log, never the broker: after a crash, Spark requests the same range.
* ``commit(end)``: proves the same, but later, and never for the last batch. Only pyspark 4.0 and 4.1 depend
  on this call, because they pass no ``start`` to ``latestOffset``.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import re
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from bmq._logging import Log
from bmq._signals import exit_on_sigterm
from bmq.arrow.decoding import RecordBatch, pa
from bmq.client.queue import Queue
from bmq.errors import OpenQueueError, StateError
from bmq.spark.connection import run
from bmq.spark.log import (
    BatchLog,
    Guids,
    LoggedBatch,
    LogPartition,
    OpenBatch,
    RowMaker,
    cut,
    filesystem,
    guid_keys,
    read_partition,
    sizes_of,
)
from bmq.spark.options import StreamOptions
from bmq.spark.receiver import (
    DeadLetterWriter,
    ReceivedMessages,
    SourceReceiver,
    confirm_guids,
    dropped_since,
    look_for_others,
    new_messages,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # pyspark 4.0 and 4.1 have no read limits
        SupportsTriggerAvailableNow = object

fs: Any = importlib.import_module("pyarrow.fs")

__all__ = ["READ_LIMITS", "StreamReader", "due_at"]

_REMEMBERED_BATCHES = 8


logger = Log("bmq.spark")
# Number of rows taken and written together.
_ROWS = 10_000
# Maximum number of waiting batches while Spark processes an earlier batch.
_READY = 2
# Maximum number of seconds for which an availableNow run waits for a full batch, from the first message.
_LONGEST_FILL = 2.0
# Seconds of a single wait within a wait without a limit.
_LONG = 3600.0
# Seconds between two checks of Spark's log of commits, and between two queries to the broker.
_LOOK, _LOOK_REMOTE = 0.5, 10.0
_ASK = 10.0
#: Whether this pyspark has read limits, and signals the end of an availableNow run.
READ_LIMITS = SupportsTriggerAvailableNow is not object


_NUMBER = re.compile(r"\d+\Z")
#: File beside a log with the options of its start.
STATE = "state.json"
DROPPED_ADVICE = (
    "The messages are lost. Restart the query to continue; with failOnDataLoss=false this error is a warning"
)
OWN_CHECKPOINT = (
    "readStream has the checkpointLocation of another query. Give readStream and writeStream the same "
    "checkpointLocation, and each query its own readStream"
)


# Spark's checkpoint, and whether the log beside it belongs to the query


class _Metadata(msgspec.Struct):
    id: str


class _Offset(msgspec.Struct, forbid_unknown_fields=True):
    messages: int
    source: str = ""


class Checkpoint:
    """The checkpoint of a streaming query. Read-only.

    Args:
        path: option ``checkpointLocation``.
        source: name of the source in the query; "" for the only source.
    """

    def __init__(self, path: str, source: str = "") -> None:
        self._fs, self._root = filesystem(path)
        self._source = source

    def query(self) -> str:
        """Return the id of the query; "" before the first batch is planned."""
        try:
            return msgspec.json.decode(self._text("metadata"), type=_Metadata).id
        except (OSError, msgspec.DecodeError):
            return ""

    def committed(self) -> int | None:
        """Return the number of certainly committed messages of this source; None if unknown."""
        try:
            numbers = self._numbers("commits")
            return self._end(max(numbers)) if numbers else None
        except OSError:
            return None

    def planned(self) -> int | None:
        """Return the end of the newest batch planned by Spark; None if no batch is readable."""
        try:
            numbers = self._numbers("offsets")
            return self._end(max(numbers)) if numbers else None
        except OSError:
            return None

    def _numbers(self, folder: str) -> set[int]:
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        names = [info.base_name for info in self._fs.get_file_info(selector)]
        return {int(name) for name in names if _NUMBER.match(name)}

    def _end(self, batch: int) -> int | None:
        """Return this source's offset in a batch; None unless exactly one offset can belong to the source."""
        found: list[int] = []
        for line in self._text(f"offsets/{batch}").splitlines()[1:]:
            try:
                offset = msgspec.json.decode(line, type=_Offset)
            except msgspec.DecodeError:
                continue  # of a different kind of source
            if offset.source == self._source:
                found.append(offset.messages)
        return found[0] if len(found) == 1 else None

    def _text(self, name: str) -> str:
        with self._fs.open_input_stream(f"{self._root}/{name}") as file:
            text: str = file.read().decode()
        return text


def refuse(what: str, goes_on: str, *, strict: bool) -> None:
    """Raise an error, or warn if the option failOnDataLoss allows.

    Args:
        what: problem.
        goes_on: continuation of the query in spite of the problem.
        strict: whether to raise an error.

    Raises:
        StateError: the query must not continue.
    """
    if not strict:
        logger.warning("%s; the query continues %s, because of failOnDataLoss=false", what, goes_on)
        return
    raise StateError(f"{what}. With failOnDataLoss=false, the query continues {goes_on}")


def check_log(log: BatchLog, options: StreamOptions, start: int | None) -> bool:
    """Check whether a log matches the query.

    Args:
        log: log.
        options: options of the stream.
        start: number of messages that are certainly committed; None if unknown.

    Returns:
        True if the log was started with other queues or subscriptions: committed messages must be confirmed
        before the new subscriptions.

    Raises:
        StateError: the log does not match, or cannot be checked.
    """
    state: Any = log.noted(STATE)
    check_owner(log, options, state)
    if start and not any(batch.end == start for batch in log.batches()):
        refuse(
            f"{start:,} messages of this query are committed, but the log at {log.path} does not have the "
            "last of them: the log was removed or replaced. The broker may still hold these messages, and "
            "the query would read them again. Restore the log",
            "and may duplicate the last commit",
            strict=options.fail_on_data_loss,
        )
        log.mark(start, start)
    now = options.described()
    if state is None or {name: state.get(name) for name in now} == now:
        return False
    if start is None:
        raise StateError(
            "queue or subscription of this query changed, and pyspark before 4.2 does not report the "
            "committed batches: start the query with its old options, let the query read all messages and "
            "end, and begin a new checkpoint"
        )
    logger.info("queue or subscription changed: committed messages are confirmed first")
    return True


def check_checkpoint(options: StreamOptions, start: int | None) -> None:
    """Check that the query's checkpoint is the option ``checkpointLocation`` of its source.

    Args:
        options: options of the stream.
        start: number of messages that the query has read; None if the engine does not provide the number.

    Raises:
        StateError: the checkpoint belongs to another query, or to none.
    """
    if not options.checkpoint_location:
        return
    checkpoint = Checkpoint(options.checkpoint_location, options.source_name)
    if not checkpoint.query():
        raise StateError(
            f"no query has its checkpoint in {options.checkpoint_location}, the checkpointLocation of "
            "readStream: give readStream and writeStream the same checkpointLocation. Where pyarrow does not "
            "reach Spark's checkpoint, give readStream the option logPath and no checkpointLocation"
        )
    planned = checkpoint.planned()
    if planned is not None and start is not None and planned != start:
        raise StateError(
            f"this query has read {start:,} messages, and the query of checkpoint "
            f"{options.checkpoint_location} has read {planned:,}: {OWN_CHECKPOINT}"
        )


def check_owner(log: BatchLog, options: StreamOptions, state: Any) -> None:
    """Check that the log belongs to this query.

    Raises:
        StateError: the log belongs to another query.
    """
    query = Checkpoint(options.checkpoint_location).query() if options.checkpoint_location else ""
    owner = cast("dict[str, Any]", state).get("query", "") if isinstance(state, dict) else ""
    if query and owner and query != owner:
        refuse(
            f"the log at {log.path} belongs to query {owner}, and the checkpoint to query {query}: the "
            "checkpoint was removed or replaced. The last commit of the other query would be read again. "
            "Give the new query a logPath of its own, or restore the checkpoint",
            "with this log, and may duplicate the last commit",
            strict=options.fail_on_data_loss,
        )


def note_state(log: BatchLog, options: StreamOptions) -> None:
    """Record the options that the log is used with from now on."""
    query = Checkpoint(options.checkpoint_location).query() if options.checkpoint_location else ""
    wanted = {"query": query, **options.described()}
    if log.noted(STATE) != wanted:
        log.note(STATE, wanted)


# receiving


class ReceivedGuids(NamedTuple):
    """GUIDs of messages in the order of arrival.

    Attributes:
        uri: URI of the messages' queue.
        queue: queue of the session that has received the messages; None in an earlier run.
        guids: GUIDs.
    """

    uri: str
    queue: Queue | None
    guids: list[bytes]


class KnownMessages:
    """Messages by batch.

    After every reconnect and restart, the broker redelivers unconfirmed messages; the ledger recognises them.
    Messages of committed batches are remembered for a few more batches, because a confirmation can be lost
    with the connection.
    """

    def __init__(self) -> None:
        self._known: dict[str, set[bytes]] = {}
        self._open: deque[tuple[int, list[ReceivedGuids]]] = deque()
        self._closed: deque[tuple[int, list[ReceivedGuids]]] = deque()
        # GUIDs of the closed batches, collected at the first repeated message.
        self._committed: Guids | None = None

    @property
    def open(self) -> bool:
        """Whether a batch handed to Spark is not committed."""
        return bool(self._open)

    def arrive(self, uri: str, guids: list[bytes]) -> list[int] | None:
        """Record messages of a queue; return the positions of the new ones, None if all are new."""
        return new_messages(self._known.setdefault(uri, set()), guids)

    def drop(self, uri: str, guids: Iterable[bytes]) -> None:
        """Forget messages without a batch. The messages must not become part of a later batch."""
        self._known.get(uri, set()).difference_update(guids)

    def recall(self, end: int, guids: Guids) -> None:
        """Record a batch of an earlier run, as :meth:`hand_out` does."""
        for uri, each in guids.items():
            self._known.setdefault(uri, set()).update(each)
        self.hand_out(end, [ReceivedGuids(uri, None, list(each)) for uri, each in guids.items()])

    def hand_out(self, end: int, messages: list[ReceivedGuids]) -> None:
        """Record a batch handed to Spark.

        Args:
            end: number of messages up to the end of the batch.
            messages: messages of the batch.
        """
        self._open.append((end, messages))

    def committed(self) -> Guids:
        """Return all remembered committed messages."""
        if self._committed is None:
            self._committed = {}
            for _, batch in self._closed:
                for uri, _, guids in batch:
                    self._committed.setdefault(uri, set()).update(guids)
        return self._committed

    def commit(self, end: int) -> list[ReceivedGuids]:
        """Record all messages before ``end`` as committed; return the newly committed messages."""
        committed: list[ReceivedGuids] = []
        while self._open and self._open[0][0] <= end:
            batch = self._open.popleft()
            self._closed.append(batch)
            committed += batch[1]
        if committed:
            self._committed = None
        return committed

    def forget(self) -> int:
        """Forget the oldest committed batches; return the end of the last forgotten batch."""
        end = 0
        while len(self._closed) > _REMEMBERED_BATCHES:
            end, batch = self._closed.popleft()
            for uri, _, guids in batch:
                self._known[uri].difference_update(guids)
            self._committed = None
        return end


@dataclass(slots=True)
class _Batch:
    """A batch during reception, or waiting for Spark.

    Attributes:
        file: file of the batch.
        since: arrival of the first message, on the clock of :func:`time.monotonic`.
        latest: arrival of the last message.
        rows: number of messages.
        size: number of transmitted bytes.
        waiting: rows not yet written.
        messages: GUIDs of the messages.
        logged: complete file.
    """

    file: OpenBatch
    since: float
    latest: float
    rows: int = 0
    size: int = 0
    waiting: list[RecordBatch] = field(default_factory=list[RecordBatch])
    messages: list[ReceivedGuids] = field(default_factory=list[ReceivedGuids])
    logged: LoggedBatch | None = None


class StreamReceiver:
    """Receives batch after batch, and hands out each batch in turn.

    Args:
        options: options of the stream.
        available_now: whether to end with the messages that are in the queues at the start.

    Attributes:
        end: number of messages handed out since the start of the query; None before the first
            :meth:`advance`.
        dropped: number of messages dropped unread by the broker, by queue, while the query was running and
            before the restart.
    """

    def __init__(
        self,
        options: StreamOptions,
        *,
        available_now: bool = False,
    ) -> None:
        self.end: int | None = None
        self.dropped: dict[str, int] = {}
        self._options = options
        self._available_now = available_now
        self._log = BatchLog(options.log_folder)
        self._checkpoint = (
            Checkpoint(options.checkpoint_location, options.source_name)
            if options.checkpoint_location
            else None
        )
        self._ledger = KnownMessages()
        self._receiver = SourceReceiver(options, options.num_receivers)
        self._aside = DeadLetterWriter(options)
        # True if the log's original options have changed, until all committed messages are confirmed.
        self._unsettled = False
        # Received messages not handed out.
        self._open: _Batch | None = None
        self._ready: deque[_Batch] = deque()
        # Messages delivered again before their commit, by the queue that has received them again.
        self._again: defaultdict[Queue, set[bytes]] = defaultdict(set)
        self._received = 0
        self._written = 0
        # All messages before this number are committed.
        self._committed = 0
        self._pump: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._loss: StateError | None = None
        # Held while the batches are changed, and notified afterwards.
        self._changed = asyncio.Condition()
        self._committing = asyncio.Lock()

    @property
    def arrived(self) -> int:
        """Number of messages handed out or arrived since the start of the query."""
        opened = self._open.rows if self._open is not None else 0
        return self._written + opened + self._receiver.buffered

    @property
    def in_hand(self) -> int:
        """Number of arrived and unconfirmed messages."""
        return self.arrived - self._committed

    def advance(self, start: int | None) -> int:
        """Confirm committed messages; return the end of the next batch, if there is a batch in time.

        Args:
            start: number of certainly committed messages; None if unknown.

        Raises:
            ConnectionFailed: the broker cannot be reached.
            SessionClosed, QueueClosed: the connection is permanently lost.
            OSError: the log cannot be written.
            StateError: another query uses the log; the log or the checkpoint does not match the query; the
                broker has dropped messages.
        """
        if self.end is None:
            check_checkpoint(self._options, start)
            self._log.acquire()
            self.end = self._written = self._recover(start)
        return run(self._advance(self.end, start))

    def commit(self, end: int) -> None:
        """Confirm all messages before ``end``, and remove old committed batches from the log."""
        run(self._commit(end))

    def close(self) -> None:
        """Confirm messages committed by Spark in the meantime, and disconnect."""
        run(self._close(), timeout=15)
        self._log.release()

    def _recover(self, start: int | None) -> int:
        """Continue the log of an earlier run; return the end of the log.

        Messages beyond ``start`` were neither seen by Spark nor confirmed: the broker redelivers them.
        """
        self._log.clear()
        self._unsettled = check_log(self._log, self._options, start)
        end = start or 0
        for batch in self._log.batches():
            if start is not None and batch.start >= start and batch.end > start:
                self._log.remove(batch)
                continue
            self._ledger.recall(batch.end, self._log.read_guids([batch.name]))
            end = max(end, batch.end)
        return end

    # handing out

    async def _advance(self, end: int, start: int | None) -> int:
        if start is not None:
            await self._commit(start)
            if start < end:
                return end  # a repeated request for the same batch
        if self._pump is None:
            await self._begin()
            self._pump = asyncio.ensure_future(self._receive())
            self._watch = asyncio.ensure_future(self._look())
        self._raise_loss()
        async with self._changed:
            batch = await self._next()
            self._changed.notify_all()
        if batch is not None:
            assert batch.logged is not None
            self.end = end = batch.logged.end
            self._ledger.hand_out(end, batch.messages)
        return end

    async def _begin(self) -> None:
        """Finish an earlier run's confirmations, check for other readers, and subscribe."""
        options, strict = self._options, self._options.fail_on_data_loss
        if self._unsettled:
            guids = self._ledger.committed()
            try:
                await confirm_guids(options, guids)
            except OpenQueueError as error:
                text = f"committed messages cannot be confirmed any more: {error}"
                refuse(text, "without", strict=strict)
            self._unsettled = False
        note_state(self._log, options)
        await look_for_others(options)
        await self._count_dropped()
        await self._receiver.open(silence=options.idle_timeout if self._available_now else None)

    async def _look(self) -> None:
        """Confirm messages committed by Spark while idle, and query the broker for dropped messages."""
        pause = _LOOK if self._log.local else _LOOK_REMOTE
        asked = time.monotonic()
        while True:
            await asyncio.sleep(pause)
            await self._commit_known()
            if time.monotonic() > asked + _ASK:
                await self._count_dropped()
                asked = time.monotonic()

    async def _commit_known(self) -> None:
        """Confirm the batches in Spark's own log of commits."""
        if self._checkpoint is None or not self._ledger.open:
            return
        end = await asyncio.to_thread(self._checkpoint.committed)
        if end is not None and self.end is not None and end <= self.end:
            await self._commit(end)

    async def _count_dropped(self) -> None:
        """Query the broker for dropped messages. The next request for a batch raises the error."""
        more = await dropped_since(self._log, self._options)
        for uri, count in more.items():
            self.dropped[uri] = self.dropped.get(uri, 0) + count
        if more:
            listed = ", ".join(f"{count:,} of {uri}" for uri, count in more.items())
            text = f"the broker has dropped unconfirmed messages (expired or rejected): {listed}"
            if self._options.fail_on_data_loss:
                self._loss = StateError(f"{text}. {DROPPED_ADVICE}")
            else:
                logger.warning("%s", text)

    def _raise_loss(self) -> None:
        loss, self._loss = self._loss, None
        if loss is not None:
            raise loss

    async def _next(self) -> _Batch | None:
        """Wait for a complete or due batch."""
        assert self._pump is not None
        deadline = math.inf if self._available_now else time.monotonic() + self._options.poll_timeout
        while not self._ready:
            now = time.monotonic()
            enough, due = self._due()
            if self._pump.done():
                self._pump.result()
                if self._open is None:
                    return None
                due = now
            if due <= now:
                await self._complete()
            elif now >= deadline and not enough:
                return None
            else:
                # A batch with enough messages waits until it is due, even beyond the deadline.
                await self._change(due - now if enough else min(due, deadline) - now)
        return self._ready.popleft()

    def _due(self) -> tuple[bool, float]:
        """Return whether the batch has enough messages, and the monotonic time at which the batch is due."""
        batch, options = self._open, self._options
        if batch is None:
            return False, math.inf
        return due_at(batch.rows, batch.since, batch.latest, options, drains=self._available_now)

    async def _change(self, timeout: float) -> None:
        """Wait for a change, for at most ``timeout`` seconds."""
        try:
            async with asyncio.timeout(min(timeout, _LONG)):
                await self._changed.wait()
        except TimeoutError:
            pass

    # receiving

    async def _receive(self) -> None:
        """Fill batch after batch; with availableNow, until the queue is drained."""
        drains, options = self._available_now, self._options
        try:
            while True:
                opened = self._open.rows if self._open is not None else 0
                most = min(_ROWS, options.max_messages_per_trigger - opened)
                if drains and options.max_messages is not None:
                    most = min(most, options.max_messages - self._received)
                    if not most:
                        return
                wait = options.idle_timeout if drains else _LONG
                arrived = await self._receiver.take(most, wait, drains=drains, held=lambda: self.in_hand)
                if not arrived:
                    if drains:
                        return
                    continue
                async with self._changed:
                    for each in arrived:
                        await self._add(each)
                    self._changed.notify_all()
                    await self._changed.wait_for(lambda: len(self._ready) < _READY)
        finally:
            async with self._changed:
                self._changed.notify_all()

    async def _add(self, arrived: ReceivedMessages) -> None:
        """Put messages into batches, except for known messages and messages put aside."""
        queue, uri, guids = arrived.queue, arrived.queue.uri, guid_keys(arrived.batch)
        fresh = self._ledger.arrive(uri, guids)
        if fresh is not None:
            again = set(guids).difference(guids[place] for place in fresh)
            committed = again & self._ledger.committed().get(uri, set())
            self._receiver.confirm(queue, committed)
            self._again[queue] |= again - committed
        bad = await self._aside.take(arrived, fresh)
        if bad:
            gone = {guids[place] for place in bad}
            self._ledger.drop(uri, gone)
            self._receiver.confirm(queue, gone)
            fresh = [place for place in (range(len(guids)) if fresh is None else fresh) if place not in bad]
        rows = arrived.batch
        if fresh is not None:
            rows = rows.take(pa.array(fresh, pa.int64()))
            guids = [guids[place] for place in fresh]
        sizes = sizes_of(rows)
        self._received += len(guids)
        first = 0
        while first < len(guids):
            if self._open is None:
                file = await asyncio.to_thread(self._log.begin, self._written, self._receiver.schema)
                now = time.monotonic()
                self._open = _Batch(file, now, now)
            batch = self._open
            batch.latest = time.monotonic()
            stop = first + self._fitting(batch, sizes[first:])
            batch.rows += stop - first
            batch.size += int(sizes[first:stop].sum())
            batch.waiting.append(rows.slice(first, stop - first))
            batch.messages.append(ReceivedGuids(uri, queue, guids[first:stop]))
            first = stop
            if stop < len(guids) or self._full(batch):
                await self._complete()
            elif sum(each.num_rows for each in batch.waiting) >= _ROWS:
                await self._write(batch)

    def _fitting(self, batch: _Batch, sizes: Any) -> int:
        """Return the number of messages that fit into the batch; at least 1 for an empty batch."""
        most = self._options.max_bytes_per_trigger
        count = min(len(sizes), self._options.max_messages_per_trigger - batch.rows)
        if most is not None:
            count = min(count, int(np.searchsorted(np.cumsum(sizes), most - batch.size, side="right")))
        return count if batch.rows else max(count, 1)

    def _full(self, batch: _Batch) -> bool:
        options = self._options
        most = options.max_bytes_per_trigger
        return batch.rows >= options.max_messages_per_trigger or (most is not None and batch.size >= most)

    async def _write(self, batch: _Batch) -> None:
        waiting, batch.waiting = batch.waiting, []
        if waiting:
            await asyncio.to_thread(batch.file.write, _joined(waiting))

    async def _complete(self) -> None:
        """Complete the open batch, which then waits for Spark."""
        batch, self._open = self._open, None
        assert batch is not None
        await self._write(batch)
        batch.logged = await asyncio.to_thread(batch.file.finish)
        self._written = batch.logged.end
        self._ready.append(batch)

    # confirming

    async def _commit(self, end: int) -> None:
        async with self._committing:
            self._committed = max(self._committed, end)
            for uri, queue, guids in self._ledger.commit(end):
                if queue is not None:
                    self._receiver.confirm(queue, guids)
                for other, again in self._again.items():
                    # The window of another session has room again only after its own confirmation.
                    if again and other.uri == uri:
                        confirmed = again.intersection(guids)
                        again -= confirmed
                        if other is not queue:
                            self._receiver.confirm(other, confirmed)
            done = self._ledger.forget()
            if done and self._log.local:
                self._remove(done)  # faster than in another thread
            elif done:
                await asyncio.to_thread(self._remove, done)

    def _remove(self, end: int) -> None:
        for batch in self._log.batches():
            if batch.end <= end:
                self._log.remove(batch)

    async def _close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self._pump is not None:
            async with self._changed:  # no write is in progress now
                self._pump.cancel()
            await asyncio.wait([self._pump])
        with suppress(OSError, ValueError):
            await self._commit_known()
        await self._receiver.close()
        await self._aside.close()
        if self._open is not None:
            await asyncio.to_thread(self._open.file.abandon)


def due_at(
    rows: int, since: float, latest: float, options: StreamOptions, *, drains: bool
) -> tuple[bool, float]:
    """Return whether a batch has enough messages, and the time at which the batch is due.

    Args:
        rows: number of messages.
        since: arrival of the first message.
        latest: arrival of the last message.
        options: options of the stream.
        drains: whether the run ends when the queue is drained. Each trigger has a fixed cost, so such a run
            takes few full batches.
    """
    if drains:
        return True, min(latest + options.linger, since + max(options.linger, _LONGEST_FILL))
    if rows >= options.min_messages_per_trigger:
        return True, since + options.linger
    return False, since + options.max_trigger_delay


def confirm_repeated(options: StreamOptions, end: int) -> None:
    """Confirm the batch with this end, if Spark has committed it, for a run of this batch alone."""
    if (
        not options.checkpoint_location
        or Checkpoint(options.checkpoint_location, options.source_name).committed() != end
    ):
        return
    log = BatchLog(options.log_folder)
    guids = log.read_guids(batch.name for batch in log.batches() if batch.end == end)
    run(confirm_guids(options, guids), timeout=15)


def _joined(batches: list[RecordBatch]) -> list[RecordBatch]:
    """Return the same rows in as few batches as possible."""
    if len(batches) == 1:
        return batches
    joined: list[RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue as a stream. No message is confirmed before Spark has committed it."""

    def __init__(
        self,
        options: StreamOptions,
        schema: StructType,
    ) -> None:
        # Spark creates several readers and pickles one of them: nothing is opened before it is needed.
        self._options = options
        self._schema = schema
        self._available_now = False
        self._receiver: StreamReceiver | None = None
        # End of an earlier run's batch that was planned again; None after the next batch.
        self._repeated: int | None = None
        RowMaker(schema)

    # in the planning process

    def initialOffset(self) -> dict[str, int]:
        """Return the offset of a new query: no messages."""
        return self._offset(0)

    def _offset(self, messages: int) -> dict[str, int]:
        offset: dict[str, Any] = {"messages": messages}
        if self._options.source_name:
            offset["source"] = self._options.source_name
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option maxMessagesPerTrigger as a read limit."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read the messages that are in the queues at the start, and then stop."""
        self._available_now = True

    def latestOffset(
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """Confirm committed messages, and return the end of the next batch.

        Args:
            start: number of messages that are certainly committed (pyspark 4.2 and later).
            limit: limit of the next batch: the result of :meth:`getDefaultReadLimit`, or more.

        Raises:
            ConnectionFailed: the broker cannot be reached.
            Error: as for :meth:`StreamReceiver.advance`.
        """
        if self._receiver is None:
            # Spark ends this process with SIGTERM. After an orderly end, the broker takes messages back
            # without counting a failed delivery. Nothing else depends on the handler.
            exit_on_sigterm()
            self._receiver = StreamReceiver(self._options, available_now=self._available_now)
        return self._offset(self._receiver.advance(None if start is None else start["messages"]))

    def reportLatestOffset(self) -> dict[str, int] | None:
        """Return the offset of all arrived messages, for the progress of the query."""
        if self._receiver is None:
            return None
        latest: dict[str, Any] = self._offset(self._receiver.arrived)
        if self._receiver.dropped:
            latest["dropped"] = dict(self._receiver.dropped)
        return latest

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the partitions of a batch in the log.

        Raises:
            StateError: a part of the batch is not in the log, or the log or the checkpoint belongs to another
                query.
        """
        options, first, last = self._options, start["messages"], end["messages"]
        log = BatchLog(options.log_folder)
        if self._receiver is None:
            exit_on_sigterm()
            self._repeated = last
            check_checkpoint(options, last)
            check_owner(log, options, log.noted(STATE))
        batches, whole = log.covering(first, last)
        if not whole:
            refuse(
                f"messages {first} to {last} of this query are in its checkpoint, but not in the log at "
                f"{options.log_folder}: the log was removed, or the path is not the same on every machine. "
                "The broker still holds the unconfirmed messages. Restore the log",
                "with a smaller batch instead of this one; the missing messages come in a later batch",
                strict=options.fail_on_data_loss,
            )
        query = Checkpoint(options.checkpoint_location).query() if options.checkpoint_location else None
        return list(cut(options.log_folder, batches, self._options.num_partitions, query=query))

    def commit(self, end: dict[str, int]) -> None:
        """Confirm committed messages, as :meth:`latestOffset` already does with pyspark 4.2 and later."""
        if self._receiver is not None:
            self._receiver.commit(end["messages"])

    def stop(self) -> None:
        """Disconnect; unconfirmed messages return to the queue. Spark does not always call this method."""
        receiver, self._receiver = self._receiver, None
        repeated, self._repeated = self._repeated, None
        if receiver is not None:
            receiver.close()
        elif repeated is not None:
            confirm_repeated(self._options, repeated)

    # in the workers

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a part of a batch from the log.

        Raises:
            StateError: the task's query differs from the checkpoint's.
        """
        if isinstance(partition, LogPartition):
            context = TaskContext.get()
            query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
            if query is not None and partition.query not in (None, query):
                checkpoint = self._options.checkpoint_location
                raise StateError(f"checkpoint {checkpoint} belongs to another query: {OWN_CHECKPOINT}")
            yield from read_partition(partition, self._schema, self._options.on_invalid_message)
