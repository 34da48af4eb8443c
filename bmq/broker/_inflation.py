# SPDX-License-Identifier: Apache-2.0
"""A broker's changes of application data: decompression for old senders, conversion for old receivers.

Decompression has a limit: a bounded multiple of the bytes received, from all clients.
"""

from __future__ import annotations

from typing import Final

from bmq.errors import Error
from bmq.wire.compression import TooLarge, decompress
from bmq.wire.constants import MAX_APPLICATION_DATA, Compression
from bmq.wire.padding import padding
from bmq.wire.properties import encode_properties, split_properties

__all__ = ["Exhausted", "InflationBudget", "for_old_client"]

_MIB: Final = 2**20
#: Growth by decompression allowed to every message; few honest messages shrink more.
RATIO: Final = 32
#: Reserve in bytes for messages that grow more, and the bytes restored to the reserve each second.
RESERVE: Final = 64 * _MIB
RECOVERY: Final = 64 * _MIB


class Exhausted(Exception):
    """A message would become larger than the budget allows now."""


class InflationBudget:
    """A budget of decompressed bytes.

    A message may always grow 32-fold, up to the limit of 64 MiB for a message. Further growth is taken from a
    reserve, shared by all clients and restored with time.
    """

    __slots__ = ("_now", "reserve")

    def __init__(self) -> None:
        self.reserve: float = RESERVE
        self._now = 0.0

    def tick(self, now: float) -> None:
        """Note the time, in seconds."""
        self.reserve = min(RESERVE, self.reserve + (now - self._now) * RECOVERY)
        self._now = now

    def inflate(self, data: bytes, *, free: bool = False) -> bytes:
        """Decompress the data of one message.

        Args:
            data: a whole zlib stream.
            free: whether success leaves the reserve unchanged, because the result is sent to a client, and
                the client has to read the result before more is sent.

        Raises:
            ProtocolError: the data is not a zlib stream, or becomes larger than 64 MiB.
            Exhausted: the data becomes larger than the budget allows now.
        """
        allowance = RATIO * len(data)
        limit = min(MAX_APPLICATION_DATA, allowance + int(self.reserve))
        spent = limit
        try:
            plain = decompress(data, limit)
            spent = 0 if free else len(plain)
        except TooLarge:
            if limit < MAX_APPLICATION_DATA:
                raise Exhausted from None
            raise
        finally:
            # A failed attempt costs as much work as a success.
            self.reserve -= max(0, spent - allowance)
        return plain


def for_old_client(
    data: bytes, schema_id: int, compression: int, budget: InflationBudget
) -> tuple[bytes, int, int]:
    """Convert data with properties in the new encoding for a client limited to the old encoding.

    Data includes the padding. Unreadable data, and data beyond ``budget`` when decompressed, is returned
    unchanged.

    Returns:
        The data, the schema id and the compression.
    """
    try:
        plain = data[: -data[-1]]
        properties, length = split_properties(plain, True)
        payload = plain[length:]
        area = encode_properties(properties.typed(), new=False)
        plain = area + (budget.inflate(payload, free=True) if compression else payload)
    except (Error, Exhausted):
        return data, schema_id, compression
    return plain + padding(len(plain)), 0, Compression.NONE
