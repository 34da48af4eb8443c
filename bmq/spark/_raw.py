# SPDX-License-Identifier: Apache-2.0
"""Messages in the transmitted form, as Arrow columns: the content of read logs.

The messages are decoded by the task that reads the log. The same batch can be decoded with another schema,
and an undecodable message affects only the row of the message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bmq.arrow.decoding import pieces, to_arrow
from bmq.arrow.push import PushColumns
from bmq.spark._arrow import RecordBatch, pa
from bmq.wire.guid import guid_to_text

if TYPE_CHECKING:
    from bmq.arrow.consumer import Taken

__all__ = [
    "Source",
    "columns_of",
    "guid_array",
    "guid_keys",
    "raw_rows",
    "raw_schema",
    "sizes_of",
    "sources_of",
    "texts_of",
]

#: Source of messages: URI of the queue, and name of the subscription (None for all messages).
Source = tuple[str, str | None]

_GUID = pa.binary(16)
_FIELDS = [
    pa.field("data", pa.binary(), nullable=False),
    pa.field("guid", _GUID, nullable=False),
    pa.field("flags", pa.uint8(), nullable=False),
    pa.field("schema", pa.uint16(), nullable=False),
    pa.field("compression", pa.uint8(), nullable=False),
    pa.field("source", pa.uint16(), nullable=False),
    pa.field("received", pa.timestamp("us", tz="UTC"), nullable=False),
]
_SOURCES = b"bmq.sources"


def raw_schema(sources: Sequence[Source]) -> Any:
    """Return the columns of a log with messages from these sources, to which the rows refer by number."""
    return pa.schema(_FIELDS, metadata={_SOURCES: json.dumps(list(sources)).encode()})


def sources_of(schema: Any) -> list[Source]:
    """Return the sources to which the rows of a log refer by number."""
    found: list[list[Any]] = json.loads(schema.metadata[_SOURCES])
    return [(uri, subscription) for uri, subscription in found]


def raw_rows(taken: Taken, clock: float, source: int, schema: Any) -> RecordBatch:
    """Return a row for each message.

    Args:
        taken: messages.
        clock: the present time of the event loop.
        source: number of the source.
        schema: result of :func:`raw_schema`.
    """
    columns = taken.columns
    count = columns.count
    guids = pa.py_buffer(np.ascontiguousarray(columns.guids))
    arrays = [
        pieces(columns.buffer, columns.starts, columns.stops),
        pa.Array.from_buffers(_GUID, count, [None, guids]),
        to_arrow(columns.flags),
        to_arrow(columns.schema_ids),
        to_arrow(columns.compressions),
        to_arrow(np.full(count, source, np.uint16)),
        to_arrow(taken.received_at(clock)).cast(_FIELDS[-1].type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def columns_of(rows: RecordBatch) -> PushColumns:
    """Return the messages of a log's rows, for a decoder."""
    data, count = rows.column(0), rows.num_rows
    offsets = _offsets(data)
    first, last = int(offsets[0]), int(offsets[-1])
    buffer = data.buffers()[2]
    bounds = offsets.astype(np.int64) - first
    return PushColumns(
        b"" if buffer is None else memoryview(buffer)[first:last].tobytes(),
        bounds[:-1],
        bounds[1:],
        guid_array(rows),
        _numbers(rows.column(2), np.uint8),
        _numbers(rows.column(3), np.uint16),
        _numbers(rows.column(4), np.uint8),
        np.zeros(count, np.int32),
        [()],
        np.zeros(count, np.int64),
    )


def guid_keys(rows: RecordBatch) -> list[bytes]:
    """Return the GUID of each row, as bytes."""
    keys: list[bytes] = guid_array(rows).tolist()
    return keys


def guid_array(rows: RecordBatch) -> Any:
    """Return the GUID of each row, as a numpy array."""
    return _guids(rows.column(1))


def sizes_of(rows: RecordBatch) -> Any:
    """Return the transmitted size of each message."""
    return np.diff(_offsets(rows.column(0)))


def texts_of(keys: Sequence[bytes]) -> list[str]:
    """Return GUIDs in the form of :attr:`bmq.Message.guid`."""
    return [guid_to_text(key) for key in keys]


def _offsets(data: Any) -> Any:
    return np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1]


def _guids(column: Any) -> Any:
    return np.frombuffer(column.buffers()[1], "V16", len(column), column.offset * 16)


def _numbers(column: Any, kind: Any) -> Any:
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]
