# SPDX-License-Identifier: Apache-2.0
"""Partitions of a log: each attempt of a task reads the same rows."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from bmq._logging import Log
from bmq.errors import StateError
from bmq.spark._arrow import RecordBatch, pa
from bmq.spark._log import BatchLog, LoggedBatch
from bmq.spark._raw import Source, guid_keys
from bmq.spark._rows import OnInvalidMessage, RowMaker

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["LogPartition", "cut", "left_of", "read_partition"]

logger = Log("bmq.spark")


class LogPartition(InputPartition):
    """A range of rows in a file of a log.

    Attributes:
        root: folder of the log, as for :class:`BatchLog`.
        path: file, within its file system.
        first: number of the first row.
        count: number of rows.
        without: names of files with the GUIDs of omitted rows.
        query: id of the partition's stream, "" if its checkpoint does not provide the id; None for any
            stream.
    """

    def __init__(
        self,
        root: str,
        path: str,
        first: int,
        count: int,
        without: tuple[str, ...] = (),
        query: str | None = None,
    ) -> None:
        super().__init__((path, first, count))
        self.root = root
        self.path = path
        self.first = first
        self.count = count
        self.without = without
        self.query = query


def cut(
    root: str,
    batches: Iterable[LoggedBatch],
    partitions: int,
    without: tuple[str, ...] = (),
    query: str | None = None,
) -> Iterator[LogPartition]:
    """Split each batch into the given number of partitions, of about the same number of rows."""
    for batch in batches:
        total = batch.end - batch.start
        size = max(1, -(-total // partitions))
        for first in range(0, total, size):
            yield LogPartition(root, batch.path, first, min(size, total - first), without, query)


def read_partition(
    partition: LogPartition, schema: StructType, on_invalid: OnInvalidMessage, gone: str = ""
) -> Iterator[Any]:
    """Return the rows of a partition.

    Args:
        partition: partition.
        schema: columns.
        on_invalid: handling of undecodable messages.
        gone: text of the error if the file is missing.

    Raises:
        StateError: the file is missing, empty or damaged.
        ProtocolError: a message cannot be decoded, with ``fail``.
    """
    log, maker = BatchLog(partition.root), RowMaker(schema, on_invalid)
    skip, left = partition.first, partition.count
    try:
        without = log.read_guids(partition.without)
        batches, sources = log.read(partition.path)
    except FileNotFoundError:
        where = f"{partition.path} does not exist on {socket.gethostname()}"
        raise StateError(
            f"{where}: {gone or 'the log was removed, or this machine cannot reach the log'}"
        ) from None
    for rows in batches:
        part = rows.slice(skip, left)
        skip = max(0, skip - rows.num_rows)
        left -= part.num_rows
        if part.num_rows and without:
            part = left_of(part, sources, without)
        if part.num_rows:
            yield from maker.make(part, sources)
        if not left:
            break
    if maker.dropped:
        logger.warning("%d undecodable messages are omitted", maker.dropped)


def left_of(rows: RecordBatch, sources: Sequence[Source], without: Mapping[str, set[bytes]]) -> RecordBatch:
    """Return the rows whose GUIDs are not in ``without``, by the URI of their queue."""
    of_source = [without.get(uri, set[bytes]()) for uri, _ in sources]
    numbers = rows.column(5).to_pylist()
    places = [at for at, key in enumerate(guid_keys(rows)) if key not in of_source[numbers[at]]]
    return rows if len(places) == rows.num_rows else rows.take(pa.array(places, pa.int64()))
