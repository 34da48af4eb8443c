"""What a queue counts, kept in one place of memory.

As attributes the numbers would be objects that were made with the last message each, to stay among what goes
with it: a number of 32 bytes keeps a megabyte from being given back.
"""

from __future__ import annotations

from array import array
from typing import Final, Protocol

__all__ = ["ACKNOWLEDGED", "CONFIRMED", "POSTED", "POSTED_BYTES", "PUSHED", "Counter", "new_counts"]

POSTED: Final = 0
POSTED_BYTES: Final = 1
ACKNOWLEDGED: Final = 2
PUSHED: Final = 3
CONFIRMED: Final = 4
_PLACES: Final = 8


class _Counting(Protocol):
    counts: array[int]


def new_counts() -> array[int]:
    """Return numbers that are all 0."""
    return array("Q", [0] * _PLACES)


class Counter:
    """A number in ``counts``, to be used like an attribute. In loops the array itself is faster."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, owner: _Counting, kind: type[_Counting]) -> int:
        return owner.counts[self._place]

    def __set__(self, owner: _Counting, value: int) -> None:
        owner.counts[self._place] = value
