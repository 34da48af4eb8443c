# SPDX-License-Identifier: Apache-2.0
"""A group without a broker: an event loop with a clock of its own, and a queue in memory."""

from __future__ import annotations

import asyncio
import selectors
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import bmq
from bmq import events
from bmq.client.queue import Queue

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing is left to do."""

    def __init__(self) -> None:
        self._virtual = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._virtual


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "every task waits, and no timer is set"
        if timeout > 0:
            self._loop._virtual += max(timeout, 1e-6)  # far from zero, a smaller step would not change it
        return []


def run_virtual(work: Awaitable[T]) -> T:
    """Run a coroutine by a virtual clock; fail if a task outlives it or an error is not retrieved."""
    loop = VirtualLoop()
    unretrieved: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unretrieved.append(context))
    try:
        result = loop.run_until_complete(work)
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        assert not left, left
        assert not unretrieved, unretrieved
        return result
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@dataclass(eq=False)
class FakeMessage:
    """A message of a fake queue."""

    number: int
    bucket: int
    subscription: FakeConsumer
    store: Store
    confirmed: bool = False

    def confirm(self) -> None:
        self.confirmed = True
        self.store.confirmed(self.bucket, self.number)


class Store:
    """A broker's part: the unconfirmed messages of each bucket, in order, and who owns the bucket."""

    def __init__(self, buckets: int) -> None:
        self.waiting: dict[int, deque[int]] = {bucket: deque() for bucket in range(buckets)}
        self.delivered: dict[int, dict[int, None]] = {bucket: {} for bucket in range(buckets)}
        self.done: dict[int, int] = defaultdict(int)
        self.elsewhere: set[int] = set()
        self.queue: FakeQueue | None = None

    def post(self, bucket: int, number: int) -> None:
        self.waiting[bucket].append(number)
        self.deliver()

    def confirmed(self, bucket: int, number: int) -> None:
        self.done[number] += 1
        self.delivered[bucket].pop(number, None)
        if number in self.waiting[bucket]:
            self.waiting[bucket].remove(number)

    def deliver(self) -> None:
        """Deliver waiting messages; another member handles the messages of its buckets at once."""
        for bucket, waiting in self.waiting.items():
            if bucket in self.elsewhere:
                while waiting:
                    self.done[waiting.popleft()] += 1
            elif self.queue is not None and self.queue.takes:
                while waiting:
                    number = waiting.popleft()
                    self.delivered[bucket][number] = None
                    self.queue.made[bucket].deliver(bucket, number)

    def give_back(self) -> None:
        """The member's connection or membership ended."""
        for bucket, delivered in self.delivered.items():
            self.waiting[bucket].extendleft(reversed(delivered))
            delivered.clear()
        self.deliver()


@dataclass
class _Options:
    max_unconfirmed_messages: int


@dataclass
class _Stats:
    received: int


class FakeConsumer:
    """A subscription of a fake queue."""

    def __init__(self, queue: FakeQueue, expression: object, **options: Any) -> None:
        self.queue = queue
        self.expressions = [str(expression)]
        self.options = _Options(options["max_unconfirmed_messages"])
        self.line: deque[FakeMessage] = deque()
        self.received = 0
        self.active = False
        self.arrived = asyncio.Event()

    @property
    def buffered(self) -> int:
        return len(self.line)

    def stats(self) -> _Stats:
        return _Stats(self.received)

    def deliver(self, bucket: int, number: int) -> None:
        self.received += 1
        self.line.append(FakeMessage(number, bucket, self, self.queue.store))
        self.arrived.set()

    async def wait(self) -> None:
        while not self.line:
            if self.queue.closed:
                raise bmq.QueueClosed("closed")
            self.arrived.clear()
            await self.arrived.wait()

    def receive_nowait(self) -> FakeMessage | None:
        return self.line.popleft() if self.line else None

    async def open(self) -> FakeConsumer:
        await asyncio.sleep(0.01)
        if self.queue.closed:
            raise bmq.QueueClosed("closed")
        self.active = True
        self.queue.store.deliver()
        return self

    async def pause(self) -> None:
        if self.active:
            self.active = False
            self.line.clear()
            self.queue.store.give_back()
        await asyncio.sleep(0.01)


class FakeSession:
    """The events of a session, which reach their readers one turn of the loop later."""

    def __init__(self) -> None:
        self.readers: list[asyncio.Queue[events.SessionEvent | None]] = []

    def events(self) -> AsyncIterator[events.SessionEvent]:
        reader: asyncio.Queue[events.SessionEvent | None] = asyncio.Queue()
        self.readers.append(reader)

        async def read() -> AsyncIterator[events.SessionEvent]:
            while (event := await reader.get()) is not None:
                yield event

        return read()

    def publish(self, event: events.SessionEvent | None) -> None:
        for reader in self.readers:
            reader.put_nowait(event)


@dataclass(eq=False)
class FakeQueue(Queue):
    """A queue of one member, connected to a store instead of a session."""

    store: Store
    uri: str = "bmq://bmq.test.mem.priority/fake"
    state: bmq.QueueState = bmq.QueueState.OPEN
    session: FakeSession = field(default_factory=FakeSession)
    made: list[FakeConsumer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store.queue = self

    @property
    def closed(self) -> bool:
        return self.state is bmq.QueueState.CLOSED

    @property
    def takes(self) -> bool:
        return self.state is bmq.QueueState.OPEN and bool(self.made) and all(c.active for c in self.made)

    @property
    def consumers(self) -> list[FakeConsumer]:
        return [consumer for consumer in self.made if consumer.active]

    def subscribe(self, selector: object, **options: Any) -> FakeConsumer:
        consumer = FakeConsumer(self, selector, **options)
        self.made.append(consumer)
        return consumer

    def group(self, **options: Any) -> bmq.groups.Group:
        """Make the group, as a real queue does."""
        return super().group("k", **options)

    def cut(self) -> None:
        """Lose the connection: lines are emptied at once, as the client does it."""
        if self.state is bmq.QueueState.OPEN:
            self.state = bmq.QueueState.LOST
            self._empty()
            self.session.publish(events.ConnectionLost("cut"))
            self.store.give_back()

    def restore(self) -> None:
        """Come back."""
        if self.state is bmq.QueueState.LOST:
            self.state = bmq.QueueState.OPEN
            self.store.deliver()

    async def close(self, *, at_once: bool = False) -> None:
        """Close the queue."""
        self.end()
        await asyncio.sleep(0.01)

    def end(self) -> None:
        """The queue, or its session, is closed."""
        if not self.closed:
            self.state = bmq.QueueState.CLOSED
            self._empty()
            for consumer in self.made:
                consumer.arrived.set()
            self.session.publish(None)
            self.store.give_back()

    def _empty(self) -> None:
        for consumer in self.made:
            consumer.line.clear()
