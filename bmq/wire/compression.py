# SPDX-License-Identifier: Apache-2.0
"""ZLIB compression of application data, with a limit for the decompressed size."""

from __future__ import annotations

import zlib

from bmq.errors import ProtocolError


class TooLarge(ProtocolError):
    """Data that decompresses to more than the limit."""


#: zlib's default compromise between speed and size; 1 is the fastest level, 9 the smallest output.
DEFAULT_LEVEL = zlib.Z_DEFAULT_COMPRESSION
# The parameters of the other clients: 15 window bits, memory level 8, strategy "filtered".
_PARAMETERS = (zlib.DEFLATED, 15, 8, zlib.Z_FILTERED)


def compress(*parts: bytes, level: int = DEFAULT_LEVEL) -> bytes:
    """Return the concatenated parts, compressed, as one zlib stream."""
    stream = zlib.compressobj(level, *_PARAMETERS)
    return b"".join([*(stream.compress(part) for part in parts), stream.flush()])


def decompress(data: bytes, limit: int) -> bytes:
    """Return what a zlib stream holds.

    Args:
        data: the whole stream.
        limit: how many bytes it may hold at most.

    Raises:
        TooLarge: it holds more than the limit.
        ProtocolError: not a zlib stream, cut short, or followed by other bytes.
    """
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, limit)
        if not stream.eof and stream.decompress(stream.unconsumed_tail, 1):
            raise TooLarge(f"decompresses to more than the limit of {limit} bytes", field="application data")
    except zlib.error as error:
        raise ProtocolError(f"not a zlib stream: {error}", field="application data") from error
    if not stream.eof:
        raise ProtocolError("the zlib stream is truncated", field="application data")
    if stream.unused_data:
        raise ProtocolError(
            f"{len(stream.unused_data)} bytes follow the zlib stream", field="application data"
        )
    return plain


def decompress_start(data: bytes | memoryview, size: int) -> bytes:
    """Return the first bytes of what a zlib stream holds, without decompressing the rest.

    Args:
        data: the stream.
        size: how many bytes, 1 or more; fewer are returned if there are no more.

    Raises:
        ProtocolError: not a zlib stream.
    """
    try:
        return zlib.decompressobj().decompress(data, size)
    except zlib.error as error:
        raise ProtocolError(f"not a zlib stream: {error}", field="application data") from error


def decompress_part(data: bytes | memoryview, size: int) -> tuple[bytes, bool]:
    """Return the first decompressed bytes of a zlib stream, and whether the stream ends after them.

    Args:
        data: the whole stream.
        size: number of bytes to decompress, 1 or more; a shorter stream gives fewer.

    Raises:
        ProtocolError: the data is not a zlib stream, or is truncated within these bytes.
    """
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, size)
        if not stream.eof and len(plain) == size:
            # zlib may have output the last byte without having read the end of the stream.
            return plain, not stream.decompress(stream.unconsumed_tail, 1) and stream.eof
    except zlib.error as error:
        raise ProtocolError(f"not a zlib stream: {error}", field="application data") from error
    if not stream.eof:
        raise ProtocolError("the zlib stream is truncated", field="application data")
    return plain, True
