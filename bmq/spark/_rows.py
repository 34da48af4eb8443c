# SPDX-License-Identifier: Apache-2.0
"""From what arrives to rows: the columns a queue has as a source."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas import types as arrow_types

from bmq.errors import UsageError
from bmq.spark._arrow import RecordBatch, pa
from bmq.spark._receiving import GUID, RECEIVED_AT, REDELIVERED, VALUE, Arrived

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["SOURCE_COLUMNS", "RowMaker", "source_ddl"]


#: The columns of a source.
SOURCE_COLUMNS = ("value", "properties", "guid", "queue", "subscription", "redelivered", "receivedAt")


def source_ddl(properties: str = "") -> str:
    """Return the columns of a source.

    Args:
        properties: the fields of the column ``properties``; a map of strings without them.
    """
    kind = f"STRUCT<{properties}>" if properties else "MAP<STRING, STRING>"
    return (
        f"value BINARY, properties {kind}, guid STRING, queue STRING, subscription STRING, "
        "redelivered BOOLEAN, receivedAt TIMESTAMP"
    )


class RowMaker:
    """Makes Arrow batches of one schema from what arrives.

    Args:
        schema: the columns wanted.

    Raises:
        UsageError: there is no such column, or no property can be read as such a type.

    Attributes:
        properties: the properties that are wanted, and their types; None for a map of all.
        arrow_schema: the columns.
    """

    def __init__(self, schema: StructType) -> None:
        unknown = [name for name in schema.fieldNames() if name not in SOURCE_COLUMNS]
        if unknown:
            raise UsageError(
                f"no column {', '.join(map(repr, unknown))} in a queue; there are: "
                f"{', '.join(SOURCE_COLUMNS)}"
            )
        self.arrow_schema = _arrow_schema(schema)
        self.properties: dict[str, Any] | None = {}
        if "properties" in schema.fieldNames():
            self.properties = _wanted(schema, self.arrow_schema.field("properties").type)

    def make(self, arrived: Arrived) -> RecordBatch:
        """Return a row for each message."""
        arrays = [self._column(field, arrived) for field in self.arrow_schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def _column(self, field: Any, arrived: Arrived) -> Any:
        batch = arrived.batch
        if field.name == "properties":
            if self.properties is None:
                return batch.column("properties").cast(field.type)
            columns = [batch.column(name) for name in self.properties]
            if not columns:
                return pa.array([{}] * batch.num_rows, field.type)
            return pa.StructArray.from_arrays(columns, fields=list(field.type))
        if field.name == "queue":
            return pa.repeat(pa.scalar(arrived.queue.uri, field.type), batch.num_rows)
        if field.name == "subscription":
            return pa.repeat(pa.scalar(arrived.subscription, field.type), batch.num_rows)
        return batch.column(_FOUND_IN[field.name]).cast(field.type)


_FOUND_IN = {"value": VALUE, "guid": GUID, "redelivered": REDELIVERED, "receivedAt": RECEIVED_AT}


def _arrow_schema(schema: StructType) -> Any:
    make: Any = vars(arrow_types)["to_arrow_schema"]
    if "timezone" in inspect.signature(make).parameters:
        return make(schema, timezone="UTC")
    return make(schema)  # pyspark 4.0 and 4.1 always take UTC


_READABLE = ("boolean", "byte", "short", "integer", "long", "string", "binary")


def _wanted(schema: StructType, kind: Any) -> dict[str, Any] | None:
    from pyspark.sql.types import StructType

    properties = schema["properties"].dataType
    if not isinstance(properties, StructType):
        return None
    for field in properties.fields:
        if field.dataType.typeName() not in _READABLE:
            raise UsageError(
                f"property {field.name!r} cannot be read as {field.dataType.simpleString()}; "
                "there are boolean, byte, short, int, bigint, string and binary"
            )
    return {field.name: field.type for field in kind}
