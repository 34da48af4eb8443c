# SPDX-License-Identifier: Apache-2.0
"""``spark.readStream.format("bmq")``: a queue as an endless DataFrame that survives restarts.

What Spark calls, and what each call proves (the engine's order of events is in the documentation):

* ``latestOffset(start)``: everything up to ``start`` is in Spark's commit log, so it is confirmed to the
  broker; then the next batch is handed out, which was received and written to the log meanwhile.
* ``partitions(start, end)``: reads the log, never the broker: after a crash it is asked for the same range.
* ``commit(end)``: proves the same, but later, and never for the last batch. Only pyspark 4.0 and 4.1, which
  give ``latestOffset`` no ``start``, depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from bmq._signals import exit_on_sigterm
from bmq.spark._inlet import Inlet, StreamLimits
from bmq.spark._log import BatchLog
from bmq.spark._receiving import SourceSettings
from bmq.spark._rows import RowMaker

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # pyspark 4.0 and 4.1 have no read limits
        SupportsTriggerAvailableNow = object

__all__ = ["READ_LIMITS", "LogPartition", "StreamReader"]

#: Whether this pyspark has read limits, and says when a run ends with what is available now.
READ_LIMITS = SupportsTriggerAvailableNow is not object

_ROWS = 10_000


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
        """Confirm what is committed, and return how far it goes with the next batch.

        Args:
            start: up to where everything is committed (pyspark 4.2 and later).
            limit: how much may be added to it: what :meth:`getDefaultReadLimit` says, or more.

        Raises:
            ConnectionFailed: the broker cannot be reached.
            Error: see :meth:`Inlet.advance`.
        """
        if self._inlet is None:
            # Spark ends this process with SIGTERM. After an orderly end the broker takes messages back
            # without counting a failed delivery; nothing else depends on it.
            exit_on_sigterm()
            self._inlet = Inlet(
                self._settings,
                self._limits,
                self._log_path,
                self._whole_schema,
                available_now=self._available_now,
            )
        return {"messages": self._inlet.advance(None if start is None else start["messages"])}

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
