# SPDX-License-Identifier: Apache-2.0
"""Headers by the thousand, as numpy arrays.

:mod:`bmq.wire.codec` packs and unpacks one structure; this module packs and reads columns of structures. Both
derive from one declaration, and a property test compares both. The module needs numpy, so only modules for
columns import this module.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from bmq.wire.codec import Field, StructItem, StructureCodec

__all__ = ["Array", "Bytes", "at_offsets", "column", "dtype_of", "fill", "rewrite"]

Array = np.ndarray[Any, Any]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_TYPES = {"B": "u1", "H": ">u2", "I": ">u4", "Q": ">u8", "b": "i1", "h": ">i2", "i": ">i4", "q": ">i8"}


def _slot_name(slot: StructItem) -> str:
    return "+".join(field.name for field in slot.fields)


def dtype_of(codec: StructureCodec) -> np.dtype[Any]:
    """Return the dtype of a structure: an item for each machine word, named after the fields in the word."""
    return np.dtype([(_slot_name(slot), _type_of(slot)) for slot in codec.slots])


def _type_of(slot: StructItem) -> str:
    letter = slot.format[-1]
    return f"V{slot.format[:-1]}" if letter == "s" else _TYPES[letter]


@cache
def _place(codec: StructureCodec, name: str) -> tuple[str, Field]:
    for slot in codec.slots:
        for field in slot.fields:
            if field.name == name:
                return _slot_name(slot), field
    raise TypeError(f"{codec.name} has no field {name}")


def fill(array: Array, codec: StructureCodec, **values: Any) -> None:
    """Write fields into a zeroed array of :func:`dtype_of`; omitted fields stay 0.

    Args:
        array: the structures.
        codec: the codec of the structures.
        values: for each field a number, or an array with a number for each structure; for a field of bytes,
            an array of bytes. Numbers have to fit the field.
    """
    for name, value in values.items():
        slot, field = _place(codec, name)
        column = array[slot]
        if field.raw:
            column[:] = value
        elif column.dtype.kind == "V":
            # A width without a machine word.
            width = column.dtype.itemsize
            number = np.zeros(len(array), ">u8")
            number |= (np.asarray(value, np.int64) & field.mask).astype(np.uint64) << np.uint64(field.shift)
            raw = number.view(np.uint8).reshape(-1, 8)[:, 8 - width :] | _bytes_of(column)
            column[:] = np.ascontiguousarray(raw).view(column.dtype)[:, 0]
        elif field.signed and field.bits < column.dtype.itemsize * 8:
            column |= (np.asarray(value, np.int64) & field.mask).astype(column.dtype) << field.shift
        elif field.shift or field.bits < column.dtype.itemsize * 8:
            column |= np.asarray(value, column.dtype) << field.shift
        else:
            column[:] = value


def column(array: Array, codec: StructureCodec, name: str) -> Array:
    """Return one field of every structure in an array of :func:`dtype_of`."""
    slot, field = _place(codec, name)
    values = array[slot]
    if field.raw or (field.bits == values.dtype.itemsize * 8 and values.dtype.kind != "V"):
        return values
    if values.dtype.kind == "V":
        eight = np.zeros((values.size, 8), np.uint8)
        eight[:, 8 - values.dtype.itemsize :] = _bytes_of(values)
        native = eight.view(">u8").reshape(values.shape).astype(np.uint64)
    else:
        native = values.astype(values.dtype.newbyteorder("="))
    return native >> native.dtype.type(field.shift) & native.dtype.type(field.mask)


def _bytes_of(column: Array) -> Array:
    width = column.dtype.itemsize
    return np.frombuffer(np.ascontiguousarray(column).tobytes(), np.uint8).reshape(-1, width)


def at_offsets(buffer: bytes, dtype: np.dtype[Any], offsets: Array) -> Array:
    """Return the items at the given offsets of a buffer, aligned or not. Items must end inside the buffer."""
    # As bytes: numpy copies structures field by field.
    plain = np.dtype(f"V{dtype.itemsize}") if dtype.fields else dtype
    found: Array = _everywhere(buffer, plain)[offsets]
    return found.view(dtype) if dtype.fields else found


def _everywhere(buffer: bytes | bytearray, dtype: np.dtype[Any]) -> Array:
    """Return a view with an item at every byte; indexing copies the requested items."""
    return np.ndarray((len(buffer) - dtype.itemsize + 1,), dtype, buffer, 0, (1,))


def rewrite(buffer: bytearray, codec: StructureCodec, offsets: Array, **values: Any) -> None:
    """Write fields into the structures at some offsets of a buffer, aligned or not; the fields must be 0.

    Args:
        buffer: the buffer, which contains the whole structures.
        codec: the codec of the structures.
        offsets: the start of each structure; structures do not overlap.
        values: as for :func:`fill`.
    """
    everywhere = _everywhere(buffer, np.dtype(f"V{codec.size}"))
    copies = everywhere[offsets]
    fill(copies.view(dtype_of(codec)), codec, **values)
    everywhere[offsets] = copies
