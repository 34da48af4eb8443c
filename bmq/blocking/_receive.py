# SPDX-License-Identifier: Apache-2.0
"""Messages and other items on their way from the event loop to receiving threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from threading import get_ident
from typing import Any, Generic, TypeVar

from bmq.blocking._portal import Portal
from bmq.client.consumer import Consumer
from bmq.client.message import Message, MessageBatch
from bmq.client.queue import Queue

__all__ = ["BlockingIterator", "HeldMessages", "Prefetch", "put_back", "waiting_for"]

T = TypeVar("T")

# Maximum number of messages to take over when a thread waits. Threads take further messages here without
# synchronizing with the event loop for each.
_AHEAD = 1000


def _next(portal: Portal, take: Callable[[], Awaitable[T]], undo: Callable[[T], object]) -> T:
    """Return the next item of an asynchronous iterator.

    Raises:
        StopIteration: the iterator has ended.
    """

    async def taken() -> T:
        return await take()

    try:
        return portal.wait(taken, undo=undo)
    except StopAsyncIteration:
        raise StopIteration from None


class BlockingIterator(Generic[T]):
    """Iterates over an asynchronous iterator; the next call has the item of an interrupted thread."""

    def __init__(self, portal: Portal, items: AsyncIterator[T]) -> None:
        self._portal = portal
        self._items = items
        #: Items for an interrupted thread.
        self.kept: deque[T] = deque()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return _next(self._portal, lambda: self._kept_or(self._items.__anext__), self.kept.appendleft)

    def receive(self, receive: Callable[[], Awaitable[T]], timeout: float | None) -> T:
        """Return the next item in another way than iterating."""
        return self._portal.wait(lambda: self._kept_or(receive), timeout=timeout, undo=self.kept.appendleft)

    async def _kept_or(self, receive: Callable[[], Awaitable[T]]) -> T:
        return self.kept.popleft() if self.kept else await receive()


class Prefetch:
    """Messages taken from a consumer in advance for its receiving threads.

    Any thread takes messages.

    Args:
        portal: event loop.
        source: source of the messages: a consumer, or a queue for its default subscription.
    """

    def __init__(self, portal: Portal, source: Queue | Consumer) -> None:
        self._portal = portal
        self._source = source
        self._messages: deque[Message] = deque()
        # Number of threads that wait for a message.
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._messages)

    def clear(self) -> None:
        """Drop all messages: in the child of a fork they are the parent's."""
        self._messages.clear()

    # in any thread

    def take(self) -> Message | None:
        """Return the next message that has arrived here, or None.

        Messages of a lost connection are omitted: the broker redelivers them.
        """
        messages = self._messages
        while messages:
            if self._source.closed:
                messages.clear()
                break
            try:
                message = messages.popleft()
            except IndexError:
                break  # another thread was faster
            if not message.stale:
                return message
        return None

    def receive(self, timeout: float | None) -> Message:
        """Wait for the next message, as :meth:`bmq.Consumer.receive` does."""
        return self.take() or self._portal.wait(
            lambda: self._more(lambda: self._source.receive(timeout)), timeout=timeout, undo=_put_back_one
        )

    def next(self) -> Message:
        """Wait for the next message, as a loop over the consumer does.

        Raises:
            StopIteration: the consumer is closed.
            Error: a failure closed the consumer.
        """
        return self.take() or _next(
            self._portal, lambda: self._more(aiter(self._source).__anext__), _put_back_one
        )

    def receive_nowait(self) -> Message | None:
        """Return the next message, from here or from the consumer, or None."""
        return self.take() or self._portal.call(lambda: self.take() or self._source.receive_nowait())

    def receive_many(self, max_messages: int, timeout: float | None) -> MessageBatch:
        """Wait for messages, as :meth:`bmq.Consumer.receive_many` does."""
        return self._portal.wait(
            lambda: self.returned(lambda: self._source.receive_many(max_messages, timeout)),
            timeout=timeout,
            undo=put_back,
        )

    def batches(self, max_messages: int, max_wait: float) -> Callable[[], MessageBatch]:
        """Return a function for the next batch of :meth:`bmq.Consumer.batches`; raises StopIteration."""
        batches = self._portal.call(lambda: self._source.batches(max_messages, max_wait))
        return lambda: _next(self._portal, lambda: self.returned(batches.__anext__), put_back)

    # in the event loop

    def give_back(self) -> None:
        """Return the messages here to the consumer."""
        messages: list[Message] = []
        while (message := self.take()) is not None:
            messages.append(message)
        put_back(messages)

    async def returned(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the messages here to the consumer, then call."""
        self.give_back()
        return await call()

    async def _more(self, receive: Callable[[], Awaitable[Message]]) -> Message:
        """Wait for a message, and take over further messages, unless another thread waits for one."""
        message = self.take()
        if message is not None:
            return message
        self._waiting += 1
        try:
            message = await receive()
        finally:
            self._waiting -= 1
        if not self._waiting and message.consumer.buffered:
            # Not receive_many(): a cancellation would lose the message in hand.
            self._messages.extend(message._buffer.pop_many(_AHEAD))
        return message


def put_back(messages: MessageBatch | list[Message]) -> None:
    """Return messages to their consumer, for example those of an interrupted thread."""
    if messages:
        messages[0].consumer.put_back(messages)


def _put_back_one(message: Message) -> None:
    put_back([message])


# closing

_Held = AbstractAsyncContextManager[Any]


class _NotConfirmed(Exception):
    """Leaves ``async with message`` without a confirmation."""


class HeldMessages:
    """The messages and batches of one queue inside ``with``, with the thread of each."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        # By the asyncio message or batch.
        self._held: dict[_Held, int] = {}
        self._leaving: dict[_Held, asyncio.Event] = {}

    def enter(self, held: _Held) -> None:
        """Record the current thread as the handler of a message or a batch."""
        self._held[held] = get_ident()

    def leave(self, held: _Held) -> None:
        """Record the end of the handling."""
        self._held.pop(held, None)
        if (left := self._leaving.get(held)) is not None:
            self._portal.soon(left.set)

    def wait_for(self, closer: int) -> list[asyncio.Task[None]]:
        """Create a task for each message in hand, except for messages of ``closer``.

        A task ends with the handling of the message.
        """
        return [
            asyncio.get_running_loop().create_task(self._wait(held))
            for held, thread in list(self._held.items())
            if thread != closer
        ]

    async def _wait(self, held: _Held) -> None:
        self._leaving[held] = left = asyncio.Event()
        try:
            async with held:
                if held in self._held:
                    await left.wait()
                raise _NotConfirmed
        except _NotConfirmed:
            pass
        finally:
            del self._leaving[held]


@asynccontextmanager
async def waiting_for(queues: Iterable[HeldMessages], closer: int) -> AsyncGenerator[None]:
    """Make a closing queue or session wait for threads as it does for tasks, inside the block.

    Args:
        queues: messages to wait for.
        closer: closing thread. The thread's own messages are excluded.
    """
    tasks = [task for each in queues for task in each.wait_for(closer)]
    await asyncio.sleep(0)  # start each task
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
