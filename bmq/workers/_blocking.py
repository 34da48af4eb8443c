# SPDX-License-Identifier: Apache-2.0
"""The steps of a worker: each message in a context of its own, and measured.

A step is the time between two suspensions. A task has one context, so handlers that the worker awaited in it
would see the context variables of earlier messages. A task for each message costs more than the handling of a
message: 4.3 us, against 0.05 us to find that a handler has left its context as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from types import coroutine
from typing import Any, Final

from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._turn import turn_of

__all__ = ["LONG", "BlockingCalls", "in_own_contexts", "own_context"]

#: Seconds that a handler may block the event loop before a log line is written.
LONG: Final = 0.1


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
def own_context(blocking: BlockingCalls) -> Generator[BlockingCalls, Context, Context]:
    """Continue in a new copy of the worker's context, and return it. For code in :func:`in_own_contexts`.

    Args:
        blocking: logs long steps from now on.
    """
    return (yield blocking)


@coroutine
def in_own_contexts(
    work: Coroutine[Any, Any, None] | Generator[Any, Any, None], clock: Callable[[], float]
) -> Generator[Any, Any, None]:
    """Run a worker: the worker begins a new context whenever it yields a :class:`BlockingCalls`.

    The calling task remains the current task, and its cancellation reaches the worker. No step changes the
    context of the calling task.

    Args:
        work: the worker.
        clock: measures the steps.
    """
    new_context, send = copy_context().copy, work.send
    context = new_context()
    blocking: BlockingCalls | None = None
    step: Callable[[Any], Any] = send
    argument: Any = None
    while True:
        began = clock()
        try:
            waits_for = context.run(step, argument)
        except StopIteration:
            return
        if blocking is not None and (spent := clock() - began) >= LONG:
            blocking.found(spent)
        if type(waits_for) is BlockingCalls:
            blocking, context = waits_for, new_context()
            step, argument = send, context
            continue
        try:
            argument = yield waits_for
            step = send
        except GeneratorExit:
            context.run(work.close)
            raise
        except BaseException as error:
            step, argument = work.throw, error
