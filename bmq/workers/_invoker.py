# SPDX-License-Identifier: Apache-2.0
"""Attempts of a handler: middlewares, a deadline, and a call in the event loop or in a thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from types import CoroutineType, coroutine
from typing import Any, Final, ParamSpec, TypeVar, cast

from bmq import _world
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._turn import turn_of
from bmq.client.attempt import UNSET, Attempt, HandlerInfo, attempt_of
from bmq.client.message import Message
from bmq.errors import Undecodable, UsageError
from bmq.workers._dependencies import (
    GeneratedResults,
    HandlerContext,
    HandlerPlan,
    caller,
    closed,
    closed_late,
    made,
)
from bmq.workers._options import Call, Middleware, name_of

__all__ = [
    "LONG",
    "Alarm",
    "BlockingCalls",
    "Invoker",
    "in_own_contexts",
    "own_context",
    "refuse_awaitable",
    "too_late",
]

logger = Log("bmq.workers")

# ---- The steps of a worker: each message in a context of its own, and measured
#
# A step is the time between two suspensions. A task has one context, so handlers that the worker awaited in
# it would see the context variables of earlier messages. A task for each message costs more than the handling
# of a message: 4.3 us, against 0.05 us to find that a handler has left its context as it was.

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


# ---- The deadline of calls, and middlewares around calls

P = ParamSpec("P")
T = TypeVar("T")


class Alarm:
    """Cancels a task that exceeds a deadline, as ``asyncio.timeout`` does.

    A single timer serves many short calls: a call ending in time needs no timer.

    Args:
        task: the task.
        seconds: time limit of each call.
    """

    __slots__ = ("_began", "_loop", "_rang", "_seconds", "_task", "_timer")

    def __init__(self, task: asyncio.Task[Any], seconds: float) -> None:
        self._task = task
        self._seconds = seconds
        self._loop = task.get_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._began: float | None = None
        self._rang = False

    def begin(self) -> None:
        """Start the time of a call."""
        self._began = began = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(began + self._seconds, self._ring)

    def end(self) -> bool:
        """End the time of a call; return whether the alarm cancelled the task."""
        self._began = None
        if self._rang:
            self._rang = False
            self._task.uncancel()
            return True
        return False

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        if self._began is None:
            return
        due = self._began + self._seconds
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._ring)
        else:
            self._rang = True
            self._task.cancel()


def too_late(seconds: float) -> TimeoutError:
    """Return the error of an attempt beyond the deadline."""
    return TimeoutError(f"the handler was not done within its deadline of {seconds:g} s")


def chained(middlewares: Sequence[Middleware], call: Call) -> Call:
    """Return a call surrounded by middlewares, the first middleware outermost."""
    for middleware in reversed(middlewares):
        call = _around(middleware, call)
    return call


def _around(middleware: Middleware, inner: Call) -> Call:
    """Return a call inside a middleware.

    A middleware that forgets ``await`` returns the coroutine of the rest, or drops it. Without a check, the
    message would be confirmed, and the handler would never have run.
    """

    async def around(attempt: Attempt) -> Any:
        latest: Awaitable[Any] | None = None

        def rest() -> Awaitable[Any]:
            nonlocal latest
            latest = call = inner(attempt)
            return call

        result = await middleware(attempt, rest)
        if getattr(latest, "cr_frame", None) is not None:
            raise _unfinished(middleware, latest)
        return result

    return around


def _unfinished(middleware: Middleware, call: Any) -> UsageError:
    """Return the error of a middleware that has not waited for the rest of an attempt."""
    if inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
        call.close()  # otherwise a RuntimeWarning, which names no middleware
        what = "called call_next() without awaiting it, so the handler has not run"
    else:
        what = "returned while the handler was running"
    return UsageError(f"the middleware {name_of(middleware)} {what}: write 'result = await call_next()'")


def timed(call: Callable[P, Awaitable[T]], seconds: float) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return a call with a deadline."""

    async def within(*arguments: P.args, **names: P.kwargs) -> T:
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                return await call(*arguments, **names)
        except TimeoutError:
            if not deadline.expired():
                raise
        raise too_late(seconds)

    return within


