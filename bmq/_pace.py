# SPDX-License-Identifier: Apache-2.0
"""So many a second, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Final, TypeVar

from bmq import _checks

__all__ = ["Pace", "checked_rate", "paced"]

T = TypeVar("T")

# Seconds that may be run ahead of the pace: sleeping for less costs more than it is worth.
_AHEAD: Final = 0.005
# One message in thirty years: the pause between two messages stays a number that can be waited for.
_SLOWEST: Final = 1e-9


def checked_rate(rate: object) -> float:
    """Return how many messages a second may pass.

    Raises:
        InvalidArgument: the value is no number above 0.
    """
    return _checks.number("rate", rate, _SLOWEST, unit="messages a second")


class Pace:
    """Lets so many pass a second, evenly; what was not used is not made up for later.

    Args:
        rate: how many a second.

    Raises:
        InvalidArgument: ``rate`` is no number above 0.
    """

    __slots__ = ("_each", "_next")

    def __init__(self, rate: float) -> None:
        self._each = 1 / checked_rate(rate)
        self._next = 0.0

    async def wait(self, count: int = 1) -> None:
        """Wait until so many more may pass; cancelling it gives them back."""
        now = asyncio.get_running_loop().time()
        due = max(self._next, now)
        self._next = due + count * self._each
        if due - now > _AHEAD:
            try:
                await asyncio.sleep(due - now)
            except asyncio.CancelledError:
                self._next -= count * self._each
                raise


async def paced(items: Iterable[T] | AsyncIterable[T], rate: float) -> AsyncIterator[T]:
    """Yield items, so many a second."""
    pace = Pace(rate)
    if isinstance(items, AsyncIterable):
        async for item in items:
            await pace.wait()
            yield item
    else:
        for item in items:
            await pace.wait()
            yield item
