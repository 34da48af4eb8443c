# SPDX-License-Identifier: Apache-2.0
"""From messages to rows: the columns a queue has as a source."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.pandas import types as arrow_types

from bmq.errors import ProtocolError, UsageError
from bmq.spark._arrow import RecordBatch, pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from bmq.client.message import Message

__all__ = ["Received", "RowMaker", "source_ddl"]


class Received(NamedTuple):
    """A message, and how and when it came.

    Attributes:
        message: the message.
        subscription: the name of the subscription it came by; None for everything.
        at: when, in microseconds since 1970.
    """

    message: Message
    subscription: str | None
    at: int


_READERS: dict[str, Callable[[Received], Any]] = {
    "value": lambda each: each.message.data,
    "properties": lambda each: each.message.properties,
    "guid": lambda each: each.message.guid,
    "queue": lambda each: each.message.queue_uri,
    "subscription": lambda each: each.subscription,
    "redelivered": lambda each: each.message.redelivered,
    "receivedAt": lambda each: each.at,
}


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
    """Makes Arrow batches of one schema from messages.

    Args:
        schema: the columns wanted.

    Raises:
        UsageError: there is no such column.
    """

    def __init__(self, schema: StructType) -> None:
        unknown = [name for name in schema.fieldNames() if name not in _READERS]
        if unknown:
            raise UsageError(
                f"no column {', '.join(map(repr, unknown))} in a queue; there are: {', '.join(_READERS)}"
            )
        self._names = schema.fieldNames()
        self._properties = _property_reader(schema) if "properties" in self._names else None
        self.arrow_schema = _arrow_schema(schema)

    def make(self, received: Sequence[Received]) -> RecordBatch:
        """Return a row for each message.

        Raises:
            ProtocolError: a producer's data is malformed; the error names the message.
        """
        try:
            arrays = [
                pa.array(self._column(name, received), type=field.type)
                for name, field in zip(self._names, self.arrow_schema, strict=True)
            ]
        except ProtocolError as error:
            raise ProtocolError(f"message {_culprit(received)} cannot be read: {error.reason}") from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def _column(self, name: str, received: Sequence[Received]) -> list[Any]:
        if name == "properties" and self._properties is not None:
            return [self._properties(each.message.properties) for each in received]
        read = _READERS[name]
        return [read(each) for each in received]


def _culprit(received: Iterable[Received]) -> str:
    for each in received:
        try:
            len(each.message.properties)
            len(each.message.data)
        except ProtocolError:
            return f"{each.message.guid} of {each.message.queue_uri}"
    return "?"


def _arrow_schema(schema: StructType) -> Any:
    make: Any = vars(arrow_types)["to_arrow_schema"]
    if "timezone" in inspect.signature(make).parameters:
        return make(schema, timezone="UTC")
    return make(schema)  # pyspark 4.0 and 4.1 always take UTC


def _property_reader(schema: StructType) -> Callable[[Any], Any]:
    from pyspark.sql.types import StructType

    kind = schema["properties"].dataType
    if not isinstance(kind, StructType):
        return lambda properties: [(name, _text(value)) for name, value in properties.items()]
    fields: list[tuple[str, Callable[[Any], Any]]] = []
    for field in kind.fields:
        convert = _CONVERSIONS.get(field.dataType.typeName())
        if convert is None:
            raise UsageError(
                f"property {field.name!r} cannot be read as {field.dataType.simpleString()}; "
                "there are boolean, byte, short, int, bigint, string and binary"
            )
        fields.append((field.name, convert))
    return lambda properties: {name: convert(properties.get(name)) for name, convert in fields}


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _integer(bits: int) -> Callable[[Any], int | None]:
    limit = 1 << (bits - 1)

    def convert(value: Any) -> int | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
        return value if fits else None

    return convert


#: A value of another type becomes null, except that everything becomes a string.
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "boolean": lambda value: value if isinstance(value, bool) else None,
    "byte": _integer(8),
    "short": _integer(16),
    "integer": _integer(32),
    "long": _integer(64),
    "string": lambda value: None if value is None else _text(value),
    "binary": lambda value: value if isinstance(value, bytes) else None,
}
