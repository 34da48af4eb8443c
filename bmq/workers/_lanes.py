# SPDX-License-Identifier: Apache-2.0
"""Lanes: items with equal keys are handled in sequence, items with different keys concurrently."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from operator import itemgetter
from typing import Any, Generic, TypeVar

__all__ = ["Lanes"]

T = TypeVar("T")


class Lanes(Generic[T]):
    """Items in lanes, one lane for each key with items. Empty lanes are forgotten.

    A lane is ready when its first item may be taken: the item is neither in progress nor waiting for a retry.
    Lanes take turns: after each turn the lane moves to the end of the line, regardless of the number of
    items.

    A lane is a deque of items, each behind its number: a pair for each item would take more memory than the
    number and the place in the deque.
    """

    __slots__ = ("_lanes", "_ready")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, deque[Any]] = {}
        self._ready: deque[Hashable] = deque()

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def ready(self) -> int:
        """Number of ready lanes."""
        return len(self._ready)

    def add(self, key: Hashable, number: int, item: T) -> None:
        """Append an item to a lane; ``number`` is the position of the item among all items."""
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque((number, item))
            self._ready.append(key)
        else:
            lane.append(number)
            lane.append(item)

    def take(self) -> tuple[Hashable, T]:
        """Return the first item of the next ready lane. The lane is no longer ready.

        At least one lane must be ready.
        """
        key = self._ready.popleft()
        return key, self._lanes[key][1]

    def done(self, key: Hashable) -> None:
        """Finish the taken item of a lane: the lane's next item may be taken."""
        lane = self._lanes[key]
        lane.popleft()
        lane.popleft()
        if lane:
            self._ready.append(key)
        else:
            del self._lanes[key]

    def keep(self, key: Hashable, item: T) -> None:
        """Replace the taken item of a lane."""
        self._lanes[key][1] = item

    def again(self, key: Hashable) -> None:
        """Return the taken item of a lane, to be taken again."""
        self._ready.append(key)

    def clear(self) -> list[T]:
        """Forget every lane; return all items by their numbers."""
        lanes, self._lanes = self._lanes, {}
        self._ready.clear()
        left: list[tuple[int, T]] = []
        for lane in lanes.values():
            items = iter(lane)
            left += zip(items, items, strict=True)
        left.sort(key=itemgetter(0))
        return [item for _, item in left]
