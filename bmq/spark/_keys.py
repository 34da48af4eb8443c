# SPDX-License-Identifier: Apache-2.0
"""Columns with a special role: the ordering key, the due time, and the source GUID."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from bmq.errors import UsageError
from bmq.spark._arrow import pa
from bmq.wire.keys import key_bucket

__all__ = ["bucket_column", "due_column", "source_guids"]

_POLYNOMIAL = 0x82F63B78
# Longer keys are faster singly, in C.
_LONG = 40
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


def _table() -> np.ndarray[Any, Any]:
    table: np.ndarray[Any, Any] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ (table & 1) * np.uint32(_POLYNOMIAL)
    return table


_TABLE = _table()


def bucket_column(keys: Any) -> Any:
    """Return the property ``bmq_bucket`` of each row: the CRC-32C of the key, without the highest bit.

    The n-th bytes of all rows are processed at once: for short keys, three times as fast as row by row.

    Args:
        keys: Arrow array of text, bytes or integers.

    Returns:
        An array of int32, null for null keys.

    Raises:
        UsageError: the keys have another type.
    """
    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    kind = keys.type
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        keys = keys.cast(pa.string())
    elif not any(is_kind(kind) for is_kind in _TEXTS):
        raise UsageError(f"a key must be text, bytes or an integer, not {kind}")
    if not pa.types.is_large_binary(kind):
        keys = keys.cast(pa.large_binary())
    _, offsets, data = keys.buffers()
    count = len(keys)
    ends = np.frombuffer(offsets, np.int64, count + 1, keys.offset * 8)
    content = np.frombuffer(data if data is not None else b"", np.uint8)
    lengths = np.diff(ends)
    # Longest first, so that the keys with an n-th byte form a prefix.
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = ends[:-1][order], lengths[order]
    sums: np.ndarray[Any, Any] = np.full(count, 0xFFFFFFFF, np.uint32)
    few = int(np.searchsorted(-lengths, -_LONG, "left"))
    for at in range(int(lengths[few]) if few < count else 0):
        rest = slice(few, int(np.searchsorted(-lengths, -at, "left")))
        step = content[starts[rest] + at] ^ (sums[rest] & 0xFF)
        sums[rest] = _TABLE[step] ^ (sums[rest] >> 8)
    sums = ~sums & 0x7FFFFFFF
    for at in range(few):
        sums[at] = key_bucket(content[starts[at] : starts[at] + lengths[at]].tobytes())
    buckets = np.empty(count, np.int32)
    buckets[order] = sums.astype(np.int32)
    return pa.array(buckets, mask=np.asarray(keys.is_null()))


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
