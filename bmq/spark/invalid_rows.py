# SPDX-License-Identifier: Apache-2.0
"""Rows that cannot be posted: their detection, and their dead letters.

The encoder decides: rows that it refuses are halved until a single row is left, and the encoder's error is
the reason.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from bmq._dead_letters import legal
from bmq.arrow.decoding import RecordBatch, pa, pc
from bmq.arrow.encoding import TableEncoder
from bmq.conventions import DEAD_ATTEMPTS, DEAD_ERROR, DEAD_PREFIX, DEAD_PROPERTIES, DEAD_QUEUE, DEAD_RAW
from bmq.errors import UsageError
from bmq.spark.options import WriteOptions
from bmq.spark.rows import (
    ARROW_TYPES,
    InvalidRow,
    due_column,
    in_parts,
    invalid_record,
    source_guids,
    this_row,
)
from bmq.spark.schema import check_queue
from bmq.wire.constants import MAX_APPLICATION_DATA, MAX_PROPERTIES, PropertyType
from bmq.wire.printable import bounded
from bmq.wire.properties import PropertyInput, PropertyValue, encode_properties

__all__ = ["LETTER_PROPERTIES", "LETTER_VALUE", "RowLetter", "RowValidator", "letter_of", "letter_tables"]

#: The columns of dead letters.
LETTER_VALUE, LETTER_PROPERTIES = "value", ("properties",)
# Limits for the original content in a dead letter: payload, value of a property, all properties.
_MOST_PAYLOAD = 1024 * 1024
_MOST_VALUE = 64 * 1024
_MOST_REST = 1024 * 1024
# Number of properties of a dead letter besides those of its row.
_ADDED = 5
_BYTES: Any = (bytes, bytearray, memoryview)


class RowValidator:
    """Finds the rows for which a post is impossible: encodes the rows as for posting.

    Args:
        options: options of the sink.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._queue = options.queue
        self._columns = options.roles

    def check(self, batch: RecordBatch, first: int) -> Iterator[tuple[int, RecordBatch] | InvalidRow]:
        """Return the valid rows of a batch without maps, in parts, and the rows that cannot be posted.

        Args:
            batch: rows.
            first: position of the first row in its partition.
        """
        return in_parts(batch, first, self._encoded, partial(invalid_record, self._columns, self._queue))

    def _encoded(self, batch: RecordBatch, _: int) -> RecordBatch:
        """Return the rows, if all can be posted.

        Raises:
            UsageError: a row cannot be posted.
        """
        columns = self._columns
        if columns.queue:
            for uri in pc.unique(batch.column(columns.queue)).to_pylist():
                if uri is None:
                    raise UsageError(
                        f"{this_row(0)}: column {columns.queue!r} is null, and every row needs a queue"
                    )
                check_queue(uri)
        if columns.id and batch.column(columns.id).null_count:
            raise UsageError(f"{this_row(0)}: column {columns.id!r} is null, and every row needs an id")
        if columns.guid:
            source_guids(batch.column(columns.guid), this_row)
        if columns.not_before:
            due_column(batch.column(columns.not_before), this_row)
        encoder = TableEncoder(batch.schema, columns.value, columns.properties, name_row=this_row)
        deque(encoder.slices(batch), maxlen=0)
        return batch


@dataclass(frozen=True, slots=True)
class RowLetter:
    """A dead letter to be posted.

    Attributes:
        row: original row.
        payload: payload.
        properties: properties.
    """

    row: InvalidRow
    payload: bytes
    properties: dict[str, PropertyInput]


def letter_of(row: InvalidRow) -> RowLetter:
    """Return the dead letter of a row: the encodable part of the row, and the error.

    The properties are those of the dead letters of :mod:`bmq.workers`, without the GUID of a message: the row
    never had a GUID.
    """
    lost: list[str] = []
    payload = _payload(row, lost)
    kept: dict[str, PropertyInput] = {}
    rest: list[tuple[str, PropertyInput]] = []
    for name, value in row.properties.items():
        if (
            str(name).startswith(DEAD_PREFIX)
            or len(kept) == MAX_PROPERTIES - _ADDED
            or not legal({name: value})
        ):
            rest.append((name, value))
        else:
            kept[name] = value
    properties = _with_reason(row, kept, rest, lost)
    if _too_large(payload, properties):
        if len(payload) > _MOST_PAYLOAD:
            lost.append(f"the payload is the first {_MOST_PAYLOAD:,} of {len(payload):,} bytes")
            payload = payload[:_MOST_PAYLOAD]
        rest += [(name, kept.pop(name)) for name in list(kept) if _length(kept[name]) > _MOST_VALUE]
        properties = _with_reason(row, kept, rest, lost)
    return RowLetter(row, payload, properties)


