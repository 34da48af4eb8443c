"""From the columns of a DataFrame to messages: which column is what, and of which property type.

What is wrong with the columns is found before the job starts, from the schema alone, and named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
# Of these the Python type alone says too little.
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
    """Columns of one layout: turns rows into what is posted.

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
        entries: list[dict[str, Any]] = [{} for _ in range(count)]
        for name, at, _ in self._properties:
            _add(entries, name, columns[at], first)
        contents = [
            (payload, *sorted(each.items())) if each else (payload,)
            for payload, each in zip(payloads, entries, strict=True)
        ]
        properties = [self._typed(each) or None for each in entries]
        queues = list(columns[self._queue]) if self._queue is not None else None
        ids = list(columns[self._id]) if self._id is not None else None
        for what, column, found in (("queue", self._columns.queue, queues), ("id", self._columns.id, ids)):
            if found is not None and None in found:
                raise UsageError(
                    f"row {first + found.index(None)} of the partition: column {column!r} is null, "
                    f"and every row needs its {what}"
                )
        return RowData(payloads, properties, contents, queues, ids, size)

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

    def _typed(self, entries: dict[str, Any]) -> dict[str, PropertyInput]:
        """Name the type where the value alone does not."""
        for name, _, kind in self._properties:
            if isinstance(kind, dict):
                for field, each in cast("dict[str, PropertyType]", kind).items():
                    if each in _NARROW and field in entries:
                        entries[field] = Typed(each, entries[field])
            elif kind is not None and kind in _NARROW and name in entries:
                entries[name] = Typed(kind, entries[name])
        return entries

    def locate(self, data: RowData, first: int) -> UsageError | None:
        """Return which row's properties cannot be encoded, as an error that says so."""
        for at, properties in enumerate(data.properties):
            try:
                encode_properties(properties or {}, new=True)
            except InvalidProperty as error:
                return InvalidProperty(f"row {first + at} of the partition: {error}")
        return None


def _add(entries: list[dict[str, Any]], name: str, values: Sequence[Any], first: int) -> None:
    """Add one column's values; those of a map or struct under their own names."""
    for at, value in enumerate(values):
        if value is None:
            continue
        if value.__class__ in _PLAIN:
            entries[at][name] = value
        else:
            for key, each in _items(name, value):
                plain = bytes(each) if each.__class__ is bytearray else each
                if plain.__class__ in _PLAIN:
                    entries[at][key] = plain
                elif plain is not None:
                    raise InvalidProperty(
                        f"row {first + at} of the partition: column {name!r} holds a value of type "
                        f"{type(plain).__name__}, and a property is {_SCALARS}: cast it or leave it out"
                    )


_PLAIN = {str, int, bool, bytes}


def _items(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).items()
    if isinstance(value, list):
        return cast("list[tuple[str, Any]]", value)  # Arrow's form of a map
    if hasattr(value, "asDict"):
        return cast("dict[str, Any]", value.asDict()).items()
    return ((name, value),)


def check_queue(uri: str) -> str:
    """Return a queue URI that can be written to.

    Raises:
        InvalidURI, UsageError: it cannot.
    """
    parsed = QueueUri.parse(uri)
    if parsed.app_id:
        raise UsageError(f"{uri} names an appId, which only a reader has: write to {parsed.canonical}")
    return uri
