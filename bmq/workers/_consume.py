# SPDX-License-Identifier: Apache-2.0
"""Calls a function with each message of a queue."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, TypeAlias, TypeVar, cast

from bmq import _checks, _world
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._pace import Pace
from bmq._signals import on_signals
from bmq._turn import turn_of
from bmq.client.attempt import UNSET
from bmq.client.consumer import Consumer
from bmq.client.dead_letters import DeadLetter, Failure, described
from bmq.client.in_hand import Feeding
from bmq.client.internals import (
    buffer_of,
    driver_of,
    handlers_of,
    handling_of,
    in_hand_of,
    push_of,
    take_from,
)
from bmq.client.left import Left
from bmq.client.message import Message
from bmq.client.poison import PoisonKind, poison_of
from bmq.client.queue import Queue
from bmq.client.typed import TypedConsumer, TypedGroup, TypedMessage, TypedQueue, untyped
from bmq.codecs import Codec
from bmq.conventions import post_time
from bmq.errors import (
    Error,
    ProtocolError,
    RequestFailed,
    StateError,
    TimedOut,
    UsageError,
)
from bmq.subscriptions import ExpressionInput
from bmq.wire.printable import printable
from bmq.wire.push import GUID
from bmq.wire.uri import QueueUri
from bmq.workers._blocking import (
    ENDED,
    LONG,
    BlockingCalls,
    call_apart,
    further_steps,
    refuse_awaitable,
)
from bmq.workers._clock import Clock, LoopClock
from bmq.workers._handlers import Alarm, too_late
from bmq.workers._invoker import Invoker
from bmq.workers._lanes import Lanes
from bmq.workers._later import Later, attempts_so_far, check_durable, is_durable
from bmq.workers._membership import Membership, for_group, is_membership, lane_of, undecided
from bmq.workers._middleware import Middleware, check_middlewares
from bmq.workers._options import AckPolicy, HandlerOptions, Key, OnError, checked_clock
from bmq.workers._outcomes import Reject, RetryAfter
from bmq.workers._plan import OnUndecodable, Plan, Surroundings, app_dependencies, planned
from bmq.workers._quarantine import Quarantine, suspects_of
from bmq.workers._responder import Responder
from bmq.workers._retry import Backoff, RetryPolicy
from bmq.workers._status import Progress, watched
from bmq.workers._throttle import Throttle
from bmq.workers._typed import check_source

__all__ = [
    "Work",
    "Workers",
    "age_of",
    "anchor_of",
    "consume",
    "feed",
    "feed_group",
    "settled",
    "together",
    "work_on",
]

logger = Log("bmq.workers")

V = TypeVar("V")

#: A function of a value or a message, and of further parameters. All values have the same type.
HandlerOf: TypeAlias = (
    Callable[Concatenate[V, ...], object]
    | Callable[Concatenate[TypedMessage[V], ...], object]
    | Callable[Concatenate[Message, ...], object]
)

# Maximum number of error types and places to log with a traceback.
_MOST_SEEN = 256
# Maximum number and bytes of a group's messages in lanes. Further messages wait in their buckets.
_LANE_MESSAGES = 10_000
_LANE_BYTES = 256 * 1024 * 1024
# Seconds between two looks whether the member's lease was renewed.
_LEASE_LOOK = 0.1
# Maximum number of GUIDs in the text of a log line; the record has all of them.
_GUIDS_SHOWN = 20
# Minimum time in seconds for telling the broker to stop delivery, even if the grace period is shorter.
_CLOSING_AT_LEAST = 1.0
# Seconds for cancelled handlers to end: after the first cancellation, and after the second.
_TO_END = (5.0, 1.0)
# Tasks of handlers that have ignored both cancellations. The event loop itself keeps no reference.
_abandoned: set[asyncio.Task[None]] = set()


async def consume(
    source: Queue | Consumer | Membership | TypedQueue[V] | TypedConsumer[V] | TypedGroup[V],
    handler: HandlerOf[V] | Responder,
    *,
    expression: ExpressionInput = None,
    priority: int | None = None,
    max_unconfirmed_messages: int | None = None,
    max_unconfirmed_bytes: int | None = None,
    discard_unmatched: bool = False,
    concurrency: int = 1,
    key: Key | None = None,
    ack: AckPolicy = AckPolicy.ON_SUCCESS,
    retry: RetryPolicy | None = None,
    quarantine: DeadLetter | None = None,
    after: int = 3,
    timeout: float | None = None,
    rate: float | None = None,
    codec: str | Codec[Any] | None = None,
    undecodable: OnUndecodable | None = None,
    middlewares: Iterable[Middleware] = (),
    grace: float = 30.0,
    on_error: OnError | None = None,
    clock: Clock | None = None,
    signals: bool = False,
) -> None:
    """Call a function with each message of a queue, until cancelled.

    Returns when the queue, its consumer or the session is closed. To stop, cancel the call: no more messages
    are taken, handlers in progress finish, and then the cancellation propagates.

    ::

        async def handle(message: bmq.Message) -> None:
            await ship(message.data)

        await bmq.consume(queue, handle, concurrency=10)

    Args:
        source: an open queue, on which the call creates a consumer; or a consumer, which stays open at the
            end; or a :class:`bmq.groups.Group`, which the call joins, and leaves at the end. A typed source
            determines the type of the handler's values, and the codec.
        handler: takes the :class:`bmq.Message`. If the first parameter is annotated with another type, the
            handler takes the message's value (see :meth:`bmq.Queue.typed`). Further parameters are
            annotated with ``bmq.Message``, :class:`bmq.Attempt`, :class:`bmq.Property` or
            :class:`bmq.Depends`. An ``async def`` runs in the event loop. Any other function runs in a
            thread; at most ``concurrency`` threads run within their deadlines. A
            :class:`bmq.workers.Responder` answers requests. Each attempt runs in a copy of the caller's
            context.
        expression: selects messages, as for :meth:`bmq.Queue.subscribe`; None for all messages.
        priority: priority of the subscription; None for the queue's.
        max_unconfirmed_messages: limit of unconfirmed messages, including messages waiting for a handler;
            None for the queue's limit.
        max_unconfirmed_bytes: limit of unconfirmed bytes; None for the queue's limit.
        discard_unmatched: as for :meth:`bmq.Queue.subscribe`.
        concurrency: number of messages handled at the same time. 1 handles messages in delivery order; with a
            higher number, messages can overtake each other.
        key: ordering key, the name of a property or a function of the message. Messages with equal keys are
            handled sequentially in delivery order, also when a message is retried. Messages with different
            keys are handled concurrently. All messages without the property share the same key. In a group,
            the default is the key of the group.
        ack: when to confirm a message.
        retry: policy for messages whose handler fails. None makes four more attempts, after 1, 2, 4 and 8
            seconds, except after errors bound to recur with the same message (ValueError, TypeError,
            LookupError, AttributeError, UsageError, ProtocolError). If all attempts fail, the message is
            skipped: it stays in the queue, unconfirmed, and the next message is handled. In a group, None
            retries without an end, with growing pauses up to a minute: the key waits, and other keys
            continue.
        quarantine: queue for messages that crash the process; the broker keeps the count. A redelivered
            message is posted to the end of the queue again, and afterwards handled alone. If None, the
            handler receives a redelivered message again, without a limit.
        after: number of processes that may end, or lose the connection, while handling a message.
        timeout: seconds for one attempt of the handler; None for no limit. Threads cannot be stopped: after
            the deadline the attempt has failed, and the worker waits for the thread. After as many seconds
            again, another worker takes its place, for up to ``concurrency - 1`` workers.
        rate: maximum number of messages a second; None for no limit.
        codec: content type or :class:`bmq.Codec` to decode messages without a content type, for a handler of
            values. JSON by default.
        undecodable: called instead of the handler, with the message and the :class:`bmq.Undecodable`, if a
            message cannot be decoded. If None, an undecodable message is not retried, and the ``then`` of
            ``retry`` applies at once. In a group, the message is retried as after any other error, and later
            messages of its key wait.
        middlewares: async functions around each attempt, the first outermost.
        grace: seconds for handlers to finish. Afterwards, or at a second cancellation, the handlers are
            cancelled. Handlers that still run 6 seconds later are left running, and the log names them.
        on_error: called with a :class:`Failure` after each unsuccessful attempt.
        clock: clock for the pauses between attempts.
        signals: stop in the same way on SIGTERM and SIGINT, if the platform and the thread allow signal
            handlers, and return. A second signal cancels the handlers. For programs that only call this
            function.

    Raises:
        UsageError: an argument is out of range, two arguments contradict each other, or the handler's type of
            values differs from a typed source's.
        InvalidExpression: the subscription is not legal, or does not fit the type of the values.
        ConfigureQueueError: the broker refused the subscription.
        OpenQueueError: the broker refused the queue for dead letters.
        Error: the queue or the session has failed.

    Messages are confirmed as ``ack`` and ``retry`` specify, and never because a handler was cancelled: a
    handler that was cut off has no outcome, whatever it returns or raises.
    """
    given, of = untyped(cast("Any", source))
    group = given if is_membership(given) else None
    whole: Any = given if group is None else group.queue
    if not isinstance(whole, Queue | Consumer):
        raise UsageError(
            "source must be an open bmq.Queue, a bmq.Consumer or a bmq.groups.Group, not "
            f"{_checks.shown(source)}"
        )
    options = HandlerOptions(
        expression=expression,
        priority=priority,
        max_unconfirmed_messages=max_unconfirmed_messages,
        max_unconfirmed_bytes=max_unconfirmed_bytes,
        discard_unmatched=discard_unmatched,
        concurrency=concurrency,
        key=key,
        ack=ack,
        retry=retry,
        quarantine=quarantine,
        after=after,
        timeout=timeout,
        rate=rate,
        on_error=on_error,
    )
    if group is not None:
        options = for_group(options)
        if isinstance(handler, Responder):
            raise UsageError("a responder has a queue of its own: give the queue to consume(...)")
    grace = _checks.seconds("grace", grace)
    signals = _checks.boolean("signals", signals)
    clock = checked_clock(clock)
    around = Surroundings(check_middlewares(middlewares))
    if isinstance(handler, Responder):
        if codec is not None or undecodable is not None:
            raise UsageError(
                "a responder has a codec of its own, and answers undecodable requests with errors"
            )
        plan, around.builtins = handler._plan(None), (handler._handle,)
        handler = handler.function
    else:
        plan = planned(handler, codec, undecodable)
    plan.check_middlewares(around.middlewares, around.overrides)
    check_source(handler, plan.shape, of, codec)
    if plan.shape is not None and of is not None:
        plan = plan.with_codec(of.codec)
    if plan.shape is not None and isinstance(whole, Consumer):
        plan.shape.check(whole.expression, plan.properties)
    options.check_handler(handler, plan.shape, plan.properties)
    if isinstance(whole, Consumer) and options.limited:
        raise UsageError(
            "a consumer already has a subscription and limits: give these arguments to "
            "queue.subscribe(...), or give the queue to consume(...)"
        )
    origin = QueueUri.parse((whole if isinstance(whole, Queue) else whole.queue).uri)
    check_durable(options.policy, origin)
    options.check_quarantine(origin)
    if quarantine is not None:
        quarantine = DeadLetter(await _open_letters(whole, quarantine))
        options = replace(options, quarantine=quarantine)
    then = options.policy.then
    dead_letters = await _open_letters(whole, then) if isinstance(then, DeadLetter) else None

    async def fed() -> None:
        async with app_dependencies((plan,), around) as around.values:
            if group is not None:
                await feed_group(group, plan, options, dead_letters, around, grace=grace, clock=clock)
                return
            consumer = options.subscribe(whole) if isinstance(whole, Queue) else whole
            own = consumer is not whole
            await feed(consumer, plan, options, dead_letters, around, close=own, grace=grace, clock=clock)

    await (_until_a_signal(fed()) if signals else fed())


async def _until_a_signal(feeding: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine, cancelled by each signal; return normally if a signal ended the coroutine."""
    task = asyncio.current_task()
    assert task is not None
    received = 0

    def stop() -> None:
        nonlocal received
        received += 1
        task.cancel()

    with on_signals(stop):
        try:
            await feeding
        except asyncio.CancelledError:
            if not received or task.cancelling() > received:  # the task was cancelled elsewhere, too
                raise
        finally:
            for _ in range(received):
                task.uncancel()


