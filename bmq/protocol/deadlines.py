# SPDX-License-Identifier: Apache-2.0
"""Deadlines of many keys, ordered by time, and pauses that grow from attempt to attempt."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Deadlines", "backoff"]

K = TypeVar("K", bound=Hashable)

# Smallest number of entries worth tidying.
_SMALL = 64


class Deadlines(Generic[K]):
    """A deadline for each of many keys.

    Setting and discarding are cheap. Discarded entries leave the heap at the top, or when they are more than
    half of the heap: memory follows the number of live keys.

    Attributes:
        first: the earliest deadline, or None; for reading only.
    """

    __slots__ = ("_heap", "_live", "_serial", "first")

    def __init__(self) -> None:
        self.first: float | None = None
        self._heap: list[tuple[float, int, K]] = []
        self._live: dict[K, int] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: K) -> bool:
        return key in self._live

    def set(self, key: K, deadline: float | None) -> None:
        """Set the deadline of a key, replacing an earlier one; None discards the key."""
        if deadline is None:
            self.discard(key)
            return
        self._serial += 1
        self._live[key] = self._serial
        heapq.heappush(self._heap, (deadline, self._serial, key))
        self._tidy()

    def discard(self, key: K) -> None:
        """Remove a key, if known."""
        if self._live.pop(key, None) is not None:
            self._tidy()

    def clear(self) -> None:
        """Remove every key."""
        self._heap.clear()
        self._live.clear()
        self.first = None

    def due(self, now: float, limit: int = sys.maxsize) -> list[K]:
        """Remove and return the keys whose deadline is ``now`` or earlier, in order, at most ``limit``."""
        keys: list[K] = []
        while len(keys) < limit and self.first is not None and self.first <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._live[key]
            keys.append(key)
            self._tidy()
        return keys

    def _tidy(self) -> None:
        """Remove discarded entries from the top of the heap, and all of them if they are many."""
        heap, live = self._heap, self._live
        if len(heap) > 2 * len(live) + _SMALL:
            heap[:] = [entry for entry in heap if live.get(entry[2]) == entry[1]]
            heapq.heapify(heap)
        while heap and live.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)
        self.first = heap[0][0] if heap else None


def backoff(attempt: int, first: float, cap: float, factor: float = 2.0) -> float:
    """Return the pause in seconds after a number of failed attempts: ``first`` after one, at most ``cap``."""
    try:
        return min(cap, first * float(factor) ** (attempt - 1))
    except OverflowError:
        return cap
