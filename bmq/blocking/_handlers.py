# SPDX-License-Identifier: Apache-2.0
"""Tracks the threads with messages in hand while a queue or a session closes."""

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
    """Leaves ``async with message`` without a confirmation."""


class Handlers:
    """The messages of one queue in the hands of threads, with the thread of each message."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        # By the asyncio message or batch.
        self._held: dict[_Held, int] = {}
        self._leaving: dict[_Held, asyncio.Event] = {}

    def enter(self, held: _Held) -> None:
        """Record the current thread as the handler of a message or a batch."""
        self._held[held] = get_ident()

    def leave(self, held: _Held) -> None:
        """Record the end of the handling."""
        self._held.pop(held, None)
        if (left := self._leaving.get(held)) is not None:
            self._portal.soon(left.set)

    def wait_for(self, closer: int) -> list[asyncio.Task[None]]:
        """Create a task for each message in hand, except for messages of ``closer``.

        A task ends with the handling of the message.
        """
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
    """Make a closing queue or session wait for threads as it does for tasks, inside the block.

    Args:
        handlers: handlers to wait for.
        closer: closing thread. The thread's own messages are excluded.
    """
    tasks = [task for each in handlers for task in each.wait_for(closer)]
    await asyncio.sleep(0)  # start each task
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
