"""How much a broker decompresses: a bounded multiple of what was sent, whoever sent it."""

from __future__ import annotations

from typing import Final

from bmq.wire.compression import TooLarge, decompress
from bmq.wire.constants import MAX_APPLICATION_DATA

__all__ = ["Exhausted", "InflationBudget"]

_MIB: Final = 2**20
#: What every message may become, whatever else is going on: few that are not made for it exceed that.
RATIO: Final = 32
#: What is there for messages that become more than that, and how fast it comes back.
RESERVE: Final = 64 * _MIB
RECOVERY: Final = 64 * _MIB


class Exhausted(Exception):
    """A message becomes larger than may be had at the moment."""


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
            free: the reserve gets back what it gave when all goes well: the result is sent to somebody, who
                has to take it before more is sent.

        Raises:
            ProtocolError: it is no zlib stream, or becomes larger than 64 MiB.
            Exhausted: it becomes larger than may be had now.
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
            # What was for nothing has cost as much.
            self.reserve -= max(0, spent - allowance)
        return plain
