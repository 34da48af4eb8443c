# SPDX-License-Identifier: Apache-2.0
"""Rows and maps as Arrow columns: converts Spark's input to the form that is posted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, cast

from bmq.errors import InvalidPayload, InvalidProperty, UsageError
from bmq.spark._arrow import RecordBatch, pa
from bmq.spark._columns import SCALARS, Columns
from bmq.spark._invalid import InvalidRow, entries_of, invalid_row, this_row
from bmq.spark._typed import TYPES, restored
from bmq.wire.constants import MAX_APPLICATION_DATA, MAX_PROPERTIES, PropertyType
from bmq.wire.properties import encode_properties

__all__ = ["RowColumns", "spread_maps", "without_views"]

# Each key of a map becomes a column. Rows with more distinct keys than this limit are posted in smaller
# parts.
_MOST_KEYS = 64

_INTEGERS = {PropertyType.SHORT: pa.int16(), PropertyType.INT32: pa.int32()}
#: Arrow's types of properties.
_ARROW = {
    **_INTEGERS,
    PropertyType.INT64: pa.int64(),
    PropertyType.BOOL: pa.bool_(),
    PropertyType.STRING: pa.string(),
    PropertyType.BINARY: pa.binary(),
}
_BYTES = {bytes, bytearray, memoryview}
_VIEWS = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}

#: Value of a key in each row; None for rows without a value.
_Entries = list[dict[str, Any] | None]


class _TooMixed(Exception):
    """The rows do not fit into a single batch."""


class RowColumns:
    """Builds batches from Python rows with one layout.

    Args:
        columns: roles of the columns.
        names: columns of a row, in order.
        types: result of :func:`check_columns`; None to derive types from the values.
        name_row: function that returns the name of a row for errors, given its position.
        sorts: whether rows that cannot be posted are collected, instead of raising an error.
        queue: queue of all rows, if no column names the queue.
    """

    def __init__(
        self,
        columns: Columns,
        names: Sequence[str],
        types: dict[str, Any] | None,
        name_row: Callable[[int], str],
        *,
        sorts: bool = False,
        queue: str = "",
    ) -> None:
        self._columns = columns
        self._used = [(at, name) for at, name in enumerate(names) if name in columns.named()]
        self._types = types or {}
        self._name_row = this_row if sorts else name_row
        self._sorts = sorts
        self._queue = queue

    def batches(
        self, rows: Sequence[Sequence[Any]], first: int
    ) -> Iterator[tuple[int, RecordBatch] | InvalidRow]:
        """Build batches, in order: a single batch, unless adjacent rows have values of different types.

        Args:
            rows: values of each row.
            first: position of the first row in its partition.

        Returns:
            Batches with the position of their first row, and the rows that cannot be posted.

        Raises:
            InvalidPayload, InvalidProperty, UsageError: a row cannot be posted; the error names the row.
        """
        try:
            arrays = [self._column(name, [row[at] for row in rows], first) for at, name in self._used]
        except _TooMixed:
            pass
        except UsageError as error:
            if not self._sorts:
                raise
            if len(rows) == 1:
                values = {name: rows[0][at] for at, name in self._used}
                yield invalid_row(self._columns, values, self._types, first, error, self._queue)
                return
        else:
            yield first, pa.RecordBatch.from_arrays(arrays, names=[name for _, name in self._used])
            return
        half = len(rows) // 2
        yield from self.batches(rows[:half], first)
        yield from self.batches(rows[half:], first + half)

    def _column(self, name: str, values: list[Any], first: int) -> Any:
        if name == self._columns.value:
            return self._payload(values, first)
        if name == self._columns.not_before and name not in self._columns.properties:
            return self._times(values, first)
        return self._array(name, values, self._types.get(name), first)

    def _payload(self, values: list[Any], first: int) -> Any:
        found = set(map(type, values)) - {type(None)}
        if found <= {str}:
            return self._texts(self._columns.value, values, first)
        if found <= {str, *_BYTES}:
            return pa.array(
                [each.encode() if isinstance(each, str) else each and bytes(each) for each in values],
                pa.binary(),
            )
        at = next(at for at, each in enumerate(values) if not isinstance(each, str | None | _ANY_BYTES))
        raise InvalidPayload(
            f"{self._name_row(first + at)}: column {self._columns.value!r} is of type "
            f"{type(values[at]).__name__}; a payload has 1 to {MAX_APPLICATION_DATA:,} bytes of string or "
            "binary: filter these rows out before posting"
        )

    def _texts(self, name: str, values: list[Any], first: int) -> Any:
        try:
            return pa.array(values, pa.string())
        except UnicodeEncodeError:
            at = next(at for at, each in enumerate(values) if each is not None and not _is_text(each))
            kind = InvalidPayload if name == self._columns.value else InvalidProperty
            raise kind(
                f"{self._name_row(first + at)}: column {name!r} has half of a surrogate pair, which UTF-8 "
                "cannot encode; use bytes for binary data"
            ) from None

    def _times(self, values: list[Any], first: int) -> Any:
        """Build a column of seconds since 1970. A datetime without a time zone is local time, as in Spark."""
        seconds = [each.timestamp() if isinstance(each, datetime) else each for each in values]
        try:
            return pa.array(seconds, pa.float64())
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            at = next(at for at, each in enumerate(seconds) if not _is_time(each))
            raise UsageError(
                f"{self._name_row(first + at)}: {values[at]!r} is not a time: give a datetime, or seconds "
                "since 1970"
            ) from None

    def _array(self, name: str, values: list[Any], kind: Any, first: int, *, is_entry: bool = False) -> Any:
        found = set(map(type, values)) - {type(None)}
        if not found:
            return pa.nulls(len(values))
        if found == {int}:
            return self._integers(name, values, kind, first)
        if found == {str}:
            return self._texts(name, values, first)
        if found == {bool}:
            return pa.array(values, pa.bool_())
        if found <= _BYTES:
            return pa.array([None if each is None else bytes(each) for each in values], pa.binary())
        entries: _Entries = []
        for at, each in enumerate(values):
            if each is None or type(each) in {int, str, bool, *_BYTES}:
                entries.append(None)
                continue
            entries.append(None if is_entry else entries_of(each))
            if entries[-1] is None:
                raise InvalidProperty(
                    f"{self._name_row(first + at)}: column {name!r} holds a value of type "
                    f"{type(each).__name__}, and a property must be {SCALARS}: cast or omit the column"
                )
        if sum(each is not None for each in entries) < sum(each is not None for each in values):
            raise _TooMixed
        kinds = cast("dict[str, Any]", kind) if isinstance(kind, dict) else {}
        entries, types = _with_types(entries, lambda at: self._name_row(first + at))
        kinds = {**kinds, **types}
        return _struct(
            entries,
            lambda key, each: self._array(f"{name}.{key}", each, kinds.get(key), first, is_entry=True),
            lambda at: self._name_row(first + at),
        )

    def _integers(self, name: str, values: list[Any], kind: Any, first: int) -> Any:
        try:
            return pa.array(values, _INTEGERS.get(kind, pa.int64()))
        except (OverflowError, pa.ArrowInvalid):
            kind = kind if kind in _INTEGERS else PropertyType.INT64
            bits = {PropertyType.SHORT: 16, PropertyType.INT32: 32}.get(kind, 64)
            at = next(
                at
                for at, each in enumerate(values)
                if each is not None and not -(1 << bits - 1) <= each < 1 << bits - 1
            )
            raise InvalidProperty(
                f"{self._name_row(first + at)}: property {name.rpartition('.')[2]!r}: {values[at]} does not "
                f"fit {kind.name} ({bits} bits)"
            ) from None


def _is_time(seconds: Any) -> bool:
    return seconds is None or (isinstance(seconds, int | float) and abs(seconds) < 1 << 53)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_ANY_BYTES = bytes | bytearray | memoryview


def _with_types(
    entries: _Entries, name_row: Callable[[int], str]
) -> tuple[_Entries, dict[str, PropertyType]]:
    """Return the entries of copied maps with their types; each key has one type in all rows."""
    if not any(TYPES in each for each in entries if each):
        return entries, {}
    found: _Entries = []
    kinds: dict[str, PropertyType] = {}
    for at, each in enumerate(entries):
        try:
            values, types = restored(each or {})
        except InvalidProperty as error:
            raise InvalidProperty(f"{name_row(at)}: {error}") from None
        if any(kinds.setdefault(key, kind) is not kind for key, kind in types.items()):
            raise _TooMixed
        found.append(values)
    return found, kinds


def _struct(entries: _Entries, array: Callable[[str, list[Any]], Any], name_row: Callable[[int], str]) -> Any:
    """Build a column of structs, with a field for each key."""
    keys = dict.fromkeys(key for each in entries if each for key, value in each.items() if value is not None)
    if len(keys) > _MOST_KEYS and len(entries) > 1:
        raise _TooMixed
    if not keys:
        return pa.nulls(len(entries))
    if len(keys) > MAX_PROPERTIES:
        raise InvalidProperty(
            f"{name_row(0)}: {len(keys)} properties; a message has at most {MAX_PROPERTIES}"
        )
    for key in keys:
        try:
            encode_properties({key: True}, new=True)
        except InvalidProperty as error:
            at = next(at for at, each in enumerate(entries) if each and each.get(key) is not None)
            raise InvalidProperty(f"{name_row(at)}: {error}") from None
    columns = [array(key, [each.get(key) if each else None for each in entries]) for key in keys]
    return pa.StructArray.from_arrays(columns, names=list(keys))


def without_views(batch: RecordBatch) -> RecordBatch:
    """Return the same rows with plain columns in place of views: rows cannot be extracted from views."""
    for at, field in enumerate(batch.schema):
        if str(field.type) in _VIEWS:
            batch = batch.set_column(at, field.name, batch.column(at).cast(_VIEWS[str(field.type)]))
    return batch


def _entry_column(
    kind: Any, kinds: dict[str, PropertyType], name_row: Callable[[int], str], key: str, values: list[Any]
) -> Any:
    try:
        return pa.array(values, _ARROW.get(kinds[key], kind) if key in kinds else kind)
    except (pa.ArrowInvalid, OverflowError) as error:
        if len(values) > 1:
            raise _TooMixed from None
        raise InvalidProperty(f"{name_row(0)}: property {key!r}: {error}") from None


def spread_maps(
    batch: RecordBatch,
    columns: Columns,
    first: int,
    name_row: Callable[[int], str],
    *,
    sorts: bool = False,
    queue: str = "",
) -> Iterator[tuple[int, RecordBatch] | InvalidRow]:
    """Convert maps into structs with a field for each key, which are encoded as columns.

    Args:
        batch: rows.
        columns: names of the columns that become properties.
        first: position of the first row in its partition.
        name_row: function that returns the name of a row for errors, given its position.
        sorts: whether rows that cannot be posted are collected, instead of raising an error.
        queue: queue of all rows, if no column names the queue.

    Returns:
        Batches with the position of their first row, and the rows that cannot be posted.

    Raises:
        InvalidProperty: a key cannot be the name of a property.
    """
    maps = [name for name in columns.properties if pa.types.is_map(batch.schema.field(name).type)]
    if not maps:
        yield first, batch
        return
    whole = batch

    def named(row: int) -> str:
        return name_row(first + row)

    try:
        for name in maps:
            at = batch.schema.get_field_index(name)
            kind = batch.schema.field(at).type.item_type
            if pa.types.is_integer(kind):
                kind = pa.int64()
            entries = [None if each is None else dict(each) for each in batch.column(at).to_pylist()]
            entries, kinds = _with_types(entries, named)
            column = _struct(entries, partial(_entry_column, kind, kinds, named), named)
            batch = batch.set_column(at, name, column)
    except _TooMixed:
        pass
    except InvalidProperty as error:
        if not sorts:
            raise
        if whole.num_rows == 1:
            (values,) = whole.to_pylist()
            yield invalid_row(columns, values, {}, first, error, queue)
            return
    else:
        yield first, batch
        return
    half = whole.num_rows // 2
    for start, part in ((0, whole.slice(0, half)), (half, whole.slice(half))):
        yield from spread_maps(part, columns, first + start, name_row, sorts=sorts, queue=queue)
