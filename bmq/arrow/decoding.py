# SPDX-License-Identifier: Apache-2.0
"""From PUSH messages to the columns of a table: the inverse of :mod:`bmq.arrow.encoding`.

Messages whose properties have the same names and types are read together, with numpy. Compressed, malformed
and unusual messages are read one by one. Results equal those of :mod:`bmq.wire.properties`, as a property
test checks. Needs numpy and pyarrow: the extra ``bmq[arrow]``.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bmq.arrow.columns import AREA, PROPERTY, Array, at_offsets, column, dtype_of
from bmq.arrow.push import PushColumns
from bmq.errors import ProtocolError, UsageError
from bmq.wire.constants import MAX_APPLICATION_DATA, PropertyType, PushFlags
from bmq.wire.message import NO_PROPERTIES, split_application_data
from bmq.wire.properties import Properties, split_properties

pa: Any = importlib.import_module("pyarrow")
pc: Any = importlib.import_module("pyarrow.compute")

#: A column and a column type of pyarrow, which has no type hints.
ArrowArray = Any
ArrowType = Any
RecordBatch = Any

_AREA = dtype_of(AREA)
_PROPERTY = dtype_of(PROPERTY)
_HAS_PROPERTIES = int(PushFlags.MESSAGE_PROPERTIES)

#: The wire format of property values of fixed size.
FIXED: dict[PropertyType, str] = {
    PropertyType.BOOL: "u1",
    PropertyType.CHAR: "u1",
    PropertyType.SHORT: ">i2",
    PropertyType.INT32: ">i4",
    PropertyType.INT64: ">i8",
}
#: The Arrow type of property values.
_TYPES: dict[PropertyType, ArrowType] = {
    PropertyType.BOOL: pa.bool_(),
    PropertyType.CHAR: pa.binary(),
    PropertyType.SHORT: pa.int16(),
    PropertyType.INT32: pa.int32(),
    PropertyType.INT64: pa.int64(),
    PropertyType.STRING: pa.string(),
    PropertyType.BINARY: pa.binary(),
}
#: The possible types of a property's column.
_COLUMNS = {*_TYPES.values(), pa.int8()}
# Messages in smaller groups are read singly. After this number of searches for a group, which examine all
# remaining messages each, all further messages are, too.
_WORTH_IT = 16
_SEARCHES = 64
# Maximum number of bytes to inflate at once: compressed messages may grow a thousandfold.
_MOST_INFLATED = 256 * 1024 * 1024
# The largest number of bytes that DEFLATE produces from one byte.
_RATIO = 1032


class Decoded(NamedTuple):
    """Some messages as columns.

    Attributes:
        rows: number of messages read, from the first.
        payload: the payloads, a binary array.
        properties: an array for each requested property, or a single map column.
        errors: the errors of unreadable messages, by row; payload and properties of these rows are null.
    """

    rows: int
    payload: ArrowArray
    properties: list[ArrowArray]
    errors: dict[int, ProtocolError]

    def readable(self) -> ArrowArray:
        """Return a boolean for each message: whether the message has no error."""
        return to_arrow(self.valid())

    def valid(self) -> Array:
        """Return :meth:`readable` for numpy."""
        valid = np.ones(self.rows, bool)
        valid[list(self.errors)] = False
        return valid


class _Alike(NamedTuple):
    """Messages whose properties have the same names and types.

    Attributes:
        rows: the rows of the messages.
        properties: type, starts of the values and ends of the values, by name, in wire order.
    """

    rows: Array
    properties: dict[str, tuple[PropertyType, Array, Array]]


class _Single(NamedTuple):
    """A message read separately; ``properties`` are decoded on demand."""

    row: int
    properties: Properties
    payload: bytes


class TableDecoder:
    """Makes columns from messages.

    Args:
        properties: the properties that become columns, with their types: boolean, a signed integer, string or
            binary. A value of a different type becomes null, and an integer out of range becomes null. A
            string column accepts every value: numbers, ``true`` and ``false``, and Base64 of binary. If None,
            a single map column contains all properties as strings.
        payload: whether to read payloads.
        limit: largest size in bytes of a message, decompressed.
        types: name of an entry of the map with the types of properties other than strings, a JSON object of
            names and types; "" for none.

    Raises:
        UsageError: no property can have the requested type.
    """

    def __init__(
        self,
        properties: Mapping[str, ArrowType] | None,
        *,
        payload: bool = True,
        limit: int = MAX_APPLICATION_DATA,
        types: str = "",
    ) -> None:
        self._types = types
        self._wanted = None if properties is None else list(properties.items())
        self._payload = payload
        self._limit = limit
        for name, kind in self._wanted or ():
            if kind not in _COLUMNS:
                raise UsageError(
                    f"property {name!r} cannot be read as {kind}; possible types are bool, int8, int16, "
                    "int32, int64, string and binary"
                )

    def decode(self, columns: PushColumns) -> Decoded:
        """Read all messages, or fewer if compressed messages become very large."""
        singles, errors, rows = self._inflate(columns)
        if rows < columns.count:
            columns = columns.part(0, rows)
        flags, compressions = columns.flags, columns.compressions
        plain = np.flatnonzero(compressions == 0)
        has = (flags[plain] & _HAS_PROPERTIES) != 0
        without, with_properties = plain[~has], plain[has]
        # Start of each payload; the bytes before the payload are properties.
        payload_starts = columns.starts.copy()
        alike: list[_Alike] = []
        if len(with_properties):
            good, odd = _measure(columns, with_properties, payload_starts)
            if self._wanted is None or self._wanted:
                alike, more = _sort(columns, good, payload_starts)
                odd = np.concatenate([odd, more])
            for row in np.sort(odd).tolist():
                self._read_single(columns, row, singles, errors)
        if len(without):
            alike.append(_Alike(without, {}))
        singles.sort()
        payload = self._payloads(columns, payload_starts, singles, errors) if self._payload else None
        properties = self._properties(columns, alike, singles, errors)
        decoded = Decoded(rows, payload, properties, errors)
        if errors and payload is not None:
            nothing = pa.scalar(None, pa.binary())
            decoded = decoded._replace(payload=pc.if_else(decoded.readable(), payload, nothing))
        return decoded

    # messages read singly

    def _inflate(self, columns: PushColumns) -> tuple[list[_Single], dict[int, ProtocolError], int]:
        """Read compressed messages; return the number of messages that can become columns at once."""
        singles: list[_Single] = []
        errors: dict[int, ProtocolError] = {}
        size = 0
        for row in np.flatnonzero(columns.compressions).tolist():
            if size > _MOST_INFLATED:
                return singles, errors, row
            self._read_single(columns, row, singles, errors)
            # A malformed message may have been inflated up to the limit before the error.
            wire = int(columns.stops[row] - columns.starts[row])
            size += len(singles[-1].payload) if row not in errors else min(self._limit, wire * _RATIO)
        return singles, errors, columns.count

    def _read_single(
        self, columns: PushColumns, row: int, singles: list[_Single], errors: dict[int, ProtocolError]
    ) -> None:
        try:
            properties, payload = split_application_data(
                columns.data(row),
                has_properties=bool(columns.flags[row] & _HAS_PROPERTIES),
                schema_id=int(columns.schema_ids[row]),
                compression=int(columns.compressions[row]),
                limit=self._limit,
            )
            if self._wanted is None or self._wanted:
                len(properties)  # Decode the properties.
        except ProtocolError as error:
            errors[row] = error
            properties, payload = NO_PROPERTIES, b""
        singles.append(_Single(row, properties, payload))

    # columns

    def _payloads(
        self, columns: PushColumns, starts: Array, singles: list[_Single], errors: dict[int, ProtocolError]
    ) -> ArrowArray:
        if not singles:
            return pieces(columns.buffer, starts, columns.stops)
        own = np.ones(columns.count, bool)
        own[[each.row for each in singles]] = False
        rest = np.flatnonzero(own)
        return _together(
            [
                (rest, pieces(columns.buffer, starts[rest], columns.stops[rest])),
                (_rows(singles), pa.array([each.payload for each in singles], pa.binary())),
            ]
        )

    def _properties(
        self,
        columns: PushColumns,
        alike: list[_Alike],
        singles: list[_Single],
        errors: dict[int, ProtocolError],
    ) -> list[ArrowArray]:
        if self._wanted is None:
            parts = [(each.rows, _maps(columns.buffer, each, self._types)) for each in alike]
            if singles:
                maps = [
                    None if each.row in errors else _texts_of(each.properties, self._types)
                    for each in singles
                ]
                parts.append((_rows(singles), pa.array(maps, MAP)))
            return [_together(parts, MAP)]
        arrays: list[ArrowArray] = []
        types_of = [each.properties.types for each in singles] if self._wanted else []
        for name, kind in self._wanted:
            parts = [(each.rows, _values(columns.buffer, each, name, kind)) for each in alike]
            by_type: dict[PropertyType | None, list[_Single]] = {}
            for single, types in zip(singles, types_of, strict=True):
                by_type.setdefault(types.get(name), []).append(single)
            parts += [(_rows(some), _single_values(some, name, own, kind)) for own, some in by_type.items()]
            arrays.append(_together(parts, kind))
        return arrays


#: The type of the column with all properties.
MAP: ArrowType = pa.map_(pa.string(), pa.string())


def _rows(singles: list[_Single]) -> Array:
    return np.array([each.row for each in singles], np.int64)


def _together(parts: list[tuple[Array, ArrowArray]], kind: ArrowType = None) -> ArrowArray:
    """Put the values of all rows into row order."""
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return pa.nulls(0, kind or pa.binary())
    if len(parts) == 1:
        return parts[0][1]
    rows = np.concatenate([part[0] for part in parts])
    back = np.empty(len(rows), np.int64)
    back[rows] = np.arange(len(rows))
    return pa.concat_arrays([part[1] for part in parts]).take(to_arrow(back))


def pieces(buffer: bytes, starts: Array, stops: Array) -> ArrowArray:
    """Return slices of a buffer as a binary array; no slice begins before the end of the previous one."""
    count = len(starts)
    if not count:
        return pa.nulls(0, pa.binary())
    # The gaps between slices are items too; take every second item.
    bounds = np.empty(2 * count, np.int32)
    bounds[::2] = starts
    bounds[1::2] = stops
    items = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(buffer)]
    )
    return items.take(to_arrow(np.arange(0, 2 * count, 2)))


def to_arrow(values: Array, valid: Array | None = None) -> ArrowArray:
    """Return numbers or booleans as an Arrow array.

    ``pa.array`` gives the same result, but imports pandas, which takes longer than many programs run.
    """
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if values.dtype == bool:
        packed = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [mask, pa.py_buffer(packed)])
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [mask, pa.py_buffer(np.ascontiguousarray(values))])


# where properties are


def _index(wanted: Array) -> Array | slice:
    """Return booleans as an index, which copies nothing if all are true."""
    return slice(None) if bool(wanted.all()) else wanted


def _measure(columns: PushColumns, rows: Array, payload_starts: Array) -> tuple[Array, Array]:
    """Find the size of each message's properties.

    Args:
        columns: the messages.
        rows: the rows of uncompressed messages with properties.
        payload_starts: receives the start of the payload for regular messages.

    Returns:
        The rows of regular messages, and the remaining rows.
    """
    fits = columns.stops[rows] - columns.starts[rows] > AREA.size
    odd, rows = rows[~fits], rows[_index(fits)]
    if not len(rows):
        return rows, odd
    starts = columns.starts[rows]
    headers = at_offsets(columns.buffer, _AREA, starts)
    lengths = column(headers, AREA, "areaWords").astype(np.int64) * 4
    usual = (
        (column(headers, AREA, "headerSize2x") == AREA.size // 2)
        & (column(headers, AREA, "propertyHeaderSize2x") == PROPERTY.size // 2)
        & (lengths > AREA.size)
        & (lengths <= columns.stops[rows] - starts)
    )
    payload_starts[rows] = np.where(usual, starts + lengths, starts)
    return rows[_index(usual)], np.concatenate([odd, rows[~usual]])


def _sort(columns: PushColumns, rows: Array, payload_starts: Array) -> tuple[list[_Alike], Array]:
    """Group messages by the names and types of the properties; also return the rows to read singly."""
    buffer = columns.buffer
    ends = payload_starts[rows]
    paddings = np.frombuffer(buffer, np.uint8)[ends - 1]
    padded = (paddings >= 1) & (paddings <= 4)
    left = [rows[~padded]]
    rows = rows[padded]
    if not len(rows):
        return [], left[0]
    # Messages with the same schema id usually have the same names. Use the id only to group: a redelivered
    # message may carry an outdated id. The lowest bit marks the message that introduces an id.
    ids = columns.schema_ids[rows] & 0xFFFE | (columns.schema_ids[rows] == 1)
    order = np.argsort(ids, kind="stable")
    bounds = np.flatnonzero(np.diff(ids[order])) + 1
    found: list[_Alike] = []
    searches = 0
    for part in np.split(rows[order], bounds):
        new = bool(columns.schema_ids[part[0]])
        while len(part) >= _WORTH_IT and searches < _SEARCHES:
            like = _like_first(columns, part, payload_starts, new=new)
            if like is None:
                left.append(part[:1])
                part = part[1:]
                continue
            searches += 1
            group, part = like
            if len(group.rows) < _WORTH_IT:
                left.append(group.rows)
            else:
                found.append(group)
        left.append(part)
    return found, np.concatenate(left)


def _like_first(
    columns: PushColumns, rows: Array, payload_starts: Array, *, new: bool
) -> tuple[_Alike, Array] | None:
    """Find the messages with the property names and types of the first message.

    Returns:
        The group, and the remaining rows; None if the first message cannot be read.
    """
    buffer = columns.buffer
    try:
        types = split_properties(columns.data(int(rows[0])), new)[0].types
    except ProtocolError:
        return None
    names = [name.encode("utf-8", "surrogateescape") for name in types]
    kinds = list(types.values())
    count = len(names)
    base = AREA.size + PROPERTY.size * count
    starts = columns.starts[rows]
    ends = payload_starts[rows]
    ends = ends - np.frombuffer(buffer, np.uint8)[ends - 1]
    counts = column(at_offsets(buffer, _AREA, starts), AREA, "numProperties")
    same = _index((counts == count) & (starts + base <= ends))
    here, starts, ends = rows[same], starts[same], ends[same]
    heads = at_offsets(buffer, np.dtype(f"V{PROPERTY.size * count}"), starts + AREA.size).view(_PROPERTY)
    heads = heads.reshape(len(here), count)
    fields = column(heads, PROPERTY, "valueField").astype(np.int64)
    good = (
        (column(heads, PROPERTY, "type") == np.array(kinds))
        & (column(heads, PROPERTY, "nameLength") == np.array([len(name) for name in names]))
    ).all(axis=1)
    value_starts: list[Array] = []
    value_stops: list[Array] = []
    position = starts + base
    for at, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        start = position + len(name)
        if not new:
            stop = start + fields[:, at]
        else:
            good &= starts + base + fields[:, at] == position
            stop = starts + base + fields[:, at + 1] if at + 1 < count else ends
        good &= (start <= stop) & (stop <= ends)
        if kind in FIXED:
            good &= stop - start == np.dtype(FIXED[kind]).itemsize
        value_starts.append(start)
        value_stops.append(stop)
        position = stop
    # Compare names only now: all names are known to be inside the messages.
    chosen = np.flatnonzero(good)
    for start, name in zip(value_starts, names, strict=True):
        raw = at_offsets(buffer, np.dtype(f"V{len(name)}"), start[chosen] - len(name))
        equal = (raw.view(np.uint8).reshape(-1, len(name)) == np.frombuffer(name, np.uint8)).all(axis=1)
        if not bool(equal.all()):
            chosen = chosen[equal]
    found = zip(types.items(), value_starts, value_stops, strict=True)
    some = chosen if len(chosen) < len(here) else slice(None)
    group = _Alike(here[some], {name: (kind, start[some], stop[some]) for (name, kind), start, stop in found})
    return group, rows[:0] if len(chosen) == len(rows) else rows[~np.isin(rows, group.rows)]


# values


def _values(buffer: bytes, alike: _Alike, name: str, wanted: ArrowType) -> ArrowArray:
    """Return the values of a property."""
    if name not in alike.properties:
        return pa.nulls(len(alike.rows), wanted)
    kind, starts, stops = alike.properties[name]
    if kind is PropertyType.BOOL:
        return _cast(to_arrow(at_offsets(buffer, np.dtype(FIXED[kind]), starts) == 1), wanted)
    if pa.types.is_integer(_TYPES[kind]):
        numbers = at_offsets(buffer, np.dtype(FIXED[kind]), starts)
        return _cast(to_arrow(numbers.astype(numbers.dtype.newbyteorder("="))), wanted)
    raw = pieces(buffer, starts, stops)
    return _cast(_strings(raw) if kind is PropertyType.STRING else raw, wanted)


def _single_values(
    singles: list[_Single], name: str, kind: PropertyType | None, wanted: ArrowType
) -> ArrowArray:
    """Return the values of a property of one type; the type is None without the property."""
    if kind is None:
        return pa.nulls(len(singles), wanted)
    values = [each.properties[name] for each in singles]
    plain = [_repaired(value) if isinstance(value, str) else value for value in values]
    return _cast(pa.array(plain, _TYPES[kind]), wanted)


def _cast(values: ArrowArray, wanted: ArrowType) -> ArrowArray:
    """Return the values of properties as the values of a column; null for a value that does not fit."""
    own = values.type
    if own == wanted:
        return values
    if pa.types.is_string(wanted):
        if pa.types.is_binary(own):
            return pa.array([_text(each) for each in values.to_pylist()], wanted)
        return values.cast(wanted)
    if not (pa.types.is_integer(own) and pa.types.is_integer(wanted)):
        return pa.nulls(len(values), wanted)
    numbers = np.frombuffer(values.buffers()[1], own.to_pandas_dtype(), len(values))
    cut = numbers.astype(wanted.to_pandas_dtype())
    fits = cut == numbers
    return to_arrow(cut, None if bool(fits.all()) else fits)


def _strings(raw: ArrowArray) -> ArrowArray:
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each.decode("utf-8", "replace") for each in raw.to_pylist()], pa.string())


def _maps(buffer: bytes, alike: _Alike, types: str) -> ArrowArray:
    """All properties of each message, as strings."""
    more = _types_of([(name, kind) for name, (kind, _, _) in alike.properties.items()], types)
    rows, count = len(alike.rows), len(alike.properties) + len(more)
    offsets = to_arrow(np.arange(rows + 1, dtype=np.int32) * np.int32(count))
    if not count:
        nothing = pa.nulls(0, pa.string())
        return pa.MapArray.from_arrays(offsets, nothing, nothing)
    names = pa.array([*map(_repaired, alike.properties), *(name for name, _ in more)], pa.string())
    keys = names.take(to_arrow(np.tile(np.arange(count), rows)))
    columns = [_values(buffer, alike, name, pa.string()) for name in alike.properties]
    values = pa.concat_arrays([*columns, *(pa.repeat(pa.scalar(text), rows) for _, text in more)])
    # The arrays are ordered by property; a map array needs them by message.
    order = np.arange(rows * count).reshape(count, rows).T.reshape(-1)
    return pa.MapArray.from_arrays(offsets, keys, values.take(to_arrow(order)))


def _texts_of(properties: Properties, types: str) -> list[tuple[str, str]]:
    texts = [(_repaired(name), _text(value)) for name, value in properties.items()]
    return texts + _types_of(properties.types.items(), types)


def _types_of(kinds: Iterable[tuple[str, PropertyType]], entry: str) -> list[tuple[str, str]]:
    """Return the entry with the types of the properties that are not strings; none if all are."""
    named = {_repaired(name): kind.name for name, kind in kinds if kind is not PropertyType.STRING}
    return [(entry, json.dumps(named))] if entry and named else []


def _repaired(text: str) -> str:
    """Return valid UTF-8, with U+FFFD for each invalid byte."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return _repaired(str(value))


_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def guid_texts(guids: Array) -> ArrowArray:
    """Return GUIDs as 32 upper-case hexadecimal digits each."""
    count = len(guids)
    raw = guids.view(np.uint8).reshape(count, 16)
    digits = np.empty((count, 32), np.uint8)
    digits[:, ::2] = _DIGITS[raw >> 4]
    digits[:, 1::2] = _DIGITS[raw & 15]
    offsets = np.arange(0, (count + 1) * 32, 32, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(digits)])
