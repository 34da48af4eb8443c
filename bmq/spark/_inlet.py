# SPDX-License-Identifier: Apache-2.0
"""The one consumer of a streaming query: from the broker into the log, while Spark works on other batches."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bmq.client.queue import Queue
from bmq.client.raw import RawMessages
from bmq.errors import OpenQueueError, StateError
from bmq.spark._arrow import RecordBatch, pa
from bmq.spark._aside import PutAside
from bmq.spark._checkpoint import Checkpoint
from bmq.spark._ledger import Guids, Ledger
from bmq.spark._log import BatchLog, LoggedBatch, OpenBatch
from bmq.spark._portal import Portal, portal
from bmq.spark._raw import guid_keys, sizes_of, texts_of
from bmq.spark._receiving import Arrived, SourceReceiver, SourceSettings, confirm_guids
from bmq.spark._state import (
    DROPPED_ADVICE,
    LogPlace,
    check_checkpoint,
    check_log,
    dropped_since,
    look_for_balance,
    look_for_others,
    note_state,
    refuse,
)

__all__ = ["Inlet", "StreamLimits", "confirm_repeated"]

logger = logging.getLogger("bmq.spark")

# So many rows are taken, and written, together.
_ROWS = 10_000
# So many batches wait for Spark at most, while it works on another.
_READY = 2
# Seconds that a wait without an end takes at once.
_LONG = 3600.0
# Seconds between two looks at Spark's log of commits, and between two questions to the broker.
_LOOK, _LOOK_REMOTE = 0.5, 10.0
_ASK = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """How much goes into a batch.

    Attributes:
        per_trigger: messages in a batch at most.
        bytes_per_trigger: bytes in a batch at most, as messages travelled, unless it is one message; None for
            no limit.
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
        size: how many bytes they travelled with.
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
    taken: dict[RawMessages, int] = field(default_factory=dict[RawMessages, int])
    logged: LoggedBatch | None = None


