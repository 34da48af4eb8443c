# SPDX-License-Identifier: Apache-2.0
"""Consumers: each receives the messages of a subscription."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from bmq import _checks
from bmq._live import live
from bmq._loop import timeout
from bmq.client._definition import Definition, check_expression_input
from bmq.client.buffer import ConsumerState, ReceiveBuffer
from bmq.client.keywords import ConsumerLimits, checked_limits
from bmq.client.message import Message, MessageBatch
from bmq.errors import UsageError
from bmq.protocol.client.subscription import SubscriptionOptions

if TYPE_CHECKING:
    from bmq.client.queue import Queue
    from bmq.client.stats import ConsumerStats
    from bmq.subscriptions import ExpressionInput

__all__ = ["Consumer", "Subscription", "consumer_of"]

_ANY = SubscriptionOptions(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """An initial subscription, for :meth:`bmq.Session.open_queue`.

    ::

        queue = await session.open_queue(
            uri,
            read=True,
            subscriptions=[bmq.Subscription("CustomerId > 5", priority=10), None],
        )
        express, others = queue.consumers

    Attributes:
        expression: selects messages, as for :meth:`bmq.Queue.subscribe`; None or "" for all messages.
        priority: a message goes to the matching consumer with the highest priority; None for the queue's
            priority.
        max_unconfirmed_messages: limit of delivered messages without a confirmation; None for the queue's
            limit.
        max_unconfirmed_bytes: limit of delivered bytes without a confirmation; None for the queue's limit.
        discard_unmatched: whether to confirm messages without a match.
        strict: if False, an expression that does not compile is sent unchanged.

    Raises:
        UsageError: an attribute has another type, or is out of range.
    """

    expression: ExpressionInput = field(default=None, kw_only=False)
    priority: int | None = None
    max_unconfirmed_messages: int | None = None
    max_unconfirmed_bytes: int | None = None
    discard_unmatched: bool = False
    strict: bool = True

    def __post_init__(self) -> None:
        check_expression_input(self.expression)
        boolean, set_value = _checks.boolean, object.__setattr__
        set_value(self, "discard_unmatched", boolean("discard_unmatched", self.discard_unmatched))
        set_value(self, "strict", boolean("strict", self.strict))
        checked_limits(self.limits, _ANY)

    @property
    def limits(self) -> ConsumerLimits:
        """The limits and the priority."""
        return {
            "priority": self.priority,
            "max_unconfirmed_messages": self.max_unconfirmed_messages,
            "max_unconfirmed_bytes": self.max_unconfirmed_bytes,
        }


def consumer_of(subscription: Subscription, queue: Queue, options: SubscriptionOptions) -> Consumer:
    """Create the consumer of a subscription; ``options`` has the defaults."""
    limits = checked_limits(subscription.limits, options)
    buffer = ReceiveBuffer(
        queue,
        subscription.expression,
        limits,
        discard=subscription.discard_unmatched,
        strict=subscription.strict,
    )
    return Consumer(queue, buffer)


@live
class Consumer:
    """A subscription of a queue, with its own messages.

    Created by :meth:`bmq.Queue.subscribe`; ``async with`` (or ``await``) activates the consumer::

        async with queue.subscribe("CustomerId == 1234", priority=10) as consumer:
            async for message in consumer:
                ...

    The first receiving call activates the consumer, too. Several tasks may receive from the same consumer;
    each message goes to a single task.

    Attributes:
        queue: queue of the consumer.
    """

    def __init__(self, queue: Queue, buffer: ReceiveBuffer) -> None:
        #: The queue of the consumer.
        self.queue = queue
        self._buffer = buffer
        buffer.consumer = self

    # attributes

    @property
    def expression(self) -> ExpressionInput:
        """The expression as given; None or "" for all messages."""
        return self._buffer.definition.expression

    @property
    def expressions(self) -> list[str]:
        """The texts evaluated by the broker; "" for all messages. Some expressions become several texts."""
        return [str(each or "") for each in self._buffer.definition.expressions]

    @property
    def options(self) -> SubscriptionOptions:
        """The limits and the priority of all expressions together."""
        return self._buffer.definition.options

    @property
    def buffered(self) -> int:
        """Number of messages waiting for the application."""
        return self._buffer.messages

    @property
    def closed(self) -> bool:
        """Whether no more messages will arrive."""
        return self._buffer.over

    def stats(self) -> ConsumerStats:
        """Return a snapshot of the consumer's counters."""
        from bmq.client.stats import consumer_stats  # large, and not all programs ask

        buffer = self._buffer
        buffer.confirming.finish()
        return consumer_stats(buffer.counts, (buffer.messages, buffer.bytes))

    @property
    def paused(self) -> bool:
        """Whether :meth:`pause` was called without a later :meth:`resume`."""
        return self._buffer.state is ConsumerState.PAUSED

    def __repr__(self) -> str:
        what = " | ".join(filter(None, self.expressions)) or "everything"
        return f"<bmq.Consumer of {what!r} on {self.queue.uri}, {self._buffer.messages} waiting>"

    # receiving

    def __aiter__(self) -> AsyncIterator[Message]:
        return _Messages(self._buffer)

    def batches(self, max_messages: int = 1000, max_wait: float = 0.0) -> AsyncIterator[MessageBatch]:
        """Iterate over batches of arrived messages, up to ``max_messages`` each.

        Args:
            max_messages: maximum number of messages in a batch.
            max_wait: seconds to wait for a full batch, from the arrival of the first message. The wait ends
                early once the limits allow no further delivery.

        Raises:
            UsageError: an argument is out of range.
        """
        return _Batches(
            self._buffer,
            _checks.integer("max_messages", max_messages, 1),
            _checks.seconds("max_wait", max_wait),
        )

    async def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Cancelling the call loses no message: a message not returned stays in buffer.
        """
        buffer = self._buffer
        buffer.connection.check_loop()
        timeout = _checks.timeout(timeout)
        if not buffer.deliveries or buffer.turn.clock() >= buffer.turn.until:
            await buffer.wait_for_message(timeout=timeout)
        return buffer.pop()

    async def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> MessageBatch:
        """Wait for the first message, then return all arrived messages, up to ``max_messages``.

        Args:
            max_messages: maximum number of messages to return.
            timeout: seconds to wait for the first message; None for no limit.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Cancelling the call loses no message.
        """
        buffer = self._buffer
        buffer.connection.check_loop()
        max_messages = _checks.integer("max_messages", max_messages, 1)
        timeout = _checks.timeout(timeout)
        if not buffer.deliveries or buffer.turn.clock() >= buffer.turn.until:
            await buffer.wait_for_message(timeout=timeout)
        return buffer.pop_many(max_messages)

    def receive_nowait(self) -> Message | None:
        """Return the next message if one has arrived, otherwise None.

        Like every receiving call, this activates the consumer. The broker receives the subscription in the
        background.
        """
        buffer = self._buffer
        buffer.connection.check_loop()
        if buffer.deliveries:
            return buffer.pop()
        if buffer.state is ConsumerState.NEW and not buffer.queue.closed:
            buffer.start()
        return None

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until :meth:`receive_nowait` would return a message, without taking the message.

        Like every receiving call, this first lets the event loop run.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            UsageError: the timeout is not a legal number.
            TimedOut: no message arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Cancelling the call loses no message.
        """
        buffer = self._buffer
        buffer.connection.check_loop()
        timeout = _checks.optional(_checks.seconds, "timeout", timeout)
        if not buffer.messages or buffer.turn.clock() >= buffer.turn.until:
            await buffer.wait_for_message(timeout=timeout)
        buffer.waiting.wake()  # the message is still available to another caller

    def put_back(self, messages: Iterable[Message]) -> None:
        """Return unhandled messages to the buffer, to be received again before other messages.

        If the consumer is closed or paused, the messages go to other matching consumers of the queue, like
        messages in buffer. Confirmed messages are omitted.

        Args:
            messages: messages of this consumer, in the order of delivery.
        """
        buffer = self._buffer
        buffer.connection.check_loop()
        messages = _checks.items("messages", messages, "bmq.Message")
        for each in messages:
            if _checks.choice("a message to put back", each, Message).consumer.queue is not self.queue:
                raise UsageError(f"{each!r} belongs to another queue, and cannot be put back here")
        buffer.put_back(messages)

    # life cycle

    async def pause(self) -> None:
        """Withdraw the subscription for a time. Receiving calls wait until :meth:`resume`.

        Meanwhile the broker delivers to other consumers, in this and any other process. Messages in buffer go
        to other matching consumers of the queue, as on :meth:`close`. Messages without another match wait for
        this consumer.

        Raises:
            QueueClosed: the consumer is closed.
            RequestTimeout: no answer in time; the subscription is withdrawn in the background.

        Idempotent. Cancelling the call leaves the consumer paused.
        """
        buffer = self._buffer
        buffer.raise_if_closed()
        if buffer.state is not ConsumerState.PAUSED:
            await buffer.queue._subscriptions.pause(buffer)

    async def resume(self) -> None:
        """Resume after :meth:`pause`: send the subscription to the broker again.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the consumer is closed.
            RequestTimeout: no answer in time; the next receiving call sends the subscription again.

        Cancelling the call leaves the consumer resumed; the next receiving call sends the subscription.
        """
        self._buffer.raise_if_closed()
        await self.open()

    async def open(self) -> Consumer:
        """Send the subscription to the broker; ``async with`` and ``await`` do the same.

        Matching messages unclaimed so far (see :attr:`bmq.Queue.unclaimed`) come first. A paused consumer
        resumes.

        Raises:
            ConfigureQueueError: the broker refused; the other subscriptions remain unchanged.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the subscription is withdrawn.

        Cancelling the call withdraws the subscription.
        """
        await self._buffer.open()
        return self

    async def close(self) -> None:
        """Withdraw the subscription; receiving calls end.

        Messages in buffer go to other matching consumers of this queue, before messages delivered later.
        Messages without another match stay with the queue; see :attr:`bmq.Queue.unclaimed`.

        Idempotent. The call waits for the broker's answer, but not for a lost connection. Cancelling the call
        withdraws the subscription nevertheless, at the latest when the queue is closed.

        Raises:
            RequestTimeout: no answer in time; the subscription is withdrawn in the background.
        """
        await self._buffer.queue._subscriptions.end(self._buffer)

    def __await__(self) -> Generator[object, None, Consumer]:
        return self.open().__await__()

    async def __aenter__(self) -> Consumer:
        return await self.open()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def configure(
        self,
        expression: ExpressionInput = None,
        **limits: Unpack[ConsumerLimits],
    ) -> None:
        """Change the subscription during delivery. Omitted options stay unchanged.

        Messages routed before the change still arrive, each once.

        Raises:
            InvalidExpression, UsageError: the new subscription is not legal.
            ConfigureQueueError: the broker refused; the previous subscription remains in effect.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the previous subscription is sent again.

        After a cancellation, the broker may or may not have the change.
        """
        buffer = self._buffer
        buffer.queue._check_open()
        before = buffer.definition
        check_expression_input(expression)
        options = checked_limits(limits, before.options)
        definition = Definition(
            buffer,
            before.expression if expression is None else expression,
            options,
            discard=before.discard is not None,
        )
        await buffer.queue._subscriptions.redefine(buffer, definition)


