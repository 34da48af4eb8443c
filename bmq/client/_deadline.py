# SPDX-License-Identifier: Apache-2.0
"""A deadline around something to wait for, with an error that says what did not happen."""

from __future__ import annotations

import asyncio
from types import TracebackType

from bmq import _checks
from bmq.errors import TimedOut

__all__ = ["within"]


class within:
    """``async with within(seconds, "no message arrived"):`` ends what takes longer.

    Args:
        seconds: None for no deadline.
        what: how the error begins; "within ... s" follows.

    Raises:
        InvalidArgument: ``seconds`` is no duration.
        TimedOut: the time was up.
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
