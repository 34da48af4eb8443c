# SPDX-License-Identifier: Apache-2.0
"""Rows and maps as Arrow columns: what Spark hands over, in the form in which it is posted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, cast

from bmq.errors import InvalidPayload, InvalidProperty, UsageError
from bmq.spark._arrow import RecordBatch, pa
from bmq.spark._columns import SCALARS, Columns, check_there
from bmq.wire.constants import MAX_APPLICATION_DATA, PropertyType
from bmq.wire.properties import encode_properties

__all__ = ["RowColumns", "spread_maps"]

# A map becomes a column a key. Rows that have more keys than this, all together, are posted in smaller parts.
_MOST_KEYS = 64

_INTEGERS = {PropertyType.SHORT: pa.int16(), PropertyType.INT32: pa.int32()}
_BYTES = {bytes, bytearray, memoryview}

#: Gives the value of a key, of each row; rows that have no value have None.
_Entries = list[dict[str, Any] | None]


class _TooMixed(Exception):
    """These rows do not fit one batch: it takes several."""


class RowColumns:
    """Makes batches of Python rows of one layout.

    Args:
        columns: which column is what.
        names: the columns of a row, in order.
        types: what :func:`check_columns` found, or None to go by the values.
        name_row: how errors name a row, from its position.
    """

    def __init__(
        self,
        columns: Columns,
        names: Sequence[str],
        types: dict[str, Any] | None,
        name_row: Callable[[int], str],
    ) -> None:
        check_there(columns, names)
        self._columns = columns
        self._used = [(at, name) for at, name in enumerate(names) if name in columns.named()]
        self._types = types or {}
        self._name_row = name_row

    def batches(self, rows: Sequence[Sequence[Any]], first: int) -> Iterator[RecordBatch]:
        """Make batches, in order: one, unless neighbours have values of different types.

        Args:
            rows: the values of each row.
            first: the position of the first row in its partition, for errors.

        Raises:
            InvalidPayload, InvalidProperty: a row cannot be posted; the message says which.
        """
        try:
            arrays = [self._column(name, [row[at] for row in rows], first) for at, name in self._used]
        except _TooMixed:
            half = len(rows) // 2
            yield from self.batches(rows[:half], first)
            yield from self.batches(rows[half:], first + half)
        else:
            yield pa.RecordBatch.from_arrays(arrays, names=[name for _, name in self._used])

    def _column(self, name: str, values: list[Any], first: int) -> Any:
        if name == self._columns.value:
            return self._payload(values, first)
        if name == self._columns.not_before and name not in self._columns.properties:
            return self._times(values, first)
        return self._array(name, values, self._types.get(name), first)

    def _payload(self, values: list[Any], first: int) -> Any:
        found = set(map(type, values)) - {type(None)}
        if found <= {str}:
            return pa.array(values, pa.string())
        if found <= {str, *_BYTES}:
            return pa.array(
                [each.encode() if isinstance(each, str) else each and bytes(each) for each in values],
                pa.binary(),
            )
        at = next(at for at, each in enumerate(values) if not isinstance(each, str | None | _ANY_BYTES))
        raise InvalidPayload(
            f"{self._name_row(first + at)}: column {self._columns.value!r} is of type "
            f"{type(values[at]).__name__}; a payload is 1 byte to {MAX_APPLICATION_DATA:,} bytes of string "
            "or binary: filter such rows out before"
        )

    def _times(self, values: list[Any], first: int) -> Any:
        """Make a column of seconds since 1970; a datetime without a time zone is local, as in Spark."""
        seconds = [each.timestamp() if isinstance(each, datetime) else each for each in values]
        try:
            return pa.array(seconds, pa.float64())
        except pa.ArrowInvalid:
            at = next(at for at, each in enumerate(seconds) if not isinstance(each, int | float | None))
            raise UsageError(
                f"{self._name_row(first + at)}: {values[at]!r} is no time: a datetime, or seconds since 1970"
            ) from None

    def _array(self, name: str, values: list[Any], kind: Any, first: int) -> Any:
        found = set(map(type, values)) - {type(None)}
        if not found:
            return pa.nulls(len(values))
        if found == {int}:
            return self._integers(name, values, kind, first)
        if found == {str}:
            return pa.array(values, pa.string())
        if found == {bool}:
            return pa.array(values, pa.bool_())
        if found <= _BYTES:
            return pa.array([None if each is None else bytes(each) for each in values], pa.binary())
        entries: _Entries = []
        for at, each in enumerate(values):
            if each is None or type(each) in {int, str, bool, *_BYTES}:
                entries.append(None)
                continue
            entries.append(_entries(each))
            if entries[-1] is None:
                raise InvalidProperty(
                    f"{self._name_row(first + at)}: column {name!r} holds a value of type "
                    f"{type(each).__name__}, and a property is {SCALARS}: cast it or leave it out"
                )
        if sum(each is not None for each in entries) < sum(each is not None for each in values):
            raise _TooMixed
        kinds = cast("dict[str, Any]", kind) if isinstance(kind, dict) else {}
        return _struct(
            entries,
            lambda key, each: self._array(f"{name}.{key}", each, kinds.get(key), first),
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


_ANY_BYTES = bytes | bytearray | memoryview


def _entries(value: Any) -> dict[str, Any] | None:
    """The entries of a map or struct; None if it is neither."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    if hasattr(value, "asDict"):
        return cast("dict[str, Any]", value.asDict())
    if isinstance(value, list):  # Arrow's form of a map
        return dict(cast("list[tuple[str, Any]]", value))
    return None


