# SPDX-License-Identifier: Apache-2.0
"""Rows that cannot be posted: their detection, and their dead letters.

Good rows cost no work for each row: columns are checked as columns. Suspicious rows go through the encoder
singly; the encoder's error is the reason.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from bmq.arrow.decoding import RecordBatch, pa, pc
from bmq.arrow.encoding import TableEncoder
from bmq.conventions import DEAD_ATTEMPTS, DEAD_ERROR, DEAD_PREFIX, DEAD_PROPERTIES, DEAD_QUEUE, DEAD_RAW
from bmq.errors import UsageError
from bmq.spark.options import WriteOptions
from bmq.spark.rows import InvalidRow, RowColumns, due_column, invalid_row, source_guids, this_row
from bmq.spark.schema import ColumnRoles, check_queue
from bmq.wire.constants import MAX_APPLICATION_DATA, MAX_PROPERTIES, MAX_PROPERTY_VALUE, PropertyType
from bmq.wire.properties import PropertyInput, PropertyValue, encode_properties

__all__ = ["LETTER_PROPERTIES", "LETTER_VALUE", "RowLetter", "RowValidator", "letter_of", "letter_tables"]

# Maximum number of bytes for property names and headers before a payload.
_FRAME = MAX_PROPERTIES * 4200


#: The columns of dead letters.
LETTER_VALUE, LETTER_PROPERTIES = "value", ("properties",)
# Limits for the original content in a dead letter: payload, value of a property, all properties.
_MOST_PAYLOAD = 1024 * 1024
_MOST_VALUE = 64 * 1024
_MOST_REST = 1024 * 1024
# Number of properties of a dead letter besides those of its row.
_ADDED = 5
_BYTES: Any = (bytes, bytearray, memoryview)
# Number of dead letters encoded at a time.
_ROWS = 1000


class RowValidator:
    """Finds the rows for which a post is impossible.

    Args:
        options: options of the sink.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._columns = options.roles
        self._good_queues: set[str] = set()

    def check(self, batch: RecordBatch, first: int) -> list[InvalidRow]:
        """Return the rows of a batch without maps that cannot be posted.

        Args:
            batch: rows.
            first: position of the first row in its partition.
        """
        found: list[InvalidRow] = []
        for row in self._suspects(batch):
            one = batch.slice(row, 1)
            try:
                self._try(one)
            except UsageError as error:
                (values,) = one.to_pylist()
                found.append(
                    invalid_row(
                        self._columns,
                        values,
                        _types(one.schema, self._columns.properties),
                        first + row,
                        error,
                        self._options.queue,
                    )
                )
        return found

    def _suspects(self, batch: RecordBatch) -> list[int]:
        """Return the suspicious rows: every invalid row, and a few valid rows."""
        columns = self._columns
        masks = [_empty(_column(batch, columns.value))]
        if columns.queue:
            masks.append(self._bad_queues(_column(batch, columns.queue)))
        if columns.id:
            masks.append(_column(batch, columns.id).is_null())
        if columns.guid:
            masks.append(_no_guids(_column(batch, columns.guid)))
        if columns.not_before:
            masks.append(_no_times(_column(batch, columns.not_before)))
        suspects: set[int] = set()
        for mask in masks:
            if mask is not None and mask.true_count:
                suspects.update(np.flatnonzero(np.asarray(mask)).tolist())
        suspects.update(self._big(batch, 0))
        if _property_count(batch, columns.properties) > MAX_PROPERTIES:
            suspects.update(range(batch.num_rows))
        return sorted(suspects)

    def _big(self, batch: RecordBatch, first: int) -> Iterator[int]:
        """Return rows of possibly excessive size; no row of a small batch is too large."""
        if batch.nbytes + _FRAME <= min(MAX_APPLICATION_DATA, MAX_PROPERTY_VALUE):
            return
        if batch.num_rows == 1:
            yield first
            return
        half = batch.num_rows // 2
        yield from self._big(batch.slice(0, half), first)
        yield from self._big(batch.slice(half), first + half)

    def _bad_queues(self, queues: Any) -> Any:
        bad: list[Any] = []
        for uri in pc.unique(queues).to_pylist():
            if uri in self._good_queues:
                continue
            try:
                check_queue(uri)
            except UsageError:
                bad.append(uri)
            else:
                self._good_queues.add(uri)
        if not bad:
            return None
        return pc.is_in(queues, value_set=pa.array(bad, queues.type))

    def _try(self, row: RecordBatch) -> None:
        """Encode a row as for posting.

        Raises:
            UsageError: the row cannot be posted.
        """
        columns = self._columns
        if columns.queue:
            (uri,) = _column(row, columns.queue).to_pylist()
            if uri is None:
                raise UsageError(
                    f"{this_row(0)}: column {columns.queue!r} is null, and every row needs a queue"
                )
            check_queue(uri)
        if columns.id and _column(row, columns.id).null_count:
            raise UsageError(f"{this_row(0)}: column {columns.id!r} is null, and every row needs an id")
        if columns.guid:
            source_guids(_column(row, columns.guid), this_row)
        if columns.not_before:
            due_column(_column(row, columns.not_before), this_row)
        encoder = TableEncoder(row.schema, columns.value, columns.properties, name_row=this_row)
        for _ in encoder.slices(row):
            pass


