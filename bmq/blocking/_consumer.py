# SPDX-License-Identifier: Apache-2.0
"""Consumers for threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from bmq.blocking._line import Line, following
from bmq.blocking._message import Message, MessageBatch
from bmq.client.consumer import Consumer as _Consumer
from bmq.client.message import MessageBatch as _MessageBatch
from bmq.client.queue import Queue as _Queue
from bmq.client.stats import ConsumerStats
from bmq.protocol.client.subscription import SubscriptionOptions

if TYPE_CHECKING:
    from bmq.blocking._queue import Queue
    from bmq.subscriptions import Selector

__all__ = ["Batches", "Consumer", "Messages", "received_many", "received_nowait"]


class Consumer:
    """One subscription of a queue, as :class:`bmq.Consumer`.

    Created by :meth:`Queue.subscribe`; ``with`` activates it::

        with queue.subscribe("CustomerId == 1234", priority=10) as consumer:
            for message in consumer:
                ...

    Several threads may receive from one consumer; each message goes to one of them.

    Attributes:
        queue: the queue whose messages it receives.
    """

    def __init__(self, queue: Queue, consumer: _Consumer, line: Line) -> None:
        self.queue = queue
        self._consumer = consumer
        self._portal = queue._portal
        self._line = line

    # what it is

    @property
    def selector(self) -> Selector:
        """What the subscription was made from; None or "" for everything."""
        return self._consumer.selector

    @property
    def expressions(self) -> list[str]:
        """The expressions the broker evaluates; a filter too big for one has several. "" is everything."""
        return self._consumer.expressions

    @property
    def options(self) -> SubscriptionOptions:
        """The limits and the priority, all expressions together."""
        return self._consumer.options

    @property
    def buffered(self) -> int:
        """How many messages wait for the application."""
        return self._consumer.buffered + len(self._line)

    @property
    def closed(self) -> bool:
        """Whether no more messages will arrive."""
        return self._consumer.closed

    def stats(self) -> ConsumerStats:
        """Return a snapshot of what the consumer has received, as :meth:`bmq.Consumer.stats`."""
        return self._portal.call(self._consumer.stats)

    @property
    def paused(self) -> bool:
        """Whether :meth:`pause` was called, and :meth:`resume` was not since."""
        return self._consumer.paused

    def __repr__(self) -> str:
        what = " | ".join(filter(None, self.expressions)) or "everything"
        return f"<bmq.blocking.Consumer of {what!r} on {self.queue.uri}, {self.buffered} waiting>"

    # receiving

    def __iter__(self) -> Iterator[Message]:
        return Messages(self.queue, self._line)

    def batches(self, max_messages: int = 1000, max_wait: float = 0.0) -> Iterator[MessageBatch]:
        """Iterate over batches, as :meth:`bmq.Consumer.batches`."""
        return Batches(self.queue, self._line, self._consumer, max_messages, max_wait)

    def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message, as :meth:`bmq.Consumer.receive`, ``timeout`` seconds at most.

        Raises:
            TimedOut: nothing arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Interrupting it (Ctrl-C) loses nothing.
        """
        return Message(self.queue, self._line.receive(timeout))

    def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> MessageBatch:
        """Wait until there is a message, then return all, as :meth:`bmq.Consumer.receive_many`.

        Raises:
            TimedOut: nothing arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Interrupting it loses nothing.
        """
        return received_many(self.queue, self._line, max_messages, timeout)

    def receive_nowait(self) -> Message | None:
        """Return the next message if one is there, else None, as :meth:`bmq.Consumer.receive_nowait`."""
        return received_nowait(self.queue, self._line)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until a message is there, and take none, as :meth:`bmq.Consumer.wait`.

        Raises:
            TimedOut: nothing arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Interrupting it loses nothing.
        """

        async def wait() -> None:
            if not self._line:
                await self._consumer.wait(timeout)

        self._portal.run(wait)

    def put_back(self, messages: Iterable[Message]) -> None:
        """Give back messages that were taken and not handled, as :meth:`bmq.Consumer.put_back`."""
        given = [message._message for message in messages if not message.confirmed]

        def put_back() -> None:
            self._line.give_back()  # what is put back goes in front of it
            self._consumer.put_back(given)

        self._portal.call(put_back)

    # life

    def pause(self) -> None:
        """Take the subscription back for a time, as :meth:`bmq.Consumer.pause`.

        Raises:
            QueueClosed: the consumer is closed.
            RequestTimeout: no answer in time; the subscription is taken back in the background.
        """

        async def pause() -> None:
            self._line.give_back()
            await self._consumer.pause()

        self._portal.run(pause)

    def resume(self) -> None:
        """Go on after :meth:`pause`, as :meth:`bmq.Consumer.resume`.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the consumer is closed.
            RequestTimeout: no answer in time; the next who receives asks again.
        """
        self._portal.run(self._consumer.resume)

    def open(self) -> Consumer:
        """Tell the broker about this subscription, as :meth:`bmq.Consumer.open`; ``with`` does the same.

        Raises:
            ConfigureQueueError: the broker refused; the other subscriptions stand as before.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the subscription is taken back.
        """
        self._portal.run(self._consumer.open)
        return self

    def close(self) -> None:
        """Take the subscription back, as :meth:`bmq.Consumer.close`; receivers end. Idempotent.

        Raises:
            RequestTimeout: no answer in time; the subscription is taken back in the background.
        """

        async def close() -> None:
            self._line.give_back()
            await self._consumer.close()

        if not (self._portal.forked or self._portal.over):
            self._portal.run(close)

    def __enter__(self) -> Consumer:
        return self.open()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def configure(
        self,
        selector: Selector = None,
        *,
        priority: int | None = None,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
    ) -> None:
        """Change the subscription while messages flow, as :meth:`bmq.Consumer.configure`.

        Raises:
            InvalidExpression, UsageError: the new subscription is not legal.
            ConfigureQueueError: the broker refused; the previous subscription stands.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the previous subscription is asked for again.
        """
        self._portal.run(
            lambda: self._consumer.configure(
                selector,
                priority=priority,
                max_unconfirmed_messages=max_unconfirmed_messages,
                max_unconfirmed_bytes=max_unconfirmed_bytes,
            )
        )


class Messages:
    """One loop over the messages of a line."""

    __slots__ = ("_line", "_queue", "_take")

    def __init__(self, queue: Queue, line: Line) -> None:
        self._queue = queue
        self._line = line
        self._take = line.take

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        return Message(self._queue, self._take() or self._line.following())


class Batches:
    """One loop over the batches of a queue or a consumer."""

    __slots__ = ("_batches", "_line", "_queue")

    def __init__(
        self, queue: Queue, line: Line, source: _Consumer | _Queue, max_messages: int, max_wait: float
    ) -> None:
        self._queue = queue
        self._line = line
        self._batches = queue._portal.call(source.batches, max_messages, max_wait)

    def __iter__(self) -> Iterator[MessageBatch]:
        return self

    def __next__(self) -> MessageBatch:
        batch = following(self._queue._portal, lambda: self._line.next_batch(self._batches), put_back)
        return MessageBatch(self._queue, batch)


def received_many(queue: Queue, line: Line, max_messages: int, timeout: float | None) -> MessageBatch:
    """As :meth:`bmq.Consumer.receive_many`, for a queue or a consumer."""
    batch = queue._portal.run(lambda: line.receive_many(max_messages, timeout), undo=put_back)
    return MessageBatch(queue, batch)


def received_nowait(queue: Queue, line: Line) -> Message | None:
    """As :meth:`bmq.Consumer.receive_nowait`, for a queue or a consumer."""
    message = line.take() or queue._portal.call(line.receive_nowait)
    return None if message is None else Message(queue, message)


def put_back(batch: _MessageBatch) -> None:
    """The thread that waited for a batch does not any more."""
    if batch:
        batch[0].consumer.put_back(batch)
