# SPDX-License-Identifier: Apache-2.0
"""``spark.read.format("bmq")``: take what is in a queue."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from bmq.spark._portal import portal
from bmq.spark._receiving import SourceReceiver, SourceSettings
from bmq.spark._rows import RowMaker

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BatchLimits", "BatchReader"]

logger = logging.getLogger("bmq.spark")

_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """When a batch read ends, and whether it confirms.

    Attributes:
        max_messages: how many messages to read at most, in each partition.
        idle: seconds without a message after which the queue counts as drained.
        confirm: whether messages are taken out of the queue.
        partitions: how many consumers share the queue.
    """

    max_messages: int
    idle: float
    confirm: bool
    partitions: int


class BatchReader(DataSourceReader):
    """Reads up to a count or an idle time; each partition is a consumer of its own.

    A partition confirms its messages once Spark has taken all of them; one that fails confirms nothing, and
    the broker delivers them again to the next attempt. What Spark does with them afterwards may still fail.
    """

    def __init__(self, settings: SourceSettings, limits: BatchLimits, schema: StructType) -> None:
        self._settings = settings
        self._limits = limits
        self._schema = schema
        RowMaker(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each consumer."""
        return [InputPartition(number) for number in range(self._limits.partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Receive messages until there are enough, or no more for a while."""
        limits = self._limits
        maker = RowMaker(self._schema)
        receiver = SourceReceiver(self._settings, maker.properties)
        count = 0
        with portal() as here:
            try:
                here.run(receiver.open())
                while count < limits.max_messages:
                    wanted = min(_ROWS, limits.max_messages - count)
                    arrived = here.run(receiver.take(wanted, limits.idle, drains=True))
                    if not arrived:
                        break
                    for each in arrived:
                        count += each.batch.num_rows
                        yield maker.make(each)
                if limits.confirm:
                    here.run(receiver.confirm_taken())
            finally:
                here.run(receiver.close())
        logger.info("partition %s: %d messages read", partition.value, count)