async def feed(
    consumer: Consumer,
    plan: Plan,
    options: HandlerOptions,
    dead_letters: Queue | None,
    around: Surroundings,
    *,
    close: bool,
    grace: float,
    clock: Clock | None,
) -> None:
    """Do the work of :func:`consume`, after the checks and with open queues for dead letters.

    With ``close``, close the consumer at the end.
    """
    key = options.key_of()
    invoke = Invoker(plan, options.timeout, around, handling_of(consumer.queue.session), key)
    how = (invoke, options, dead_letters, clock or LoopClock())

    def make(consumer: Consumer, pace: Pace | None) -> Workers:
        return Workers(consumer, *how, pace) if key is None else _LaneWorkers(consumer, *how, pace, key=key)

    def make_apart(consumer: Consumer, pace: Pace | None) -> Workers:
        return Workers(consumer, *how, pace)

    try:
        await work_on(consumer, options, invoke.name, make, make_apart, close=close, grace=grace)
    finally:
        invoke.close()


async def feed_group(
    group: Membership,
    plan: Plan,
    options: HandlerOptions,
    dead_letters: Queue | None,
    around: Surroundings,
    *,
    grace: float,
    clock: Clock | None,
    anchor: Consumer | None = None,
) -> None:
    """Do the work of :func:`consume` as a member of a group, and leave the group at the end.

    Messages without a finished handler are given back when the member leaves. ``anchor`` is a consumer of the
    queue for the status, and never subscribes.
    """
    key = lane_of(group, options)
    invoke = Invoker(plan, options.timeout, around, handling_of(group.queue.session), key)
    pace = None if options.rate is None else Pace(options.rate)
    try:
        try:
            await group.open()
            anchor = anchor or anchor_of(group.queue)
            how = (anchor, invoke, options, dead_letters, clock or LoopClock(), pace)
            await _GroupWorkers(*how, key=key, group=group).run(options.concurrency, grace, close=False)
        finally:
            await group.close()
    finally:
        invoke.close()


