# SPDX-License-Identifier: Apache-2.0
"""Detection of rows that cannot be posted.

Good rows cost no work for each row: columns are checked as columns. Suspicious rows go through the encoder
singly; the encoder's error is the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from bmq.arrow.encoding import TableEncoder
from bmq.errors import InvalidProperty, UsageError
from bmq.spark._arrow import RecordBatch, pa, pc
from bmq.spark._columns import Columns, check_queue
from bmq.spark._keys import due_column, source_guids
from bmq.spark._sink_settings import SinkSettings
from bmq.spark._typed import TYPES, restored
from bmq.wire.constants import MAX_APPLICATION_DATA, MAX_PROPERTIES, MAX_PROPERTY_VALUE, PropertyType
from bmq.wire.properties import PropertyValue

__all__ = ["InvalidRow", "Sieve", "entries_of", "invalid_row", "this_row"]

# Maximum number of bytes for property names and headers before a payload.
_FRAME = MAX_PROPERTIES * 4200
_MOST_REASON = 1000


@dataclass(frozen=True, slots=True)
class InvalidRow:
    """A row that cannot be posted.

    Attributes:
        position: position in the partition.
        reason: type and text of the error. The text does not name the row, because a repeated task may find
            the row at another position.
        value: payload, of any type.
        properties: properties, of any type.
        queue: target queue, or the invalid value of the queue column.
        id: id of the row; None without an id.
        guid: GUID of the row's source message; None without a legal GUID.
    """

    position: int
    reason: str
    value: Any = None
    properties: dict[str, Any] = field(default_factory=dict[str, Any])
    queue: str = ""
    id: Any = None
    guid: str | None = None


def reason_of(error: BaseException) -> str:
    """Return type and text of an error, as a property can hold."""
    text = f"{type(error).__name__}: {error}"[:_MOST_REASON]
    return text.encode("utf-8", "replace").decode()


def this_row(_: int) -> str:
    """Return the name of a row in a reason."""
    return "this row"


def entries_of(value: Any) -> dict[str, Any] | None:
    """Return the entries of a map or struct; None for values of a different type."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    if hasattr(value, "asDict"):
        return cast("dict[str, Any]", value.asDict())
    pairs: Any = value
    if isinstance(value, list) and {type(each) for each in pairs} <= {tuple}:  # Arrow's maps
        return dict(pairs)
    return None


def invalid_row(
    columns: Columns,
    values: Mapping[str, Any],
    types: Mapping[str, Any],
    position: int,
    error: BaseException,
    queue: str = "",
) -> InvalidRow:
    """Return the description of a row.

    Args:
        columns: roles of the columns.
        values: row, by column.
        types: property type of each property column; for a struct, a dictionary of types; None if unknown.
        position: position in the partition.
        error: reason for the refusal of the row.
        queue: target queue of the row, if no column names the queue.
    """
    properties: dict[str, Any] = {}
    for name in columns.properties:
        value, kind = values.get(name), types.get(name)
        entries = entries_of(value)
        if entries is None:
            entries, kind = {name: value}, {name: kind}
        kinds = cast("dict[str, Any]", kind) if isinstance(kind, dict) else {}
        if TYPES in entries:
            try:
                entries, kinds = restored(entries)
            except InvalidProperty:
                entries = {key: each for key, each in entries.items() if key != TYPES}
        for key, each in entries.items():
            if each is not None and key not in properties:
                narrow = kinds.get(key) in (PropertyType.SHORT, PropertyType.INT32)
                properties[key] = PropertyValue(kinds[key], each) if narrow and type(each) is int else each
    target = queue or values.get(columns.queue)
    return InvalidRow(
        position,
        reason_of(error),
        values.get(columns.value),
        properties,
        "" if target is None else str(target),
        values.get(columns.id) if columns.id else None,
        _guid_or_none(values.get(columns.guid)),
    )


def _guid_or_none(value: Any) -> str | None:
    try:
        (guid,) = source_guids(pa.array([value]))
    except (UsageError, pa.ArrowInvalid, UnicodeEncodeError):
        return None
    return guid


class Sieve:
    """Finds the rows for which a post is impossible.

    Args:
        settings: settings of the sink.
    """

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._columns = settings.columns
        self._good_queues: set[str] = set()

    def sift(self, batch: RecordBatch, first: int) -> list[InvalidRow]:
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
                        self._settings.queue,
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
