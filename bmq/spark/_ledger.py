# SPDX-License-Identifier: Apache-2.0
"""Which messages were handed to Spark, and which of them are committed: what may be confirmed."""

from __future__ import annotations

from collections import deque
from enum import Enum

__all__ = ["Ledger", "Standing"]

#: A message: the queue it came from, and its GUID. Applications of a fanout queue share GUIDs.
Key = tuple[str, str]

_REMEMBERED_BATCHES = 8


class Standing(Enum):
    """What is known of a message that was delivered."""

    NEW = "new"
    HANDED_OUT = "handed out"
    COMMITTED = "committed"


class Ledger:
    """Messages by batch.

    The broker delivers again what was not confirmed, after every reconnect and restart; the ledger recognises
    it. Messages of committed batches are remembered for a few batches more, because a confirmation can be
    lost with the connection.
    """

    def __init__(self) -> None:
        self._handed_out: dict[Key, None] = {}
        self._committed: dict[Key, None] = {}
        self._open: deque[tuple[int, list[Key]]] = deque()
        self._closed: deque[tuple[int, list[Key]]] = deque()

    def standing(self, key: Key) -> Standing:
        """Return what is known of a message."""
        if key in self._handed_out:
            return Standing.HANDED_OUT
        return Standing.COMMITTED if key in self._committed else Standing.NEW

    def hand_out(self, end: int, keys: list[Key]) -> None:
        """Note a batch that is handed to Spark.

        Args:
            end: how many messages there are up to its end.
            keys: its messages.
        """
        self._open.append((end, keys))
        self._handed_out.update(dict.fromkeys(keys))

    def commit(self, end: int) -> list[Key]:
        """Note that everything up to ``end`` is committed; return what may be confirmed now."""
        confirmed: list[Key] = []
        while self._open and self._open[0][0] <= end:
            batch = self._open.popleft()
            self._closed.append(batch)
            for key in batch[1]:
                del self._handed_out[key]
            self._committed.update(dict.fromkeys(batch[1]))
            confirmed.extend(batch[1])
        return confirmed

    def forget(self) -> int:
        """Forget the oldest committed batches; return up to where everything is forgotten."""
        end = 0
        while len(self._closed) > _REMEMBERED_BATCHES:
            end, keys = self._closed.popleft()
            for key in keys:
                self._committed.pop(key, None)
        return end
