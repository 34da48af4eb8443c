# SPDX-License-Identifier: Apache-2.0
"""Application data: properties and payload of one message, compressed or not.

The old encoding compresses properties and payload together. The new encoding compresses only the payload and
leaves the properties in front readable.
"""

from __future__ import annotations

from typing import NamedTuple

from bmq.errors import InvalidPayload, ProtocolError
from bmq.wire.compression import (
    DEFAULT_LEVEL,
    compress,
    decompress,
    decompress_part,
    decompress_start,
)
from bmq.wire.constants import COMPRESSION_THRESHOLD, MAX_APPLICATION_DATA, Compression
from bmq.wire.properties import AREA_HEADER, Properties, properties_length, split_properties
from bmq.wire.shape import unreadable

NO_PROPERTIES = Properties()

# Plain integers instead of enumerators: tuples with these values are kept by the hundred thousand, and the
# garbage collector would have to track tuples that contain enumerators.
_NONE = int(Compression.NONE)
_ZLIB = int(Compression.ZLIB)


def join_application_data(
    payload: bytes,
    area: bytes = b"",
    *,
    new: bool = True,
    compression: int = _NONE,
    level: int = DEFAULT_LEVEL,
    threshold: int = COMPRESSION_THRESHOLD,
) -> tuple[bytes, int]:
    """Return the application data of a PUT, and the compression used.

    Args:
        payload: the message.
        area: the encoded properties, or ``b""``.
        new: whether the properties are in the new encoding.
        compression: the requested compression; data that would not shrink stays plain.
        level: zlib's level, 0 to 9, or -1 for its default.
        threshold: minimum number of bytes to compress.

    Raises:
        InvalidPayload: properties and payload exceed 64 MiB, the limit of readers for decompressed data.
    """
    plain = area + payload if area else payload
    if len(plain) > MAX_APPLICATION_DATA:
        raise too_large(len(plain))
    if compression == _ZLIB:
        # The part that stays plain, and the part to compress.
        head, rest = (area, (payload,)) if new else (b"", (area, payload))
        size = len(plain) - len(head)
        if size >= threshold:
            packed = compress(*rest, level=level)
            if len(packed) < size:
                return head + packed, _ZLIB
    return plain, _NONE


def too_large(size: int) -> InvalidPayload:
    """Return the error for properties and a payload that together are too large."""
    return InvalidPayload(
        f"properties and payload take {size:,} bytes; a message has at most {MAX_APPLICATION_DATA:,} (64 MiB)"
    )


def split_application_data(
    data: bytes, *, has_properties: bool, schema_id: int, compression: int, limit: int = MAX_APPLICATION_DATA
) -> tuple[Properties, bytes]:
    """Return the properties and the payload of a message's application data.

    Args:
        data: the application data without its padding.
        has_properties: the flag MESSAGE_PROPERTIES of the message.
        schema_id: the message's schema id; 0 is the old encoding, any other value the new one.
        compression: the message's compression, or its :class:`~bmq.wire.shape.Flaw`.
        limit: largest size in bytes of the decompressed data.

    Raises:
        ProtocolError: the compression is unknown, the message or its data malformed, the data too large.
    """
    if compression > _ZLIB:
        raise unreadable(compression)
    if not has_properties:
        return NO_PROPERTIES, decompress(data, limit) if compression else data
    new = schema_id != 0
    if compression and not new:
        data = decompress(data, limit)
    properties, length = split_properties(data, new)
    payload = data[length:]
    if compression and new:
        payload = decompress(payload, limit)
    return properties, payload


def properties_size(data: bytes, limit: int = MAX_APPLICATION_DATA) -> int:
    """Return the size in bytes of the properties in compressed application data of the old encoding.

    Args:
        data: the application data without its padding.
        limit: largest size in bytes of the properties.

    Raises:
        ProtocolError: the data is not a zlib stream, or does not begin with properties.
    """
    return properties_length(decompress_start(data, AREA_HEADER), limit=limit)


def read_properties(
    data: bytes, schema_id: int, compression: int, limit: int = MAX_APPLICATION_DATA
) -> Properties:
    """Return the properties of application data with properties; the payload is not read.

    Args:
        data: the application data without its padding.
        schema_id: the message's schema id; 0 is the old encoding, any other value the new one.
        compression: the message's compression, or its :class:`~bmq.wire.shape.Flaw`.
        limit: largest size in bytes of the decompressed data.

    Raises:
        ProtocolError: the compression is unknown, or the message or its properties are malformed.
    """
    if compression > _ZLIB:
        raise unreadable(compression)
    new = schema_id != 0
    if compression and not new:
        # The properties begin with their own size, so the payload after them need not be decompressed.
        data = decompress_start(data, properties_size(data, limit))
    return split_properties(data, new)[0]


class Beginning(NamedTuple):
    """The beginning of a message.

    Attributes:
        properties: all properties.
        payload: the first bytes of the payload, decompressed.
        size: size of the payload in bytes; None if only decompressing the whole payload could tell.
    """

    properties: Properties
    payload: bytes
    size: int | None


def read_beginning(
    data: bytes | memoryview, *, has_properties: bool, schema_id: int, compression: int, most: int
) -> Beginning:
    """Return the properties and the first bytes of the payload, regardless of the decompressed size.

    Args:
        data: the application data without its padding.
        has_properties: the flag MESSAGE_PROPERTIES of the message.
        schema_id: the message's schema id; 0 is the old encoding, any other value the new one.
        compression: the message's compression, or its :class:`~bmq.wire.shape.Flaw`.
        most: number of payload bytes to return, and largest size in bytes of the properties.

    Raises:
        ProtocolError: the compression is unknown, or the properties are malformed or larger than ``most``.
    """
    if compression > _ZLIB:
        raise unreadable(compression)
    view, new = memoryview(data), schema_id != 0
    length = 0
    whole = compression and not (has_properties and new)  # the properties are compressed too
    if has_properties:
        header = decompress_start(data, AREA_HEADER) if whole else bytes(view[:AREA_HEADER])
        length = properties_length(header, limit=MAX_APPLICATION_DATA)
        if length > most:
            raise ProtocolError(
                f"the properties take {length:,} bytes, more than the limit of {most:,}",
                field="MessagePropertiesHeader.areaWords",
            )
    if whole:
        plain, ended = decompress_part(data, length + most)
        area, payload = plain[:length], plain[length:]
    else:
        area = bytes(view[:length])
        if compression:
            payload, ended = decompress_part(view[length:], most)
        else:
            payload, ended = bytes(view[length : length + most]), True
    properties = split_properties(area, new)[0] if has_properties else NO_PROPERTIES
    len(properties)  # Decode the properties now: errors have to be raised here.
    size = len(payload) if compression else len(view) - length
    return Beginning(properties, payload, size if ended else None)
