# SPDX-License-Identifier: Apache-2.0
"""Lanes: items of one key are handled one after another, items of different keys concurrently."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["Lanes"]

T = TypeVar("T")


class Lanes(Generic[T]):
    """Items in lanes, one lane for each key that has items. Empty lanes are forgotten.

    A lane is ready when its first item may be taken: the item is neither in progress nor waiting for a retry.
    Lanes take turns: after a lane's turn, the lane goes behind the others, however many items it holds.
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
        """Append an item to its lane."""
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque((item,))
            self._ready.append(key)
        else:
            lane.append(item)

    def take(self) -> tuple[Hashable, T]:
        """Return the first item of the next ready lane, which is then no longer ready.

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
        """Forget every lane; return their items, lane by lane."""
        lanes, self._lanes = self._lanes, {}
        self._ready.clear()
        for lane in lanes.values():
            yield from lane
