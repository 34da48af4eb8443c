# SPDX-License-Identifier: Apache-2.0
"""The bucket of a key: which messages have to stay in order among themselves."""

from __future__ import annotations

from typing import Final, TypeAlias

from bmq import _checks
from bmq.errors import InvalidArgument
from bmq.wire.crc import crc32c

__all__ = ["Key", "key_bucket"]

#: What must stay in order: text, bytes, or an integer.
Key: TypeAlias = str | bytes | int

# Writing the digits of an integer takes time that grows with the square of its length.
_MOST_BITS: Final = 4096


def key_bucket(key: Key) -> int:
    """Return the bucket of a key, 0 to 2**31 - 1: the value of the property ``bmq_bucket``.

    It is the CRC-32C of the key without its highest bit, so that it fits a 32-bit integer property: text as
    UTF-8, bytes as they are, an integer as its decimal digits. Groups take the remainder by as many buckets
    as they have. The page *Conventions* of the documentation has vectors.

    Raises:
        InvalidArgument: it is none of these.
    """
    return crc32c(_as_bytes(key)) & 0x7FFF_FFFF


def _as_bytes(key: object) -> bytes:
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        try:
            return str.encode(key)
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"the key {_checks.shown(key)} is not legal text: {error}") from None
    if isinstance(key, int) and not isinstance(key, bool):
        number = int(key)
        if number.bit_length() > _MOST_BITS:
            raise InvalidArgument(f"a key that is an integer has at most {_MOST_BITS} bits")
        return b"%d" % number
    raise InvalidArgument(f"a key is text, bytes or an integer, not {_checks.shown(key)}")