@live
class _Messages:
    """One loop over the messages of a consumer."""

    __slots__ = ("_buffer", "_turn")

    def __init__(self, buffer: ReceiveBuffer) -> None:
        self._buffer = buffer
        self._turn = buffer.turn
        buffer.connection.check_loop()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        buffer, turn = self._buffer, self._turn
        if not buffer.deliveries or turn.clock() >= turn.until:
            await buffer.wait_for_message(StopAsyncIteration)
        return buffer.pop()


@live
class _Batches:
    """One loop over batches of a consumer."""

    __slots__ = ("_buffer", "_limit", "_max_wait")

    def __init__(self, buffer: ReceiveBuffer, limit: int, max_wait: float) -> None:
        self._buffer = buffer
        self._limit = limit
        self._max_wait = max_wait
        buffer.connection.check_loop()

    def __aiter__(self) -> AsyncIterator[MessageBatch]:
        return self

    async def __anext__(self) -> MessageBatch:
        buffer = self._buffer
        while True:
            await buffer.wait_for_message(StopAsyncIteration)
            if self._max_wait:
                await self._fill()
            if buffer.messages:  # false if another caller was faster
                return buffer.pop_many(self._limit)

    async def _fill(self) -> None:
        """Wait until a batch is full, the time is over, or another caller has taken all messages."""
        buffer = self._buffer
        wanted = min(self._limit, buffer.definition.options.max_unconfirmed_messages)
        try:
            async with timeout(self._max_wait):
                while 0 < buffer.messages < wanted and not buffer.over:
                    await buffer.arrival()
        except TimeoutError:
            pass
