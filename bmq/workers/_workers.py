# SPDX-License-Identifier: Apache-2.0
"""Tasks that handle the messages of one consumer, and consume(), which starts them with a function."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Hashable, Iterable, Sequence, Sized
from contextlib import AsyncExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from types import CoroutineType, coroutine
from typing import Any, Concatenate, Final, TypeAlias, TypeVar, Unpack, cast

from bmq import _checks, _world
from bmq._dead_letters import DeadLetter, Failure, Left, PoisonKind, poison_of
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._pace import Pace
from bmq._signals import on_signals
from bmq._turn import WaitingLine, look_at, turn_of
from bmq.client.attempt import UNSET
from bmq.client.buffer import Feeding
from bmq.client.consumer import Consumer
from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.client.typed import TypedConsumer, TypedGroup, TypedMessage, TypedQueue, untyped
from bmq.codecs import Shape
from bmq.conventions import post_time
from bmq.errors import Error, ProtocolError, StateError, TimedOut, Undecodable, UsageError
from bmq.groups import Group
from bmq.wire.printable import described
from bmq.wire.push import GUID
from bmq.workers._failures import FailureReports, Quarantine, suspects_of
from bmq.workers._handlers import (
    LONG,
    HandlerContext,
    HandlerPlan,
    Invoker,
    accepts,
    app_dependencies,
    in_own_contexts,
    own_context,
    refuse_awaitable,
)
from bmq.workers._options import (
    AckPolicy,
    BatchBounds,
    ConsumerOptions,
    HandlerOptions,
    for_group,
    lane_of,
    undecided,
)
from bmq.workers._results import Responder
from bmq.workers._retry import (
    Backoff,
    Clock,
    LoopClock,
    PartlyFailed,
    Reject,
    RetryAfter,
    attempts_so_far,
    checked_clock,
    is_durable,
    put_off,
)
from bmq.workers._status import Progress, watched

__all__ = ["consume", "feed", "idle_consumer_of", "settled", "together"]

logger = Log("bmq.workers")

# Seconds between two looks whether the member's lease was renewed.
_LEASE_LOOK = 0.1
# Seconds until another attempt with a message of a group that was given up and not confirmed.
_HOLD = 60.0
# Maximum number of GUIDs in the text of a log line; the record has all of them.
_GUIDS_SHOWN = 20
# Minimum time in seconds for telling the broker to stop delivery, even if the grace period is shorter.
_CLOSING_AT_LEAST = 1.0
# Seconds for cancelled handlers to end: after the first cancellation, and after the second.
_TO_END = (5.0, 1.0)
# Tasks of handlers that have ignored both cancellations. The event loop itself keeps no reference.
_abandoned: set[asyncio.Task[None]] = set()

# Type of nearly all calls: they are awaited without the wrapper of ``__await__``.
_NATIVE: Final[Any] = CoroutineType
_Steps: TypeAlias = Generator[Any, Any, object]

_REMEDY = 'then=bmq.DeadLetter(...) puts such messages aside, and then="discard" confirms them'


# ---- The order in which workers take messages: as they arrive, by key, or in batches


@dataclass(slots=True, eq=False)
class Work:
    """The state of messages in progress together: one message, or a batch.

    Attributes:
        taken: messages in the hands of the worker.
        messages: those without an outcome so far.
        began: when a worker took the messages.
        key: key of the lane.
        attempt: number of the next attempt.
        error: reason why no handler can be called with the message.
        failing: number of messages with a failed attempt, to be retried.
        born: time of each message's post on the clock of the pauses; empty until needed.
        values: value of each message of a batch; None before the first attempt.
    """

    messages: list[Message]
    began: float = 0.0
    key: Hashable = None
    attempt: int = 1
    error: Exception | None = None
    failing: int = 0
    born: dict[Message, float] = field(default_factory=dict[Message, float])
    values: dict[Message, Any] | None = None
    taken: list[Message] = field(init=False)

    def __post_init__(self) -> None:
        self.taken = self.messages


class MessageSource:
    """Gives messages to the tasks of workers.

    Args:
        workers: the workers.

    Attributes:
        ready: true if the next item can be taken without waiting.
        parked: messages waiting here for their next attempt.
    """

    ready: Sized = ()
    parked: Collection[Work] = ()

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._consumer = workers.consumer

    def pop(self) -> Message | Work:
        """Take the next item; ``ready`` must be true."""
        raise IndexError("nothing is ready: wait in take()")

    @abstractmethod
    async def take(self) -> Message | Work | None:
        """Wait for the next item, and take it; return None if no more messages can arrive."""

    def resume(self, message: Message) -> Work | None:
        """Return the state of a message that has waited here, and is in the hands of a worker again."""
        return None

    def put_off(self, work: Work, seconds: float) -> bool:
        """Keep a failed message here until its next attempt; return False if the worker must wait."""
        return False

    def done(self, work: Work) -> None:
        """Note that a worker has finished its messages."""

    def wake(self) -> None:
        """Wake one more worker, if work is waiting: the caller does not take it."""

    def put_back(self, messages: Sequence[Message]) -> None:
        """Give back messages that a worker has taken and not handled."""
        self._consumer.put_back(messages)

    def hand_back(self, at_work: set[Message]) -> None:
        """Give back all messages without a handler, at the end; ``at_work`` are those with a handler."""


class ArrivingMessages(MessageSource):
    """Single messages in the order of arrival.

    A failed message waits in the hands of its worker, except for durable retries when the delay queue is
    full. Due messages wait in the delay queue until the queue accepts more, and only this worker's next
    confirmations free the capacity: a pausing worker would wait for ever. Such messages wait here, and go
    back into the line when due.
    """

    def __init__(self, workers: Workers) -> None:
        super().__init__(workers)
        self._arriving = aiter(self._consumer)
        self.ready = self._consumer._buffer.deliveries
        # Called for each message: no method around it.
        self.pop = self._consumer._buffer.pop  # type: ignore[method-assign]
        self._parked: dict[str, Work] = {}
        self.parked = self._parked.values()
        self._timers: dict[str, asyncio.Task[None]] = {}

    async def take(self) -> Message | None:
        return await anext(self._arriving, None)

    def resume(self, message: Message) -> Work | None:
        work = self._parked.pop(message.guid, None)
        if work is not None:
            work.taken = work.messages = [message]
        return work

    def put_off(self, work: Work, seconds: float) -> bool:
        if not self._workers.durable or self._workers.stopping:
            return False
        for guid in self._parked.keys() - self._timers.keys():
            # After a lost connection, the broker redelivers messages in line, some to different consumers.
            if self._parked[guid].messages[0].stale:
                del self._parked[guid]
        guid = work.messages[0].guid
        self._parked[guid] = work
        self._timers[guid] = asyncio.create_task(self._unpark(guid, work.messages[0], seconds))
        return True

    async def _unpark(self, guid: str, message: Message, seconds: float) -> None:
        await self._workers.clock.sleep(seconds)
        del self._timers[guid]
        if message.stale:
            del self._parked[guid]  # redelivered, here or to another consumer
        self._consumer.put_back((message,))

    def hand_back(self, at_work: set[Message]) -> None:
        for timer in self._timers.values():
            timer.cancel()
        waiting = [self._parked[guid].messages[0] for guid in self._timers]
        self._timers.clear()
        self._parked.clear()
        self._consumer.put_back(waiting)


class BatchedMessages(MessageSource):
    """Batches of messages in the order of arrival. Failed messages wait in the hands of their worker.

    Args:
        workers: the workers.
        bounds: bounds of the batches.
    """

    def __init__(self, workers: Workers, bounds: BatchBounds) -> None:
        super().__init__(workers)
        self._arriving = aiter(self._consumer.batches(bounds.max_messages, bounds.max_wait))

    async def take(self) -> Work | None:
        batch = await anext(self._arriving, None)
        return None if batch is None else Work(list(batch))


class KeyedMessages(MessageSource):
    """Single messages by key: those with equal keys in sequence, those with different keys concurrently.

    One task sorts arriving messages into lanes, one lane for each key with messages. A lane is ready when its
    first message may be taken: no worker has the message, and the message does not wait for a retry. Lanes
    take turns: after each turn the lane moves to the end of the line, regardless of its number of messages.

    Args:
        workers: the workers.
        key: returns the key of a message.
        group: the member of a group whose messages these are, if any.
    """

    def __init__(self, workers: Workers, key: Callable[[Message], Hashable], group: Group | None) -> None:
        super().__init__(workers)
        self._key = key
        self._group = group
        # For each key, messages without an attempt so far, and the state of messages after an attempt.
        self._lanes: dict[Hashable, deque[Message | Work]] = {}
        self._keys: deque[Hashable] = deque()
        self.ready = self._keys
        # The messages in lanes, in the order of arrival, and their bytes.
        self._messages: dict[Message, None] = {}
        self._bytes = 0
        # The filling task waits for this event while the lanes are full.
        self._room = asyncio.Event()
        self._idle = WaitingLine()
        self._resting: dict[asyncio.Task[None], Work] = {}
        self.parked = self._resting.values()

    async def fill(self) -> None:
        """Sort arriving messages into lanes."""
        async for message in self._group or self._consumer:
            item: Message | Work = message
            try:
                key = copy_context().run(self._key, message)
                hash(key)
            except Exception as error:
                key = item = self._workers.new(message)
                item.error = error  # a failed attempt, in a lane of its own
            self._messages[message] = None
            self._bytes += len(message.raw)
            if (lane := self._lanes.get(key)) is not None:
                lane.append(item)
            else:
                self._lanes[key] = deque((item,))
                self._keys.append(key)
            self.wake()
            while self._full:
                self._room.clear()
                await self._room.wait()

    @property
    def _full(self) -> bool:
        """Whether lanes exceed the subscription's limits, which no conforming broker exceeds.

        Further messages stay in the consumer's line, and count against the session's limits.
        """
        options = self._consumer.options
        count = len(self._messages)
        return count > options.max_unconfirmed_messages or (
            count > 1 and self._bytes > options.max_unconfirmed_bytes
        )

    def wake(self) -> None:
        if self.ready:
            self._idle.wake()

    def pop(self) -> Work:
        key = self._keys.popleft()
        lane = self._lanes[key]
        item = lane[0]
        lane[0] = work = item if isinstance(item, Work) else self._workers.new(item)
        work.key = key
        return work

    async def take(self) -> Work:
        while True:
            if self.ready:
                await self._workers.not_held()
                if self.ready:
                    return self.pop()
            await self._idle.join()

    def put_off(self, work: Work, seconds: float) -> bool:
        if self._workers.stopping:
            self._give_back(work.messages)
            return True
        resting = asyncio.create_task(self._rest(work, seconds))
        self._resting[resting] = work
        resting.add_done_callback(lambda _: self._resting.pop(resting, None))
        return True

    async def _rest(self, work: Work, seconds: float) -> None:
        await self._workers.clock.sleep(seconds)
        self._keys.append(work.key)
        self.wake()

    def done(self, work: Work) -> None:
        if self._workers.stopping:
            return  # the lanes are cleared already
        lane = self._lanes[work.key]
        lane.popleft()
        if lane:
            self._keys.append(work.key)
        else:
            del self._lanes[work.key]
        del self._messages[work.taken[0]]
        self._bytes -= len(work.taken[0].raw)
        self._room.set()

    def put_back(self, messages: Sequence[Message]) -> None:
        pass  # they are still in their lanes, which are given back as a whole

    def hand_back(self, at_work: set[Message]) -> None:
        for resting in self._resting:
            resting.cancel()
        self._resting.clear()
        self._give_back([message for message in self._messages if message not in at_work])
        self._lanes.clear()
        self._keys.clear()

    def _give_back(self, messages: Iterable[Message]) -> None:
        # The messages of a group are delivered again by the broker once the member has left.
        if self._group is None:
            self._consumer.put_back(messages)


# ---- The loop of the workers


class _Worker:
    """A task that handles messages.

    Attributes:
        task: the task.
        resting: whether the task waits before the next attempt, or for a thread. The shutdown does not wait
            for it: the broker redelivers the message, and another consumer can make the attempt.
        replaced: whether another worker has taken the place of this one, whose thread has not ended.
    """

    __slots__ = ("replaced", "resting", "task")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.resting = self.replaced = False


class Workers:
    """Tasks handling the messages of one consumer. Each task takes one message, or one batch, at a time.

    Args:
        consumer: the consumer; for a group, one that shows its status, and never subscribes.
        invoke: calls the handler.
        options: options of the handler.
        dead_letters: open queue for dead letters, if the retry policy names one.
        clock: clock for pauses.
        pace: limit of the rate; None without.
        key: returns the key of a message; None to handle messages without regard to their keys.
        group: the member of a group whose messages are handled: each message for as long as the member holds
            its bucket. A message without an outcome keeps its key waiting.

    Attributes:
        progress: counts of the workers, past and present.
        stopping: whether no more messages are taken.
        durable: whether failed messages wait in the delay queue.
    """

    def __init__(
        self,
        consumer: Consumer,
        invoke: Invoker,
        options: HandlerOptions,
        dead_letters: Queue | None,
        clock: Clock,
        pace: Pace | None,
        *,
        key: Callable[[Message], Hashable] | None = None,
        group: Group | None = None,
    ) -> None:
        self.consumer = consumer
        self.clock = clock
        self.stopping = False
        self.progress = Progress(invoke.name)
        self._invoke = invoke
        self._ack = options.ack
        self._retry = retry = options.policy
        self._dead_letters = dead_letters
        self._pace = pace
        self._group = group
        self._batches = options.batches is not None
        self._reports = FailureReports(invoke.name, options, clock, invoke.blocking)
        self._limit = LogLimit(logger, clock=clock.time)
        self._left = Left(consumer, invoke.name, logger, _REMEDY, clock.sleep, clock.time)
        self.durable = is_durable(retry)
        letters = options.quarantine
        self._quarantine = None if letters is None else Quarantine(letters, options.after, invoke.name)
        # Maximum age of a message in seconds, if known.
        self._life = retry.give_up_after if isinstance(retry, Backoff) else None
        # Set while new messages may be handled; None if failed messages do not block them.
        self._calm = asyncio.Event() if isinstance(retry, Backoff) and retry.blocks else None
        if self._calm is not None:
            self._calm.set()
        # All messages in the hands of this queue's handlers; prevents handing out a message twice.
        self._in_hand = consumer.queue._subscriptions.in_hand
        self._held: dict[_Worker, Message | Work] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._concurrency = options.concurrency
        # Set when a worker has ended that was not replaced.
        self._over = asyncio.Event()
        self._source: MessageSource
        if options.batches is not None:
            self._source = BatchedMessages(self, options.batches)
        elif key is not None:
            self._source = KeyedMessages(self, key, group)
        else:
            self._source = ArrivingMessages(self)

    # ---- for the status

    @property
    def calls(self) -> int:
        """Number of workers in a call of the handler, or about to post its outcome."""
        return sum(not worker.resting for worker in self._held)

    @property
    def blocked(self) -> bool:
        """Whether no new message can be handled: for left or failed messages, or because all workers wait."""
        waiting = sum(
            worker.resting or (isinstance(item, Work) and item.failing > 0)
            for worker, item in self._held.items()
        )
        return (
            waiting >= self.progress.workers
            or (self._calm is not None and not self._calm.is_set())
            or self._left.fills_limits
            or len(self._source.parked) >= self.consumer.options.max_unconfirmed_messages
        )

    @property
    def failing(self) -> int:
        """Number of messages with a failed attempt, to be retried."""
        held = [item for item in self._held.values() if isinstance(item, Work)]
        return sum(work.failing for work in (*held, *self._source.parked))

    @property
    def oldest(self) -> Message | None:
        """The message that a handler has been at for the longest time."""
        for item in self._held.values():
            return _messages_of(item)[0]
        return None

    # ---- start and end

    async def run(self, grace: float, *, close: bool) -> None:
        """Work until cancelled, or until no more messages can arrive.

        Args:
            grace: seconds for handlers to finish.
            close: whether to close the consumer at the end.
        """
        tasks = self._tasks
        with watched(self.consumer, self):
            if isinstance(self._source, KeyedMessages):
                self._start(self._source.fill(), "lanes")
            for _ in range(self._concurrency):
                self._add_worker()
            try:
                await self._over.wait()
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

    def _add_worker(self) -> None:
        self.progress.workers += 1
        self._start(self._run(), f"worker {self.progress.workers}")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"{self._invoke.name} {name}")
        self._tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Stop all workers when one has ended, except for one that was replaced and has left the list."""
        if task in self._tasks:
            self._over.set()

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        worker = _Worker(task)
        try:
            work: Any = self._work(worker)
            await in_own_contexts(work, turn_of(task.get_loop()).clock)
            if worker.replaced:
                self._tasks.remove(task)
        finally:
            if worker.replaced:
                self.progress.workers -= 1

    async def _drain(self, tasks: list[asyncio.Task[None]], grace: float, *, close: bool) -> None:
        """Take no more messages, let handlers finish within ``grace`` seconds, then cancel the rest."""
        self.stopping = True
        at_work = {worker.task for worker in self._held if not worker.resting}
        for task in tasks:
            if task not in at_work:
                task.cancel()
        self._source.hand_back({each for item in self._held.values() for each in _messages_of(item)})
        now = asyncio.get_running_loop().time
        deadline = now() + grace
        closing = asyncio.create_task(self.consumer.close()) if close else None
        interrupted = not await settled(tasks, grace, *_TO_END, cut_off=self._cut_off)
        self._abandon(tasks)
        if closing is not None:
            interrupted |= not await settled([closing], max(deadline - now(), _CLOSING_AT_LEAST), None)
            if not closing.cancelled() and (error := closing.exception()) is not None:
                logger.warning(
                    "could not withdraw the subscription of %r: %s",
                    self.consumer,
                    error,
                    extra={"queue": self.consumer.queue.uri},
                )
        if interrupted:
            raise asyncio.CancelledError

    def _at_work(self) -> list[Message]:
        """Return the messages in a call of the handler."""
        held = [item for worker, item in self._held.items() if not worker.resting]
        return [message for item in held for message in _messages_of(item)]

    def _cut_off(self) -> None:
        """Ignore the outcome of unfinished handlers from now on, and log their cancellation."""
        self._invoke.cut_off = True
        if cut := self._at_work():
            uri = self.consumer.queue.uri
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
            task.add_done_callback(_abandoned.discard)
            task.add_done_callback(look_at)
        messages = self._at_work()
        for message in messages:
            self.consumer.queue._handlers.leave(message)  # closing the queue does not wait for them either
        guids = [message.guid for message in messages]
        logger.error(
            "%s ignores its cancellation, and is left running with %d messages of %s; the third SIGTERM or "
            "SIGINT ends the process at once",
            self._invoke.name,
            len(guids),
            self.consumer.queue.uri,
            extra={"queue": self.consumer.queue.uri, "guids": guids},
        )

    # ---- taking messages

    @coroutine
    def _work(self, worker: _Worker) -> Generator[Any, Any, None]:
        """Take and handle messages, until the end of the messages or of the worker.

        The usual message goes straight to its handler: each coroutine in between costs as much time as taking
        the message. Every ``yield`` begins a context; a context that a handler has left unchanged serves the
        next message, too. The end of a call is the beginning of the next call, so the clock is read once for
        each message.
        """
        held, progress, source, invoke = self._held, self.progress, self._source, self._invoke
        straight = self._ack is AckPolicy.ON_SUCCESS and self._life is None and not self.durable
        handler = cast("Any", invoke.direct) if straight and isinstance(source, ArrivingMessages) else None
        turn = turn_of(worker.task.get_loop())
        clock = turn.clock
        ready, pop = source.ready, source.pop
        left, skipped = self._left.left, self._left.skipped
        paced = self._pace is not None or self._calm is not None
        blocking, quarantine = invoke.blocking, self._quarantine
        cancelling = worker.task.cancelling
        item: Any  # a message, if there is a direct handler
        error: BaseException | None
        context = yield blocking
        unchanged = copy_context()
        called = clock()
        while True:
            if ready and called < turn.until:
                item = pop()
            else:
                item = yield from source.take().__await__()
                if item is None:
                    return
                called = clock()
            if left or skipped:
                for each in _messages_of(item):
                    self._left.forget(each)  # redelivered: a handler receives the message anew
            if paced:
                yield from self._paced(_messages_of(item)).__await__()
                called = clock()
            if handler is None or (quarantine is not None and item.redelivered):
                yield from self._handle(worker, item).__await__()
                if self.stopping or worker.replaced:
                    source.wake()  # another worker takes the next message of the lane
                    return
                context = yield blocking
                called = clock()
                continue
            held[worker] = item
            progress.handling += 1
            error = None
            try:
                try:
                    call = handler(item)
                    steps: _Steps = call if type(call) is _NATIVE else call.__await__()
                    returned = yield from steps
                    if returned is not None:
                        refuse_awaitable(invoke.name, returned)
                except (Exception, asyncio.CancelledError, BaseExceptionGroup) as raised:
                    error = raised
                spent = (ended := clock()) - called
                called = ended
                try:
                    changed = context != unchanged  # one comparison of pointers, unless a variable was set
                except Exception:  # of the values' own comparison
                    changed = True
                if changed or spent >= LONG:
                    context = yield blocking
                if error is not None or invoke.cut_off or cancelling():
                    self._check_end(worker, error)
                if error is None:
                    progress.handled += 1
                    progress.failing_since = None
                    item.confirm()
                else:
                    held[worker] = work = Work([item], self.clock.time() - spent)
                    yield from self._attempts(worker, work, error).__await__()
                    error = None  # the error refers to this frame
                    context = yield blocking
                    called = clock()
            finally:
                del held[worker]
                progress.handling -= 1
                if not item.confirmed:
                    self._release(item)
            if self.stopping:
                return

    async def _paced(self, messages: Sequence[Message]) -> None:
        """Wait until the rate and the failed messages allow more. Cancelling the call gives these back."""
        try:
            if self._pace is not None:
                await self._pace.wait(len(messages))
            if self._calm is not None:
                await self._calm.wait()
            await self.not_held()
        except asyncio.CancelledError:
            self._source.put_back(messages)
            raise

    async def not_held(self) -> None:
        """Wait while a request to stop may be on its way: see :mod:`bmq._turn`."""
        turn = turn_of(asyncio.get_running_loop())
        if turn.clock() >= turn.until:
            await turn.wait()

    def new(self, message: Message) -> Work:
        """Return the state of a message without an attempt in this process."""
        work = Work([message])
        if self.durable:
            work.attempt = attempts_so_far(message, self._retry) + 1
        return work

    def _release(self, message: Message) -> None:
        """Allow a message that a worker has finished to be handed out again, unless still in hand.

        Messages passed on by a handler for a later confirmation are still in hand.
        """
        if message.guid not in self._left.left:
            self._in_hand.pop(message._push[GUID], None)

    # ---- attempts

    async def _handle(self, worker: _Worker, item: Message | Work) -> None:
        """Handle messages until they are finished, or wait elsewhere for the next attempt."""
        work = item if isinstance(item, Work) else self._source.resume(item) or self.new(item)
        work.began = work.began or self.clock.time()
        self._held[worker] = work
        self.progress.handling += len(work.taken)
        finished = True
        try:
            finished = await self._attempts(worker, work)
        finally:
            del self._held[worker]
            self.progress.handling -= len(work.taken)
            if finished:
                for message in work.taken:
                    if not message.confirmed:
                        self._release(message)
        if finished:
            self._source.done(work)

    async def _attempts(self, worker: _Worker, work: Work, error: BaseException | None = None) -> bool:
        """Make attempts until the messages are finished; return False if they wait without this worker.

        ``error`` is the result of a first attempt, if made.
        """
        waits = False
        try:
            delay = await self._try(worker, work, error)
            while delay is not None:
                if waits := self._source.put_off(work, delay):
                    return False
                await self._rest(worker, delay)
                delay = await self._try(worker, work)
            return True
        finally:
            if not waits:
                self._count_failing(work, 0)

    async def _try(self, worker: _Worker, work: Work, error: BaseException | None = None) -> float | None:
        """Make one attempt, or use the given error as the result.

        Returns:
            Seconds until the next attempt; None if the messages are finished.
        """
        progress = self.progress
        if self._group is not None:
            message = work.messages[0]
            if message.confirmed or message.stale:
                return None  # redelivered to the next owner of the bucket, perhaps this member
            if not self._group.holds(message):
                return _LEASE_LOOK
        if work.values is None:
            work.values = {}
            if self._quarantine is not None:
                await self._quarantined(worker, work, self._quarantine)
            if self._batches:
                await self._decode(worker, work, work.values)
        if self._ack is AckPolicy.ON_RECEIPT:
            work.messages[0].confirm()
        if error is None and self._life is not None:
            outlived = self._outlived(work, self._life)
            others = [message for message in work.messages if message not in outlived]
            hold = await self._failed(worker, work, outlived, others=others, attempted=False)
            if hold is not None:
                return hold
        if not work.messages:
            return None
        error = error or work.error
        if error is not None:
            errors = {work.messages[0]: error}
        elif self._batches:
            errors = await self._attempt_batch(worker, work, work.values)
        else:
            failed = await self._call(worker, work.messages, work.attempt)
            errors = {} if failed is None else {work.messages[0]: failed}
        done = [message for message in work.messages if message not in errors]
        progress.handled += len(done)
        if not errors:
            progress.failing_since = None
        if self._batches:
            self.consumer.queue.confirm(*done)
        elif done and self._ack is not AckPolicy.MANUAL:
            done[0].confirm()
        elif done and not done[0].confirmed:
            self._left.wait_for(done[0])
        if not errors:
            return None
        delay = await self._failed(worker, work, errors)
        await self._thread_ends(worker)
        work.attempt += any(not isinstance(each, RetryAfter) for each in errors.values())
        return delay

    async def _quarantined(self, worker: _Worker, work: Work, quarantine: Quarantine) -> None:
        """Take the messages out that go to the quarantine, or that are posted again as suspects."""
        marked = [message for message in work.messages if message.redelivered]
        pause = partial(self._rest, worker)
        took = await asyncio.gather(*(quarantine.took(each, pause) for each in marked))
        gone = {message for message, taken in zip(marked, took, strict=True) if taken}
        work.messages = [message for message in work.messages if message not in gone]

    async def _decode(self, worker: _Worker, work: Work, values: dict[Message, Any]) -> None:
        """Decode the values of a batch; undecodable messages have failed."""
        shape = self._invoke.shape
        unreadable: dict[Message, BaseException] = {}
        for message in work.messages:
            try:
                values[message] = shape.decode(message) if shape else message
            except Undecodable as error:
                unreadable[message] = error
        await self._failed(worker, work, unreadable, others=list(values))

    def _outlived(self, work: Work, life: float) -> dict[Message, BaseException]:
        """Return an error for each message older than its life; the broker may have deleted the message."""
        return {
            message: TimedOut(
                f"the message is {elapsed:.3g} s old, beyond give_up_after={life:g}: no attempt was made"
            )
            for message in work.messages
            if (elapsed := self._elapsed(work, message)) > life
        }

    def _elapsed(self, work: Work, message: Message) -> float:
        """Return the age of a message in seconds: since its post time if present, or since its arrival."""
        now = self.clock.time()
        if message not in work.born:
            posted = None
            with suppress(ProtocolError):
                posted = post_time(message.properties)
            age = 0.0 if posted is None else _world.time() - posted
            work.born[message] = min(work.began, now - age)
        return now - work.born[message]

    async def _attempt_batch(
        self, worker: _Worker, work: Work, values: dict[Message, Any]
    ) -> dict[Message, BaseException]:
        """Call the handler; return the failed messages with errors."""
        messages = list(work.messages)
        given = [values[message] for message in messages]
        error = await self._call(worker, messages if self._invoke.shape else given, work.attempt, given)
        if error is None:
            return {}
        if isinstance(error, PartlyFailed):
            # The handler may have sorted its list: an index counts in the list as the handler left it. Equal
            # values may be one object.
            places: dict[int, deque[Message]] = {}
            for message in work.messages:
                places.setdefault(id(values[message]), deque()).append(message)
            found = [places[id(value)].popleft() for value in given if places.get(id(value))]
            if len(found) != len(work.messages):
                error = UsageError(
                    "PartlyFailed was raised after the handler had changed the values in its list"
                )
            elif wrong := [index for index in error.failed if not 0 <= index < len(found)]:
                error = UsageError(
                    f"PartlyFailed has the index {wrong}, and the batch has {len(found)} messages"
                )
            else:
                return {found[index]: each for index, each in error.failed.items()}
        return dict.fromkeys(work.messages, error)

    async def _call(
        self, worker: _Worker, messages: Sequence[Message], attempt: int, value: Any = UNSET
    ) -> BaseException | None:
        """Call the handler; return its exception. A CancelledError comes from a task cancelled elsewhere."""
        error: BaseException | None = None
        try:
            await self._invoke(messages, attempt, value)
        except (Exception, asyncio.CancelledError, BaseExceptionGroup) as raised:
            error = raised
        await own_context(self._invoke.blocking)
        self._check_end(worker, error)
        return error

    def _check_end(self, worker: _Worker, error: BaseException | None) -> None:
        """Check who has ended an attempt.

        Raises:
            asyncio.CancelledError: the worker was cancelled: the attempt has no outcome, whatever the handler
                has raised or returned meanwhile.
            BaseException: the handler ends the worker.
        """
        if self._invoke.cut_off or worker.task.cancelling():
            if isinstance(error, asyncio.CancelledError):
                raise error
            raise asyncio.CancelledError from error
        if not (error is None or isinstance(error, Exception | asyncio.CancelledError)):
            raise error

    # ---- failures

    async def _failed(
        self,
        worker: _Worker,
        work: Work,
        errors: dict[Message, BaseException],
        *,
        others: Sequence[Message] = (),
        attempted: bool = True,
    ) -> float | None:
        """Report failed messages, and give up those without a further attempt.

        Args:
            worker: the worker.
            work: its messages; afterwards those with a further attempt, and ``others``.
            errors: the failed messages.
            others: further messages, without an attempt so far.
            attempted: False for messages beyond their life, which the handler has not received.

        Returns:
            Seconds until the next attempt with a failed message; None if all are finished.
        """
        progress, name = self.progress, self._invoke.name
        by_error: dict[int, list[Failure]] = {}
        for message, error in errors.items():
            delay = self._pause_after(work, message, error) if attempted else None
            progress.attempts_failed += attempted
            progress.failed()
            failure = Failure(message, error, work.attempt - (not attempted), delay, name)
            by_error.setdefault(id(error), []).append(failure)
        for failures in by_error.values():
            await self._reports.report(failures, len(work.messages))
        self._check_end(worker, None)
        failed = [failure for failures in by_error.values() for failure in failures]
        if attempted:
            self._count_failing(work, min(work.failing, sum(each.retry_in is not None for each in failed)))
        delays: dict[Message, float] = {}
        for failure in failed:
            message, delay = failure.message, failure.retry_in
            if delay is None:
                progress.given_up += 1
                progress.gone += 1
                progress.given_up_in_a_row += not isinstance(failure.error, Reject)
                await self._give_up(worker, failure)
                if self._group is not None and not message.confirmed:
                    delay = _HOLD
            elif self.durable and await put_off(failure, self._limit):
                delay = None  # the message is redelivered
                progress.gone += 1
            if delay is not None:
                delays[message] = delay
        work.messages = [*others, *delays]
        if attempted or delays:
            self._count_failing(work, len(delays))
        return max(delays.values(), default=None)

    def _pause_after(self, work: Work, message: Message, error: BaseException) -> float | None:
        """Return the seconds until the next attempt with a message; None for no further attempt."""
        if message.confirmed:
            return None
        if isinstance(error, RetryAfter):
            return error.seconds
        poison = poison_of(message, error)
        delay = None
        if poison is None and not isinstance(error, Reject):
            delay = self._retry.delay(work.attempt, self._elapsed(work, message), error)
        if delay is None and self._group is not None:
            # Without a decision about the message, its key has to wait: retry also what no retry can help. A
            # value that cannot be decoded has all attempts of the policy: another version of the handler,
            # perhaps in another process of a deployment, may decode it.
            undecodable = poison is not None and poison.kind is PoisonKind.UNDECODABLE
            if undecodable or undecided(self._retry):
                delay = self._retry.delay(work.attempt, self._elapsed(work, message), error)
        return delay

    def _count_failing(self, work: Work, count: int) -> None:
        """Count the messages of a work that are to be retried."""
        work.failing = count
        if self._calm is not None:
            (self._calm.clear if self.failing else self._calm.set)()

    async def _thread_ends(self, worker: _Worker) -> None:
        """Wait for the worker's late thread, possibly for ever."""
        ended = self._invoke.late()
        if ended is None:
            return
        progress = self.progress
        if self.stopping:
            raise asyncio.CancelledError
        if not progress.hung:
            progress.hung_since = _world.now()
        progress.hung += 1
        self._limit.warning(
            "hung",
            "%s still runs in its thread after its deadline of %g s: %d of %d workers wait for their "
            "threads, and take no messages meanwhile",
            self._invoke.name,
            self._invoke.timeout,
            progress.hung,
            progress.workers,
        )
        worker.resting = True
        try:
            if not worker.replaced:
                await asyncio.wait((ended,), timeout=self._invoke.timeout)
                if not ended.done() and progress.workers < 2 * self._concurrency - 1:
                    worker.replaced = True
                    self._add_worker()
            await asyncio.shield(ended)
        finally:
            worker.resting = False
            progress.hung -= 1

    async def _rest(self, worker: _Worker, seconds: float) -> None:
        """Wait before the next attempt, or for capacity in the queue for dead letters.

        The wait ends at once when the worker stops.
        """
        if self.stopping:
            raise asyncio.CancelledError
        worker.resting = True
        try:
            await self.clock.sleep(seconds)
            await self.not_held()
        finally:
            worker.resting = False

    async def _give_up(self, worker: _Worker, failure: Failure) -> None:
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
                await then.post(failure, self._dead_letters, partial(self._rest, worker))
            except Error as error:
                self._limit.error(
                    ("letter", type(error)),
                    "message %s of %s stays in the queue, unconfirmed: it could not be put aside in %s: %s",
                    message.guid,
                    message.queue_uri,
                    then.uri,
                    described(error),
                )
                if self._group is None:
                    self._left.skip(message)
            else:
                message.confirm()


