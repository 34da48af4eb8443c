# SPDX-License-Identifier: Apache-2.0
"""A rate limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Final, TypeVar

from bmq import _checks

__all__ = ["Pace", "checked_rate", "paced"]

T = TypeVar("T")

# Seconds that a caller may run ahead: a shorter sleep costs more than it gains.
_AHEAD: Final = 0.005
# One message in thirty years: keeps the pause between two messages finite.
_SLOWEST: Final = 1e-9


def checked_rate(rate: object) -> float:
    """Return a checked rate in messages a second.

    Raises:
        UsageError: the value is not a number above 0.
    """
    return _checks.number("rate", rate, _SLOWEST, unit="messages a second")


class Pace:
    """Lets a number of items pass each second, evenly. Unused capacity is not made up for later.

    Args:
        rate: items a second.

    Raises:
        UsageError: ``rate`` is not a number above 0.
    """

    __slots__ = ("_each", "_next")

    def __init__(self, rate: float) -> None:
        self._each = 1 / checked_rate(rate)
        self._next = 0.0

    async def wait(self, count: int = 1) -> None:
        """Wait until ``count`` more items may pass; cancelling the call returns them."""
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
    """Yield items at a limited rate, in items a second."""
    pace = Pace(rate)
    if isinstance(items, AsyncIterable):
        async for item in items:
            await pace.wait()
            yield item
    else:
        for item in items:
            await pace.wait()
            yield item