def unless_cancelled(call: Call, cut_off: Callable[[], bool]) -> Call:
    """Return a call that ends with a CancelledError if it was cancelled meanwhile.

    For calls whose outcome is posted: whatever a cancelled handler returns or raises is not an outcome.

    Args:
        call: the call.
        cut_off: returns whether all calls were cancelled.
    """

    async def kept(attempt: Attempt) -> Any:
        task = asyncio.current_task()
        assert task is not None
        error: BaseException | None = None
        result: Any = None
        try:
            result = await call(attempt)
        except (Exception, BaseExceptionGroup) as raised:
            if not (task.cancelling() or cut_off()):
                raise
            error = raised
        if cut_off() and not task.cancelling():
            task.cancel()  # the handler has taken the cancellation back
        if task.cancelling():
            raise asyncio.CancelledError from error
        return result

    return kept


# ---- Threads for plain functions as handlers
#
# Threads cannot be stopped: a call continues after the deadline. Three rules hold meanwhile.
#
# - The deadline starts with the call of the function. Each worker has its own thread: no call waits for a
#   free thread.
# - A worker whose thread is still running takes no message, and the lane stays closed. Two messages of a
#   key are never handled at once, and a message is never handled twice at once. After a while another
#   worker takes its place, but for one worker: the number of threads has a bound, and a single worker stays
#   the only one.
# - The threads do not keep the process alive. After the grace period the process may end in the middle of a
#   call. The message is unconfirmed, and the broker delivers the message again.


