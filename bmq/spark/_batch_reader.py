# SPDX-License-Identifier: Apache-2.0
"""``spark.read.format("bmq")``: the content of a queue, as rows that Spark can read any number of times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from bmq.spark._log_partition import LogPartition, read_partition
from bmq.spark._reads import ReadLimits, Reads, read_unconfirmed
from bmq.spark._receiving import SourceSettings
from bmq.spark._rows import OnInvalidMessage, RowMaker

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BatchReader"]

_GONE_TEMPORARY = (
    "a read without the option checkpointLocation stores its rows in a folder of the driver's machine, "
    "which other machines cannot reach, and which is removed at the end of the application. On a cluster "
    "set checkpointLocation to a folder that all machines can reach"
)
_GONE = (
    "this read was confirmed, and the next read removed its rows; or this machine cannot reach the folder "
    "of option checkpointLocation"
)


class BatchReader(DataSourceReader):
    """Stores the content of a queue while the read is planned; tasks read the stored rows.

    Args:
        settings: settings of the read.
        limits: end of the read.
        schema: columns.
        checkpoint: folder that keeps reads until they are confirmed; "" for a temporary folder, whose reads
            are never confirmed.
        on_invalid: handling of undecodable messages.
    """

    def __init__(
        self,
        settings: SourceSettings,
        limits: ReadLimits,
        schema: StructType,
        checkpoint: str = "",
        on_invalid: OnInvalidMessage = OnInvalidMessage.ROW,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._schema = schema
        self._checkpoint = checkpoint
        self._on_invalid = on_invalid
        RowMaker(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Receive and store the content of the queue; return the stored partitions.

        Raises:
            Error: as for :meth:`bmq.spark._reads.Reads.plan`.
        """
        if self._checkpoint:
            planned: Sequence[InputPartition] = Reads(self._checkpoint).plan(self._settings, self._limits)
        else:
            planned = read_unconfirmed(self._settings, self._limits)
        return planned or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read stored rows: the same rows in each attempt."""
        if isinstance(partition, LogPartition):
            gone = _GONE if self._checkpoint else _GONE_TEMPORARY
            yield from read_partition(partition, self._schema, self._on_invalid, gone)
