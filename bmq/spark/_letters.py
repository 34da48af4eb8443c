# SPDX-License-Identifier: Apache-2.0
"""Dead letters of rows that cannot be posted: the encodable part of the row, and the error."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from bmq.conventions import DEAD_ATTEMPTS, DEAD_ERROR, DEAD_PREFIX, DEAD_PROPERTIES, DEAD_QUEUE, DEAD_RAW
from bmq.errors import UsageError
from bmq.spark._arrow import RecordBatch
from bmq.spark._batches import RowColumns
from bmq.spark._columns import Columns
from bmq.spark._invalid import InvalidRow
from bmq.wire.constants import MAX_APPLICATION_DATA, MAX_PROPERTIES, PropertyType
from bmq.wire.properties import PropertyInput, PropertyValue, encode_properties

__all__ = ["LETTER_PROPERTIES", "LETTER_VALUE", "Letter", "letter_of", "letter_tables"]

#: The columns of dead letters.
LETTER_VALUE, LETTER_PROPERTIES = "value", ("properties",)
# Limits for the original content in a dead letter: payload, value of a property, all properties.
_MOST_PAYLOAD = 1024 * 1024
_MOST_VALUE = 64 * 1024
_MOST_REST = 1024 * 1024
# Number of properties of a dead letter besides those of its row.
_ADDED = 5
_BYTES: Any = (bytes, bytearray, memoryview)
# Number of dead letters encoded at a time.
_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter to be posted.

    Attributes:
        row: original row.
        payload: payload.
        properties: properties.
    """

    row: InvalidRow
    payload: bytes
    properties: dict[str, PropertyInput]


def letter_of(row: InvalidRow) -> Letter:
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
            or not _legal(name, value)
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
    return Letter(row, payload, properties)


def _with_reason(
    row: InvalidRow, kept: dict[str, PropertyInput], rest: list[tuple[str, Any]], lost: list[str]
) -> dict[str, PropertyInput]:
    said = list(lost)
    properties: dict[str, PropertyInput] = {
        **kept,
        DEAD_ATTEMPTS: PropertyValue(PropertyType.INT32, 0),
        DEAD_ERROR: row.reason,
        DEAD_QUEUE: row.queue.encode("utf-8", "replace").decode()[:_MOST_VALUE],
    }
    if rest:
        properties[DEAD_PROPERTIES] = _rest(rest, said)
    if said:
        properties[DEAD_RAW] = "; ".join(said)[:_MOST_VALUE]
    return properties


def _too_large(payload: bytes, properties: dict[str, PropertyInput]) -> bool:
    try:
        return len(encode_properties(properties, new=True)) + len(payload) > MAX_APPLICATION_DATA
    except UsageError:
        return True


def _payload(row: InvalidRow, lost: list[str]) -> bytes:
    value = row.value
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, _BYTES):
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


def _legal(name: Any, value: Any) -> bool:
    try:
        encode_properties({name: value}, new=True)
        if isinstance(value, str):
            value.encode()
    except (TypeError, ValueError):
        return False
    return True


def _length(value: Any) -> int:
    sized: Any = value
    return len(sized) if isinstance(value, (str, *_BYTES)) else 0


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
    if isinstance(value, _BYTES):
        raw: Any = value
        return "BINARY", base64.b64encode(raw).decode()
    return "STRING", str(value).encode("utf-8", "replace").decode()


def letter_tables(
    letters: Sequence[Letter], name_row: Callable[[int], str]
) -> Iterator[tuple[RecordBatch, list[int]]]:
    """Build batches of dead letters, one for each group of similar neighbours, with their positions."""
    columns = Columns(value=LETTER_VALUE, properties=LETTER_PROPERTIES)
    for kinds, some in groupby(letters, _kinds):
        group = list(some)
        maker = RowColumns(columns, columns.named(), {"properties": dict(kinds)}, name_row)
        for start in range(0, len(group), _ROWS):
            rows = [(each.payload, _plain_values(each)) for each in group[start : start + _ROWS]]
            for made in maker.batches(rows, start):
                if isinstance(made, tuple):
                    first, batch = made
                    yield batch, [each.row.position for each in group[first : first + batch.num_rows]]


def _kinds(letter: Letter) -> tuple[tuple[str, PropertyType], ...]:
    return tuple((n, each.type) for n, each in letter.properties.items() if isinstance(each, PropertyValue))


def _plain_values(letter: Letter) -> dict[str, Any]:
    return {
        name: each.value if isinstance(each, PropertyValue) else each
        for name, each in letter.properties.items()
    }
