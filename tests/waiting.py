# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition without an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import bmq

__all__ = ["eventually", "until_depth"]


async def eventually(condition: Callable[[], Any], timeout: float = 30.0) -> Any:
    """Wait until a condition is true, with checks at short intervals; return its value."""
    async with asyncio.timeout(timeout):
        while not (value := condition()):  # noqa: ASYNC110 - anything can be waited for
            await asyncio.sleep(0.001)
    return value


async def until_depth(broker_uri: str, uri: str, wanted: int, timeout: float = 30.0) -> None:
    """Wait until a queue holds this many messages, including delivered ones, by asking the broker."""
    async with bmq.admin.connect(broker_uri) as admin, asyncio.timeout(timeout):
        while (await admin.queue(uri).depth()).messages != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
