# SPDX-License-Identifier: Apache-2.0
"""``spark.readStream.format("bmq")``: a queue as an endless DataFrame that survives restarts.

What Spark calls, and what each call proves (the engine's order of events is in the documentation):

* ``latestOffset(start)``: everything up to ``start`` is in Spark's commit log, so it is confirmed to the
  broker; then messages are received and written to the log, and only then their offset is returned.
* ``partitions(start, end)``: reads the log, never the broker: after a crash it is asked for the same range.
* ``commit(end)``: proves the same, but later, and never for the last batch. Only pyspark 4.0 and 4.1, which
  give ``latestOffset`` no ``start``, depend on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from bmq._signals import exit_on_sigterm
from bmq.client.queue import Queue
from bmq.spark._arrow import RecordBatch, pa
from bmq.spark._ledger import Guids, Ledger
from bmq.spark._log import BatchLog
from bmq.spark._portal import Portal, portal
from bmq.spark._receiving import GUID, SourceReceiver, SourceSettings
from bmq.spark._rows import RowMaker

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # pyspark 4.0 and 4.1 have no read limits
        SupportsTriggerAvailableNow = object

__all__ = ["LogPartition", "StreamLimits", "StreamReader"]

logger = logging.getLogger("bmq.spark")

_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """How much goes into a batch.

    Attributes:
        per_trigger: messages in a batch at most.
        poll: seconds to wait for a first message.
        linger: seconds to wait for more after it.
        idle: with availableNow, seconds without a message after which the queue counts as drained.
        max_messages: with availableNow, how many messages the run reads at most; None for no limit.
        partitions: in how many partitions a batch is read.
    """

    per_trigger: int
    poll: float
    linger: float
    idle: float
    max_messages: int | None
    partitions: int


class LogPartition(InputPartition):
    """Some rows of a batch in the log."""

    def __init__(self, path: str, first: int, count: int) -> None:
        super().__init__((path, first, count))
        self.path = path
        self.first = first
        self.count = count


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue as a stream. Nothing is confirmed before Spark has committed it."""

    def __init__(
        self,
        settings: SourceSettings,
        limits: StreamLimits,
        log_path: str,
        schema: StructType,
        whole_schema: StructType,
    ) -> None:
        # Spark makes several of these and pickles one: nothing is opened before it is needed.
        self._settings = settings
        self._limits = limits
        self._log_path = log_path
        self._schema = schema
        self._whole_schema = whole_schema
        self._available_now = False
        self._inlet: Inlet | None = None
        RowMaker(schema)

    # in the process that plans the query

    def initialOffset(self) -> dict[str, int]:
        """Return the offset of a new query: no messages."""
        return {"messages": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option maxMessagesPerTrigger."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self._limits.per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read until the queue is drained, and then no more."""
        self._available_now = True

    def latestOffset(
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """Confirm what is committed, receive what comes next, log it, and return how far that goes.

        Args:
            start: up to where everything is committed (pyspark 4.2 and later).
            limit: how much may be added to it.

        Raises:
            ConnectionFailed: the broker cannot be reached.
        """
        if self._inlet is None:
            # Spark ends this process with SIGTERM. After an orderly end the broker takes messages back
            # without counting a failed delivery; nothing else depends on it.
            exit_on_sigterm()
            self._inlet = Inlet(self._settings, self._limits, self._log_path, self._whole_schema)
        most = min(getattr(limit, "max_rows", self._limits.per_trigger), self._limits.per_trigger)
        known = None if start is None else start["messages"]
        return {"messages": self._inlet.advance(known, most, available_now=self._available_now)}

    def reportLatestOffset(self) -> dict[str, int] | None:
        """Return how far it would go with what has arrived, for the progress of the query."""
        return {"messages": self._inlet.arrived} if self._inlet is not None else None

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return where in the log a batch is.

        Raises:
            UsageError: some of it is not in the log.
        """
        partitions: list[InputPartition] = []
        for batch in BatchLog(self._log_path).covering(start["messages"], end["messages"]):
            total = batch.end - batch.start
            size = -(-total // self._limits.partitions)
            partitions.extend(
                LogPartition(batch.path, first, min(size, total - first)) for first in range(0, total, size)
            )
        return partitions

    def commit(self, end: dict[str, int]) -> None:
        """Confirm what is committed; :meth:`latestOffset` did so before, on pyspark 4.2 and later."""
        if self._inlet is not None:
            self._inlet.commit(end["messages"])

    def stop(self) -> None:
        """Disconnect; what is not confirmed goes back to the queue. Spark does not always call it."""
        inlet, self._inlet = self._inlet, None
        if inlet is not None:
            inlet.close()

    # in the workers

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a part of a batch from the log."""
        assert isinstance(partition, LogPartition)
        skip, left = partition.first, partition.count
        for batch in BatchLog(self._log_path).read(partition.path, self._schema.fieldNames()):
            part = batch.slice(skip, left)
            skip = max(0, skip - batch.num_rows)
            left -= part.num_rows
            for first in range(0, part.num_rows, _ROWS):
                yield part.slice(first, _ROWS)


class Inlet:
    """The one consumer of a query: from the broker into the log.

    Attributes:
        end: how many messages were handed out since the start of the query.
    """

    def __init__(
        self, settings: SourceSettings, limits: StreamLimits, log_path: str, schema: StructType
    ) -> None:
        self._limits = limits
        self._log = BatchLog(log_path)
        self._maker = RowMaker(schema)
        self._ledger = Ledger()
        self._receiver = SourceReceiver(settings, self._maker.properties, by_guid=True)
        # What was delivered on the connections there are, and is not confirmed.
        self._delivered: dict[Queue, set[str]] = {}
        self._connected = False
        self._drained = False
        self._read = 0
        self.end: int | None = None
        self._context = portal()
        self._portal: Portal = self._context.__enter__()

    @property
    def arrived(self) -> int:
        """How many messages were handed out or have arrived since the start of the query."""
        return (self.end or 0) + self._receiver.buffered

    def advance(self, start: int | None, most: int, *, available_now: bool) -> int:
        """See :meth:`StreamReader.latestOffset`."""
        if self.end is None:
            self._log.acquire()
            self.end = self._recover(start)
        if start is not None:
            self.commit(start)
            if start < self.end:
                return self.end  # asked again for what was handed out
        if self._drained:
            return self.end
        if available_now and self._limits.max_messages is not None:
            most = min(most, self._limits.max_messages - self._read)
            if most <= 0:
                return self.end
        wait = self._limits.idle if available_now else self._limits.poll
        batches, guids = self._receive(most, wait, drains=available_now)
        if not batches:
            self._drained = available_now
            return self.end
        batch = self._log.append(self.end, batches)
        self._read += batch.end - batch.start
        self._ledger.hand_out(batch.end, guids)
        self.end = batch.end
        return self.end

    def _recover(self, start: int | None) -> int:
        """Take up the log of an earlier run; return how far it goes.

        What lies beyond ``start`` was never seen by Spark, nor confirmed: the broker delivers it again.
        """
        end = start or 0
        for batch in self._log.batches():
            if start is not None and batch.start >= start:
                self._log.remove(batch)
                continue
            guids: Guids = {}
            for rows in self._log.read(batch.path, ["queue", "guid"]):
                columns: Any = rows.to_pydict()
                for uri, guid in zip(columns["queue"], columns["guid"], strict=True):
                    guids.setdefault(uri, []).append(guid)
            self._ledger.hand_out(batch.end, guids)
            end = max(end, batch.end)
        return end

    def _receive(self, most: int, wait: float, *, drains: bool) -> tuple[list[RecordBatch], Guids]:
        """Return messages that were not handed out before, and their GUIDs."""
        if not self._connected:
            self._portal.run(self._receiver.open())
            self._connected = True
        while True:
            taken = self._portal.run(self._receiver.take(most, wait, self._limits.linger, drains=drains))
            for queue in self._receiver.renewed():
                # After a reconnect nothing counts as delivered; what is not confirmed comes again.
                self._delivered.pop(queue, None)
            batches: list[RecordBatch] = []
            fresh: Guids = {}
            seen: dict[str, set[str]] = {}
            again: Guids = {}
            for each in taken:
                uri = each.queue.uri
                guids: list[str] = each.batch.column(GUID).to_pylist()
                self._delivered.setdefault(each.queue, set()).update(guids)
                rows, committed = self._ledger.sort(uri, guids, seen.setdefault(uri, set()))
                again.setdefault(uri, []).extend(committed)
                if rows is not None:
                    each = each._replace(batch=each.batch.take(pa.array(rows, pa.int64())))
                    guids = [guids[row] for row in rows]
                if guids:
                    fresh.setdefault(uri, []).extend(guids)
                    batches.append(self._maker.make(each))
            self._confirm([again])
            if batches or not taken:
                return _joined(batches), fresh

    def commit(self, end: int) -> None:
        """Confirm everything up to ``end``, and remove batches from the log that are long committed."""
        self._confirm(self._ledger.commit(end))
        done = self._ledger.forget()
        if done:
            for batch in self._log.batches():
                if batch.end <= done:
                    self._log.remove(batch)

    def _confirm(self, batches: list[Guids]) -> None:
        found: dict[Queue, list[str]] = {}
        for guids in batches:
            for queue, delivered in self._delivered.items():
                # The others are confirmed when they are delivered again.
                here = delivered.intersection(guids.get(queue.uri, ()))
                if here:
                    delivered -= here
                    found.setdefault(queue, []).extend(here)
        if found:
            self._portal.run(self._receiver.confirm(found))

    def close(self) -> None:
        """Disconnect."""
        self._portal.run(self._receiver.close(), timeout=15)
        self._context.__exit__()
        self._log.release()


def _joined(batches: list[RecordBatch]) -> list[RecordBatch]:
    """The same rows in as few batches as possible."""
    joined: list[RecordBatch] = (
        pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []
    )
    return joined
