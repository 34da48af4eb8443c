# SPDX-License-Identifier: Apache-2.0
"""Lanes: what has one key is handled one after another, different keys side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["Lanes"]

T = TypeVar("T")


class Lanes(Generic[T]):
    """Items in lanes, one for each key that has any; an empty lane is forgotten.

    A lane is ready when its first item may be taken: not while that is being handled, or waits to be handled
    again. Lanes take turns: one that was ready goes behind the others, however much it holds.
    """

    __slots__ = ("_lanes", "_ready")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, deque[T]] = {}
        self._ready: deque[Hashable] = deque()

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def ready(self) -> int:
        """How many lanes are ready."""
        return len(self._ready)

    def add(self, key: Hashable, item: T) -> None:
        """Put an item at the end of its lane."""
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque((item,))
            self._ready.append(key)
        else:
            lane.append(item)

    def take(self) -> tuple[Hashable, T]:
        """Return the first item of the next ready lane, which is not ready any more; there must be one."""
        key = self._ready.popleft()
        return key, self._lanes[key][0]

    def done(self, key: Hashable) -> None:
        """The item that was taken is done with: the next one of its lane may be taken."""
        lane = self._lanes[key]
        lane.popleft()
        if lane:
            self._ready.append(key)
        else:
            del self._lanes[key]

    def again(self, key: Hashable) -> None:
        """The item that was taken is to be taken once more."""
        self._ready.append(key)

    def clear(self) -> Iterator[T]:
        """Forget every lane; return what was in them, lane by lane."""
        lanes, self._lanes = self._lanes, {}
        self._ready.clear()
        for lane in lanes.values():
            yield from lane
