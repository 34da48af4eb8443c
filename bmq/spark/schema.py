# SPDX-License-Identifier: Apache-2.0
"""The columns of DataFrames: their roles and property types in a sink, and the columns of a source.

Errors in the columns are found before the job starts, from the schema alone; the error names the column.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas import types as arrow_types

from bmq.errors import InvalidProperty, UsageError
from bmq.wire.constants import PropertyType
from bmq.wire.properties import encode_properties
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from bmq.spark.options import WriteOptions

#: pyarrow, which has no type hints. Spark starts Python processes to plan each query, and these import this
#: module: pyarrow.compute is left to the modules of the tasks, because loading it takes 40 ms.
pa: Any = importlib.import_module("pyarrow")
RecordBatch = Any

__all__ = [
    "SCALARS",
    "SOURCE_COLUMNS",
    "TYPES",
    "OnInvalidMessage",
    "OnInvalidRow",
    "RecordBatch",
    "arrow_schema_of",
    "check_columns",
    "check_queue",
    "check_readable",
    "pa",
    "resolve",
    "restored",
    "source_ddl",
]

#: Spark types by name, with their property types.
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

#: Types of properties, for errors.
SCALARS = "boolean, byte, short, int, bigint, string or binary"

_TEXT = ("string", "varchar", "char")

#: Spark types of keys, and of times.
KEYS = (*_TEXT, "binary", "byte", "short", "integer", "long")

TIMES = ("timestamp", "short", "integer", "long", "float", "double")


#: Name of the entry: a JSON object of names and types.
TYPES: Final = "bmq_types"
_TRUTHS = {"true": True, "false": False}
#: Columns of a source.
SOURCE_COLUMNS = (
    "value",
    "properties",
    "guid",
    "queue",
    "subscription",
    "redelivered",
    "receivedAt",
    "error",
)
_READABLE = ("boolean", "byte", "short", "integer", "long", "string", "binary")


def check_columns(schema: StructType, options: WriteOptions) -> dict[str, Any]:
    """Check that the columns with a role exist and can be posted.

    Returns:
        The property type of each property column; for a struct column, a dictionary of types. None for a map,
        whose numbers become INT64.

    Raises:
        UsageError: a column is missing, or has an unsupported type; the error names the column.
    """
    there = {field.name: field.dataType for field in schema.fields}
    options = options.resolved(list(there))
    payload = (
        "a payload must be string or binary: cast the column, or pack several columns with "
        "to_json(struct(...))"
    )
    for name, kinds, need in (
        (options.value_column, (*_TEXT, "binary"), payload),
        (options.queue_column, _TEXT, "the target queue must be a string"),
        (options.id_column, tuple(PROPERTY_TYPES), f"an id must be {SCALARS}"),
        (options.guid_column, _TEXT, "the GUID of a message must be a string of 32 hexadecimal digits"),
        (options.key_column, KEYS, "a key must be string, binary or an integer"),
        (
            options.not_before_column,
            TIMES,
            "a due time must be a timestamp, or a number of seconds since 1970",
        ),
    ):
        if name and there[name].typeName() not in kinds:
            raise UsageError(f"column {name!r} is of type {there[name].simpleString()}; {need}")
    return {name: _property_type(name, there[name]) for name in options.property_columns}


def resolve(name: str, names: Sequence[str]) -> str:
    """Return the column that a name means, as in Spark in any letter case; "" for none.

    With ``spark.sql.caseSensitive``, two columns may differ in case alone: then the exact name is meant.
    """
    if name in names:
        return name
    found = [each for each in names if each.lower() == name.lower()]
    return found[0] if len(found) == 1 else ""


def _property_type(name: str, kind: DataType) -> Any:
    from pyspark.sql.types import MapType, StructType

    if isinstance(kind, StructType):
        return {
            field.name: _scalar(f"{name}.{field.name}", field.dataType, field.name) for field in kind.fields
        }
    if isinstance(kind, MapType):
        if kind.keyType.typeName() not in _TEXT:
            raise UsageError(f"column {name!r}: the keys of a map of properties must be strings")
        _scalar(f"{name}[]", kind.valueType)
        return None
    return _scalar(name, kind, name)


def _scalar(name: str, kind: DataType, called: str | None = None) -> PropertyType:
    found = PROPERTY_TYPES.get(kind.typeName())
    if found is None:
        raise UsageError(
            f"column {name!r} is of type {kind.simpleString()}, and a property must be {SCALARS}: cast the "
            "column (to string, or to bigint in a whole unit), make a map of an array of pairs "
            "(map_from_entries), or omit the column"
        )
    if called is not None:
        encode_properties({called: True}, new=True)
    return found


def check_queue(uri: str) -> str:
    """Return the URI of a queue for writing.

    Raises:
        InvalidURI, UsageError: the URI is not legal, or not for writing.
    """
    parsed = QueueUri.parse(uri)
    if parsed.app_id:
        raise UsageError(
            f"{uri} names an application, and applications are for readers: write to {parsed.canonical}"
        )
    return uri


def restored(entries: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, PropertyType]]:
    """Return the properties of a map with their values in their types, and the types.

    Raises:
        InvalidProperty: a value does not have its type, or the entry with the types is malformed.
    """
    kinds = _kinds(entries.get(TYPES) or "{}")
    values: dict[str, Any] = {}
    types: dict[str, PropertyType] = {}
    for name, text in entries.items():
        if name == TYPES:
            continue
        values[name] = text
        if isinstance(text, str):
            kind = kinds.get(name, PropertyType.STRING)
            try:
                values[name] = _value(text, kind)
            except (KeyError, ValueError):
                raise InvalidProperty(
                    f"property {name!r} has the text {text!r:.60}, which is no {kind.name}: the entry "
                    f"{TYPES!r} of the map names this type. Change the value, or remove the entry"
                ) from None
            # Spark has no type for a single character. The broker compares it as a number, like a SHORT.
            types[name] = PropertyType.SHORT if kind is PropertyType.CHAR else kind
    return values, types


@lru_cache(256)
def _kinds(text: str) -> dict[str, PropertyType]:
    try:
        return {name: PropertyType[kind] for name, kind in json.loads(text).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidProperty(
            f"the entry {TYPES!r} of a map of properties must be a JSON object of names and types, as in the "
            f"rows of a queue, not {text!r:.60}"
        ) from None


def _value(text: str, kind: PropertyType) -> Any:
    if kind is PropertyType.STRING:
        return text
    if kind is PropertyType.BOOL:
        return _TRUTHS[text]
    if kind is PropertyType.BINARY:
        return base64.b64decode(text, validate=True)
    if kind is PropertyType.CHAR:
        (number,) = base64.b64decode(text, validate=True)
        return number
    return int(text)


class OnInvalidRow(StrEnum):
    """Handling of rows that cannot be posted."""

    FAIL = "fail"
    DROP = "drop"
    DEAD_LETTERS = "deadLetters"


class OnInvalidMessage(StrEnum):
    """Handling of undecodable messages."""

    FAIL = "fail"
    DROP = "drop"
    DEAD_LETTERS = "deadLetters"
    ROW = "row"


def source_ddl(properties: str = "", *, include_properties: bool = True) -> str:
    """Return the columns of a source.

    Args:
        properties: fields of the column ``properties``; "" for a map of strings.
        include_properties: whether there is a column ``properties``.
    """
    kind = f"STRUCT<{properties}>" if properties else "MAP<STRING, STRING>"
    column = f"properties {kind}, " if include_properties else ""
    return (
        f"value BINARY, {column}guid STRING, queue STRING, subscription STRING, "
        "redelivered BOOLEAN, receivedAt TIMESTAMP, error STRING"
    )


def arrow_schema_of(schema: StructType) -> Any:
    """Return the Arrow columns of a schema of Spark; times are in UTC."""
    make: Any = vars(arrow_types)["to_arrow_schema"]
    if "timezone" in inspect.signature(make).parameters:
        return make(schema, timezone="UTC")
    return make(schema)  # pyspark 4.0 and 4.1 always use UTC


def check_readable(schema: StructType) -> None:
    """Check the fields of the column ``properties``.

    Raises:
        UsageError: a field has a type that no property can have.
    """
    from pyspark.sql.types import StructType

    properties = schema["properties"].dataType
    for field in properties.fields if isinstance(properties, StructType) else ():
        if field.dataType.typeName() not in _READABLE:
            raise UsageError(
                f"property {field.name!r} cannot be read as {field.dataType.simpleString()}; "
                "possible types are boolean, byte, short, int, bigint, string and binary"
            )