def _messages_of(item: Message | Work) -> list[Message]:
    return item.taken if isinstance(item, Work) else [item]


async def together(
    tasks: list[asyncio.Task[None]],
    stop: Callable[[], None] | None = None,
    until: str = asyncio.FIRST_COMPLETED,
) -> None:
    """Wait for tasks until one ends, stop the others, and wait for all.

    Args:
        tasks: the tasks.
        stop: stops the other tasks; also called when this call is cancelled. None cancels them.
        until: a constant of :func:`asyncio.wait`.

    Raises:
        BaseException: the first exception of a task.
    """
    interrupted = False
    try:
        await asyncio.wait(tasks, return_when=until)
    except asyncio.CancelledError:
        interrupted = True
    if stop is not None:
        stop()
    else:
        for task in tasks:
            task.cancel()
    interrupted |= not await settled(tasks, None)
    if interrupted:
        raise asyncio.CancelledError
    failures = [error for task in tasks if not task.cancelled() and (error := task.exception())]
    for error in failures[1:]:
        logger.error("a second handler ended too: %s", error)
    if failures:
        raise failures[0]


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
    undisturbed = True
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks, timeout=waits[0])
            if len(waits) == 1:
                break
        except asyncio.CancelledError:
            undisturbed = False
        waits = waits[1:] or waits
        if cut_off is not None and not all(task.done() for task in tasks):
            cut_off()
            cut_off = None
        for task in tasks:
            task.cancel()
    return undisturbed


