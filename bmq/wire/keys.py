# SPDX-License-Identifier: Apache-2.0
"""The bucket of a key: messages with equal keys stay in order among themselves."""

from __future__ import annotations

from typing import Final, TypeAlias

from bmq import _checks
from bmq.errors import UsageError
from bmq.wire.crc import crc32c

#: A key: text, bytes, or an integer.
Key: TypeAlias = str | bytes | int

# The time to write an integer in digits grows with the square of its length.
_MOST_BITS: Final = 4096


def key_bucket(key: Key) -> int:
    """Return the bucket of a key, 0 to 2**31 - 1: the value of the property ``bmq_bucket``.

    The bucket is the CRC-32C of the key without the highest bit, so that the number fits a 32-bit integer
    property. Text is hashed as UTF-8, bytes unchanged, and an integer as its decimal digits. Groups take the
    remainder by their number of buckets. The page *Conventions* of the documentation has test vectors.

    Raises:
        UsageError: the key has another type.
    """
    return crc32c(_as_bytes(key)) & 0x7FFF_FFFF


def _as_bytes(key: object) -> bytes:
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        try:
            return str.encode(key)
        except UnicodeEncodeError as error:
            raise UsageError(f"the key {_checks.shown(key)} is not valid text: {error}") from None
    if isinstance(key, int) and not isinstance(key, bool):
        number = int(key)
        if number.bit_length() > _MOST_BITS:
            raise UsageError(f"an integer key must have at most {_MOST_BITS} bits")
        return b"%d" % number
    raise UsageError(f"a key must be text, bytes or an integer, not {_checks.shown(key)}")