class _ThreadCall:
    """One call of a function in a thread.

    Attributes:
        began: when the function began, by the monotonic clock; None before.
        ended: done when the function has ended.
        error: the exception of the function, or None.
        result: the return value of the function.
        closing: closes the dependencies of the function after its end, if the call ended late.
    """

    __slots__ = ("_context", "_loop", "_now", "_run", "began", "closing", "ended", "error", "result")

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._now = _world.current().monotonic
        self.began: float | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.error: BaseException | None = None
        self.result: object = None
        self.closing: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Call the function, in a thread."""
        self.began = self._now()
        try:
            self.result = self._context.run(self._run)
        except BaseException as error:
            self.error = error
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def left(self, seconds: float) -> float:
        """Return the remaining time of the call, out of ``seconds``; all before the call begins."""
        return seconds if self.began is None else self.began + seconds - self._now()


class _Threads:
    """Threads that start on demand and are reused.

    Args:
        name: the beginning of each thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[SimpleQueue[_ThreadCall | None]] = []
        self._count = 0
        self._closed = False

    def start(self, run: Callable[[], Any]) -> _ThreadCall:
        """Begin to call a function in an idle or new thread."""
        call = _ThreadCall(run)
        if _world.current().simulated:
            asyncio.get_running_loop().run_in_executor(None, call.run)
            return call
        jobs: SimpleQueue[_ThreadCall | None]
        if self._idle:
            jobs = self._idle.pop()
        else:
            jobs = SimpleQueue()
            self._count += 1
            name = f"{self._name}_{self._count}"
            threading.Thread(target=_work, args=(jobs,), name=name, daemon=True).start()
        jobs.put(call)
        call.ended.add_done_callback(lambda _: jobs.put(None) if self._closed else self._idle.append(jobs))
        return call

    def close(self) -> None:
        """End each thread after its present call, without waiting."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)


def _work(jobs: SimpleQueue[_ThreadCall | None]) -> None:
    while (call := jobs.get()) is not None:
        call.run()
        del call  # an idle thread keeps no message


# ---- Attempts of a handler: middlewares, a deadline, and a call in the event loop or in a thread
#
# From the outside to the inside, an attempt runs the interceptors of the session, the middlewares of the app,
# of the routers and of the handler, the deadline, the middlewares of the library, the dependencies, and the
# handler. A handler of a message or a value without middlewares is called directly.
#
# All this runs in a context of its own: a copy of the worker's context, which the caller makes.


class Invoker:
    """Calls a handler. Each task makes one call at a time.

    Args:
        plan: the handler.
        timeout: seconds for a call; None for no limit.
        context: middlewares and dependencies.
        observers: interceptors, as the outermost middlewares.
        key_of: returns the ordering key of a message; None without a key.

    Attributes:
        name: name of the handler.
        direct: makes the first attempt with a message, if the handler is async.
        shape: type of the values; None if the handler takes messages.
        timeout: seconds for a call; None for no limit.
        alarm: seconds for a call that the caller must enforce; None for no limit.
        blocking: logs blocking of the event loop.
        cut_off: whether the running attempts were cancelled at the end of the workers, and have no outcome,
            even if a handler takes the cancellation back.
    """

    def __init__(
        self,
        plan: HandlerPlan,
        timeout: float | None,
        context: HandlerContext,
        observers: Sequence[Middleware] = (),
        key_of: Callable[[Message], Hashable] | None = None,
    ) -> None:
        self.name = plan.name
        self.shape = plan.shape
        self.timeout = timeout
        self.alarm = timeout if plan.is_async else None
        self.blocking = BlockingCalls(logger, self.name)
        self.cut_off = False
        # Separate threads: the loop's default threads are few, and shared with the rest of the program.
        self._threads = None if plan.is_async else _Threads(self.name)
        # Calls in threads still running after the deadline, by calling task.
        self._late: dict[asyncio.Task[Any] | None, _ThreadCall] = {}
        middlewares = (*observers, *context.middlewares)
        self._plain = plan.plain if not middlewares and not context.builtins else None
        self.direct: Callable[[Message], Awaitable[object]] | None = None
        if self._plain is not None:
            if plan.is_async:
                self.direct = cast("Callable[[Message], Awaitable[object]]", self._plain)
            return
        self._info = info = HandlerInfo(self.name, context.state, key_of, plan.shape)
        call = self._call_of(plan, context)
        if context.builtins:
            call = chained(context.builtins, unless_cancelled(call, lambda: self.cut_off))
        if middlewares and timeout is not None and plan.is_async:
            call, self.alarm = timed(call, timeout), None
        self._call = call = chained(middlewares, call)
        if plan.is_async:
            self.direct = lambda message: call(attempt_of((message,), 1, info))

    def _call_of(self, plan: HandlerPlan, context: HandlerContext) -> Call:
        """Return a function that makes the dependencies of an attempt, and calls the handler.

        Raises:
            UsageError: an override cannot be called.
        """
        making = [each for each in plan.dependencies(context.overrides) if each.scope == "message"]
        steps = [(each.replaced, each.generates, caller(each.function, each.parameters)) for each in making]
        lasting, undecodable, in_loop = context.values, plan.undecodable, plan.is_async
        if in_loop and not steps and undecodable is None and not plan.yields:
            handler = caller(plan.handler, plan.parameters)
            return lambda attempt: handler(attempt, lasting)
        prepared = caller(partial(partial, plan.handler), plan.parameters)
        decodes = not plan.role.batch and plan.shape is not None

        async def prepare(attempt: Attempt, opened: list[Any]) -> Callable[[], Any]:
            if decodes:
                _ = attempt.value
            found = lasting.copy() if steps else lasting
            for function, generates, make in steps:
                result = make(attempt, found)
                if generates or type(result) is CoroutineType:
                    result = await made(generates, result, opened)
                found[function] = result
            run: Callable[[], Any] = prepared(attempt, found)
            return run

        in_time: Callable[[Attempt, list[Any]], Awaitable[Callable[[], Any]]] = prepare
        if steps and self.timeout is not None and not in_loop:
            in_time = timed(prepare, self.timeout)

        async def call(attempt: Attempt) -> Any:
            opened: list[Any] = []
            instead = False
            try:
                try:
                    run = await in_time(attempt, opened)
                except Undecodable as error:
                    if undecodable is None:
                        raise
                    run, instead = partial(cast("Any", undecodable), attempt.messages[0], error), True
                if not in_loop:
                    result = await self.run(run)
                elif plan.yields and not instead:
                    result = GeneratedResults([each async for each in run()])
                else:
                    result = await run()
            except BaseException as error:
                if opened and not self.afterwards(partial(closed_late, self.name, opened, error)):
                    last = await closed(opened, error)
                    if last is not error and last is not None:
                        raise last from last.__cause__
                raise
            if opened and (failed := await closed(opened, None)) is not None:
                raise failed
            return None if instead else result

        return call

    async def __call__(self, messages: Sequence[Message], number: int, value: Any = UNSET) -> None:
        """Make an attempt with a message or a batch.

        Args:
            messages: the message, or the messages of a batch.
            number: number of the attempt.
            value: list of values of a batch.

        Raises:
            TimeoutError: the deadline has passed.
            BaseException: any exception of the handler.

        Cancelling the call cancels an async handler. A thread continues, and its result is dropped.
        """
        if self._plain is None:
            result = await self._call(attempt_of(messages, number, self._info, value))
        elif self._threads is not None:
            result = await self.run(partial(self._plain, messages[0]))
        else:
            result = await cast("Any", self._plain)(messages[0])
        refuse_awaitable(self.name, result)

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function in a thread, and return its result.

        Raises:
            TimeoutError: the deadline has passed.
            UsageError: the function returned an awaitable.
            BaseException: any exception of the function.
        """
        assert self._threads is not None
        task = asyncio.current_task()
        if (earlier := self._late.get(task)) is not None and not earlier.ended.done():
            # A middleware repeats an attempt: a message is never handled twice at once.
            await asyncio.wait((earlier.ended,), timeout=self.timeout)
            if not earlier.ended.done():
                assert self.timeout is not None
                raise too_late(self.timeout)
        self._late[task] = call = self._threads.start(function)
        # The deadline starts with the function, whose start a busy process may delay.
        while not call.ended.done():
            left = None if self.timeout is None else call.left(self.timeout)
            if self.timeout is not None and left is not None and left <= 0:
                raise too_late(self.timeout)
            # Not awaited itself: a cancellation of the task must not cancel the future.
            await asyncio.wait((call.ended,), timeout=left)
        del self._late[task]
        if call.error is not None:
            raise call.error
        refuse_awaitable(self.name, call.result)
        return call.result

    def afterwards(self, closing: Callable[[], Awaitable[None]]) -> bool:
        """Call an async function once the current task's thread has ended; return False if no thread runs."""
        call = self._late.get(asyncio.current_task())
        if call is None or call.ended.done():
            return False

        async def close(call: _ThreadCall = call) -> None:
            await call.ended
            await closing()

        call.closing = asyncio.create_task(close())
        return True

    def late(self) -> asyncio.Future[None] | None:
        """Return, and forget, the end of the current task's late call, if the thread still runs."""
        call = self._late.pop(asyncio.current_task(), None) if self._late else None
        if call is None or call.ended.done():
            return None
        return call.ended if call.closing is None else call.closing

    def close(self) -> None:
        """Start no more threads; running threads are not waited for."""
        if self._threads is not None:
            self._threads.close()


def refuse_awaitable(name: str, result: object) -> None:
    """Refuse a result that the handler should have awaited: its work has not been done.

    Raises:
        UsageError: the result is a coroutine, or another awaitable.
    """
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise UsageError(
            f"{name} returned an awaitable that nothing awaits: make it 'async def', with 'return await ...'"
        )