# ---- From the handler of a queue to its workers

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
        plan, context.builtin = handler._plan(None), handler._handle
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

    async def fed() -> None:
        async with app_dependencies((plan,), context):
            if group is not None:
                consumer = idle_consumer_of(group.queue)
            elif isinstance(whole, Queue):
                wanted = chosen.definition
                consumer = whole.subscribe(
                    wanted.expression, discard_unmatched=wanted.discard_unmatched, **wanted.limits
                )
            else:
                consumer = whole
            own = consumer is not whole
            await feed(consumer, plan, chosen, context, group=group, close=own, grace=grace, clock=clock)

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
    if shape is None or accepts(shape, of):
        return
    name = plan.parameters[0].name
    raise UsageError(
        f"{plan.name} takes {shape.name} in parameter {name}, and the queue has {of.name}: annotate "
        f"parameter {name} with {of.name}, or give the queue as queue.typed({shape.name})"
    )


async def _until_a_signal(feeding: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine, cancelled by each signal; return normally if a signal ended the coroutine."""
    running = asyncio.create_task(feeding)
    with on_signals(running.cancel):
        undisturbed = await settled([running], None)
    if not running.cancelled():
        running.result()
    if not undisturbed:
        raise asyncio.CancelledError


async def feed(
    consumer: Consumer,
    plan: HandlerPlan,
    options: HandlerOptions,
    context: HandlerContext,
    *,
    group: Group | None = None,
    close: bool,
    grace: float,
    clock: Clock | None,
) -> None:
    """Do the work of :func:`consume`, after the checks.

    Args:
        consumer: the consumer; for a group, the result of :func:`idle_consumer_of`.
        plan: the handler.
        options: options of the handler.
        context: middlewares, state and dependencies.
        group: a group to join, and to leave at the end: its messages without a finished handler are delivered
            again then.
        close: whether to close the consumer at the end, if it is not of a group.
        grace: seconds for handlers to finish.
        clock: clock for pauses; None for the clock of the event loop.
    """
    options, dead_letters = await _open_dead_letters(options, consumer.queue)
    key = options.key_of() if group is None else lane_of(group, options)
    invoke = Invoker(plan, options.timeout, context, consumer.queue.session._hooks.handling, key)
    pace = None if options.rate is None else Pace(options.rate)

    async def run(consumer: Consumer, options: HandlerOptions, *, close: bool) -> None:
        how = (invoke, options, dead_letters, clock or LoopClock(), pace)
        await Workers(consumer, *how, key=key, group=group).run(grace, close=close)

    async with AsyncExitStack() as ending:
        ending.callback(invoke.threads.close)
        if group is not None:
            ending.push_async_callback(group.close)
            await group.open()
            await run(consumer, options, close=False)
            return
        feeding = Feeding(consumer)
        ending.callback(feeding.close)
        await consumer.open()
        if options.quarantine is None:
            await run(consumer, options, close=close)
            return
        suspects = feeding.add(suspects_of(consumer))
        await suspects.open()
        alone = replace(options, concurrency=1, batches=options.batches and BatchBounds(1, 0))
        running = run(consumer, options, close=close), run(suspects, alone, close=True)
        await together([asyncio.create_task(each) for each in running])


def idle_consumer_of(queue: Queue) -> Consumer:
    """Return a consumer that never subscribes, for the status and the limits of a group's handler."""
    return queue.subscribe(max_unconfirmed_messages=_LANE_MESSAGES, max_unconfirmed_bytes=_LANE_BYTES)


async def _open_dead_letters(options: HandlerOptions, queue: Queue) -> tuple[HandlerOptions, Queue | None]:
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
