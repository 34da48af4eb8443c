# SPDX-License-Identifier: Apache-2.0
"""Deadlines with an error naming the missing result."""

from __future__ import annotations

import asyncio
from types import TracebackType

from bmq import _checks
from bmq.errors import TimedOut

__all__ = ["within"]


class within:
    """``async with within(seconds, "no message arrived"):`` cancels the block at a deadline.

    Args:
        seconds: time until the deadline; None for no deadline.
        what: beginning of the error's text; "within ... s" is appended.

    Raises:
        UsageError: ``seconds`` is not a duration.
        TimedOut: the deadline passed.
    """

    __slots__ = ("_seconds", "_timeout", "_what")

    def __init__(self, seconds: float | None, what: str) -> None:
        self._seconds = _checks.timeout(seconds)
        self._timeout = asyncio.timeout(self._seconds)
        self._what = what

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(exc_type, exc, tb)
        except TimeoutError:
            raise TimedOut(f"{self._what} within {self._seconds:g} s") from None