def anchor_of(queue: Queue) -> Consumer:
    """Return a consumer that never subscribes, for the status and the limits of a group's handler."""
    return queue.subscribe(max_unconfirmed_messages=_LANE_MESSAGES, max_unconfirmed_bytes=_LANE_BYTES)


async def work_on(
    consumer: Consumer,
    options: HandlerOptions,
    name: str,
    make: Callable[[Consumer, Pace | None], Workers],
    make_apart: Callable[[Consumer, Pace | None], Workers],
    *,
    close: bool,
    grace: float,
) -> None:
    """Run workers on a consumer and, with a quarantine, further workers on the suspect messages.

    Args:
        consumer: the consumer.
        options: the handler's options.
        name: the handler's name.
        make: makes the workers.
        make_apart: makes the workers of suspect messages, for a single message at a time.
        close: whether to close the consumer at the end.
        grace: seconds for handlers to finish.
    """
    feeding = Feeding(consumer)
    try:
        await consumer.open()
        pace = None if options.rate is None else Pace(options.rate)
        workers = make(consumer, pace)
        if options.quarantine is None:
            await workers.run(options.concurrency, grace, close=close)
            return
        suspects = feeding.add(suspects_of(consumer))
        await suspects.open()
        apart = make_apart(suspects, pace)
        for each in (workers, apart):
            each.quarantine = Quarantine(options.quarantine, options.after, consumer.queue, name)
        await together(workers.run(options.concurrency, grace, close=close), apart.run(1, grace, close=True))
    finally:
        feeding.close()


async def _open_letters(source: Queue | Consumer, letters: DeadLetter) -> Queue:
    """Return the queue for dead letters, opened if the dead letters name a URI."""
    origin = source if isinstance(source, Queue) else source.queue
    if QueueUri.parse(letters.uri).canonical == QueueUri.parse(origin.uri).canonical:
        raise UsageError(f"dead letters of {origin.uri} would return to it; name another queue for them")
    if isinstance(letters.queue, str):
        return await origin.session.open_output(letters.queue)
    if not letters.queue.writable:
        raise UsageError(f"queue {letters.uri} is not open for writing: open_queue(..., write=True)")
    return letters.queue


class Work:
    """The state of a message in progress.

    Attributes:
        message: the message.
        began: when a worker took the message.
        counted: whether the quarantine has seen the message.
        attempt: number of the next attempt.
        error: reason why no handler can be called with the message.
        failing: whether an attempt has failed and another attempt follows.
        aged: whether ``began`` is moved back to the post time of the message.
    """

    __slots__ = ("aged", "attempt", "began", "counted", "error", "failing", "message")

    def __init__(self, message: Message, began: float) -> None:
        self.message = message
        self.began = began
        self.attempt = 1
        self.error: Exception | None = None
        self.failing = self.counted = self.aged = False


