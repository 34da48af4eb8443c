"""From the columns of a DataFrame to messages: which column is what, and of which property type.

What is wrong with the columns is found before the job starts, from the schema alone, and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bmq.errors import InvalidPayload, InvalidProperty, UsageError
from bmq.wire.constants import MAX_APPLICATION_DATA, PropertyType
from bmq.wire.properties import PropertyInput, Typed, encode_properties
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["BoundColumns", "Columns", "RowData", "check_columns", "check_queue"]

#: Spark's types by name, and the property type each becomes.
PROPERTY_TYPES = {
    "boolean": PropertyType.BOOL,
    "byte": PropertyType.SHORT,
    "short": PropertyType.SHORT,
    "integer": PropertyType.INT32,
    "long": PropertyType.INT64,
    "string": PropertyType.STRING,
    "varchar": PropertyType.STRING,
    "char": PropertyType.STRING,
    "binary": PropertyType.BINARY,
}
_SCALARS = "boolean, byte, short, int, bigint, string or binary"
_TEXT = ("string", "varchar", "char")
# For these the Python type does not say which property type is meant.
_NARROW = {PropertyType.SHORT, PropertyType.INT32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns of a DataFrame become what.

    Attributes:
        value: the payload, a string or binary column.
        properties: columns that become properties of their own name; the entries of a map or struct column
            become one each.
        queue: the column with each row's target queue; "" when all go to one.
        id: the column with each row's id, for ``guidMode=id``; "" for none.
    """

    value: str = "value"
    properties: tuple[str, ...] = ()
    queue: str = ""
    id: str = ""

    def named(self) -> list[str]:
        """Every column that is used."""
        return [name for name in (self.value, *self.properties, self.queue, self.id) if name]


class RowData(NamedTuple):
    """Some rows, ready to be given GUIDs and posted.

    Attributes:
        payloads: the payload of each.
        properties: the properties of each, None for none.
        contents: value and properties of each, for GUIDs made of them.
        queues: the target queue of each, where there is such a column.
        ids: the id of each, where there is such a column.
        size: the bytes of all payloads.
    """

    payloads: list[bytes]
    properties: list[dict[str, PropertyInput] | None]
    contents: list[Any]
    queues: list[str] | None
    ids: list[Any] | None
    size: int


def check_columns(schema: StructType, columns: Columns) -> dict[str, Any]:
    """Check that the columns are there and can be posted.

    Returns:
        The property type of each property column; a dictionary of them for one that is a struct. None for a
        map: its numbers are INT64.

    Raises:
        UsageError: a column is missing, or of a type that cannot be posted; the message names it.
    """
    there = {field.name: field.dataType for field in schema.fields}
    _check_there(columns, list(there))
    value = there[columns.value].typeName()
    if value not in (*_TEXT, "binary"):
        raise UsageError(
            f"column {columns.value!r} is of type {there[columns.value].simpleString()}, and a payload is "
            "string or binary: cast it, or pack several columns with to_json(struct(...))"
        )
    if columns.queue and there[columns.queue].typeName() not in _TEXT:
        raise UsageError(f"column {columns.queue!r} names the target queue: it must be a string column")
    if columns.id and there[columns.id].typeName() not in PROPERTY_TYPES:
        raise UsageError(
            f"column {columns.id!r} is of type {there[columns.id].simpleString()}; an id is {_SCALARS}"
        )
    return {name: _property_type(name, there[name]) for name in columns.properties}


def _check_there(columns: Columns, names: Sequence[str]) -> None:
    missing = [name for name in columns.named() if name not in names]
    if missing:
        raise UsageError(
            f"no column {', '.join(map(repr, missing))}; the DataFrame has: {', '.join(names) or 'none'}"
        )


def _property_type(name: str, kind: DataType) -> Any:
    from pyspark.sql.types import MapType, StructType

    if isinstance(kind, StructType):
        return {field.name: _scalar(f"{name}.{field.name}", field.dataType) for field in kind.fields}
    if isinstance(kind, MapType):
        if kind.keyType.typeName() not in _TEXT:
            raise UsageError(f"column {name!r}: the keys of a map of properties are strings")
        _scalar(f"{name}[]", kind.valueType, check_name=False)
        return None
    return _scalar(name, kind)


