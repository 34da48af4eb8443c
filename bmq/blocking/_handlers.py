# SPDX-License-Identifier: Apache-2.0
"""Threads that handle messages while a queue or its session closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from threading import get_ident
from typing import Any

from bmq.blocking._portal import Portal

__all__ = ["Handlers", "waiting_for"]

_Held = AbstractAsyncContextManager[Any]


class _NotConfirmed(Exception):
    """Leaves ``async with message`` without confirming it."""


class Handlers:
    """The messages of one queue that are being handled, and which threads do it."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        # By the message, or the batch, as the event loop's side has it.
        self._held: dict[_Held, int] = {}
        self._leaving: dict[_Held, asyncio.Event] = {}

    def enter(self, held: _Held) -> None:
        """The current thread begins to handle something."""
        self._held[held] = get_ident()

    def leave(self, held: _Held) -> None:
        """It was handled."""
        self._held.pop(held, None)
        if (left := self._leaving.get(held)) is not None:
            self._portal.soon(left.set)

    def wait_for(self, closer: int) -> list[asyncio.Task[None]]:
        """Handle everything in a task too, until its thread has; but for what ``closer`` handles itself."""
        return [
            asyncio.get_running_loop().create_task(self._wait(held))
            for held, thread in list(self._held.items())
            if thread != closer
        ]

    async def _wait(self, held: _Held) -> None:
        self._leaving[held] = left = asyncio.Event()
        try:
            async with held:
                if held in self._held:
                    await left.wait()
                raise _NotConfirmed
        except _NotConfirmed:
            pass
        finally:
            del self._leaving[held]


@asynccontextmanager
async def waiting_for(handlers: Iterable[Handlers], closer: int) -> AsyncGenerator[None]:
    """While this is entered, what closes a queue or a session waits for threads as it does for tasks.

    Args:
        handlers: whose.
        closer: the thread that closes, whose own messages are not waited for.
    """
    tasks = [task for each in handlers for task in each.wait_for(closer)]
    await asyncio.sleep(0)  # each begins
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
