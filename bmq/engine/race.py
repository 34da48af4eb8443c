# SPDX-License-Identifier: Apache-2.0
"""Concurrent coroutines, each with a head start before the next ("happy eyeballs", RFC 8305)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from bmq._logging import Log
from bmq.engine.violations import violation_in
from bmq.errors import ConnectionFailed

__all__ = ["race"]

logger = Log("bmq.client", later=True)


async def race(
    runners: Sequence[Callable[[], Awaitable[None]]],
    head_start: float,
    racing: dict[asyncio.Task[None], None],
) -> None:
    """Run coroutines concurrently until the first success; cancel the others.

    The first coroutine starts at once. The next coroutine starts after a failure, or after ``head_start``
    seconds without a result.

    Args:
        runners: functions returning the coroutines, in order.
        head_start: seconds between two starts.
        racing: holds the running tasks, for a caller cancelling them from outside.

    Raises:
        ConnectionFailed: all coroutines failed; the message joins all error messages. An error with
            ``retryable`` False ends the race at once.

    Cancelling the race cancels the coroutines, and waits for their end.
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
    except GeneratorExit:
        running.clear()  # The coroutine is collected without its event loop: awaiting is impossible.
        raise
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
            for task in running:
                if not task.cancelled():
                    task.exception()  # retrieved: another coroutine was faster
    # A peer's violation explains more than a refused connection.
    cause = next((each for each in failures if violation_in(each) is not None), failures[-1])
    raise ConnectionFailed("; ".join(map(str, failures))) from cause


async def _run(runner: Callable[[], Awaitable[None]]) -> None:
    await runner()