def _scalar(name: str, kind: DataType, *, check_name: bool = True) -> PropertyType:
    found = PROPERTY_TYPES.get(kind.typeName())
    if found is None:
        raise UsageError(
            f"column {name!r} is of type {kind.simpleString()}, and a property is {_SCALARS}: "
            "cast it (to string, or to bigint in a unit that is whole), or leave it out"
        )
    if check_name:
        encode_properties({name.rpartition(".")[2]: True}, new=True)
    return found


class BoundColumns:
    """Converts rows of one layout to what is posted.

    Args:
        columns: which column is what.
        names: the columns of a row, in order.
        types: what :func:`check_columns` found, or None to go by the values.
    """

    def __init__(self, columns: Columns, names: Sequence[str], types: dict[str, Any] | None) -> None:
        _check_there(columns, names)
        self._columns = columns
        index = {name: at for at, name in enumerate(names)}
        self._value = index[columns.value]
        self._queue = index[columns.queue] if columns.queue else None
        self._id = index[columns.id] if columns.id else None
        self._properties = [(name, index[name], (types or {}).get(name)) for name in columns.properties]

    @property
    def used(self) -> list[int]:
        """The positions of the columns that are read."""
        used = {self._value, *(at for _, at, _ in self._properties)}
        return sorted(used | {at for at in (self._queue, self._id) if at is not None})

    def convert(self, columns: Sequence[Sequence[Any]], first: int) -> RowData:
        """Return what is to be posted.

        Args:
            columns: the values of each column, by position.
            first: the position of the first row in its partition, for errors.

        Raises:
            InvalidPayload, InvalidProperty: a row cannot be posted; the message says which.
        """
        values = columns[self._value]
        payloads = [each.encode() if each.__class__ is str else each for each in values]
        size = self._check_payloads(payloads, first)
        count = len(payloads)
        plain: list[tuple[str, Sequence[Any]]] = []
        nested: list[tuple[Sequence[Any], Any]] = []
        raw: list[Sequence[Any]] = [payloads]
        for name, at, kind in self._properties:
            values = _normal(name, columns[at], first)
            raw.append(values)
            if tuple in set(map(type, values)):
                nested.append((values, kind))
            else:
                plain.append((name, _typed(values, kind)))
        # What a row contributes must not depend on its neighbours: GUIDs are made of it.
        contents = list(zip(*raw, strict=True))
        properties = _properties(count, plain)
        for values, kind in nested:
            _add_entries(properties, values, kind)
        queues = list(columns[self._queue]) if self._queue is not None else None
        ids = list(columns[self._id]) if self._id is not None else None
        for what, column, found in (("queue", self._columns.queue, queues), ("id", self._columns.id, ids)):
            if found is not None and None in found:
                raise UsageError(
                    f"row {first + found.index(None)} of the partition: column {column!r} is null, "
                    f"and every row needs its {what}"
                )
        return RowData(payloads, [each or None for each in properties], contents, queues, ids, size)

    def _check_payloads(self, payloads: list[Any], first: int) -> int:
        for at, payload in enumerate(payloads):
            if payload.__class__ is not bytes:
                if not isinstance(payload, bytearray | memoryview):
                    raise self._bad_payload(first + at, payload)
                payloads[at] = bytes(cast("bytearray", payload))
            elif not payload:
                raise self._bad_payload(first + at, payload)
        size = sum(map(len, payloads))
        if size > MAX_APPLICATION_DATA:
            for at, payload in enumerate(payloads):
                if not payload or len(payload) > MAX_APPLICATION_DATA:
                    raise self._bad_payload(first + at, payload)
        return size

    def _bad_payload(self, row: int, payload: Any) -> InvalidPayload:
        if payload is None:
            what = "is null"
        elif not isinstance(payload, bytes):
            what = f"is of type {type(payload).__name__}"
        else:
            what = f"has {len(payload):,} bytes"
        return InvalidPayload(
            f"row {row} of the partition: column {self._columns.value!r} {what}; a payload is 1 byte to "
            f"{MAX_APPLICATION_DATA:,} bytes of string or binary: filter such rows out before"
        )

    def locate(self, data: RowData, first: int) -> UsageError | None:
        """Return an error that names the row whose properties cannot be encoded; None if there is none."""
        for at, properties in enumerate(data.properties):
            try:
                encode_properties(properties or {}, new=True)
            except InvalidProperty as error:
                return InvalidProperty(f"row {first + at} of the partition: {error}")
        return None


