# SPDX-License-Identifier: Apache-2.0
"""Consumers for threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from bmq._live import live
from bmq.blocking._line import Line, following
from bmq.blocking._message import Message, MessageBatch
from bmq.client.consumer import Consumer as _Consumer
from bmq.client.message import MessageBatch as _MessageBatch
from bmq.client.queue import Queue as _Queue
from bmq.client.stats import ConsumerStats
from bmq.protocol.client.subscription import SubscriptionOptions

if TYPE_CHECKING:
    from bmq.blocking._end import QueueEnd
    from bmq.blocking._queue import Queue
    from bmq.client.limits import ConsumerLimits
    from bmq.subscriptions import ExpressionInput

__all__ = ["Batches", "Consumer", "Messages", "received_many", "received_nowait"]


@live
class Consumer:
    """A subscription of a queue, like :class:`bmq.Consumer`.

    Created by :meth:`Queue.subscribe`; ``with`` activates the consumer::

        with queue.subscribe("CustomerId == 1234", priority=10) as consumer:
            for message in consumer:
                ...

    Several threads may receive from one consumer; each message goes to one of them.

    Attributes:
        queue: queue of the consumer.
    """

    def __init__(self, queue: Queue, end: QueueEnd[Consumer], consumer: _Consumer) -> None:
        self.queue = queue
        self._end = end
        self._consumer = consumer
        self._portal = end.portal
        self._line = end.line_of(consumer)

    # attributes

    @property
    def expression(self) -> ExpressionInput:
        """The expression as given; None or "" for all messages."""
        return self._consumer.expression

    @property
    def expressions(self) -> list[str]:
        """The texts evaluated by the broker; "" for all messages. Some expressions become several texts."""
        return self._consumer.expressions

    @property
    def options(self) -> SubscriptionOptions:
        """The limits and the priority of all expressions together."""
        return self._consumer.options

    @property
    def buffered(self) -> int:
        """Number of messages waiting for the application."""
        return self._consumer.buffered + len(self._line)

    @property
    def closed(self) -> bool:
        """Whether no more messages will arrive."""
        return self._consumer.closed

    def stats(self) -> ConsumerStats:
        """Return a snapshot of the consumer's counters, as :meth:`bmq.Consumer.stats` does."""
        return self._portal.call(self._consumer.stats)

    @property
    def paused(self) -> bool:
        """Whether :meth:`pause` was called without a later :meth:`resume`."""
        return self._consumer.paused

    def __repr__(self) -> str:
        what = " | ".join(filter(None, self.expressions)) or "everything"
        return f"<bmq.blocking.Consumer of {what!r} on {self.queue.uri}, {self.buffered} waiting>"

    # receiving

    def __iter__(self) -> Iterator[Message]:
        return Messages(self._end, self._line)

    def batches(self, max_messages: int = 1000, max_wait: float = 0.0) -> Iterator[MessageBatch]:
        """Iterate over batches, as :meth:`bmq.Consumer.batches` does."""
        return Batches(self._end, self._line, self._consumer, max_messages, max_wait)

    def receive(self, timeout: float | None = None) -> Message:
        """Wait up to ``timeout`` seconds for the next message, as :meth:`bmq.Consumer.receive` does.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Interrupting the call (Ctrl-C) loses no message.
        """
        return Message(self._end, self._line.receive(timeout))

    def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> MessageBatch:
        """Wait for the first message, then return all, as :meth:`bmq.Consumer.receive_many` does.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Interrupting the call loses no message.
        """
        return received_many(self._end, self._line, max_messages, timeout)

    def receive_nowait(self) -> Message | None:
        """Return the next message, or None, as :meth:`bmq.Consumer.receive_nowait` does."""
        return received_nowait(self._end, self._line)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until a message has arrived, and take none, as :meth:`bmq.Consumer.wait` does.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Interrupting the call loses no message.
        """

        async def wait() -> None:
            if not self._line:
                await self._consumer.wait(timeout)

        self._portal.run(wait, timeout=timeout)

    def put_back(self, messages: Iterable[Message]) -> None:
        """Return unhandled messages to the line, as :meth:`bmq.Consumer.put_back` does."""
        given = [message._message for message in messages if not message.confirmed]

        def put_back() -> None:
            self._line.give_back()  # returned messages go before it
            self._consumer.put_back(given)

        self._portal.call(put_back)

    # life cycle

    def pause(self) -> None:
        """Withdraw the subscription for a time, as :meth:`bmq.Consumer.pause` does.

        Raises:
            QueueClosed: the consumer is closed.
            RequestTimeout: no answer in time; the subscription is withdrawn in the background.
        """

        async def pause() -> None:
            self._line.give_back()
            await self._consumer.pause()

        self._portal.run(pause)

    def resume(self) -> None:
        """Resume after :meth:`pause`, as :meth:`bmq.Consumer.resume` does.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the consumer is closed.
            RequestTimeout: no answer in time; the next receiving call sends the subscription again.
        """
        self._portal.run(self._consumer.resume)

    def open(self) -> Consumer:
        """Send the subscription to the broker, as :meth:`bmq.Consumer.open` does; ``with`` does the same.

        Raises:
            ConfigureQueueError: the broker refused; the other subscriptions remain unchanged.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the subscription is withdrawn.
        """
        self._portal.run(self._consumer.open)
        return self

    def close(self) -> None:
        """Withdraw the subscription, as :meth:`bmq.Consumer.close` does; receiving calls end. Idempotent.

        Raises:
            RequestTimeout: no answer in time; the subscription is withdrawn in the background.
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
        expression: ExpressionInput = None,
        **limits: Unpack[ConsumerLimits],
    ) -> None:
        """Change the subscription during delivery, as :meth:`bmq.Consumer.configure` does.

        Raises:
            InvalidExpression, UsageError: the new subscription is not legal.
            ConfigureQueueError: the broker refused; the previous subscription remains in effect.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the previous subscription is sent again.
        """
        self._portal.run(
            lambda: self._consumer.configure(
                expression,
                **limits,
            )
        )


