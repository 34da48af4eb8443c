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

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from bmq._signals import exit_on_sigterm
from bmq.errors import StateError
from bmq.spark._checkpoint import Checkpoint
from bmq.spark._inlet import Inlet, StreamLimits, confirm_repeated
from bmq.spark._log import BatchLog
from bmq.spark._log_partition import LogPartition, cut, read_partition
from bmq.spark._receiving import SourceSettings
from bmq.spark._rows import OnInvalidMessage, RowMaker
from bmq.spark._state import OWN_CHECKPOINT, STATE, LogPlace, check_checkpoint, check_owner, refuse

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # pyspark 4.0 and 4.1 have no read limits
        SupportsTriggerAvailableNow = object

__all__ = ["READ_LIMITS", "StreamReader"]

#: Whether this pyspark has read limits, and signals the end of an availableNow run.
READ_LIMITS = SupportsTriggerAvailableNow is not object


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue as a stream. No message is confirmed before Spark has committed it."""

    def __init__(
        self,
        settings: SourceSettings,
        limits: StreamLimits,
        place: LogPlace,
        schema: StructType,
        on_invalid: OnInvalidMessage = OnInvalidMessage.ROW,
    ) -> None:
        # Spark creates several readers and pickles one of them: nothing is opened before it is needed.
        self._settings = settings
        self._limits = limits
        self._place = place
        self._schema = schema
        self._on_invalid = on_invalid
        self._available_now = False
        self._inlet: Inlet | None = None
        # End of an earlier run's batch that was planned again; None after the next batch.
        self._repeated: int | None = None
        RowMaker(schema)

    # in the planning process

    def initialOffset(self) -> dict[str, int]:
        """Return the offset of a new query: no messages."""
        return self._offset(0)

    def _offset(self, messages: int) -> dict[str, int]:
        offset: dict[str, Any] = {"messages": messages}
        if self._place.source:
            offset["source"] = self._place.source
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option maxMessagesPerTrigger as a read limit."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self._limits.per_trigger)

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
            Error: as for :meth:`Inlet.advance`.
        """
        if self._inlet is None:
            # Spark ends this process with SIGTERM. After an orderly end, the broker takes messages back
            # without counting a failed delivery. Nothing else depends on the handler.
            exit_on_sigterm()
            self._inlet = Inlet(
                self._settings,
                self._limits,
                self._place,
                available_now=self._available_now,
            )
        return self._offset(self._inlet.advance(None if start is None else start["messages"]))

    def reportLatestOffset(self) -> dict[str, int] | None:
        """Return the offset of all arrived messages, for the progress of the query."""
        if self._inlet is None:
            return None
        latest: dict[str, Any] = self._offset(self._inlet.arrived)
        if self._inlet.dropped:
            latest["dropped"] = dict(self._inlet.dropped)
        return latest

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the partitions of a batch in the log.

        Raises:
            StateError: a part of the batch is not in the log, or the log or the checkpoint belongs to another
                query.
        """
        place, first, last = self._place, start["messages"], end["messages"]
        log = BatchLog(place.path)
        if self._inlet is None:
            exit_on_sigterm()
            self._repeated = last
            check_checkpoint(place, last)
            check_owner(log, place, log.noted(STATE))
        batches, whole = log.covering(first, last)
        if not whole:
            refuse(
                f"messages {first} to {last} of this query are in its checkpoint, but not in the log at "
                f"{place.path}: the log was removed, or the path is not the same on every machine. The "
                "broker still holds the unconfirmed messages. Restore the log",
                "with a smaller batch in place of this one; the missing messages come in a later batch",
                strict=place.strict,
                checkpoint=place.checkpoint,
            )
        query = Checkpoint(place.checkpoint).query() if place.checkpoint else None
        return list(cut(place.path, batches, self._limits.partitions, query=query))

    def commit(self, end: dict[str, int]) -> None:
        """Confirm committed messages, as :meth:`latestOffset` already does with pyspark 4.2 and later."""
        if self._inlet is not None:
            self._inlet.commit(end["messages"])

    def stop(self) -> None:
        """Disconnect; unconfirmed messages return to the queue. Spark does not always call this method."""
        inlet, self._inlet = self._inlet, None
        repeated, self._repeated = self._repeated, None
        if inlet is not None:
            inlet.close()
        elif repeated is not None:
            confirm_repeated(self._settings, self._place, repeated)

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
                raise StateError(
                    f"checkpoint {self._place.checkpoint} belongs to another query: {OWN_CHECKPOINT}"
                )
            yield from read_partition(partition, self._schema, self._on_invalid)
