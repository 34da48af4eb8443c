"""Waiting for a condition, where no event says that it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["eventually"]


async def eventually(condition: Callable[[], Any], timeout: float = 5.0) -> Any:
    """Wait until something is true, looking again at short intervals; return it."""
    async with asyncio.timeout(timeout):
        while not (value := condition()):  # noqa: ASYNC110 - anything can be waited for
            await asyncio.sleep(0.001)
    return value