def _with_reason(
    row: InvalidRow, kept: dict[str, PropertyInput], rest: list[tuple[str, Any]], lost: list[str]
) -> dict[str, PropertyInput]:
    said = list(lost)
    properties: dict[str, PropertyInput] = {
        **kept,
        DEAD_ATTEMPTS: PropertyValue(PropertyType.INT32, 0),
        DEAD_ERROR: row.reason,
        DEAD_QUEUE: bounded(row.queue, _MOST_VALUE),
    }
    if rest:
        properties[DEAD_PROPERTIES] = _rest(rest, said)
    if said:
        properties[DEAD_RAW] = "; ".join(said)[:_MOST_VALUE]
    return properties


def _too_large(payload: bytes, properties: dict[str, PropertyInput]) -> bool:
    return not legal(properties) or (
        len(encode_properties(properties, new=True)) + len(payload) > MAX_APPLICATION_DATA
    )


def _payload(row: InvalidRow, lost: list[str]) -> bytes:
    value = row.value
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, _BYTES):
        data = bytes(value)
    elif value is None:
        data = b""
    else:
        lost.append(f"the payload was of type {type(value).__name__}, and is its text")
        data = str(value).encode("utf-8", "replace")
    if data:
        return data
    lost.append("the payload was null" if value is None else "the payload was empty")
    return row.reason.encode()


def _length(value: Any) -> int:
    sized: Any = value
    return len(sized) if isinstance(value, (str, *_BYTES)) else 0


def _rest(properties: Sequence[tuple[Any, Any]], lost: list[str]) -> str:
    """Return properties that cannot be posted, as JSON: name, type and value of each."""
    written: list[str] = []
    size = 0
    for name, value in properties:
        kind, plain = _plain(value)
        if isinstance(plain, str) and len(plain) > _MOST_VALUE:
            lost.append(f"property {name!r:.60}: the first {_MOST_VALUE:,} of {len(plain):,} characters")
            plain = plain[:_MOST_VALUE]
        text = json.dumps([str(name), kind, plain])
        size += len(text) + 2
        if size > _MOST_REST - _MOST_VALUE:
            lost.append(f"{len(properties) - len(written):,} properties are left out")
            break
        written.append(text)
    return f"[{', '.join(written)}]"


def _plain(value: Any) -> tuple[str, Any]:
    """Return type and value of a property that cannot be posted; as text if the type is unsupported."""
    if isinstance(value, PropertyValue):
        return value.type.name, value.value
    if isinstance(value, bool):
        return "BOOL", value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return "INT64", value
    if isinstance(value, _BYTES):
        raw: Any = value
        return "BINARY", base64.b64encode(raw).decode()
    return "STRING", str(value).encode("utf-8", "replace").decode()


def letter_tables(letters: Sequence[RowLetter]) -> Iterator[tuple[Any, list[int]]]:
    """Build a table for each group of similar neighbours among the letters, with their positions."""
    made = [(_table(each), each.row.position) for each in letters]
    for _, group in groupby(made, lambda each: each[0].schema):
        tables, positions = zip(*group, strict=True)
        yield pa.concat_tables(tables).combine_chunks(), list(positions)


def _table(letter: RowLetter) -> Any:
    """Return a row with the payload, and the properties as a struct."""
    arrays: list[Any] = []
    for value in letter.properties.values():
        if isinstance(value, PropertyValue):
            arrays.append(pa.array([value.value], ARROW_TYPES[value.type]))
        else:
            arrays.append(
                pa.array([bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else value])
            )
    properties = pa.StructArray.from_arrays(arrays, names=list(letter.properties))
    payload = pa.array([letter.payload], pa.binary())
    return pa.table([payload, properties], names=[LETTER_VALUE, *LETTER_PROPERTIES])