def _column(batch: RecordBatch, name: str) -> Any:
    return batch.column(batch.schema.get_field_index(name))


def _empty(values: Any) -> Any:
    """Return a mask of null or empty payloads; None if every row has a payload."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        mask = _empty(values.dictionary)
        there = values.indices.is_null()
        return there if mask is None else pc.or_(there, mask.take(values.indices).fill_null(True))
    if pa.types.is_null(kind):
        return values.is_null()
    lengths = pc.binary_length(values)
    if not values.null_count and (not len(values) or pc.min(lengths).as_py()):
        return None
    return pc.equal(lengths, 0).fill_null(True)


def _no_times(times: Any) -> Any:
    """Return a mask of invalid times; None if every time is valid, as in a column of timestamps."""
    if not pa.types.is_floating(times.type) and not pa.types.is_integer(times.type):
        return None
    try:
        due_column(times)
    except UsageError:
        return times.is_valid()
    return None


def _no_guids(guids: Any) -> Any:
    """Return a mask of doubtful GUIDs; None if every value is a GUID."""
    try:
        source_guids(guids)
    except UsageError:
        return guids.is_valid()
    return None


def _property_count(batch: RecordBatch, names: Sequence[str]) -> int:
    kinds = (batch.schema.field(name).type for name in names)
    return sum(kind.num_fields if pa.types.is_struct(kind) else 1 for kind in kinds)


def _types(schema: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the property types of columns narrower than a Python integer."""

    def kind(arrow: Any) -> Any:
        if pa.types.is_struct(arrow):
            return {each.name: kind(each.type) for each in arrow}
        if pa.types.is_int8(arrow) or pa.types.is_int16(arrow):
            return PropertyType.SHORT
        return PropertyType.INT32 if pa.types.is_int32(arrow) else None

    return {name: kind(schema.field(name).type) for name in names}


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
            or not _legal(name, value)
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
        DEAD_QUEUE: row.queue.encode("utf-8", "replace").decode()[:_MOST_VALUE],
    }
    if rest:
        properties[DEAD_PROPERTIES] = _rest(rest, said)
    if said:
        properties[DEAD_RAW] = "; ".join(said)[:_MOST_VALUE]
    return properties


def _too_large(payload: bytes, properties: dict[str, PropertyInput]) -> bool:
    try:
        return len(encode_properties(properties, new=True)) + len(payload) > MAX_APPLICATION_DATA
    except UsageError:
        return True


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


def _legal(name: Any, value: Any) -> bool:
    try:
        encode_properties({name: value}, new=True)
        if isinstance(value, str):
            value.encode()
    except (TypeError, ValueError):
        return False
    return True


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


def letter_tables(
    letters: Sequence[RowLetter], name_row: Callable[[int], str]
) -> Iterator[tuple[RecordBatch, list[int]]]:
    """Build batches of dead letters, one for each group of similar neighbours, with their positions."""
    columns = ColumnRoles(value=LETTER_VALUE, properties=LETTER_PROPERTIES)
    for kinds, some in groupby(letters, _kinds):
        group = list(some)
        maker = RowColumns(columns, columns.named(), {"properties": dict(kinds)}, name_row)
        for start in range(0, len(group), _ROWS):
            rows = [(each.payload, _plain_values(each)) for each in group[start : start + _ROWS]]
            for made in maker.batches(rows, start):
                if isinstance(made, tuple):
                    first, batch = made
                    yield batch, [each.row.position for each in group[first : first + batch.num_rows]]


def _kinds(letter: RowLetter) -> tuple[tuple[str, PropertyType], ...]:
    return tuple((n, each.type) for n, each in letter.properties.items() if isinstance(each, PropertyValue))


def _plain_values(letter: RowLetter) -> dict[str, Any]:
    return {
        name: each.value if isinstance(each, PropertyValue) else each
        for name, each in letter.properties.items()
    }