def _struct(entries: _Entries, array: Callable[[str, list[Any]], Any], name_row: Callable[[int], str]) -> Any:
    """Make a column of structs, with a field for each key there is."""
    keys = dict.fromkeys(key for each in entries if each for key, value in each.items() if value is not None)
    if len(keys) > _MOST_KEYS and len(entries) > 1:
        raise _TooMixed
    if not keys:
        return pa.nulls(len(entries))
    for key in keys:
        try:
            encode_properties({key: True}, new=True)
        except InvalidProperty as error:
            at = next(at for at, each in enumerate(entries) if each and each.get(key) is not None)
            raise InvalidProperty(f"{name_row(at)}: {error}") from None
    columns = [array(key, [each.get(key) if each else None for each in entries]) for key in keys]
    return pa.StructArray.from_arrays(columns, names=list(keys))


def _entry_column(kind: Any, _: str, values: list[Any]) -> Any:
    return pa.array(values, kind)


def spread_maps(
    batch: RecordBatch, names: Sequence[str], first: int, name_row: Callable[[int], str]
) -> Iterator[RecordBatch]:
    """Turn maps into structs with a field for each key, which travel as columns.

    Args:
        batch: the rows.
        names: the columns that become properties.
        first: the position of the first row in its partition, for errors.
        name_row: how errors name a row, from its position.

    Raises:
        InvalidProperty: a key cannot be the name of a property.
    """
    maps = [name for name in names if pa.types.is_map(batch.schema.field(name).type)]
    if not maps:
        yield batch
        return
    whole = batch
    try:
        for name in maps:
            at = batch.schema.get_field_index(name)
            kind = batch.schema.field(at).type.item_type
            if pa.types.is_integer(kind):
                kind = pa.int64()
            entries = [None if each is None else dict(each) for each in batch.column(at).to_pylist()]
            column = _struct(entries, partial(_entry_column, kind), lambda row: name_row(first + row))
            batch = batch.set_column(at, name, column)
    except _TooMixed:
        half = whole.num_rows // 2
        yield from spread_maps(whole.slice(0, half), names, first, name_row)
        yield from spread_maps(whole.slice(half), names, first + half, name_row)
    else:
        yield batch
