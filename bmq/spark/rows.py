# SPDX-License-Identifier: Apache-2.0
"""From the rows of a DataFrame to the columns that are posted, and dead letters of the other rows."""

from __future__ import annotations

import base64
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any, cast

import numpy as np

from bmq._dead_letters import legal
from bmq.arrow.decoding import RecordBatch, pa, pc
from bmq.arrow.encoding import TableEncoder
from bmq.conventions import DEAD_ATTEMPTS, DEAD_ERROR, DEAD_PREFIX, DEAD_PROPERTIES, DEAD_QUEUE, DEAD_RAW
from bmq.errors import InvalidPayload, InvalidProperty, UsageError
from bmq.spark.options import WriteOptions
from bmq.spark.schema import SCALARS, TYPES, check_queue, restored
from bmq.wire.constants import MAX_APPLICATION_DATA, MAX_PROPERTIES, PropertyType
from bmq.wire.keys import key_bucket
from bmq.wire.printable import bounded, error_text
from bmq.wire.properties import PropertyInput, PropertyValue, encode_properties

__all__ = [
    "LETTER_PROPERTIES",
    "LETTER_VALUE",
    "InvalidRow",
    "RowColumns",
    "RowLetter",
    "RowValidator",
    "bucket_column",
    "due_column",
    "letter_of",
    "letter_tables",
    "name_row",
    "source_guids",
    "spread_maps",
    "without_views",
]

# The latest time in milliseconds with an exact representation as a float and as a 64-bit integer.
_LATEST = 2.0**53

_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)

_GUID = re.compile("[0-9A-Fa-f]{32}")

_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_null)


# Each key of a map becomes a column. Rows with more distinct keys than this limit are posted in smaller
# parts.
_MOST_KEYS = 64
_INTEGERS = {PropertyType.SHORT: pa.int16(), PropertyType.INT32: pa.int32()}
#: Arrow's types of properties.
ARROW_TYPES = {
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
_ANY_BYTES: Any = bytes | bytearray | memoryview


#: The columns of dead letters.
LETTER_VALUE, LETTER_PROPERTIES = "value", ("properties",)
# Limits for the original content in a dead letter: payload, value of a property, all properties.
_MOST_PAYLOAD = 1024 * 1024
_MOST_VALUE = 64 * 1024
_MOST_REST = 1024 * 1024
# Number of properties of a dead letter besides those of its row.
_ADDED = 5


def bucket_column(keys: Any) -> Any:
    """Return the property ``bmq_bucket`` of each row: the CRC-32C of the key, without the highest bit.

    Args:
        keys: Arrow array of text, bytes or integers.

    Returns:
        An array of int32, null for null keys.

    Raises:
        UsageError: the keys have another type.
    """
    kind = keys.type.value_type if pa.types.is_dictionary(keys.type) else keys.type
    if not any(is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_null, *_TEXTS)):
        raise UsageError(f"a key must be text, bytes or an integer, not {kind}")
    buckets = [None if key is None else key_bucket(key) for key in keys.to_pylist()]
    return pa.array(buckets, pa.int32())


def due_column(times: Any, name_row: Callable[[int], str] = "row {}".format) -> Any:
    """Return the property ``bmq_due`` of each row: milliseconds since 1970, rounded up.

    Args:
        times: Arrow array of timestamps, or of seconds since 1970.
        name_row: function that returns the name of a row for errors, given its position in the array.

    Returns:
        An array of int64, null for null times.

    Raises:
        UsageError: the times have another type, or a value is not a time.
    """
    kind = times.type
    if pa.types.is_timestamp(kind):
        whole = np.asarray(times.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).fill_null(0))
        due = -(-whole // 1000)
    elif not any(is_kind(kind) for is_kind in _NUMBERS):
        raise UsageError(f"a due time must be a timestamp or seconds since 1970, not {kind}")
    else:
        seconds = np.asarray(times.cast(pa.float64()).fill_null(0))
        wrong = ~(np.abs(seconds) <= _LATEST)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise UsageError(
                f"{name_row(row)}: {seconds[row]} is not a time in seconds since 1970: give a time, or "
                "null for a message without a due time"
            )
        due = np.ceil(seconds * 1000).astype(np.int64)
    return pa.array(due, pa.int64(), mask=np.asarray(times.is_null()))


def source_guids(guids: Any, name_row: Callable[[int], str] = "row {}".format) -> list[str | None]:
    """Return the GUID of each row's source message; None for a row without a GUID.

    Args:
        guids: Arrow array of text.
        name_row: function that returns the name of a row for errors, given its position in the array.

    Raises:
        UsageError: a value is not 32 hexadecimal digits.
    """
    values: list[Any] = guids.to_pylist()
    for row, value in enumerate(values):
        if value is not None and not (isinstance(value, str) and _GUID.fullmatch(value)):
            raise UsageError(
                f"{name_row(row)}: {value!r:.60} is not the GUID of a message, which has 32 hexadecimal "
                "digits: name the column of GUIDs in guidColumn, or choose another guidMode"
            )
    return values


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


def name_row(position: int) -> str:
    """Return the name of a row for errors."""
    return f"row {position} of the partition"


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
    options: WriteOptions,
    values: Mapping[str, Any],
    types: Mapping[str, Any],
    position: int,
    error: BaseException,
) -> InvalidRow:
    """Return the description of a row.

    Args:
        options: options of the sink.
        values: row, by column.
        types: property type of each property column; for a struct, a dictionary of types; None if unknown.
        position: position in the partition.
        error: reason for the refusal of the row.
    """
    properties: dict[str, Any] = {}
    for name in options.property_columns:
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
    target = options.queue or values.get(options.queue_column)
    return InvalidRow(
        position,
        error_text(error),
        values.get(options.value_column),
        properties,
        "" if target is None else str(target),
        values.get(options.id_column) if options.id_column else None,
        _guid_or_none(values.get(options.guid_column)),
    )


