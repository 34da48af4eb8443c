# SPDX-License-Identifier: Apache-2.0
"""Several ways to the same end, each with a head start before the next ("happy eyeballs", RFC 8305)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from bmq.client._violations import violation_in
from bmq.errors import ConnectionFailed

__all__ = ["race"]

logger = logging.getLogger("bmq.client")


async def race(
    runners: Sequence[Callable[[], Awaitable[None]]],
    head_start: float,
    racing: dict[asyncio.Task[None], None],
) -> None:
    """Run coroutines beside each other until one succeeds; cancel the others.

    The first one starts at once. Each further one starts when one before it has failed, or when nothing was
    decided for ``head_start`` seconds.

    Args:
        runners: makers of the coroutines, in order.
        head_start: in seconds.
        racing: holds the tasks while they run, for those who cancel them from outside.

    Raises:
        ConnectionFailed: all of them failed; the errors of all are joined. An error that is not retryable
            ends the race at once.

    Cancelling it cancels all of them, and waits until they have ended.
    """
    waiting = deque(runners)
    running: dict[asyncio.Task[None], None] = {}
    failures: list[ConnectionFailed] = []
    try:
        while waiting or running:
            if waiting:
                task = asyncio.ensure_future(_run(waiting.popleft()))
                running[task] = racing[task] = None
                task.add_done_callback(racing.pop)
            await asyncio.wait(
                running, timeout=head_start if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [task for task in running if task.done()]:
                del running[task]
                try:
                    task.result()
                    return
                except ConnectionFailed as error:
                    if len(runners) == 1 or not error.retryable:
                        raise
                    failures.append(error)
                    if waiting:
                        logger.info("%s; trying the next address", error)
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
            for task in running:
                if not task.cancelled():
                    task.exception()  # seen: another one was first
    # One that says what a peer did wrong is more of a cause than one that was refused.
    cause = next((each for each in failures if violation_in(each) is not None), failures[-1])
    raise ConnectionFailed("; ".join(map(str, failures))) from cause


async def _run(runner: Callable[[], Awaitable[None]]) -> None:
    await runner()
