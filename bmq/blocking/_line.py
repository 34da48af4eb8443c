# SPDX-License-Identifier: Apache-2.0
"""Messages of one subscription on their way from the event loop to receiving threads."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from bmq.blocking._portal import Portal
from bmq.client.consumer import Consumer
from bmq.client.internals import take_many_from
from bmq.client.message import Message, MessageBatch
from bmq.client.queue import Queue

__all__ = ["Line", "following"]

T = TypeVar("T")

# Maximum number of messages to take over when a thread waits. Threads take further messages here without
# synchronizing with the event loop for each.
_AHEAD = 1000


class Line:
    """Messages taken from a consumer in advance for its receiving threads.

    Any thread takes messages. All other methods run in the event loop.

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

    def forget(self) -> None:
        """Forget all messages."""
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
        message = self.take()
        if message is None:
            message = self._portal.run(
                lambda: self._more(lambda: self._source.receive(timeout)),
                timeout=timeout,
                undo=self._put_back,
            )
        return message

    def following(self) -> Message:
        """Wait for the next message, as a loop over the consumer does.

        Raises:
            StopIteration: the consumer is closed.
            Error: a failure closed the consumer.
        """
        message = self.take()
        if message is None:
            message = following(
                self._portal, lambda: self._more(aiter(self._source).__anext__), self._put_back
            )
        return message

    # in the event loop

    def receive_nowait(self) -> Message | None:
        """Return the next message, from here or from the consumer, or None."""
        message = self.take()
        return self._source.receive_nowait() if message is None else message

    async def receive_many(self, max_messages: int, timeout: float | None) -> MessageBatch:
        """Receive like :meth:`bmq.Consumer.receive_many`."""
        self.give_back()
        return await self._source.receive_many(max_messages, timeout)

    async def next_batch(self, batches: AsyncIterator[MessageBatch]) -> MessageBatch:
        """Return the next batch of :meth:`bmq.Consumer.batches`."""
        self.give_back()
        return await anext(batches)

    def give_back(self) -> None:
        """Return the messages here to the consumer."""
        messages: list[Message] = []
        while (message := self.take()) is not None:
            messages.append(message)
        if messages:
            messages[0].consumer.put_back(messages)

    async def _more(self, take: Callable[[], Awaitable[Message]]) -> Message:
        """Wait for a message, and take over further messages, unless another thread waits for one."""
        message = self.take()
        if message is not None:
            return message
        self._waiting += 1
        try:
            message = await take()
        finally:
            self._waiting -= 1
        if not self._waiting and message.consumer.buffered:
            # Do not use receive_many(): a cancellation would lose the message in hand.
            self._messages.extend(take_many_from(message.consumer, _AHEAD))
        return message

    def _put_back(self, message: Message) -> None:
        """Put back a message whose waiting thread was interrupted."""
        message.consumer.put_back([message])


def following(portal: Portal, take: Callable[[], Awaitable[T]], undo: Callable[[T], object]) -> T:
    """Return the next item of an asynchronous iterator.

    Raises:
        StopIteration: the iterator has ended.
    """
    try:
        return portal.run(take, undo=undo)
    except StopAsyncIteration:
        raise StopIteration from None
