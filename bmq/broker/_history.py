# SPDX-License-Identifier: Apache-2.0
"""GUIDs of deleted messages, remembered for a while: a repeated post is not stored again."""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["History"]

#: A growing set takes 30 to 130 bytes a member; a set with more bytes a member has shrunk, and is copied.
_ROOMY: Final = 400


class History:
    """The GUIDs that a queue remembers.

    Args:
        window: seconds after arrival for which a GUID is remembered; 0 for never.
        limit: number of remembered GUIDs, at most.

    Attributes:
        guids: the remembered GUIDs; :meth:`forget` may replace the set.
    """

    __slots__ = ("_oldest", "_seconds", "guids", "limit", "window")

    def __init__(self, window: float, limit: int) -> None:
        self.window = window
        self.limit = limit
        self.guids: set[bytes] = set()
        # The same GUIDs by the second of arrival: the GUIDs of a second are forgotten together.
        self._seconds: dict[int, list[bytes]] = {}
        # GUIDs of earlier arrivals are not remembered any more.
        self._oldest = float("-inf")

    def __len__(self) -> int:
        return len(self.guids)

    def __contains__(self, guid: bytes) -> bool:
        """Whether the GUID of a deleted message is remembered."""
        return guid in self.guids

    def add(self, guid: bytes, arrival: float) -> None:
        """Remember the GUID of a deleted message that arrived at ``arrival``."""
        second = int(arrival)
        if not self.window or second < self._oldest:
            return
        self.guids.add(guid)
        try:
            self._seconds[second].append(guid)
        except KeyError:
            self._seconds[second] = [guid]

    def forget(self, now: float) -> None:
        """Drop GUIDs from before the window, and the oldest beyond the limit."""
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
        """Return the time of the next expiry in :meth:`forget`; None without remembered GUIDs."""
        return min(self._seconds) + self.window + 2 if self._seconds else None

    def clear(self) -> None:
        """Forget all GUIDs."""
        self.guids = set()
        self._seconds = {}
