# SPDX-License-Identifier: Apache-2.0
"""The padding rule: 1 to 4 bytes, each with the number of padding bytes as its value; never absent."""

from __future__ import annotations

from bmq.errors import ProtocolError

#: ``PADDING[length % 4]`` is the padding for ``length`` bytes.
PADDING: tuple[bytes, bytes, bytes, bytes] = (b"\4\4\4\4", b"\3\3\3", b"\2\2", b"\1")


def padding(length: int) -> bytes:
    """Return the padding for ``length`` bytes."""
    return PADDING[length & 3]


def unpadded_length(buffer: bytes | memoryview, start: int, end: int, *, field: str) -> int:
    """Return the length of ``buffer[start:end]`` without its padding, read from the last byte.

    Raises:
        ProtocolError: the last byte is not 1 to 4, or exceeds the number of bytes.
    """
    pad = buffer[end - 1] if end > start else 0
    if not 1 <= pad <= 4 or pad > end - start:
        raise ProtocolError(
            f"the padding byte is {pad}; it must be 1 to 4", field=field, offset=max(start, end - 1)
        )
    return end - start - pad