class Workers:
    """Tasks handling messages of one consumer; each task takes a single message at a time.

    Attributes:
        progress: counts of the workers, past and present.
        quarantine: counts the deaths of redelivered messages; None to handle these like new messages.
    """

    quarantine: Quarantine | None = None
    # Seconds until another attempt with a message given up and not confirmed; None for no further attempt.
    _hold: float | None = None

    def __init__(
        self,
        consumer: Consumer,
        invoke: Invoker,
        options: HandlerOptions,
        dead_letters: Queue | None,
        clock: Clock,
        pace: Pace | None,
    ) -> None:
        self._consumer = consumer
        self._invoke = invoke
        self._ack = options.ack
        self._retry = retry = options.policy
        self._dead_letters = dead_letters
        self._on_error = options.on_error
        self._on_error_blocking = BlockingCalls(logger, f"on_error of {invoke.name}")
        self._clock = clock
        self._throttle = Throttle(logger, clock)
        self._limit = LogLimit(logger, clock=clock.time)
        # Type and place of the errors logged with a traceback.
        self._seen: set[tuple[type, tuple[str, int] | None]] = set()
        self._pace = pace
        self._stopping = False
        self._left = Left(consumer, invoke.name, logger, _REMEDY, clock.sleep, clock.time)
        self._later = Later(consumer.queue) if is_durable(retry) else None
        # Maximum age of a message in seconds, if known.
        self._life = retry.give_up_after if isinstance(retry, Backoff) else None
        # Set while new messages may be handled; None if failed messages do not block them.
        self._calm = asyncio.Event() if isinstance(retry, Backoff) and retry.blocks else None
        if self._calm is not None:
            self._calm.set()
        # All messages in the hands of this queue's handlers; prevents handing out a message twice.
        self._in_hand = in_hand_of(consumer.queue)
        self._held: dict[asyncio.Task[None], Message] = {}
        # Messages, by GUID, waiting here for the next attempt without occupying a worker; and timers. When a
        # timer fires, the message goes back into the line.
        self._parked: dict[str, Work] = {}
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._losses = 0
        # Workers pausing before the next attempt. The shutdown does not wait for the pause: the broker
        # redelivers the message, and another consumer can make the attempt.
        self._resting: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._concurrency = 0
        # Done when a worker has ended that was not replaced.
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Workers whose thread has not ended, and whose place another worker has taken.
        self._replaced: set[asyncio.Task[None]] = set()
        self.progress = Progress(invoke.name, 0)

    @property
    def calls(self) -> int:
        """Number of workers in a call of the handler, or about to post its outcome."""
        return len(self._held.keys() - self._resting)

    @property
    def left(self) -> int:
        """Number of messages left in the queue, unconfirmed."""
        return self._left.count

    @property
    def full(self) -> bool:
        """Whether left or failed messages keep this worker from handling new messages."""
        if self._calm is not None and not self._calm.is_set():
            return True
        return self._left.fills_limits or len(self._parked) >= self._consumer.options.max_unconfirmed_messages

    @property
    def oldest(self) -> Message | None:
        """The message that a handler has been at for the longest time."""
        return next(iter(self._held.values()), None)

    @property
    def joining(self) -> bool:
        """Whether the handler gets no messages yet: never, as the subscription has been answered."""
        return False

    async def run(self, concurrency: int, grace: float, *, close: bool) -> None:
        """Work until cancelled, or until no more messages can arrive."""
        self._concurrency = concurrency
        tasks = self._tasks
        with watched(self._consumer, self):
            self._begin()
            try:
                await self._over
            finally:
                lost = any(task.cancelled() for task in tasks)
                try:
                    await self._drain(tasks, grace, close=close)
                finally:
                    self._left.close()
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if lost:
            raise StateError(f"a worker task of {self._invoke.name} was cancelled from outside")

    def _begin(self) -> None:
        """Start the tasks."""
        for _ in range(self._concurrency):
            self._add_worker()

    def _add_worker(self) -> None:
        self.progress.workers += 1
        self._start(self._work(), f"worker {self.progress.workers}")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"{self._invoke.name} {name}")
        self._tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Stop all workers when one has ended, except for one that was replaced."""
        if task in self._replaced:
            self._replaced.discard(task)
            self.progress.workers -= 1
            if not task.cancelled() and task.exception() is None:
                self._tasks.remove(task)
                return
        if not self._over.done():
            self._over.set_result(None)

    async def _drain(self, tasks: list[asyncio.Task[None]], grace: float, *, close: bool) -> None:
        """Take no more messages, let handlers finish within ``grace`` seconds, then cancel the rest."""
        self._stopping = True
        for task in tasks:
            if task not in self._held or task in self._resting:
                task.cancel()
        self._hand_back()
        now = asyncio.get_running_loop().time
        deadline = now() + grace
        closing = asyncio.create_task(self._consumer.close()) if close else None
        interrupted = not await settled(tasks, grace, *_TO_END, cut_off=lambda: self._cut_off(tasks))
        self._abandon(tasks)
        if closing is not None:
            interrupted |= not await settled([closing], max(deadline - now(), _CLOSING_AT_LEAST), None)
            if not closing.cancelled() and (error := closing.exception()) is not None:
                logger.warning(
                    "could not withdraw the subscription of %r: %s",
                    self._consumer,
                    error,
                    extra={"queue": self._consumer.queue.uri},
                )
        if interrupted:
            raise asyncio.CancelledError

    def _cut_off(self, tasks: list[asyncio.Task[None]]) -> None:
        """Ignore the outcome of unfinished handlers from now on, and log their cancellation."""
        self._invoke.cut_off = True
        cut = [message for task in tasks if not task.done() for message in self._at_work(task)]
        if cut:
            uri = self._consumer.queue.uri
            guids = [message.guid for message in cut]
            logger.warning(
                "%s was cut off in the middle of %d messages of %s; unconfirmed ones are redelivered: %s",
                self._invoke.name,
                len(cut),
                uri,
                ", ".join(guids[:_GUIDS_SHOWN]) + (", ..." if len(guids) > _GUIDS_SHOWN else ""),
                extra={"queue": uri, "guids": guids},
            )

    def _abandon(self, tasks: list[asyncio.Task[None]]) -> None:
        """Log handlers that still run after their cancellation, and stop waiting for them."""
        running = [task for task in tasks if not task.done()]
        if not running:
            return
        for task in running:
            _abandoned.add(task)
            task.add_done_callback(_forget)
        messages = [message for task in running for message in self._at_work(task)]
        for message in messages:
            handlers_of(self._consumer.queue).leave(
                message
            )  # closing the queue does not wait for them either
        guids = [message.guid for message in messages]
        logger.error(
            "%s ignores its cancellation, and is left running with %d messages of %s; the third SIGTERM or "
            "SIGINT ends the process at once",
            self._invoke.name,
            len(guids),
            self._consumer.queue.uri,
            extra={"queue": self._consumer.queue.uri, "guids": guids},
        )

    def _at_work(self, task: asyncio.Task[None]) -> list[Message]:
        """Return a task's messages in progress."""
        return [] if task in self._resting or task not in self._held else [self._held[task]]

    def _hand_back(self) -> None:
        """Give back the taken messages without a handler."""
        for timer in self._timers.values():
            timer.cancel()
        parked = [self._parked[guid].message for guid in self._timers]
        self._timers.clear()
        for guid in list(self._parked):
            self._resumed(guid)
        self._consumer.put_back(parked)

    def _park(self, work: Work, seconds: float) -> None:
        """Keep a failed message for some seconds without occupying a worker.

        Durable retries use this path when the delay queue is full. Due messages wait in the delay queue until
        the queue accepts more, and only this worker's next confirmations free the capacity. A pausing worker
        would wait for ever.
        """
        losses = driver_of(self._consumer.queue.session).received.losses
        if losses != self._losses:
            # After a lost connection, the broker redelivers messages in line, some to different consumers.
            self._losses = losses
            for each in [guid for guid in self._parked if guid not in self._timers]:
                if self._parked[each].message.stale:
                    self._resumed(each)
        guid = work.message.guid
        self._parked[guid] = work
        self.progress.parked += 1
        self._timers[guid] = asyncio.create_task(self._unpark(guid, work, seconds))

    async def _unpark(self, guid: str, work: Work, seconds: float) -> None:
        await self._clock.sleep(seconds)
        del self._timers[guid]
        if work.message.stale:
            self._resumed(guid)  # redelivered, here or to another consumer
        self._consumer.put_back((work.message,))

    def _resumed(self, guid: str) -> Work | None:
        """Return the state of a parked message, and stop parking the message."""
        work = self._parked.pop(guid, None)
        if work is not None:
            self.progress.parked -= 1
            self._not_failing(work)
        return work

    async def _paced(self, messages: Sequence[Message]) -> None:
        """Wait until the rate and the failed messages allow more. Cancelling the call gives these back."""
        try:
            if self._pace is not None:
                await self._pace.wait(len(messages))
            if self._calm is not None:
                await self._calm.wait()
            await self._not_held()
        except asyncio.CancelledError:
            self._consumer.put_back(messages)
            raise

    def _count_failing(self, change: int) -> None:
        """Count messages to be retried."""
        self.progress.failing += change
        if self._calm is not None:
            (self._calm.clear if self.progress.failing else self._calm.set)()

    def _outlived(self, elapsed: float) -> TimedOut | None:
        """Return the error of a message older than its life; the broker may have deleted the message."""
        if self._life is None or elapsed <= self._life:
            return None
        return TimedOut(
            f"the message is {elapsed:.3g} s old, beyond give_up_after={self._life:g}: no attempt was made"
        )

    async def _not_held(self) -> None:
        """Wait while a request to stop may be on its way: see :mod:`bmq._turn`."""
        turn = turn_of(asyncio.get_running_loop())
        if turn.clock() >= turn.until:
            await turn.wait()

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        invoke = self._invoke
        alarm = Alarm(task, invoke.alarm) if invoke.alarm is not None else None
        # In most cases the message goes straight to its handler: each coroutine in between costs as much time
        # as taking the message.
        straight = self._later is None and self._ack is AckPolicy.ON_SUCCESS and self._life is None
        try:
            await self._take(task, invoke.direct if straight else None, alarm)
        finally:
            if alarm is not None:
                alarm.close()

    async def _take(
        self,
        task: asyncio.Task[None],
        handler: Callable[[Any], Awaitable[object]] | None,
        alarm: Alarm | None,
    ) -> None:
        """Take and handle messages sequentially, with ``handler`` if given."""
        held, progress = self._held, self.progress
        turn = turn_of(task.get_loop())
        clock = turn.clock
        arriving, waiting, take = aiter(self._consumer), buffer_of(self._consumer), take_from(self._consumer)
        left, skipped = self._left.left, self._left.skipped
        paced = self._pace is not None or self._calm is not None
        invoke, blocking, own, ended_at_once = self._invoke, self._invoke.blocking, copy_context, ENDED
        quarantine = self.quarantine
        # Reading the clock takes 2 % of a message's time. Each message reads the clock only once: the end of
        # a call is the beginning of the next call. A separate retry clock is read once more for each message.
        now = None if type(self._clock) is LoopClock else self._clock.time
        called = clock()
        while True:
            if waiting and called < turn.until:
                message = take()
            else:
                try:
                    message = await anext(arriving)
                except StopAsyncIteration:
                    return
                called = clock()
            if left or skipped:
                self._left.forget(message)
            if paced:
                await self._paced((message,))
                called = clock()
            held[task] = message
            progress.handling += 1
            began = now() if now is not None else None
            try:
                if handler is None or (quarantine is not None and message.redelivered):
                    await self._handle(message, task, self._clock.time() if began is None else began)
                    if task in self._replaced:
                        return
                    called = clock()
                else:
                    error: BaseException | None = None
                    waits_for = ended_at_once
                    if alarm is not None:
                        alarm.begin()
                    try:
                        # As call_apart does. A generator for each message would take a tenth of its time.
                        steps, context = handler(message).__await__(), own()
                        try:
                            waits_for = context.run(next, steps)
                        except StopIteration as end:
                            returned = end.value
                        else:
                            if (spent := clock() - called) >= LONG:
                                blocking.found(spent)
                            returned = await further_steps(context.run, steps, waits_for, blocking, clock)
                        if returned is not None:
                            refuse_awaitable(invoke.name, returned)
                    except (Exception, asyncio.CancelledError, BaseExceptionGroup) as raised:
                        error = raised
                    ended = clock()
                    spent = ended - called
                    if spent >= LONG and waits_for is ended_at_once:
                        blocking.found(spent)
                    called = ended
                    if alarm is not None and alarm.end():
                        error = self._too_late(error)
                    if invoke.cut_off or task.cancelling() or error is not None:
                        self._check_end(task, error)
                    if error is None:
                        progress.handled += 1
                        progress.failing_since = None
                        message.confirm()
                    else:
                        taken = self._clock.time() - spent if began is None else began
                        await self._handle(message, task, taken, error)
                        called = clock()
                        error = None  # the error refers to this frame
            finally:
                del held[task]
                progress.handling -= 1
                if not message.confirmed:
                    self._release(message)
            if self._stopping:
                return

    def _release(self, message: Message) -> None:
        """Allow a message that a worker has finished to be handed out again, unless still in hand.

        Parked messages are still in hand, as are messages passed on by a handler for a later confirmation.
        """
        guid = message.guid
        if guid not in self._parked and guid not in self._left.left:
            self._in_hand.pop(push_of(message)[GUID], None)

    def _check_end(self, task: asyncio.Task[None], error: BaseException | None) -> None:
        """Check who has ended an attempt.

        Args:
            task: the worker.
            error: the exception of the attempt.

        Raises:
            asyncio.CancelledError: the worker was cancelled: the attempt has no outcome, whatever the handler
                has raised or returned meanwhile.
            BaseException: the handler ends the worker.
        """
        if self._invoke.cut_off or task.cancelling():
            if isinstance(error, asyncio.CancelledError):
                raise error
            raise asyncio.CancelledError from error
        if not (error is None or isinstance(error, Exception | asyncio.CancelledError)):
            raise error

    def _too_late(self, error: BaseException | None) -> BaseException:
        """Return the error of an attempt cancelled at the deadline."""
        assert self._invoke.timeout is not None
        if error is None or isinstance(error, asyncio.CancelledError):
            return too_late(self._invoke.timeout)
        return error

    async def _handle(
        self, message: Message, task: asyncio.Task[None], began: float, error: BaseException | None = None
    ) -> None:
        """Make attempts until a message is finished; ``error`` is the result of a first attempt, if made."""
        work = self._resumed(message.guid) or self._new(message, began)
        work.message = message
        try:
            delay = await self._try(work, task, error)
            while delay is not None:
                if self._later is not None and not self._stopping:
                    self._park(work, delay)
                    return
                await self._rest(delay)
                delay = await self._try(work, task)
        finally:
            if message.guid not in self._parked:
                self._not_failing(work)

    async def _try(
        self, work: Work, task: asyncio.Task[None], error: BaseException | None = None
    ) -> float | None:
        """Make one attempt, or use the given error as the result.

        Returns:
            Seconds until the next attempt; None if the message is finished.
        """
        message, progress = work.message, self.progress
        if self.quarantine is not None and message.redelivered and not work.counted:
            work.counted = True
            if await self.quarantine.took(message, self._rest_for_room):
                return None
        if self._ack is AckPolicy.ON_RECEIPT:
            message.confirm()
        error = error or work.error
        outlived = None
        if error is None:
            outlived = self._outlived(self._elapsed(work)) if self._life is not None else None
            error = outlived or await self._attempt(message, work.attempt, task)
        if error is None:
            progress.handled += 1
            progress.failing_since = None
            if self._ack is AckPolicy.ON_SUCCESS:
                message.confirm()
            elif not message.confirmed:
                self._left.wait_for(message)
            return None
        self._elapsed(work)
        attempt = work.attempt - (outlived is not None)
        progress.attempts_failed += outlived is None
        progress.failed()
        delay = self._pause_after(message, error, work.attempt, work.began)
        if message.confirmed or outlived is not None:
            delay = None  # the message was confirmed meanwhile, or is too old
        failure = Failure(message, error, attempt, delay, self._invoke.name)
        await self._report(failure)
        self._check_end(task, None)
        if delay is None:
            progress.given_up += 1
            progress.gone += 1
            progress.given_up_in_a_row += not isinstance(error, Reject)
            self._not_failing(work)
            await self._give_up(failure)
            delay = None if message.confirmed else self._hold
        elif self._later is not None and await self._later.put_off(failure):
            delay = None  # the message is redelivered
            progress.gone += 1
        if delay is not None and not work.failing:
            work.failing = True
            self._count_failing(1)
        await self._thread_ends(not work.failing)
        work.attempt += not isinstance(error, RetryAfter)
        return delay

    async def _thread_ends(self, failing: int = 0) -> None:
        """Wait for the current task's abandoned thread, possibly for ever.

        Args:
            failing: number of further messages to count as failing meanwhile.
        """
        ended = self._invoke.late()
        if ended is None:
            return
        task, progress = asyncio.current_task(), self.progress
        assert task is not None
        if self._stopping:
            raise asyncio.CancelledError
        self._count_failing(failing)
        self._count_hung(1)
        self._limit.warning(
            "hung",
            "%s still runs in its thread after its deadline of %g s: %d of %d workers wait for their "
            "threads, and take no messages meanwhile",
            self._invoke.name,
            self._invoke.timeout,
            progress.hung,
            progress.workers,
        )
        self._resting.add(task)
        try:
            if task not in self._replaced:
                await asyncio.wait((ended,), timeout=self._invoke.timeout)
                if not ended.done() and len(self._replaced) < self._concurrency - 1:
                    self._replaced.add(task)
                    self._add_worker()
                    self._count_hung(0)
            await asyncio.shield(ended)
        finally:
            self._resting.discard(task)
            self._count_hung(-1)
            self._count_failing(-failing)

    def _count_hung(self, change: int) -> None:
        """Count workers waiting for a thread."""
        if not self.progress.hung:
            self.progress.hung_since = _world.now()
        self.progress.hung += change

    def _new(self, message: Message, began: float) -> Work:
        work = Work(message, began)
        if self._later is not None:
            work.attempt = attempts_so_far(message, self._retry) + 1
        return work

    def _not_failing(self, work: Work) -> None:
        """Record a message without a further attempt."""
        if work.failing:
            self._count_failing(-1)
        work.failing = False

    def _elapsed(self, work: Work) -> float:
        """Return the age of a message in seconds: since its post time if present, or since its arrival."""
        now = self._clock.time()
        if not work.aged:
            work.aged = True
            work.began -= age_of(work.message, now - work.began)
        return now - work.began

    def _pause_after(
        self, message: Message, error: BaseException, attempt: int, began: float
    ) -> float | None:
        if isinstance(error, RetryAfter):
            return error.seconds
        if isinstance(error, Reject) or poison_of(message, error) is not None:
            return None
        return self._retry.delay(attempt, self._clock.time() - began, error)

    async def _attempt(
        self, message: Message, attempt: int, task: asyncio.Task[None]
    ) -> BaseException | None:
        """Call the handler; return its exception."""
        return await self._called(task, (message,), attempt)

    async def _called(
        self, task: asyncio.Task[None], messages: Sequence[Message], attempt: int, value: Any = UNSET
    ) -> BaseException | None:
        """Call the handler; return its exception. A CancelledError comes from a task cancelled elsewhere."""
        error: BaseException | None = None
        try:
            await self._invoke(messages, attempt, value)
        except (Exception, asyncio.CancelledError, BaseExceptionGroup) as raised:
            error = raised
        self._check_end(task, error)
        return error

    async def _rest(self, seconds: float) -> None:
        """Wait before the next attempt. The wait ends at once when the worker stops."""
        task = asyncio.current_task()
        assert task is not None
        if self._stopping:
            raise asyncio.CancelledError
        self._resting.add(task)
        try:
            await self._clock.sleep(seconds)
            await self._not_held()
        finally:
            self._resting.discard(task)

    async def _rest_for_room(self, seconds: float) -> None:
        """Wait for capacity in the queue for dead letters; the worker takes no messages meanwhile."""
        self.progress.stuck += 1
        try:
            await self._rest(seconds)
        finally:
            self.progress.stuck -= 1

    async def _give_up(self, failure: Failure) -> None:
        """Follow the policy: only "discard" and the acknowledgement of a dead letter confirm the message."""
        then, message = self._retry.then, failure.message
        if message.confirmed:
            return
        if then == "discard":
            message.confirm()
        elif then == "skip":
            self._left.skip(message)
        elif then == "leave":
            self._left.leave(message)
        else:
            assert self._dead_letters is not None
            try:
                await then.post(failure, self._dead_letters, self._rest_for_room)
            except Error as error:
                self._limit.error(
                    ("letter", type(error)),
                    "message %s of %s stays in the queue, unconfirmed: it could not be put aside in %s: %s",
                    message.guid,
                    message.queue_uri,
                    then.uri,
                    described(error),
                )
                if self._hold is None:
                    self._left.skip(message)
            else:
                message.confirm()

    async def _report(self, failure: Failure) -> None:
        error, message = failure.error, failure.message
        where = (failure.handler, message.guid, message.queue_uri, failure.attempt)
        about = _about(failure)
        log = self._throttle.log
        if isinstance(error, RetryAfter) and failure.retry_in is not None:
            text = "%s puts off message %s of %s, attempt %d; next attempt in %g s: %s"
            log(logging.INFO, text, *where, failure.retry_in, error.reason, extra=about)
        elif failure.retry_in is not None:
            text = "%s failed on message %s of %s, attempt %d; next attempt in %g s: %s"
            log(logging.WARNING, text, *where, failure.retry_in, self._shown(error), extra=about)
        elif isinstance(error, Reject):
            text = "%s rejected message %s of %s, attempt %d; %s: %s"
            log(logging.WARNING, text, *where, self._outcome(failure), error.reason, extra=about)
        elif (poison := poison_of(message, error)) is not None:
            text = "%s cannot use message %s of %s, attempt %d; %s: %s"
            self._limit.error(poison.kind, text, *where, self._outcome(failure), printable(poison))
        else:
            text = "%s failed on message %s of %s, attempt %d; %s: %s"
            shown, trace = self._shown(error), self._traced(error)
            log(
                logging.ERROR,
                text,
                *where,
                self._outcome(failure),
                shown,
                exc_info=error if trace else None,
                extra=about,
            )
        await self._tell(failure)

    def _shown(self, error: BaseException) -> str:
        """Return an error on one line: type, text, and the application's line at fault."""
        place = _place_of(error)
        return f"{described(error)} ({place[0]}:{place[1]})" if place is not None else described(error)

    def _traced(self, error: BaseException) -> bool:
        """Whether to log the traceback of an error: only for the first error of this type at this line.

        The failure of a request is the answer of another service: the record names the line that sent the
        request, and the frames of the client tell nothing more.
        """
        if logger.isEnabledFor(logging.DEBUG):
            return True
        if isinstance(error, RequestFailed):
            return False
        kind = type(error), _place_of(error)
        if kind in self._seen or len(self._seen) >= _MOST_SEEN:
            return False
        self._seen.add(kind)
        return True

    async def _tell(self, failure: Failure) -> None:
        """Call the hook."""
        if self._on_error is not None:
            try:
                await call_apart(_told, self._on_error, failure, blocking=self._on_error_blocking)
            except Exception:
                self._throttle.log(
                    logging.ERROR,
                    "on_error itself failed, on message %s",
                    failure.message.guid,
                    exc_info=True,
                    extra=_about(failure),
                )

    def _outcome(self, failure: Failure) -> str:
        if failure.message.confirmed:
            return "confirmed already"
        then = self._retry.then
        return f"to be put aside in {then.uri}" if isinstance(then, DeadLetter) else _OUTCOMES[then]


