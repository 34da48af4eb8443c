# SPDX-License-Identifier: Apache-2.0
"""Deadlines of many keys, ordered by time."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Deadlines"]

K = TypeVar("K", bound=Hashable)

# Smallest number of entries worth tidying.
_SMALL = 64


class Deadlines(Generic[K]):
    """A deadline for each of many keys.

    Setting, discarding and finding the first are cheap. Discarded entries leave the heap at the top, or when
    they are more than half of the heap: memory follows the number of live keys.
    """

    __slots__ = ("_heap", "_live", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, K]] = []
        self._live: dict[K, int] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: K) -> bool:
        return key in self._live

    def set(self, key: K, deadline: float) -> None:
        """Set the deadline of a key, replacing an earlier one."""
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

    def first(self) -> float | None:
        """Return the earliest deadline, or None."""
        heap = self._heap
        while heap:
            deadline, serial, key = heap[0]
            if self._live.get(key) == serial:
                return deadline
            heapq.heappop(heap)
        return None

    def due(self, now: float, limit: int = sys.maxsize) -> list[K]:
        """Remove and return the keys whose deadline is ``now`` or earlier, in order, at most ``limit``."""
        keys: list[K] = []
        while len(keys) < limit and (deadline := self.first()) is not None and deadline <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._live[key]
            keys.append(key)
        return keys

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._live) + _SMALL:
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)
