# SPDX-License-Identifier: Apache-2.0
"""Which column of a DataFrame becomes what, and of which property type.

What is wrong with the columns is found before the job starts, from the schema alone, and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bmq.errors import UsageError
from bmq.wire.constants import PropertyType
from bmq.wire.properties import encode_properties
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["SCALARS", "Columns", "check_columns", "check_queue", "check_there"]

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
#: What a property may be, for errors.
SCALARS = "boolean, byte, short, int, bigint, string or binary"
_TEXT = ("string", "varchar", "char")
#: Spark's types of a key, and of a time.
KEYS = (*_TEXT, "binary", "byte", "short", "integer", "long")
TIMES = ("timestamp", "short", "integer", "long", "float", "double")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns of a DataFrame become what.

    Attributes:
        value: the payload, a string or binary column.
        properties: columns that become properties of their own name; the entries of a map or struct column
            become one each.
        queue: the column with each row's target queue; "" when all go to one.
        id: the column with each row's id, for ``guidMode=id``; "" for none.
        guid: the column with the GUID of the message that each row was read from, for ``guidMode=source``; ""
            for none.
        key: the column with each row's key for consumer groups; "" for none.
        not_before: the column that says when each row's message is due; "" for none.
    """

    value: str = "value"
    properties: tuple[str, ...] = ()
    queue: str = ""
    id: str = ""
    guid: str = ""
    key: str = ""
    not_before: str = ""

    def named(self) -> list[str]:
        """Every column that is used."""
        single = (self.queue, self.id, self.guid, self.key, self.not_before)
        return [name for name in (self.value, *self.properties, *single) if name]


def check_columns(schema: StructType, columns: Columns) -> dict[str, Any]:
    """Check that the columns are there and can be posted.

    Returns:
        The property type of each property column; a dictionary of them for one that is a struct. None for a
        map: its numbers are INT64.

    Raises:
        UsageError: a column is missing, or of a type that cannot be posted; the message names it.
    """
    there = {field.name: field.dataType for field in schema.fields}
    check_there(columns, list(there))
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
            f"column {columns.id!r} is of type {there[columns.id].simpleString()}; an id is {SCALARS}"
        )
    if columns.guid and there[columns.guid].typeName() not in _TEXT:
        raise UsageError(
            f"column {columns.guid!r} is of type {there[columns.guid].simpleString()}; the GUID of a message "
            "is a string of 32 hexadecimal digits: drop the column, or choose another guidMode"
        )
    if columns.key and there[columns.key].typeName() not in KEYS:
        raise UsageError(
            f"column {columns.key!r} is of type {there[columns.key].simpleString()}; a key is string, binary "
            "or an integer"
        )
    if columns.not_before and there[columns.not_before].typeName() not in TIMES:
        raise UsageError(
            f"column {columns.not_before!r} is of type {there[columns.not_before].simpleString()}; when a "
            "message is due is a timestamp, or a number of seconds since 1970"
        )
    return {name: _property_type(name, there[name]) for name in columns.properties}


def check_there(columns: Columns, names: Sequence[str]) -> None:
    """Raise unless every column is there.

    Raises:
        UsageError: one is missing.
    """
    missing = [name for name in columns.named() if name not in names]
    if missing:
        raise UsageError(
            f"no column {', '.join(map(repr, missing))}; the DataFrame has: {', '.join(names) or 'none'}"
        )


def _property_type(name: str, kind: DataType) -> Any:
    from pyspark.sql.types import MapType, StructType

    if isinstance(kind, StructType):
        return {
            field.name: _scalar(f"{name}.{field.name}", field.dataType, field.name) for field in kind.fields
        }
    if isinstance(kind, MapType):
        if kind.keyType.typeName() not in _TEXT:
            raise UsageError(f"column {name!r}: the keys of a map of properties are strings")
        _scalar(f"{name}[]", kind.valueType)
        return None
    return _scalar(name, kind, name)


def _scalar(name: str, kind: DataType, called: str | None = None) -> PropertyType:
    found = PROPERTY_TYPES.get(kind.typeName())
    if found is None:
        raise UsageError(
            f"column {name!r} is of type {kind.simpleString()}, and a property is {SCALARS}: "
            "cast it (to string, or to bigint in a unit that is whole), or leave it out"
        )
    if called is not None:
        encode_properties({called: True}, new=True)
    return found


def check_queue(uri: str) -> str:
    """Return a queue URI that can be written to.

    Raises:
        InvalidURI, UsageError: it cannot.
    """
    parsed = QueueUri.parse(uri)
    if parsed.app_id:
        raise UsageError(f"{uri} names an appId, which only a reader has: write to {parsed.canonical}")
    return uri
