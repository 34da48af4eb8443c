# SPDX-License-Identifier: Apache-2.0
"""The steps of a handler's call: in a context of their own, and measured.

A step is the time between two suspensions. A task has one context, so a worker that awaited its handlers
directly would show each message the context variables of the previous message. A task for each message would
cost more than handling a message.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from types import coroutine
from typing import Any, Final, TypeVar, cast

from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._turn import turn_of
from bmq.errors import UsageError

__all__ = ["ENDED", "LONG", "BlockingCalls", "call_apart", "further_steps", "refuse_awaitable"]

T = TypeVar("T")

#: Seconds that a handler may block the event loop before a log line is written.
LONG: Final = 0.1
#: In place of a future: the call ended in its first step.
ENDED: Final = object()


class BlockingCalls:
    """Logs that a handler blocks the event loop: the first time at once, later once a minute with a count.

    Args:
        logger: receives the lines.
        name: the name of the handler.
    """

    def __init__(self, logger: Log, name: str) -> None:
        self._name = name
        self._log = LogLimit(logger)

    def found(self, seconds: float) -> None:
        """Log a step of the given seconds in which the event loop was blocked.

        A request to stop that arrived meanwhile takes effect before the next message.
        """
        loop = asyncio.get_running_loop()
        turn_of(loop).hold(loop)
        self._log.warning(
            self._name,
            "%s blocked the event loop for %d ms: confirmations, heartbeats and other handlers waited. "
            "Make it a plain 'def', which runs in a thread, or move the part that blocks to "
            "asyncio.to_thread()",
            self._name,
            seconds * 1000,
        )


@coroutine
def call_apart(
    function: Callable[..., Awaitable[T]], *arguments: Any, blocking: BlockingCalls
) -> Generator[Any, Any, T]:
    """Call an async function in a copy of the current context, and return its result.

    The calling task remains the current task, and its cancellation reaches the function.

    Args:
        function: the function.
        arguments: its arguments.
        blocking: logs long steps.
    """
    run = copy_context().run
    clock = turn_of(asyncio.get_running_loop()).clock
    began = clock()
    steps: Any = run(function, *arguments).__await__()
    try:
        waits_for = run(next, steps)
    except StopIteration as end:
        return cast("T", end.value)
    finally:
        if (spent := clock() - began) >= LONG:
            blocking.found(spent)
    further: Any = further_steps(run, steps, waits_for, blocking, clock)
    return cast("T", (yield from further))


def refuse_awaitable(name: str, result: object) -> None:
    """Refuse a result that the handler should have awaited: its work has not been done.

    Raises:
        UsageError: the result is a coroutine, or another awaitable.
    """
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise UsageError(f"{name} returned an awaitable that nothing awaits: write 'return await ...'")


@coroutine
def further_steps(
    run: Callable[..., Any],
    steps: Any,
    waits_for: object,
    blocking: BlockingCalls,
    clock: Callable[[], float],
) -> Generator[Any, Any, Any]:
    """Make the steps of a call after the first step.

    Args:
        run: runs a function in the context of the call.
        steps: iterator of the call.
        waits_for: result of the first step.
        blocking: logs long steps.
        clock: measures the steps.
    """
    if not hasattr(steps, "throw"):
        steps = _generator(steps)  # an awaitable may have a plain iterator
    while True:
        step = steps.send
        try:
            argument = yield waits_for
        except GeneratorExit:
            run(steps.close)
            raise
        except BaseException as error:
            step, argument = steps.throw, error
        began = clock()
        try:
            waits_for = run(step, argument)
        except StopIteration as end:
            return end.value
        finally:
            if (spent := clock() - began) >= LONG:
                blocking.found(spent)


def _generator(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield from steps)
