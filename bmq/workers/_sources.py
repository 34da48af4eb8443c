# SPDX-License-Identifier: Apache-2.0
"""The order in which workers take messages: as they arrive, by key, or in batches."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Sequence, Sized
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from bmq.client.message import Message
from bmq.workers._options import BatchBounds

if TYPE_CHECKING:
    from bmq.workers._workers import Workers

__all__ = [
    "ArrivingMessages",
    "BatchedMessages",
    "KeyedMessages",
    "MessageSource",
    "Work",
]


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
        ages: age of each message when the worker took it, in seconds; empty until needed.
        values: value of each message of a batch; None before the values are decoded.
        counted: whether the quarantine has seen the messages.
        parked: whether the message waits for its next attempt without occupying a worker.
    """

    messages: list[Message]
    began: float = 0.0
    key: Hashable = None
    attempt: int = 1
    error: Exception | None = None
    failing: int = 0
    ages: dict[Message, float] = field(default_factory=dict[Message, float])
    values: dict[Message, Any] | None = None
    counted: bool = False
    parked: bool = False
    taken: list[Message] = field(init=False)

    def __post_init__(self) -> None:
        self.taken = self.messages


class MessageSource:
    """Gives messages to the tasks of workers.

    Args:
        workers: the workers.

    Attributes:
        ready: true if the next item can be taken without waiting.
    """

    ready: Sized = ()

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
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._losses = 0

    async def take(self) -> Message | None:
        try:
            return await anext(self._arriving)
        except StopAsyncIteration:
            return None

    def resume(self, message: Message) -> Work | None:
        work = self._parked.pop(message.guid, None)
        if work is not None:
            self._workers.progress.parked -= 1
            self._workers.count_failing(work, 0)
            work.taken = work.messages = [message]
            work.parked = False
        return work

    def put_off(self, work: Work, seconds: float) -> bool:
        if not self._workers.durable or self._workers.stopping:
            return False
        losses = self._consumer.queue.session._connection.received.losses
        if losses != self._losses:
            # After a lost connection, the broker redelivers messages in line, some to different consumers.
            self._losses = losses
            for guid in [guid for guid in self._parked if guid not in self._timers]:
                if (message := self._parked[guid].messages[0]).stale:
                    self.resume(message)
        guid = work.messages[0].guid
        work.parked = True
        self._parked[guid] = work
        self._workers.progress.parked += 1
        self._timers[guid] = asyncio.create_task(self._unpark(guid, work.messages[0], seconds))
        return True

    async def _unpark(self, guid: str, message: Message, seconds: float) -> None:
        await self._workers.clock.sleep(seconds)
        del self._timers[guid]
        if message.stale:
            self.resume(message)  # redelivered, here or to another consumer
        self._consumer.put_back((message,))

    def hand_back(self, at_work: set[Message]) -> None:
        for timer in self._timers.values():
            timer.cancel()
        waiting = [self._parked[guid].messages[0] for guid in self._timers]
        self._timers.clear()
        for work in list(self._parked.values()):
            self.resume(work.messages[0])
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
        try:
            return Work(list(await anext(self._arriving)))
        except StopAsyncIteration:
            return None


