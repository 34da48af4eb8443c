# SPDX-License-Identifier: Apache-2.0
"""Calls a function with each message of a queue."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Concatenate, TypeAlias, TypeVar, Unpack, cast

from bmq import _checks
from bmq._dead_letters import DeadLetter
from bmq._pace import Pace
from bmq._signals import on_signals
from bmq.client.buffer import Feeding
from bmq.client.consumer import Consumer
from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.client.typed import TypedConsumer, TypedGroup, TypedMessage, TypedQueue, untyped
from bmq.codecs import Shape
from bmq.errors import UsageError
from bmq.groups import Group
from bmq.workers._dependencies import HandlerContext, HandlerPlan, app_dependencies
from bmq.workers._failures import suspects_of
from bmq.workers._invoker import Invoker
from bmq.workers._options import (
    BatchBounds,
    ConsumerOptions,
    HandlerOptions,
    for_group,
    lane_of,
)
from bmq.workers._results import Responder
from bmq.workers._retry import Clock, LoopClock, checked_clock
from bmq.workers._workers import Workers, together

__all__ = ["consume", "feed", "idle_consumer_of", "open_dead_letters"]

V = TypeVar("V")

#: A function of a value or a message, and of further parameters. All values have the same type.
HandlerOf: TypeAlias = (
    Callable[Concatenate[V, ...], object]
    | Callable[Concatenate[TypedMessage[V], ...], object]
    | Callable[Concatenate[Message, ...], object]
)

# Maximum number and bytes of a group's messages in lanes. Further messages wait in their buckets.
_LANE_MESSAGES = 10_000
_LANE_BYTES = 256 * 1024 * 1024


async def consume(
    source: Queue | Consumer | Group | TypedQueue[V] | TypedConsumer[V] | TypedGroup[V],
    handler: HandlerOf[V] | Responder,
    *,
    grace: float = 30.0,
    clock: Clock | None = None,
    signals: bool = False,
    **options: Unpack[ConsumerOptions],
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
    group = given if isinstance(given, Group) else None
    whole: Any = given if group is None else group.queue
    if not isinstance(whole, Queue | Consumer):
        raise UsageError(
            "source must be an open bmq.Queue, a bmq.Consumer or a bmq.groups.Group, not "
            f"{_checks.shown(source)}"
        )
    _checks.keywords("consume()", options, ("grace", "clock", "signals", *ConsumerOptions.__optional_keys__))
    chosen = HandlerOptions(**options)
    if group is not None:
        chosen = for_group(chosen)
        if isinstance(handler, Responder):
            raise UsageError("a responder has a queue of its own: give the queue to consume(...)")
    grace = _checks.seconds("grace", grace)
    signals = _checks.boolean("signals", signals)
    clock = checked_clock(clock)
    context = HandlerContext(tuple(chosen.middlewares))
    if isinstance(handler, Responder):
        if chosen.codec is not None or chosen.undecodable is not None:
            raise UsageError(
                "a responder has a codec of its own, and answers undecodable requests with errors"
            )
        plan, context.builtins = handler._plan(None), (handler._handle,)
        handler = handler.function
    else:
        plan = HandlerPlan(handler, chosen.codec, chosen.undecodable)
    plan.check_middlewares(context.middlewares, context.overrides)
    _check_source(plan, of, chosen.codec)
    if plan.shape is not None and of is not None:
        plan.shape = Shape(plan.shape.of, of.codec)
    if plan.shape is not None and isinstance(whole, Consumer):
        plan.shape.check(whole.expression, plan.properties)
    chosen.check_handler(handler, plan)
    if isinstance(whole, Consumer) and chosen.limited:
        raise UsageError(
            "a consumer already has a subscription and limits: give these arguments to "
            "queue.subscribe(...), or give the queue to consume(...)"
        )
    queue: Queue = whole if isinstance(whole, Queue) else whole.queue
    chosen.check_queue(queue.uri)
    chosen, dead_letters = await open_dead_letters(chosen, queue)

    async def fed() -> None:
        async with app_dependencies((plan,), context):
            if group is not None:
                consumer = idle_consumer_of(group.queue)
            elif isinstance(whole, Queue):
                discarding = chosen.discard_unmatched
                consumer = whole.subscribe(chosen.expression, discard_unmatched=discarding, **chosen.limits)
            else:
                consumer = whole
            own = consumer is not whole
            how = (consumer, plan, chosen, dead_letters, context)
            await feed(*how, group=group, close=own, grace=grace, clock=clock)

    await (_until_a_signal(fed()) if signals else fed())


def _check_source(plan: HandlerPlan, of: Shape[Any] | None, codec: object) -> None:
    """Check whether a handler takes the values of a queue.

    Raises:
        UsageError: the handler takes another type, or a codec is given beside a typed queue.
    """
    if of is None:
        return
    if codec is not None:
        raise UsageError(f"a queue of {of.name} already has a codec: give codec to queue.typed(...)")
    shape = plan.shape
    if shape is None or shape.of == of.of:
        return
    if inspect.isclass(shape.of) and inspect.isclass(of.of) and issubclass(of.of, shape.of):
        return
    name = plan.parameters[0].name
    raise UsageError(
        f"{plan.name} takes {shape.name} in parameter {name}, and the queue has {of.name}: annotate "
        f"parameter {name} with {of.name}, or give the queue as queue.typed({shape.name})"
    )


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
    plan: HandlerPlan,
    options: HandlerOptions,
    dead_letters: Queue | None,
    context: HandlerContext,
    *,
    group: Group | None = None,
    close: bool,
    grace: float,
    clock: Clock | None,
) -> None:
    """Do the work of :func:`consume`, after the checks and with open queues for dead letters.

    Args:
        consumer: the consumer; for a group, the result of :func:`idle_consumer_of`.
        plan: the handler.
        options: options of the handler, with an open queue for the quarantine.
        dead_letters: open queue for dead letters, if the retry policy names one.
        context: middlewares, state and dependencies.
        group: a group to join, and to leave at the end: its messages without a finished handler are delivered
            again then.
        close: whether to close the consumer at the end.
        grace: seconds for handlers to finish.
        clock: clock for pauses; None for the clock of the event loop.
    """
    key = options.key_of() if group is None else lane_of(group, options)
    invoke = Invoker(plan, options.timeout, context, consumer.queue.session._hooks.handling, key)
    pace = None if options.rate is None else Pace(options.rate)

    def workers_of(consumer: Consumer, options: HandlerOptions = options) -> Workers:
        how = (invoke, options, dead_letters, clock or LoopClock(), pace)
        return Workers(consumer, *how, key=key, group=group)

    async with AsyncExitStack() as ending:
        ending.callback(invoke.close)
        if group is not None:
            ending.push_async_callback(group.close)
            await group.open()
            await workers_of(consumer).run(options.concurrency, grace, close=False)
            return
        feeding = Feeding(consumer)
        ending.callback(feeding.close)
        await consumer.open()
        running = workers_of(consumer).run(options.concurrency, grace, close=close)
        if options.quarantine is None:
            await running
            return
        suspects = feeding.add(suspects_of(consumer))
        await suspects.open()
        one = options.batches and BatchBounds(1, 0)
        alone = workers_of(suspects, replace(options, batches=one)).run(1, grace, close=True)
        tasks = [asyncio.create_task(each) for each in (running, alone)]

        def stop() -> None:
            for task in tasks:
                task.cancel()

        await together(tasks, stop)


def idle_consumer_of(queue: Queue) -> Consumer:
    """Return a consumer that never subscribes, for the status and the limits of a group's handler."""
    return queue.subscribe(max_unconfirmed_messages=_LANE_MESSAGES, max_unconfirmed_bytes=_LANE_BYTES)


async def open_dead_letters(options: HandlerOptions, queue: Queue) -> tuple[HandlerOptions, Queue | None]:
    """Open the queues that a handler's options name for dead letters and for the quarantine.

    Returns:
        The options with an open queue for the quarantine, and the queue for dead letters, if any.
    """

    async def opened(letters: DeadLetter) -> Queue:
        given = letters.queue
        return given if isinstance(given, Queue) else await queue.session.open_output(given)

    if options.quarantine is not None:
        options = replace(options, quarantine=DeadLetter(await opened(options.quarantine)))
    then = options.policy.then
    return options, await opened(then) if isinstance(then, DeadLetter) else None
