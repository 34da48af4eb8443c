# SPDX-License-Identifier: Apache-2.0
"""Lanes: items with equal keys are handled in sequence, items with different keys concurrently."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["Lanes"]

T = TypeVar("T")


class Lanes(Generic[T]):
    """Items in lanes, one lane for each key with items. Empty lanes are forgotten.

    A lane is ready when its first item may be taken: the item is neither in progress nor waiting for a retry.
    Lanes take turns: after each turn the lane moves to the end of the line, regardless of the number of
    items.
    """

    __slots__ = ("_lanes", "_ready")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, deque[T]] = {}
        self._ready: deque[Hashable] = deque()

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def ready(self) -> int:
        """Number of ready lanes."""
        return len(self._ready)

    def add(self, key: Hashable, item: T) -> None:
        """Append an item to a lane."""
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque((item,))
            self._ready.append(key)
        else:
            lane.append(item)

    def take(self) -> tuple[Hashable, T]:
        """Return the first item of the next ready lane. The lane is no longer ready.

        At least one lane must be ready.
        """
        key = self._ready.popleft()
        return key, self._lanes[key][0]

    def done(self, key: Hashable) -> None:
        """Finish the taken item of a lane: the lane's next item may be taken."""
        lane = self._lanes[key]
        lane.popleft()
        if lane:
            self._ready.append(key)
        else:
            del self._lanes[key]

    def again(self, key: Hashable) -> None:
        """Return the taken item of a lane, to be taken again."""
        self._ready.append(key)

    def clear(self) -> Iterator[T]:
        """Forget every lane; return all items, lane by lane."""
        lanes, self._lanes = self._lanes, {}
        self._ready.clear()
        for lane in lanes.values():
            yield from lane