class KeyedMessages(MessageSource):
    """Single messages by key: those with equal keys in sequence, those with different keys concurrently.

    One task sorts arriving messages into lanes, one lane for each key with messages. A lane is ready when its
    first message may be taken: no worker has the message, and the message does not wait for a retry. Lanes
    take turns: after each turn the lane moves to the end of the line, regardless of its number of messages.

    Args:
        workers: the workers.
        key: returns the key of a message.
        arriving: the messages.
        returns: whether messages without a handler go back to the consumer at the end.
    """

    def __init__(
        self,
        workers: Workers,
        key: Callable[[Message], Hashable],
        arriving: AsyncIterable[Message],
        *,
        returns: bool,
    ) -> None:
        super().__init__(workers)
        self._key = key
        self._arriving = arriving
        self._returns = returns
        # For each key, messages without an attempt so far, and the state of messages after an attempt, each
        # behind its number among all messages: a pair for each would take more memory.
        self._lanes: dict[Hashable, deque[Any]] = {}
        self._keys: deque[Hashable] = deque()
        self.ready = self._keys
        # Number and bytes of the messages in lanes.
        self._messages = self._bytes = 0
        # The filling task waits for this future while the lanes are full.
        self._room: asyncio.Future[None] | None = None
        self._idle: deque[asyncio.Future[None]] = deque()
        self._waiting: dict[asyncio.Task[None], None] = {}

    async def fill(self) -> None:
        """Sort arriving messages into lanes."""
        placed = 0
        async for message in self._arriving:
            item: Message | Work = message
            try:
                key = copy_context().run(self._key, message)
                hash(key)
            except Exception as error:
                key = item = self._workers.new(message)
                item.error = error  # a failed attempt, in a lane of its own
            self._messages += 1
            self._bytes += len(message.raw)
            placed += 1
            if (lane := self._lanes.get(key)) is not None:
                lane.append(placed)
                lane.append(item)
            else:
                self._lanes[key] = deque((placed, item))
                self._keys.append(key)
            self.wake()
            while self._full:
                self._room = asyncio.get_running_loop().create_future()
                await self._room

    @property
    def _full(self) -> bool:
        """Whether lanes exceed the subscription's limits, which no conforming broker exceeds.

        Further messages stay in the consumer's line, and count against the session's limits.
        """
        options = self._consumer.options
        return self._messages > options.max_unconfirmed_messages or (
            self._messages > 1 and self._bytes > options.max_unconfirmed_bytes
        )

    def wake(self) -> None:
        while self.ready and self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def pop(self) -> Work:
        key = self._keys.popleft()
        lane = self._lanes[key]
        item: Message | Work = lane[1]
        lane[1] = work = item if isinstance(item, Work) else self._workers.new(item)
        work.key, work.parked = key, False
        return work

    async def take(self) -> Work:
        while True:
            if self.ready:
                await self._workers.not_held()
                if self.ready:
                    return self.pop()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter

    def put_off(self, work: Work, seconds: float) -> bool:
        work.parked = True
        if self._workers.stopping:
            self._give_back(work.messages)
            return True
        self._workers.progress.parked += work.failing
        resting = asyncio.create_task(self._rest(work, seconds))
        self._waiting[resting] = None
        resting.add_done_callback(partial(self._rested, work.failing))
        return True

    async def _rest(self, work: Work, seconds: float) -> None:
        await self._workers.clock.sleep(seconds)
        self._keys.append(work.key)
        self.wake()

    def _rested(self, failing: int, resting: asyncio.Task[None]) -> None:
        self._waiting.pop(resting, None)
        self._workers.progress.parked -= failing

    def done(self, work: Work) -> None:
        if self._workers.stopping:
            return  # the lanes are cleared already
        lane = self._lanes[work.key]
        lane.popleft()
        lane.popleft()
        if lane:
            self._keys.append(work.key)
        else:
            del self._lanes[work.key]
        self._messages -= 1
        self._bytes -= len(work.taken[0].raw)
        if self._room is not None and not self._room.done() and not self._full:
            self._room.set_result(None)

    def put_back(self, messages: Sequence[Message]) -> None:
        pass  # they are still in their lanes, which are given back as a whole

    def hand_back(self, at_work: set[Message]) -> None:
        for resting in self._waiting:
            resting.cancel()
        waiting: list[tuple[int, Message | Work]] = []
        for lane in self._lanes.values():
            items = iter(lane)
            waiting += zip(items, items, strict=True)
        waiting.sort(key=itemgetter(0))
        self._lanes.clear()
        self._keys.clear()
        left: list[Message] = []
        for _, item in waiting:
            if not isinstance(item, Work):
                left.append(item)
            elif at_work.isdisjoint(item.messages):
                left += item.messages
                self._workers.count_failing(item, 0)
        self._give_back(left)

    def _give_back(self, messages: Iterable[Message]) -> None:
        # The messages of a group are delivered again by the broker once the member has left.
        if self._returns:
            self._consumer.put_back(messages)
