# SPDX-License-Identifier: Apache-2.0
"""Messages of one subscription on their way from the event loop to the threads that receive."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from bmq.blocking._portal import Portal
from bmq.client.consumer import Consumer
from bmq.client.message import Message, MessageBatch, line_of
from bmq.client.queue import Queue

__all__ = ["Line", "following"]

T = TypeVar("T")

# So many messages are taken over at most when a thread waits for one. They wait on this side then, where it
# costs nothing to take the next one: the threads do not meet for every message.
_AHEAD = 1000


class Line:
    """Messages that were taken from a consumer, ahead of the threads that receive from it.

    Any thread takes from it. All else happens in the event loop.

    Args:
        portal: the event loop.
        source: what messages are taken from: a consumer, or a queue, for its default subscription.
    """

    def __init__(self, portal: Portal, source: Queue | Consumer) -> None:
        self._portal = portal
        self._source = source
        self._messages: deque[Message] = deque()
        # How many threads wait for a message.
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._messages)

    def forget(self) -> None:
        """Forget all messages."""
        self._messages.clear()

    # in any thread

    def take(self) -> Message | None:
        """Return the next message that is here, or None.

        What was delivered over a connection that is lost is left out: the broker delivers it again.
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
                lambda: self._more(lambda: self._source.receive(timeout)), undo=self._put_back
            )
        return message

    def following(self) -> Message:
        """Wait for the next message, as a loop over the consumer does.

        Raises:
            StopIteration: the consumer is closed.
            Error: it was closed by a failure.
        """
        message = self.take()
        if message is None:
            message = following(
                self._portal, lambda: self._more(aiter(self._source).__anext__), self._put_back
            )
        return message

    # in the event loop

    def receive_nowait(self) -> Message | None:
        """Return the next message if one is there, here or behind."""
        message = self.take()
        return self._source.receive_nowait() if message is None else message

    async def receive_many(self, max_messages: int, timeout: float | None) -> MessageBatch:
        """As :meth:`bmq.Consumer.receive_many`."""
        self.give_back()
        return await self._source.receive_many(max_messages, timeout)

    async def next_batch(self, batches: AsyncIterator[MessageBatch]) -> MessageBatch:
        """Return the next one of :meth:`bmq.Consumer.batches`."""
        self.give_back()
        return await anext(batches)

    def give_back(self) -> None:
        """Let the consumer have again what waits here."""
        messages: list[Message] = []
        while (message := self.take()) is not None:
            messages.append(message)
        if messages:
            messages[0].consumer.put_back(messages)

    async def _more(self, take: Callable[[], Awaitable[Message]]) -> Message:
        """Wait for a message; take over what came with it, unless another thread waits for that."""
        message = self.take()
        if message is not None:
            return message
        self._waiting += 1
        try:
            message = await take()
        finally:
            self._waiting -= 1
        if not self._waiting and message.consumer.buffered:
            # Not receive_many(): cancelled while it waits, this would lose the message in hand.
            self._messages.extend(line_of(message).pop_many(_AHEAD))
        return message

    def _put_back(self, message: Message) -> None:
        """The thread that waited for a message does not any more."""
        message.consumer.put_back([message])


def following(portal: Portal, take: Callable[[], Awaitable[T]], undo: Callable[[T], object]) -> T:
    """Return what an asynchronous iterator returns next.

    Raises:
        StopIteration: it has ended.
    """
    try:
        return portal.run(take, undo=undo)
    except StopAsyncIteration:
        raise StopIteration from None
