# SPDX-License-Identifier: Apache-2.0
"""The one consumer of a streaming query: from the broker into the log, while Spark works on other batches."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bmq.client.queue import Queue
from bmq.client.tables import Tables
from bmq.spark._arrow import RecordBatch, pa
from bmq.spark._ledger import Guids, Ledger, guid_keys
from bmq.spark._log import BatchLog, LoggedBatch, OpenBatch
from bmq.spark._portal import Portal, portal
from bmq.spark._receiving import GUID, VALUE, Arrived, SourceReceiver, SourceSettings
from bmq.spark._rows import RowMaker

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Inlet", "StreamLimits"]

# So many rows are taken, and written, together.
_ROWS = 10_000
# So many batches wait for Spark at most, while it works on another.
_READY = 2
# Seconds that a wait without an end takes at once.
_LONG = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """How much goes into a batch.

    Attributes:
        per_trigger: messages in a batch at most.
        bytes_per_trigger: bytes of payload in a batch at most, unless it is one message; None for no limit.
        least: a batch of fewer messages is held back ...
        delay: ... until its first message has waited so many seconds.
        poll: seconds to wait for a batch.
        linger: seconds to wait for more after its first message.
        idle: with availableNow, seconds without a message after which the queue counts as drained.
        max_messages: with availableNow, how many messages the run reads at most; None for no limit.
        partitions: in how many partitions a batch is read.
    """

    per_trigger: int
    bytes_per_trigger: int | None = None
    least: int = 1
    delay: float = 900.0
    poll: float
    linger: float
    idle: float
    max_messages: int | None
    partitions: int


@dataclass(slots=True)
class _Batch:
    """A batch that is being received, or waits for Spark.

    Attributes:
        file: where it is written.
        since: when its first message came, on the clock of :func:`time.monotonic`.
        rows: how many messages it has.
        size: how many bytes of payload.
        waiting: what is not written yet.
        guids: its messages.
        taken: how many messages each consumer has received for it, those included that were known.
        logged: the complete file.
    """

    file: OpenBatch
    since: float
    rows: int = 0
    size: int = 0
    waiting: list[RecordBatch] = field(default_factory=list[RecordBatch])
    guids: Guids = field(default_factory=Guids)
    taken: dict[Tables, int] = field(default_factory=dict[Tables, int])
    logged: LoggedBatch | None = None


class Inlet:
    """Receives batch after batch, and hands them out one by one.

    Args:
        settings: what to read.
        limits: how much goes into a batch.
        log_path: where the log is.
        schema: the columns of the log.
        available_now: whether to end when the queue is drained.

    Attributes:
        end: how many messages were handed out since the start of the query; None before the first
            :meth:`advance`.
    """

    def __init__(
        self,
        settings: SourceSettings,
        limits: StreamLimits,
        log_path: str,
        schema: StructType,
        *,
        available_now: bool = False,
    ) -> None:
        self.end: int | None = None
        self._limits = limits
        self._available_now = available_now
        self._log = BatchLog(log_path)
        self._maker = RowMaker(schema)
        self._ledger = Ledger()
        self._receiver = SourceReceiver(settings, self._maker.properties)
        # What is received and not handed out; what is handed out and not committed, and who received it.
        self._open: _Batch | None = None
        self._ready: deque[_Batch] = deque()
        self._out: deque[tuple[int, dict[Tables, int]]] = deque()
        # What came once more before it was committed: by whom.
        self._again: dict[Queue, set[bytes]] = {}
        # How many known messages each consumer has received since its last new one.
        self._skipped: dict[Tables, int] = {}
        self._received = 0
        self._written = 0
        self._pump: asyncio.Task[None] | None = None
        # Whoever changes these batches holds it, and says so.
        self._changed = asyncio.Condition()
        self._context = portal()
        self._portal: Portal = self._context.__enter__()

    @property
    def arrived(self) -> int:
        """How many messages were handed out or have arrived since the start of the query."""
        opened = self._open.rows if self._open is not None else 0
        return self._written + opened + self._receiver.buffered

    def advance(self, start: int | None) -> int:
        """Confirm what is committed; return how far it goes with the next batch, if there is one in time.

        Args:
            start: up to where everything is committed; None if that is not known.

        Raises:
            ConnectionFailed: the broker cannot be reached.
            SessionClosed, QueueClosed: the connection is lost for good.
            ProtocolError: a message is malformed; the error names it.
            OSError: the log cannot be written.
            StateError: another query uses the log.
        """
        if self.end is None:
            self._log.acquire()
            self.end = self._written = self._recover(start)
        return self._portal.run(self._advance(self.end, start))

    def commit(self, end: int) -> None:
        """Confirm everything up to ``end``, and remove batches from the log that are long committed."""
        self._portal.run(self._commit(end))

    def close(self) -> None:
        """Disconnect."""
        self._portal.run(self._close(), timeout=15)
        self._context.__exit__()
        self._log.release()

    def _recover(self, start: int | None) -> int:
        """Take up the log of an earlier run; return how far it goes.

        What lies beyond ``start`` was never seen by Spark, nor confirmed: the broker delivers it again.
        """
        self._log.clear()
        end = start or 0
        for batch in self._log.batches():
            if start is not None and batch.start >= start:
                self._log.remove(batch)
                continue
            guids: Guids = {}
            for rows in self._log.read(batch.path, ["queue", "guid"]):
                keys = guid_keys(rows.column("guid"))
                for uri, key in zip(rows.column("queue").to_pylist(), keys, strict=True):
                    guids.setdefault(uri, []).append(key)
            self._ledger.recall(batch.end, guids)
            end = max(end, batch.end)
        return end

    # handing out

    async def _advance(self, end: int, start: int | None) -> int:
        if start is not None:
            await self._commit(start)
            if start < end:
                return end  # asked again for what was handed out
        if self._pump is None:
            await self._receiver.open()
            self._pump = asyncio.ensure_future(self._receive())
        async with self._changed:
            batch = await self._next()
            self._changed.notify_all()
        if batch is not None:
            assert batch.logged is not None
            self.end = end = batch.logged.end
            self._ledger.hand_out(end, batch.guids)
            self._out.append((end, batch.taken))
        return end

    async def _next(self) -> _Batch | None:
        """Wait for a batch that is complete, or due."""
        assert self._pump is not None
        deadline = math.inf if self._available_now else time.monotonic() + self._limits.poll
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
                # A batch that has enough is worth more patience than an empty one.
                await self._change(due - now if enough else min(due, deadline) - now)
        return self._ready.popleft()

    def _due(self) -> tuple[bool, float]:
        """Whether there are messages enough for a batch, and when it has to go."""
        batch, limits = self._open, self._limits
        if batch is None:
            return False, math.inf
        if batch.rows >= limits.least or self._available_now:
            return True, batch.since + limits.linger
        return False, batch.since + limits.delay

    async def _change(self, timeout: float) -> None:
        """Wait until something has changed, for so many seconds at most."""
        try:
            async with asyncio.timeout(min(timeout, _LONG)):
                await self._changed.wait()
        except TimeoutError:
            pass

    # receiving

    async def _receive(self) -> None:
        """Fill one batch after the other; at the end of what is available now it ends."""
        drains, limits = self._available_now, self._limits
        try:
            while True:
                opened = self._open.rows if self._open is not None else 0
                most = min(_ROWS, limits.per_trigger - opened)
                if drains and limits.max_messages is not None:
                    most = min(most, limits.max_messages - self._received)
                    if not most:
                        return
                arrived = await self._receiver.take(most, limits.idle if drains else _LONG, drains=drains)
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

    async def _add(self, arrived: Arrived) -> None:
        """Put messages into batches, but for those that are known."""
        tables, count = arrived.tables, arrived.batch.num_rows
        uri, guids = arrived.queue.uri, guid_keys(arrived.batch.column(GUID))
        fresh, again = self._ledger.arrive(uri, guids)
        if fresh is not None:
            self._came_again(arrived.queue, again)
            arrived = arrived._replace(batch=arrived.batch.take(pa.array(fresh, pa.int64())))
            guids = [guids[place] for place in fresh]
        rows, sizes = self._maker.make(arrived), _sizes(arrived.batch.column(VALUE))
        self._received += len(guids)
        first = last = 0
        while first < len(guids):
            if self._open is None:
                file = await asyncio.to_thread(self._log.begin, self._written, self._maker.arrow_schema)
                self._open = _Batch(file, time.monotonic())
            batch = self._open
            stop = first + self._fitting(batch, sizes[first:])
            batch.rows += stop - first
            batch.size += int(sizes[first:stop].sum())
            batch.waiting.append(rows.slice(first, stop - first))
            batch.guids.setdefault(uri, []).extend(guids[first:stop])
            # Those that are known, among them and before, are confirmed with them.
            upto = stop if fresh is None else fresh[stop - 1] + 1
            taken = self._skipped.pop(tables, 0) + upto - last
            batch.taken[tables] = batch.taken.get(tables, 0) + taken
            first, last = stop, upto
            if stop < len(guids) or self._full(batch):
                await self._complete()
            elif sum(each.num_rows for each in batch.waiting) >= _ROWS:
                await self._write(batch)
        if last < count:
            self._skipped[tables] = self._skipped.get(tables, 0) + count - last

    def _fitting(self, batch: _Batch, sizes: Any) -> int:
        """How many of these messages still go into the batch; one at least into an empty one."""
        most = self._limits.bytes_per_trigger
        count = min(len(sizes), self._limits.per_trigger - batch.rows)
        if most is not None:
            count = min(count, int(np.searchsorted(np.cumsum(sizes), most - batch.size, side="right")))
        return count if batch.rows else max(count, 1)

    def _full(self, batch: _Batch) -> bool:
        limits = self._limits
        most = limits.bytes_per_trigger
        return batch.rows >= limits.per_trigger or (most is not None and batch.size >= most)

    async def _write(self, batch: _Batch) -> None:
        waiting, batch.waiting = batch.waiting, []
        if waiting:
            await asyncio.to_thread(batch.file.write, _joined(waiting))

    async def _complete(self) -> None:
        """Have the open batch wait for Spark."""
        batch, self._open = self._open, None
        assert batch is not None
        await self._write(batch)
        batch.logged = await asyncio.to_thread(batch.file.finish)
        self._written = batch.logged.end
        self._ready.append(batch)

    # confirming

    def _came_again(self, queue: Queue, guids: list[bytes]) -> None:
        """Confirm of known messages those that are committed, and the others when they are."""
        committed = self._ledger.committed(queue.uri, guids)
        _confirm(queue, committed)
        waiting = set(guids) - committed
        if waiting:
            self._again.setdefault(queue, set()).update(waiting)

    async def _commit(self, end: int) -> None:
        while self._out and self._out[0][0] <= end:
            for tables, rows in self._out.popleft()[1].items():
                tables.confirm(rows)
        for guids in self._ledger.commit(end):
            for queue, waiting in self._again.items():
                here = waiting.intersection(guids.get(queue.uri, ()))
                waiting -= here
                _confirm(queue, here)
        done = self._ledger.forget()
        if done and self._log.local:
            self._remove(done)  # quicker than another thread is
        elif done:
            await asyncio.to_thread(self._remove, done)

    def _remove(self, end: int) -> None:
        for batch in self._log.batches():
            if batch.end <= end:
                self._log.remove(batch)

    async def _close(self) -> None:
        if self._pump is not None:
            async with self._changed:  # it writes nothing now
                self._pump.cancel()
            await asyncio.wait([self._pump])
        await self._receiver.close()
        if self._open is not None:
            await asyncio.to_thread(self._open.file.abandon)


def _confirm(queue: Queue, guids: set[bytes]) -> None:
    if guids and not queue.closed:
        queue.confirm(*(guid.decode() for guid in sorted(guids)))


def _sizes(values: Any) -> Any:
    """The length of each value."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    return np.diff(offsets)


def _joined(batches: list[RecordBatch]) -> list[RecordBatch]:
    """The same rows in as few batches as possible."""
    if len(batches) == 1:
        return batches
    joined: list[RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
