# SPDX-License-Identifier: Apache-2.0
"""Detects blocking of the event loop by handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Generator
from typing import Any, Final, Generic, TypeVar, cast

from bmq._log_limit import LogLimit
from bmq._turn import turn_of

__all__ = ["LONG", "BlockingCalls", "Steps"]

T = TypeVar("T")

#: Seconds that a handler may block the event loop before a log line is written.
LONG: Final = 0.1


class BlockingCalls:
    """Logs that a handler blocks the event loop: the first time at once, later once a minute with a count.

    Args:
        logger: receives the lines.
        name: the name of the handler.
    """

    def __init__(self, logger: logging.Logger, name: str) -> None:
        self._name = name
        self._log = LogLimit(logger)

    def found(self, seconds: float) -> None:
        """Log a step of the given seconds in which the event loop was blocked."""
        self._log.warning(
            self._name,
            "%s blocked the event loop for %d ms: confirmations, heartbeats and other handlers waited. "
            "Make it a plain 'def', which runs in a thread, or move the part that blocks to "
            "asyncio.to_thread()",
            self._name,
            seconds * 1000,
        )


class Steps(Generic[T]):
    """Awaits an awaitable, and measures each step between two suspensions.

    Args:
        awaitable: the awaitable.
        blocking: logs long steps.
    """

    __slots__ = ("_awaitable", "_blocking")

    def __init__(self, awaitable: Awaitable[T], blocking: BlockingCalls) -> None:
        self._awaitable = awaitable
        self._blocking = blocking

    def __await__(self) -> Generator[Any, Any, T]:
        steps: Any = self._awaitable.__await__()
        if not hasattr(steps, "throw"):
            plain: Generator[Any, Any, T] = steps
            return (yield from plain)
        clock, argument = turn_of(asyncio.get_running_loop()).clock, None
        step = steps.send
        try:
            while True:
                began = clock()
                try:
                    waits_for = step(argument)
                except StopIteration as end:
                    return cast("T", end.value)
                finally:
                    spent = clock() - began
                    if spent >= LONG:
                        self._blocking.found(spent)
                try:
                    argument, step = (yield waits_for), steps.send
                except GeneratorExit:
                    raise
                except BaseException as error:
                    argument, step = error, steps.throw
        finally:
            steps.close()