async def _told(hook: OnError, failure: Failure) -> None:
    result = hook(failure)
    if inspect.isawaitable(result):
        await result


def _forget(task: asyncio.Task[None]) -> None:
    """Drop an abandoned task at its end, with its exception."""
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()


def _place_of(error: BaseException) -> tuple[str, int] | None:
    """Return file and line of the innermost frame outside bmq; None if all frames are in bmq."""
    found: tuple[str, int] | None = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in ("bmq", "asyncio"):
            found = os.path.basename(code.co_filename), trace.tb_lineno
        trace = trace.tb_next
    return found


def _about(failure: Failure) -> dict[str, object]:
    """Return the extra fields of a log record."""
    message = failure.message
    return {"queue": message.queue_uri, "guid": message.guid, "attempt": failure.attempt}


def age_of(message: Message, spent: float) -> float:
    """Return a message's age in seconds, ``spent`` seconds ago; 0 if the message has no post time."""
    try:
        posted = post_time(message.properties)
    except ProtocolError:
        return 0.0
    return 0.0 if posted is None else max(0.0, _world.time() - posted - spent)


class _LaneWorkers(Workers):
    """Workers handling messages with equal keys in sequence.

    One task sorts messages into lanes; all further tasks take the first message of a lane. A message waiting
    for a retry keeps the lane, but no task.
    """

    def __init__(self, *arguments: Any, key: Callable[[Message], Hashable]) -> None:
        super().__init__(*arguments)
        self._key = key
        self._source: AsyncIterable[Message] = self._consumer
        # Messages without an attempt so far, and the state of messages after an attempt.
        self._lanes: Lanes[Message | Work] = Lanes()
        # Number and bytes of the messages in lanes.
        self._lane_messages = self._lane_bytes = 0
        # The filling task waits for this future while the lanes are full.
        self._room: asyncio.Future[None] | None = None
        self._idle: deque[asyncio.Future[None]] = deque()
        self._waiting: dict[asyncio.Task[None], None] = {}

    def _begin(self) -> None:
        self._start(self._place(), "lanes")
        super()._begin()

    async def _place(self) -> None:
        placed = 0
        async for message in self._source:
            if self._left.left or self._left.skipped:
                self._left.forget(message)
            item: Message | Work = message
            try:
                key = copy_context().run(self._key, message)
                hash(key)
            except Exception as error:
                key = item = self._new(message, 0.0)
                item.error = error  # a failed attempt, in a lane of its own
            self._lane_messages += 1
            self._lane_bytes += len(message.raw)
            placed += 1
            self._lanes.add(key, placed, item)
            self._wake()
            while self._full_lanes:
                self._room = asyncio.get_running_loop().create_future()
                await self._room

    @property
    def _full_lanes(self) -> bool:
        """Whether lanes exceed the subscription's limits, which no conforming broker exceeds.

        Further messages stay in the consumer's line, and count against the session's limits.
        """
        options = self._consumer.options
        held = self._lane_messages
        return held > options.max_unconfirmed_messages or (
            held > 1 and self._lane_bytes > options.max_unconfirmed_bytes
        )

    def _wake(self) -> None:
        """Wake one more task, if work is waiting."""
        while self._lanes.ready and self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        turn = turn_of(task.get_loop())
        while True:
            if self._lanes.ready and turn.clock() >= turn.until:
                await turn.wait()
            if self._pace is not None and self._lanes.ready:
                await self._pace.wait()
                await self._not_held()
            if not self._lanes.ready:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
                continue
            key, item = self._lanes.take()
            work = item if isinstance(item, Work) else self._new(item, 0.0)
            work.began = work.began or self._clock.time()
            self._held[task] = work.message
            self.progress.handling += 1
            delay = None
            try:
                delay = await self._try(work, task)
            finally:
                self.progress.handling -= 1
                del self._held[task]
                if delay is None and not work.message.confirmed:
                    self._release(work.message)
            if self._stopping:
                if delay is not None:
                    self._put_back((work.message,))
                return
            if delay is None:
                self._not_failing(work)
                self._done(work.message)
                self._lanes.done(key)
            else:
                self._lanes.keep(key, work)
                self.progress.parked += work.failing
                resting = asyncio.create_task(self._rest_lane(key, delay))
                self._waiting[resting] = None
                resting.add_done_callback(partial(self._rested, work.failing))
            if task in self._replaced:
                self._wake()  # another task takes the next message of the lane
                return

    def _done(self, message: Message) -> None:
        self._lane_messages -= 1
        self._lane_bytes -= len(message.raw)
        if self._room is not None and not self._room.done() and not self._full_lanes:
            self._room.set_result(None)

    def _rested(self, failing: bool, resting: asyncio.Task[None]) -> None:
        del self._waiting[resting]
        self.progress.parked -= failing

    async def _rest_lane(self, key: Hashable, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._lanes.again(key)
        self._wake()

    def _hand_back(self) -> None:
        for resting in self._waiting:
            resting.cancel()
        at_work = set(self._held.values())
        left: list[Message] = []
        for item in self._lanes.clear():
            message = item.message if isinstance(item, Work) else item
            if message not in at_work:
                left.append(message)
                if isinstance(item, Work):
                    self._not_failing(item)
        self._put_back(left)

    def _put_back(self, messages: Iterable[Message]) -> None:
        """Give messages back without a handler."""
        self._consumer.put_back(messages)


class _GroupWorkers(_LaneWorkers):
    """Workers of a group's member: lanes by bucket and key, for as long as the member holds the bucket.

    A message without an outcome keeps its key waiting.
    """

    _hold = 60.0

    def __init__(self, *arguments: Any, key: Callable[[Message], Hashable], group: Membership) -> None:
        super().__init__(*arguments, key=key)
        self._group = group
        self._source = group

    @property
    def joining(self) -> bool:
        """Whether the member has no answer of the leader, or does not hold all of its buckets yet."""
        return not self._group.stats().settled

    async def _try(
        self, work: Work, task: asyncio.Task[None], error: BaseException | None = None
    ) -> float | None:
        """Make one attempt if the member still holds the message."""
        message = work.message
        if message.confirmed or message.stale:
            return None  # redelivered to the next owner of the bucket, perhaps this member
        if not self._group.holds(message):
            return _LEASE_LOOK
        return await super()._try(work, task, error)

    def _pause_after(
        self, message: Message, error: BaseException, attempt: int, began: float
    ) -> float | None:
        """Retry also what no retry can help: without a decision about the message, its key has to wait.

        A value that cannot be decoded has all attempts of the policy: another version of the handler, perhaps
        in another process of a deployment, may decode it.
        """
        delay = super()._pause_after(message, error, attempt, began)
        poison = poison_of(message, error) if delay is None else None
        undecodable = poison is not None and poison.kind is PoisonKind.UNDECODABLE
        if delay is None and (undecodable or undecided(self._retry)):
            delay = self._retry.delay(attempt, self._clock.time() - began, error)
        return delay

    def _put_back(self, messages: Iterable[Message]) -> None:
        """Do nothing: the broker delivers the messages again once the member has left."""


_REMEDY = 'then=bmq.DeadLetter(...) puts such messages aside, and then="discard" confirms them'

_OUTCOMES: dict[str, str] = {
    "discard": "discarded",
    "leave": "left unconfirmed",
    "skip": "skipped: the message stays in the queue, unconfirmed, and is redelivered after the queue is "
    "closed",
}


async def together(*runs: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until the first one ends, and cancel the rest. Cancelling the call cancels all."""
    tasks = [asyncio.create_task(run) for run in runs]
    interrupted = False
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        interrupted = True
    for task in tasks:
        task.cancel()
    interrupted |= not await settled(tasks, None)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    if interrupted:
        raise asyncio.CancelledError


async def settled(
    tasks: list[asyncio.Task[None]], *waits: float | None, cut_off: Callable[[], None] | None = None
) -> bool:
    """Wait for tasks, and cancel those that do not end in time.

    Args:
        tasks: tasks to wait for.
        waits: seconds to wait until each cancellation of the tasks; after the last wait, the call returns
            even if tasks are running. None waits without a limit. When this call is cancelled, the tasks are
            cancelled at once, and the next wait begins.
        cut_off: called before the first cancellation of the tasks.

    Returns:
        False if this call was cancelled meanwhile.
    """
    undisturbed, place = True, 0
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending, timeout=waits[place])
            pending = [task for task in tasks if not task.done()]
            if pending and place == len(waits) - 1:
                break
        except asyncio.CancelledError:
            undisturbed = False
            pending = [task for task in tasks if not task.done()]
        if pending and cut_off is not None:
            cut_off()
            cut_off = None
        for task in pending:
            task.cancel()
        place = min(place + 1, len(waits) - 1)
    return undisturbed
