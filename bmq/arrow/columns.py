# SPDX-License-Identifier: Apache-2.0
"""Headers by the thousand, as numpy arrays of the words that :mod:`bmq.wire.codec` packs one by one.

The module needs numpy, so only modules for columns import this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bmq.wire.codec import ACK_MESSAGE, PROPERTIES_HEADER, PROPERTY_HEADER, PUSH_HEADER, PUT_HEADER, Words
from bmq.wire.shape import SHAPE

Array = np.ndarray[Any, Any]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

# All bytes of the structures belong to a word, so that numpy copies them.
PUT = PUT_HEADER.words(
    "flags+messageWords", SHAPE, "queueId", "messageGUID", "crc32c", "schemaId", "reserved"
)
PUSH = PUSH_HEADER.words("flags+messageWords", SHAPE, "queueId", "messageGUID", "schemaId", "reserved")
ACK = ACK_MESSAGE.words("reserved+status+correlationId", "messageGUID", "queueId")
AREA = PROPERTIES_HEADER.words(
    "reserved+propertyHeaderSize2x+headerSize2x+areaWords", "reserved2", "numProperties"
)
PROPERTY = PROPERTY_HEADER.words("reserved+type+valueField", "reserved2+nameLength")

_TYPES = {"B": "u1", "H": ">u2", "I": ">u4", "i": ">i4"}


def dtype_of(words: Words) -> np.dtype[Any]:
    """Return the dtype of a structure: an item for each machine word, named after the fields in the word."""
    kinds = [
        (word, f"V{letter[:-1]}" if letter.endswith("s") else _TYPES[letter])
        for word, letter in words.formats.items()
    ]
    return np.dtype(kinds)


def fill(array: Array, words: Words, **values: Any) -> None:
    """Write fields into a zeroed array of :func:`dtype_of`; omitted fields stay 0.

    Args:
        array: the structures.
        words: the words of the structures.
        values: for each field a number, or an array with a number for each structure; for a field of bytes,
            an array of bytes. Numbers have to fit the field.
    """
    for name, value in values.items():
        word = words.word_of(name)
        if word == name:
            array[word][:] = value
        else:
            array[word] |= np.asarray(value, array[word].dtype) << words.shift(name)


def column(array: Array, words: Words, name: str) -> Array:
    """Return one field of every structure in an array of :func:`dtype_of`."""
    word = words.word_of(name)
    values = array[word]
    if word == name:
        return values
    native = values.astype(values.dtype.newbyteorder("="))
    found: Array = native >> native.dtype.type(words.shift(name)) & native.dtype.type(words.mask(name))
    return found


def at_offsets(buffer: bytes, dtype: np.dtype[Any], offsets: Array) -> Array:
    """Return the items at the given offsets of a buffer, aligned or not. Items must end inside the buffer."""
    # As bytes: numpy copies structures field by field.
    plain = np.dtype(f"V{dtype.itemsize}") if dtype.fields else dtype
    found: Array = _everywhere(buffer, plain)[offsets]
    return found.view(dtype) if dtype.fields else found


def _everywhere(buffer: bytes | bytearray, dtype: np.dtype[Any]) -> Array:
    """Return a view with an item at every byte; indexing copies the requested items."""
    return np.ndarray((len(buffer) - dtype.itemsize + 1,), dtype, buffer, 0, (1,))


def rewrite(buffer: bytearray, words: Words, offsets: Array, **values: Any) -> None:
    """Write fields into the structures at some offsets of a buffer, aligned or not; the fields must be 0.

    Args:
        buffer: the buffer, which contains the whole structures.
        words: the words of the structures.
        offsets: the start of each structure; structures do not overlap.
        values: as for :func:`fill`.
    """
    everywhere = _everywhere(buffer, np.dtype(f"V{words.size}"))
    copies = everywhere[offsets]
    fill(copies.view(dtype_of(words)), words, **values)
    everywhere[offsets] = copies