class Inlet:
    """Receives batch after batch, and hands them out one by one.

    Args:
        settings: what to read.
        limits: how much goes into a batch.
        place: where the log is, and what it is checked against.
        available_now: whether to end when the queue is drained.

    Attributes:
        end: how many messages were handed out since the start of the query; None before the first
            :meth:`advance`.
        dropped: how many messages the broker dropped unread, by queue: while the query runs, and before it
            started again.
    """

    def __init__(
        self, settings: SourceSettings, limits: StreamLimits, place: LogPlace, *, available_now: bool = False
    ) -> None:
        self.end: int | None = None
        self.dropped: dict[str, int] = {}
        self._settings = settings
        self._limits = limits
        self._place = place
        self._available_now = available_now
        self._log = BatchLog(place.path)
        self._checkpoint = Checkpoint(place.checkpoint, place.source) if place.checkpoint else None
        self._ledger = Ledger()
        self._receiver = SourceReceiver(settings)
        self._aside = PutAside(settings)
        # What the log was begun with, if that has changed, until all that is committed is confirmed.
        self._unsettled = False
        # What is received and not handed out; what is handed out and not committed, and who received it.
        self._open: _Batch | None = None
        self._ready: deque[_Batch] = deque()
        self._out: deque[tuple[int, dict[RawMessages, int]]] = deque()
        # What came once more before it was committed: by whom.
        self._again: dict[Queue, set[bytes]] = {}
        # How many known messages each consumer has received since its last new one.
        self._skipped: dict[RawMessages, int] = {}
        self._received = 0
        self._written = 0
        # Up to where everything is committed.
        self._committed = 0
        # The queues of which a purge can be told.
        self._balanced: frozenset[str] = frozenset()
        self._pump: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._loss: StateError | None = None
        # Whoever changes these batches holds it, and says so.
        self._changed = asyncio.Condition()
        self._committing = asyncio.Lock()
        self._context = portal()
        self._portal: Portal = self._context.__enter__()

    @property
    def arrived(self) -> int:
        """How many messages were handed out or have arrived since the start of the query."""
        opened = self._open.rows if self._open is not None else 0
        return self._written + opened + self._receiver.buffered

    @property
    def in_hand(self) -> int:
        """How many messages have arrived and are not confirmed."""
        return self.arrived - self._committed

    def advance(self, start: int | None) -> int:
        """Confirm what is committed; return how far it goes with the next batch, if there is one in time.

        Args:
            start: up to where everything is committed; None if that is not known.

        Raises:
            ConnectionFailed: the broker cannot be reached.
            SessionClosed, QueueClosed: the connection is lost for good.
            OSError: the log cannot be written.
            StateError: another query uses the log; the log or the checkpoint does not fit the query; the
                broker has dropped messages; or others read a queue that is to be exclusive.
        """
        if self.end is None:
            check_checkpoint(self._place, start)
            self._log.acquire()
            self.end = self._written = self._recover(start)
        return self._portal.run(self._advance(self.end, start))

    def commit(self, end: int) -> None:
        """Confirm everything up to ``end``, and remove batches from the log that are long committed."""
        self._portal.run(self._commit(end))

    def close(self) -> None:
        """Disconnect, and confirm before what Spark has committed meanwhile."""
        self._portal.run(self._close(), timeout=15)
        self._context.__exit__()
        self._log.release()

    def _recover(self, start: int | None) -> int:
        """Take up the log of an earlier run; return how far it goes.

        What lies beyond ``start`` was never seen by Spark, nor confirmed: the broker delivers it again.
        """
        self._log.clear()
        self._unsettled = check_log(self._log, self._place, self._settings, start)
        end = start or 0
        for batch in self._log.batches():
            if start is not None and batch.start >= start and batch.end > start:
                self._log.remove(batch)
                continue
            guids: Guids = {}
            for uri, keys in self._log.guids(batch.path):
                guids.setdefault(uri, []).extend(keys)
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
            self._ledger.hand_out(end, batch.guids)
            self._out.append((end, batch.taken))
        return end

    async def _begin(self) -> None:
        """Confirm what an earlier run with other options could not, look who else reads, and subscribe."""
        settings, strict = self._settings, self._place.strict
        if self._unsettled:
            guids = self._ledger.all_committed()
            try:
                await confirm_guids(settings.connection, guids)
            except OpenQueueError as error:
                text = f"what was committed cannot be confirmed any more: {error}"
                refuse(text, "without", strict=strict)
            self._unsettled = False
        note_state(self._log, self._place, settings)
        await look_for_others(settings)
        self._balanced = await look_for_balance(settings)
        await self._count_dropped()
        await self._receiver.open()

    async def _look(self) -> None:
        """Confirm what Spark has committed while it is idle, and ask the broker what it has dropped."""
        pause = _LOOK if self._log.local else _LOOK_REMOTE
        asked = time.monotonic()
        while True:
            await asyncio.sleep(pause)
            await self._commit_known()
            if time.monotonic() > asked + _ASK:
                await self._count_dropped()
                asked = time.monotonic()

    async def _commit_known(self) -> None:
        """Confirm what Spark's own log of commits has."""
        if self._checkpoint is None or not self._out:
            return
        end = await asyncio.to_thread(self._checkpoint.committed)
        if end is not None and self.end is not None and end <= self.end:
            await self._commit(end)

    async def _count_dropped(self) -> None:
        """Ask the broker what it has dropped; an error is due to whoever asks for the next batch."""
        more = await dropped_since(self._log, self._settings, self._balanced, lambda: self.in_hand)
        for uri, count in more.items():
            self.dropped[uri] = self.dropped.get(uri, 0) + count
        if more:
            listed = ", ".join(f"{count:,} of {uri}" for uri, count in more.items())
            text = (
                "the broker has dropped messages that nobody confirmed (expired, rejected or purged): "
                f"{listed}"
            )
            if self._place.strict:
                self._loss = StateError(f"{text}. {DROPPED_ADVICE}")
            else:
                logger.warning("%s", text)

    def _raise_loss(self) -> None:
        loss, self._loss = self._loss, None
        if loss is not None:
            raise loss

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
        """Put messages into batches, but for those that are known and those that are put aside."""
        messages, count = arrived.messages, arrived.batch.num_rows
        uri, guids = arrived.queue.uri, guid_keys(arrived.batch)
        fresh, again = self._ledger.arrive(uri, guids)
        if again:
            self._came_again(arrived.queue, again)
        bad = await self._aside.take(arrived, fresh)
        if bad:
            gone = {guids[place] for place in bad}
            self._ledger.drop(uri, gone)
            _confirm(arrived.queue, gone)
            fresh = [place for place in (range(count) if fresh is None else fresh) if place not in bad]
        rows = arrived.batch
        if fresh is not None:
            rows = rows.take(pa.array(fresh, pa.int64()))
            guids = [guids[place] for place in fresh]
        sizes = sizes_of(rows)
        self._received += len(guids)
        first = last = 0
        while first < len(guids):
            if self._open is None:
                file = await asyncio.to_thread(self._log.begin, self._written, self._receiver.schema)
                self._open = _Batch(file, time.monotonic())
            batch = self._open
            stop = first + self._fitting(batch, sizes[first:])
            batch.rows += stop - first
            batch.size += int(sizes[first:stop].sum())
            batch.waiting.append(rows.slice(first, stop - first))
            batch.guids.setdefault(uri, []).extend(guids[first:stop])
            # Those that are known, among them and before, are confirmed with them.
            upto = stop if fresh is None else fresh[stop - 1] + 1
            taken = self._skipped.pop(messages, 0) + upto - last
            batch.taken[messages] = batch.taken.get(messages, 0) + taken
            first, last = stop, upto
            if stop < len(guids) or self._full(batch):
                await self._complete()
            elif sum(each.num_rows for each in batch.waiting) >= _ROWS:
                await self._write(batch)
        if last < count:
            self._skipped[messages] = self._skipped.get(messages, 0) + count - last

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
        async with self._committing:
            self._committed = max(self._committed, end)
            while self._out and self._out[0][0] <= end:
                for messages, rows in self._out.popleft()[1].items():
                    messages.confirm(rows)
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
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self._pump is not None:
            async with self._changed:  # it writes nothing now
                self._pump.cancel()
            await asyncio.wait([self._pump])
        with suppress(OSError, ValueError):
            await self._commit_known()
        await self._receiver.close()
        await self._aside.close()
        if self._open is not None:
            await asyncio.to_thread(self._open.file.abandon)


def confirm_repeated(settings: SourceSettings, place: LogPlace, end: int) -> None:
    """Confirm the batch that ends there, if Spark has committed it: for a run of that batch alone."""
    if not place.checkpoint or Checkpoint(place.checkpoint, place.source).committed() != end:
        return
    log = BatchLog(place.path)
    guids: Guids = {}
    for batch in log.batches():
        if batch.end == end:
            for uri, keys in log.guids(batch.path):
                guids.setdefault(uri, []).extend(keys)
    with portal() as here:
        here.run(confirm_guids(settings.connection, guids), timeout=15)


def _confirm(queue: Queue, guids: set[bytes]) -> None:
    if guids and not queue.closed:
        queue.confirm(*texts_of(sorted(guids)))


def _joined(batches: list[RecordBatch]) -> list[RecordBatch]:
    """The same rows in as few batches as possible."""
    if len(batches) == 1:
        return batches
    joined: list[RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
