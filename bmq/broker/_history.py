"""GUIDs of messages that are gone, remembered for a while: a message posted again is not stored again."""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["History"]

#: A set takes 30 to 130 bytes for each member as long as it grows, and keeps that room when it shrinks.
_ROOMY: Final = 400


class History:
    """The GUIDs a queue remembers.

    Args:
        window: for how many seconds after its arrival a GUID is remembered; 0 for none at all.
        limit: how many are remembered at most.

    Attributes:
        guids: what is remembered; :meth:`forget` may replace it.
    """

    __slots__ = ("_oldest", "_seconds", "guids", "limit", "window")

    def __init__(self, window: float, limit: int) -> None:
        self.window = window
        self.limit = limit
        self.guids: set[bytes] = set()
        # The same by the second their messages came, so that a second is forgotten at once.
        self._seconds: dict[int, list[bytes]] = {}
        # What came before this is not remembered any more.
        self._oldest = float("-inf")

    def __len__(self) -> int:
        return len(self.guids)

    def __contains__(self, guid: bytes) -> bool:
        """Whether a GUID is remembered of a message that is gone."""
        return guid in self.guids

    def add(self, guid: bytes, arrival: float) -> None:
        """Remember the GUID of a message that came at ``arrival`` and goes now."""
        second = int(arrival)
        if not self.window or second < self._oldest:
            return
        self.guids.add(guid)
        guids = self._seconds.get(second)
        if guids is None:
            self._seconds[second] = [guid]
        else:
            guids.append(guid)

    def forget(self, now: float) -> None:
        """Drop what came before the window, and the oldest where there is too much."""
        oldest = self._oldest = now - self.window - 1
        for second in [second for second in self._seconds if second < oldest]:
            self.guids.difference_update(self._seconds.pop(second))
        while (excess := len(self.guids) - self.limit) > 0:
            second = min(self._seconds)
            guids = self._seconds[second]
            self.guids.difference_update(guids[:excess])
            del guids[:excess]
            if not guids:
                del self._seconds[second]
        if sys.getsizeof(self.guids) > _ROOMY * (len(self.guids) + 1):
            self.guids = set(self.guids)

    def next_deadline(self) -> float | None:
        """Return when :meth:`forget` has something to do because of the window; None when nothing is left."""
        return min(self._seconds) + self.window + 2 if self._seconds else None

    def clear(self) -> None:
        """Drop everything so far."""
        self.guids = set()
        self._seconds = {}
