# SPDX-License-Identifier: Apache-2.0
"""Headers by the thousand: numpy arrays whose layout is that of the declarations.

:mod:`bmq.wire.codec` packs and unpacks one structure; here the same structures are packed and read as columns
of numpy arrays. Both come from one declaration, and a property test holds them equal. Needs numpy, so it is
imported by those modules alone that work on columns.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from bmq.wire.codec import Field, StructItem, StructureCodec

__all__ = ["Array", "Bytes", "at_offsets", "column", "dtype_of", "fill", "word_of"]

Array = np.ndarray[Any, Any]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_TYPES = {"B": "u1", "H": ">u2", "I": ">u4", "Q": ">u8", "b": "i1", "h": ">i2", "i": ">i4", "q": ">i8"}


def _slot_name(slot: StructItem) -> str:
    return "+".join(field.name for field in slot.fields)


def dtype_of(codec: StructureCodec) -> np.dtype[Any]:
    """Return the dtype of a structure: an item for each of its machine words, named by the fields in it."""
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
    """Write fields into an array of :func:`dtype_of` that is zero so far; fields that are left out stay 0.

    Args:
        array: the structures.
        codec: which.
        values: a number, or one for each item, that fits the field; for a field of bytes an array of them.
    """
    for name, value in values.items():
        slot, field = _place(codec, name)
        column = array[slot]
        if field.raw:
            column[:] = value
        elif field.shift or field.bits < column.dtype.itemsize * 8:
            column |= np.asarray(value, column.dtype) << field.shift
        else:
            column[:] = value


def column(array: Array, codec: StructureCodec, name: str) -> Array:
    """Return one field of every structure in an array of :func:`dtype_of`."""
    slot, field = _place(codec, name)
    values = array[slot]
    if field.raw or field.bits == values.dtype.itemsize * 8:
        return values
    native = values.astype(values.dtype.newbyteorder("="))
    return native >> field.shift & field.mask


def at_offsets(buffer: bytes, dtype: np.dtype[Any], offsets: Array) -> Array:
    """Return what is at these places of a buffer, wherever they are; each item must fit in it."""
    # One item begins at every byte; those that are wanted are copied.
    everywhere: Array = np.ndarray((len(buffer) - dtype.itemsize + 1,), dtype, buffer, 0, (1,))
    found: Array = everywhere[offsets]
    return found


def word_of(codec: StructureCodec, name: str) -> int:
    """Return which four-byte word of a structure a field begins in."""
    return codec.offset_of(name) // 4
