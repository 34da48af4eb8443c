# SPDX-License-Identifier: Apache-2.0
"""How much a broker decompresses: a bounded multiple of what was sent, whoever sent it."""

from __future__ import annotations

from typing import Final

from bmq.wire.compression import TooLarge, decompress
from bmq.wire.constants import MAX_APPLICATION_DATA

__all__ = ["Exhausted", "InflationBudget"]

_MIB: Final = 2**20
#: How many times its size every message may always become; few honest messages shrink more than that.
RATIO: Final = 32
#: Bytes for messages that become more than that, and how many bytes of it come back each second.
RESERVE: Final = 64 * _MIB
RECOVERY: Final = 64 * _MIB


class Exhausted(Exception):
    """A message becomes larger than the budget allows now."""


class InflationBudget:
    """How many bytes may come out of compressed data.

    A message may always become 32 times what it was, up to the 64 MiB that a message has at most. What
    exceeds that comes out of a reserve that all clients share and that fills up again with time.
    """

    __slots__ = ("_now", "reserve")

    def __init__(self) -> None:
        self.reserve: float = RESERVE
        self._now: float | None = None

    def tick(self, now: float) -> None:
        """Note the time, in seconds."""
        if self._now is not None and self.reserve < RESERVE:
            self.reserve = min(RESERVE, self.reserve + (now - self._now) * RECOVERY)
        self._now = now

    def inflate(self, data: bytes, *, free: bool = False) -> bytes:
        """Decompress one message's data.

        Args:
            data: a whole zlib stream.
            free: success takes nothing from the reserve, since the result is sent to a client, which has to
                take it before more is sent.

        Raises:
            ProtocolError: it is no zlib stream, or becomes larger than 64 MiB.
            Exhausted: it becomes larger than the budget allows now.
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
            # A failed attempt has cost as much work.
            self.reserve -= max(0, spent - allowance)
        return plain