def _types(schema: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the property types of columns narrower than a Python integer."""

    def kind(arrow: Any) -> Any:
        if pa.types.is_struct(arrow):
            return {each.name: kind(each.type) for each in arrow}
        if pa.types.is_int8(arrow) or pa.types.is_int16(arrow):
            return PropertyType.SHORT
        return PropertyType.INT32 if pa.types.is_int32(arrow) else None

    return {name: kind(schema.field(name).type) for name in names}


def invalid_record(
    options: WriteOptions, row: RecordBatch, position: int, error: BaseException
) -> InvalidRow:
    """Return the description of the only row of a batch, as :func:`invalid_row` does."""
    (values,) = row.to_pylist()
    return invalid_row(options, values, _types(row.schema, options.property_columns), position, error)


def _guid_or_none(value: Any) -> str | None:
    try:
        (guid,) = source_guids(pa.array([value]))
    except (UsageError, pa.ArrowInvalid, UnicodeEncodeError):
        return None
    return guid


class _TooMixed(Exception):
    """The rows do not fit into a single batch."""


def in_parts(
    rows: Any,
    first: int,
    build: Callable[[Any, int], RecordBatch],
    invalid: Callable[[Any, int, UsageError], InvalidRow] | None,
) -> Iterator[tuple[int, RecordBatch] | InvalidRow]:
    """Build a batch of rows; of each half, if the rows do not fit into a single batch.

    Args:
        rows: rows, a sequence or a batch.
        first: position of the first row in the partition.
        build: builds a batch from rows, given the position of the first row.
        invalid: describes a single row that cannot be posted; None if its error ends the write.

    Returns:
        Batches with the position of their first row, and the rows that cannot be posted, in order.
    """
    try:
        batch = build(rows, first)
    except _TooMixed:
        pass
    except UsageError as error:
        if invalid is None:
            raise
        if len(rows) == 1:
            yield invalid(rows, first, error)
            return
    else:
        yield first, batch
        return
    half = len(rows) // 2
    yield from in_parts(rows[:half], first, build, invalid)
    yield from in_parts(rows[half:], first + half, build, invalid)


class RowColumns:
    """Builds batches from Python rows with one layout.

    Args:
        options: options of the sink.
        names: columns of a row, in order.
        types: result of :func:`check_columns`; None to derive types from the values.
    """

    def __init__(self, options: WriteOptions, names: Sequence[str], types: dict[str, Any] | None) -> None:
        self._options = options
        self._used = [(at, name) for at, name in enumerate(names) if name in options.columns]
        self._types = types or {}
        self._name_row = this_row if options.keeps_invalid_rows else name_row

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
        return in_parts(rows, first, self._batch, self._invalid if self._options.keeps_invalid_rows else None)

    def _batch(self, rows: Sequence[Sequence[Any]], first: int) -> RecordBatch:
        arrays = [self._column(name, [row[at] for row in rows], first) for at, name in self._used]
        return pa.RecordBatch.from_arrays(arrays, names=[name for _, name in self._used])

    def _invalid(self, rows: Sequence[Sequence[Any]], first: int, error: UsageError) -> InvalidRow:
        values = {name: rows[0][at] for at, name in self._used}
        return invalid_row(self._options, values, self._types, first, error)

    def _column(self, name: str, values: list[Any], first: int) -> Any:
        options = self._options
        if name == options.value_column:
            return self._payload(values, first)
        if name == options.not_before_column and name not in options.property_columns:
            return self._times(values, first)
        return self.array(name, values, self._types.get(name), first)

    def _payload(self, values: list[Any], first: int) -> Any:
        found = set(map(type, values)) - {type(None)}
        if found <= {str}:
            return self._texts(self._options.value_column, values, first)
        if found <= {str, *_BYTES}:
            return pa.array(
                [each.encode() if isinstance(each, str) else each and bytes(each) for each in values],
                pa.binary(),
            )
        at = next(at for at, each in enumerate(values) if not isinstance(each, str | None | _ANY_BYTES))
        raise InvalidPayload(
            f"{self._name_row(first + at)}: column {self._options.value_column!r} is of type "
            f"{type(values[at]).__name__}; a payload has 1 to {MAX_APPLICATION_DATA:,} bytes of string or "
            "binary: filter these rows out before posting"
        )

    def _texts(self, name: str, values: list[Any], first: int) -> Any:
        try:
            return pa.array(values, pa.string())
        except UnicodeEncodeError:
            at = next(at for at, each in enumerate(values) if each is not None and not _is_text(each))
            kind = InvalidPayload if name == self._options.value_column else InvalidProperty
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

    def array(self, name: str, values: list[Any], kind: Any, first: int, *, is_entry: bool = False) -> Any:
        """Build a column of properties; a map becomes a struct with a field for each key.

        Args:
            name: name of the column.
            values: value of each row.
            kind: property type; for a struct, a dictionary of types; None to derive it from the values.
            first: position of the first row in its partition.
            is_entry: whether the values are those of a key of a map.
        """
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
            lambda key, each: self.array(f"{name}.{key}", each, kinds.get(key), first, is_entry=True),
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
    """Return the same rows with plain columns instead of views: rows cannot be extracted from views."""
    for at, each in enumerate(batch.schema):
        if str(each.type) in _VIEWS:
            batch = batch.set_column(at, each.name, batch.column(at).cast(_VIEWS[str(each.type)]))
    return batch


def spread_maps(
    batch: RecordBatch, options: WriteOptions, first: int
) -> Iterator[tuple[int, RecordBatch] | InvalidRow]:
    """Convert maps into structs with a field for each key, which are encoded as columns.

    Args:
        batch: rows.
        options: options of the sink.
        first: position of the first row in its partition.

    Returns:
        Batches with the position of their first row, and the rows that cannot be posted.

    Raises:
        InvalidProperty: a key cannot be the name of a property.
    """
    maps = [name for name in options.property_columns if pa.types.is_map(batch.schema.field(name).type)]
    if not maps:
        yield first, batch
        return

    structs = RowColumns(options, batch.schema.names, None)

    def build(batch: RecordBatch, first: int) -> RecordBatch:
        for name in maps:
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, name, structs.array(name, batch.column(at).to_pylist(), None, first))
        return batch

    invalid = partial(invalid_record, options) if options.keeps_invalid_rows else None
    yield from in_parts(batch, first, build, invalid)


# rows that cannot be posted


class RowValidator:
    """Finds the rows for which a post is impossible: encodes the rows as for posting.

    The encoder decides: rows that it refuses are halved until a single row is left, and the error of the
    encoder is the reason.

    Args:
        options: options of the sink.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def check(self, batch: RecordBatch, first: int) -> Iterator[tuple[int, RecordBatch] | InvalidRow]:
        """Return the valid rows of a batch without maps, in parts, and the rows that cannot be posted.

        Args:
            batch: rows.
            first: position of the first row in its partition.
        """
        return in_parts(batch, first, self._encoded, partial(invalid_record, self._options))

    def _encoded(self, batch: RecordBatch, _: int) -> RecordBatch:
        """Return the rows, if all can be posted.

        Raises:
            UsageError: a row cannot be posted.
        """
        options = self._options
        for name, what in ((options.queue_column, "a queue"), (options.id_column, "an id")):
            if name and batch.column(name).null_count:
                raise UsageError(f"this row: column {name!r} is null, and every row needs {what}")
        if options.queue_column:
            for uri in pc.unique(batch.column(options.queue_column)).to_pylist():
                check_queue(uri)
        if options.guid_column:
            source_guids(batch.column(options.guid_column), this_row)
        if options.not_before_column:
            due_column(batch.column(options.not_before_column), this_row)
        encoder = TableEncoder(
            batch.schema, options.value_column, options.property_columns, name_row=this_row
        )
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
    elif isinstance(value, _ANY_BYTES):
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
    return len(sized) if isinstance(value, str | _ANY_BYTES) else 0


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
    if isinstance(value, _ANY_BYTES):
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