class Messages:
    """One loop over the messages of a line."""

    __slots__ = ("_end", "_line", "_take")

    def __init__(self, end: QueueEnd[Consumer], line: Line) -> None:
        self._end = end
        self._line = line
        self._take = line.take

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        return Message(self._end, self._take() or self._line.following())


class Batches:
    """One loop over the batches of a queue or a consumer."""

    __slots__ = ("_batches", "_end", "_line")

    def __init__(
        self,
        end: QueueEnd[Consumer],
        line: Line,
        source: _Consumer | _Queue,
        max_messages: int,
        max_wait: float,
    ) -> None:
        self._end = end
        self._line = line
        self._batches = end.portal.call(source.batches, max_messages, max_wait)

    def __iter__(self) -> Iterator[MessageBatch]:
        return self

    def __next__(self) -> MessageBatch:
        batch = following(self._end.portal, lambda: self._line.next_batch(self._batches), put_back)
        return MessageBatch(self._end, batch)


def received_many(
    end: QueueEnd[Consumer], line: Line, max_messages: int, timeout: float | None
) -> MessageBatch:
    """Receive like :meth:`bmq.Consumer.receive_many`, from a queue or a consumer."""
    batch = end.portal.run(lambda: line.receive_many(max_messages, timeout), timeout=timeout, undo=put_back)
    return MessageBatch(end, batch)


def received_nowait(end: QueueEnd[Consumer], line: Line) -> Message | None:
    """Receive like :meth:`bmq.Consumer.receive_nowait`, from a queue or a consumer."""
    message = line.take() or end.portal.call(line.receive_nowait)
    return None if message is None else Message(end, message)


def put_back(batch: _MessageBatch) -> None:
    """Put back a batch whose waiting thread was interrupted."""
    if batch:
        batch[0].consumer.put_back(batch)