_PLAIN = frozenset({str, int, bool, bytes})
_PLAIN_OR_NULL = _PLAIN | {type(None)}


def _normal(name: str, values: Sequence[Any], first: int) -> Sequence[Any]:
    """Return plain values as they are, and those of a map or struct as sorted tuples of name and value."""
    if set(map(type, values)) <= _PLAIN_OR_NULL:
        return values
    return [_normal_value(name, value, first + at) for at, value in enumerate(values)]


def _normal_value(name: str, value: Any, row: int) -> Any:
    if value.__class__ in _PLAIN_OR_NULL:
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(cast("bytearray", value))
    if isinstance(value, dict):
        items = list(cast("dict[str, Any]", value).items())
    elif isinstance(value, list):
        items = cast("list[tuple[str, Any]]", value)  # Arrow's form of a map
    elif hasattr(value, "asDict"):
        items = list(cast("dict[str, Any]", value.asDict()).items())
    else:
        raise InvalidProperty(
            f"row {row} of the partition: column {name!r} holds a value of type {type(value).__name__}, "
            f"and a property is {_SCALARS}: cast it or leave it out"
        )
    normal = [(key, _normal_value(f"{name}.{key}", each, row)) for key, each in items if each is not None]
    return tuple(sorted(normal, key=lambda item: item[0]))


class _TypedValues(dict[Any, Any]):
    """Typed values, each made only once, because values repeat."""

    def __init__(self, kind: PropertyType) -> None:
        super().__init__({None: None})
        self._kind = kind

    def __missing__(self, value: Any) -> Typed:
        if len(self) > 10_000:
            self.clear()
            self[None] = None
        typed = self[value] = Typed(self._kind, value)
        return typed


def _typed(values: Sequence[Any], kind: Any) -> Sequence[Any]:
    """Give values their property type where the Python type does not say it."""
    if kind not in (PropertyType.SHORT, PropertyType.INT32):
        return values
    return list(map(_TypedValues(kind).__getitem__, values))


def _properties(count: int, columns: list[tuple[str, Sequence[Any]]]) -> list[dict[str, PropertyInput]]:
    """Return the properties of each row; nulls are absent."""
    if not columns:
        return [{} for _ in range(count)]
    names = [name for name, _ in columns]
    rows = zip(*(values for _, values in columns), strict=True)
    if any(None in values for _, values in columns):
        return [
            {name: value for name, value in zip(names, row, strict=True) if value is not None} for row in rows
        ]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _add_entries(properties: list[dict[str, PropertyInput]], values: Sequence[Any], kind: Any) -> None:
    """Add what maps and structs hold; a column of the same name wins."""
    kinds = cast("dict[str, PropertyType]", kind) if isinstance(kind, dict) else {}
    for entry, value in zip(properties, values, strict=True):
        for name, each in value or ():
            entry.setdefault(name, Typed(kinds[name], each) if kinds.get(name) in _NARROW else each)


def check_queue(uri: str) -> str:
    """Return a queue URI that can be written to.

    Raises:
        InvalidURI, UsageError: it cannot.
    """
    parsed = QueueUri.parse(uri)
    if parsed.app_id:
        raise UsageError(f"{uri} names an appId, which only a reader has: write to {parsed.canonical}")
    return uri
