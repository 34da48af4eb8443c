# SPDX-License-Identifier: Apache-2.0
"""Converts messages to rows: the columns of a queue as a source."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.pandas import types as arrow_types

from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.arrow.decoding import Decoded, TableDecoder, guid_texts, to_arrow
from bmq.arrow.push import PushColumns
from bmq.errors import ProtocolError, UsageError
from bmq.spark._arrow import RecordBatch, pa, pc
from bmq.spark._raw import Source, columns_of
from bmq.spark._typed import TYPES
from bmq.wire.constants import PushFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.printable import printable

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["SOURCE_COLUMNS", "OnInvalidMessage", "RowMaker", "source_ddl"]

logger = Log("bmq.spark")

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


class OnInvalidMessage(StrEnum):
    """Handling of undecodable messages."""

    FAIL = "fail"
    DROP = "drop"
    DEAD_LETTERS = "deadLetters"
    ROW = "row"


def source_ddl(properties: str = "") -> str:
    """Return the columns of a source.

    Args:
        properties: fields of the column ``properties``; "" for a map of strings.
    """
    kind = f"STRUCT<{properties}>" if properties else "MAP<STRING, STRING>"
    return (
        f"value BINARY, properties {kind}, guid STRING, queue STRING, subscription STRING, "
        "redelivered BOOLEAN, receivedAt TIMESTAMP, error STRING"
    )


class RowMaker:
    """Builds Arrow batches with one schema from the rows of a log.

    Args:
        schema: requested columns.
        on_invalid: handling of undecodable messages. Dead letters were put aside before the log was written;
            an undecodable message in the log nevertheless becomes a row.

    Raises:
        UsageError: a column does not exist, or has a type that no property can have.

    Attributes:
        arrow_schema: columns.
        dropped: number of undecodable messages that were omitted.
    """

    def __init__(self, schema: StructType, on_invalid: OnInvalidMessage = OnInvalidMessage.ROW) -> None:
        unknown = [name for name in schema.fieldNames() if name not in SOURCE_COLUMNS]
        if unknown:
            raise UsageError(
                f"a queue has no column {', '.join(map(repr, unknown))}; its columns are: "
                f"{', '.join(SOURCE_COLUMNS)}"
            )
        has_properties = "properties" in schema.fieldNames()
        if has_properties:
            _check_readable(schema)
        self.arrow_schema = _arrow_schema(schema)
        self.dropped = 0
        self._on_invalid = on_invalid
        self._limit = LogLimit(logger)
        properties: dict[str, Any] | None = {}
        if has_properties:
            kind = self.arrow_schema.field("properties").type
            properties = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else None
        self._properties = properties
        self._decoder = TableDecoder(properties, payload="value" in schema.fieldNames(), types=TYPES)

    def make(self, rows: RecordBatch, sources: Sequence[Source]) -> Iterator[RecordBatch]:
        """Decode rows of a log into a single batch, unless the batch would be very large.

        Args:
            rows: rows.
            sources: sources of the log.

        Raises:
            ProtocolError: a message cannot be decoded, with ``fail``.
        """
        columns = columns_of(rows)
        while columns.count:
            decoded = self._decoder.decode(columns)
            count = decoded.rows
            yield self._batch(rows.slice(0, count), columns.part(0, count), decoded, sources)
            rows, columns = rows.slice(count), columns.part(count, columns.count)

    def _batch(
        self, rows: RecordBatch, columns: PushColumns, decoded: Decoded, sources: Sequence[Source]
    ) -> RecordBatch:
        arrays = [self._column(field, rows, columns, decoded, sources) for field in self.arrow_schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)
        if not decoded.errors or self._on_invalid in (OnInvalidMessage.ROW, OnInvalidMessage.DEAD_LETTERS):
            return batch
        row, error = min(decoded.errors.items())
        source: int = rows.column(5)[row].as_py()
        queue = sources[source][0]
        name = f"message {guid_to_text(columns.guids[row].tobytes())} of {queue} cannot be decoded"
        if self._on_invalid is OnInvalidMessage.FAIL:
            raise ProtocolError(
                f"{name}: {error.reason}. The message is in the log of this read, and not confirmed; with "
                "another onInvalidMessage (row, drop) the query continues with the same batch"
            ) from error
        self.dropped += len(decoded.errors)
        self._limit.warning("dropped", "%s, and is omitted: %s", name, printable(error.reason))
        good = np.ones(columns.count, bool)
        good[list(decoded.errors)] = False
        return batch.filter(to_arrow(good))

    def _column(
        self,
        field: Any,
        rows: RecordBatch,
        columns: PushColumns,
        decoded: Decoded,
        sources: Sequence[Source],
    ) -> Any:
        name, kind = field.name, field.type
        if name == "value":
            return _with_raw(decoded, rows.column(0)).cast(kind)
        if name == "properties":
            return self._properties_column(kind, decoded)
        if name == "guid":
            return guid_texts(columns.guids).cast(kind)
        if name == "redelivered":
            return to_arrow((columns.flags & PushFlags.OUT_OF_ORDER) != 0)
        if name == "receivedAt":
            return rows.column(6).cast(kind)
        if name == "error":
            return _reasons(decoded.errors, columns.count, kind)
        values = [uri if name == "queue" else subscription for uri, subscription in sources]
        if len(values) == 1:
            return pa.repeat(pa.scalar(values[0], kind), rows.num_rows)
        return pa.array(values, kind).take(rows.column(5))

    def _properties_column(self, kind: Any, decoded: Decoded) -> Any:
        if self._properties is None:
            return decoded.properties[0].cast(kind)
        if not decoded.properties:
            return pa.array([{}] * decoded.rows, kind)
        return pa.StructArray.from_arrays(decoded.properties, fields=list(kind))


def _with_raw(decoded: Decoded, data: Any) -> Any:
    """Return the payloads; for undecodable messages, all delivered bytes."""
    if not decoded.errors:
        return decoded.payload
    good = np.ones(decoded.rows, bool)
    good[list(decoded.errors)] = False
    return pc.if_else(to_arrow(good), decoded.payload, data)


def _reasons(errors: Mapping[int, ProtocolError], count: int, kind: Any) -> Any:
    if not errors:
        return pa.nulls(count, kind)
    return pa.array([errors[row].reason if row in errors else None for row in range(count)], kind)


def _arrow_schema(schema: StructType) -> Any:
    make: Any = vars(arrow_types)["to_arrow_schema"]
    if "timezone" in inspect.signature(make).parameters:
        return make(schema, timezone="UTC")
    return make(schema)  # pyspark 4.0 and 4.1 always use UTC


_READABLE = ("boolean", "byte", "short", "integer", "long", "string", "binary")


def _check_readable(schema: StructType) -> None:
    from pyspark.sql.types import StructType

    properties = schema["properties"].dataType
    for field in properties.fields if isinstance(properties, StructType) else ():
        if field.dataType.typeName() not in _READABLE:
            raise UsageError(
                f"property {field.name!r} cannot be read as {field.dataType.simpleString()}; "
                "possible types are boolean, byte, short, int, bigint, string and binary"
            )
