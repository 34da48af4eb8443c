"""Consumers: where the messages of one subscription arrive."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator
from types import TracebackType
from typing import TYPE_CHECKING

from bmq.client._deadline import within
from bmq.client.message import Message, MessageBatch
from bmq.errors import Error, ProtocolError, QueueClosed
from bmq.protocol.queue import SubscriptionCore, SubscriptionOptions
from bmq.wire.constants import PushFlags
from bmq.wire.message import split_application_data
from bmq.wire.properties import Properties
from bmq.wire.push import Push

if TYPE_CHECKING:
    from bmq.client.queue import Queue
    from bmq.subscriptions import Complement, Expression, Selector

__all__ = ["Consumer", "Drain", "properties_of"]

_COUNT_EVERY = 64


class Consumer:
    """One subscription of a queue, with its own messages.

    Made by :meth:`bmq.Queue.subscribe`; ``async with`` (or ``await``) activates it::

        async with queue.subscribe("CustomerId == 1234", priority=10) as consumer:
            async for message in consumer:
                ...

    Receiving activates it too. Several tasks may receive from one consumer; each message goes to one of them.

    Attributes:
        queue: the queue whose messages it receives.
    """

    def __init__(
        self,
        queue: Queue,
        selector: Selector,
        expressions: list[Expression | None],
        options: SubscriptionOptions,
        discard: Complement | None,
    ) -> None:
        self.queue = queue
        self.max_message_size = queue.driver.options.max_message_size
        #: The broker has, or is being told, this subscription.
        self.active = False
        #: How many loops over this consumer are going on.
        self.iterations = 0
        self._selector = selector
        self._options = options
        self._unwanted = discard
        self._expressions = expressions
        self.cores = self._make_cores()
        #: What waits for the application.
        self.messages: deque[Push] = deque()
        # The bytes the driver counts as waiting here, and what of them was taken out of the line and not
        # counted yet: counting costs as much as taking.
        self._counted_bytes = 0
        self._taken = 0
        self._taken_bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._error: Error | None = None

    # what it is

    @property
    def selector(self) -> Selector:
        """What the subscription was made from; None or "" for everything."""
        return self._selector

    @property
    def expressions(self) -> list[str]:
        """The expressions the broker evaluates; a filter too big for one has several. "" is everything."""
        return [str(each or "") for each in self._expressions]

    @property
    def options(self) -> SubscriptionOptions:
        """The limits and the priority, all expressions together."""
        return self._options

    @property
    def buffered(self) -> int:
        """How many messages wait for the application."""
        return len(self.messages)

    @property
    def in_use(self) -> bool:
        """Whether a loop over it is going on, or a task is waiting for its messages."""
        return self.iterations > 0 or bool(self._waiters)

    @property
    def closed(self) -> bool:
        """Whether no more messages will arrive."""
        return self._closed

    def __repr__(self) -> str:
        what = " | ".join(filter(None, self.expressions)) or "everything"
        return f"<bmq.Consumer of {what!r} on {self.queue.uri}, {len(self.messages)} waiting>"

    # receiving

    def __aiter__(self) -> AsyncIterator[Message]:
        return _Messages(self)

    def batches(self, max_messages: int = 1000) -> AsyncIterator[MessageBatch]:
        """Iterate over batches: whatever has arrived, up to ``max_messages`` at a time."""
        return _Batches(self, max_messages)

    async def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Args:
            timeout: seconds to wait; None waits without bound.

        Raises:
            TimedOut: nothing arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Cancelling it loses nothing: a message that is not returned stays in line.
        """
        self.queue.driver.check_loop()
        if not self.messages:
            async with within(timeout, f"no message of {self.queue.uri} arrived"):
                while not self.messages:
                    self._raise_if_closed()
                    await self.arrival()
        return self.pop()

    async def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> MessageBatch:
        """Wait until there is a message, then return all that are there, up to ``max_messages``.

        Args:
            max_messages: how many to return at most.
            timeout: seconds to wait for the first; None waits without bound.

        Raises:
            TimedOut: nothing arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Cancelling it loses nothing.
        """
        self.queue.driver.check_loop()
        if not self.messages:
            async with within(timeout, f"no message of {self.queue.uri} arrived"):
                while not self.messages:
                    self._raise_if_closed()
                    await self.arrival()
        return self.pop_many(max_messages)

    def receive_nowait(self) -> Message | None:
        """Return the next message if one is there, else None."""
        self.queue.driver.check_loop()
        return self.pop() if self.messages else None

    # life

    async def open(self) -> Consumer:
        """Tell the broker about this subscription; ``async with`` and ``await`` do the same.

        Raises:
            ConfigureQueueError: the broker refused; the other subscriptions stand as before.
            QueueClosed: the queue is closed.

        Cancelling it takes the subscription back.
        """
        await self.queue.activate(self)
        return self

    async def close(self) -> None:
        """Take the subscription back; messages that wait unseen are handed to others.

        Idempotent. Cancelling it leaves the subscription taken back, at the latest when the queue is closed.
        """
        await self.queue.deactivate(self)

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
        selector: Selector = None,
        *,
        priority: int | None = None,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
    ) -> None:
        """Change the subscription while messages flow; what is not given stays.

        Messages that were routed before the change arrive all the same, each once.

        Raises:
            InvalidExpression, UsageError: the new subscription is not legal.
            ConfigureQueueError: the broker refused; the previous subscription stands.
            QueueClosed: the queue is closed.

        Cancelling it leaves the outcome open: the broker may or may not have the change.
        """
        await self.queue.reconfigure(
            self, selector, priority, max_unconfirmed_messages, max_unconfirmed_bytes
        )

    # what the queue and its messages call

    def _make_cores(self) -> list[SubscriptionCore]:
        """One subscription an expression, the limits divided among them, and those that discard."""
        options, core = self._options, self.queue.core
        share = len(self._expressions)
        divided = SubscriptionOptions(
            _share(options.max_unconfirmed_messages, share),
            _share(options.max_unconfirmed_bytes, share),
            options.priority,
        )
        cores = [SubscriptionCore(core, str(each or ""), divided, self) for each in self._expressions]
        if self._unwanted is not None:
            # A catch-all matches what is wanted too: it must not be asked before the filter.
            below = SubscriptionOptions(
                divided.max_unconfirmed_messages, divided.max_unconfirmed_bytes, options.priority - 1
            )
            limits = below if self._unwanted.catch_all else divided
            drain = Drain(self, self._unwanted)
            cores.extend(
                SubscriptionCore(core, str(each or ""), limits, drain)
                for each in self._unwanted.subscriptions()
            )
        return cores

    @property
    def definition(self) -> tuple[Selector, list[Expression | None], SubscriptionOptions, Complement | None]:
        """All that :meth:`redefine` takes."""
        return self._selector, self._expressions, self._options, self._unwanted

    def redefine(
        self,
        selector: Selector,
        expressions: list[Expression | None],
        options: SubscriptionOptions,
        discard: Complement | None,
    ) -> None:
        """Become another subscription, with the same messages."""
        self._selector, self._expressions = selector, expressions
        self._options, self._unwanted = options, discard
        self.cores = self._make_cores()

    def takes(self, properties: Properties | None) -> bool:
        """Whether a message with these properties is for this consumer."""
        return any(each is None or each.matches(properties) for each in self._expressions)

    def deliver(self, messages: list[Push]) -> None:
        """Take messages in."""
        self.queue.outstanding += len(messages)
        if self._closed or not self.active:
            self.queue.reroute(messages)
            return
        self.messages.extend(messages)
        size = sum([len(message[6]) for message in messages])
        self._counted_bytes += size
        self.queue.driver.note_buffered(len(messages), size)
        if self._waiters:
            self._wake(len(messages))

    def take_back(self) -> list[Push]:
        """Give up the messages that wait unseen."""
        messages = list(self.messages)
        self.messages.clear()
        self._taken += len(messages)
        self._taken_bytes = self._counted_bytes
        self._count_taken()
        return messages

    def shut(self, error: Error | None) -> None:
        """No more messages will arrive; receivers end, with ``error`` if there is one."""
        if not self._closed:
            self._closed = True
            self._error = error
            self._wake(len(self._waiters))

    # how messages are taken out

    def pop(self) -> Message:
        """Take the next message out of the line; there must be one."""
        messages = self.messages
        push = messages.popleft()
        self._taken += 1
        self._taken_bytes += len(push[6])
        if self._taken >= _COUNT_EVERY or not messages:
            self._count_taken()
        return Message(self, push)

    def pop_many(self, limit: int) -> MessageBatch:
        """Take messages out of the line."""
        messages = self.messages
        if len(messages) <= limit:
            return MessageBatch(self, [Message(self, push) for push in self.take_back()])
        pushes = [messages.popleft() for _ in range(limit)]
        self._taken += limit
        self._taken_bytes += sum([len(push[6]) for push in pushes])
        self._count_taken()
        return MessageBatch(self, [Message(self, push) for push in pushes])

    def _count_taken(self) -> None:
        if self._taken:
            self._counted_bytes -= self._taken_bytes
            self.queue.driver.note_buffered(-self._taken, -self._taken_bytes)
            self._taken = self._taken_bytes = 0

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise self._error or QueueClosed(f"{self!r} is closed")

    def _stop_if_closed(self) -> None:
        """End a loop over a closed consumer.

        Raises:
            StopAsyncIteration: the consumer is closed.
            Error: it was closed by a failure.
        """
        if self._closed:
            raise self._error or StopAsyncIteration

    async def arrival(self) -> None:
        """Wait until there may be a message, or the consumer is closed; activate it first if need be."""
        if not self.active:
            await self.queue.activate(self)
            return  # messages may have come with the answer
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            # The message this waiter was woken for is still in line: wake somebody else for it.
            if waiter.done() and not waiter.cancelled() and self.messages:
                self._wake(1)
            raise
        finally:
            if not waiter.done() or waiter.cancelled():
                self._discard(waiter)

    def _discard(self, waiter: asyncio.Future[None]) -> None:
        try:
            self._waiters.remove(waiter)
        except ValueError:
            pass

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1


class _Messages:
    """One loop over the messages of a consumer; alive as long as the loop is."""

    __slots__ = ("_consumer",)

    def __init__(self, consumer: Consumer) -> None:
        consumer.queue.driver.check_loop()
        self._consumer = consumer
        consumer.iterations += 1

    def __del__(self) -> None:
        if hasattr(self, "_consumer"):
            self._consumer.iterations -= 1

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        consumer = self._consumer
        while not consumer.messages:
            consumer._stop_if_closed()  # pyright: ignore[reportPrivateUsage]
            await consumer.arrival()
        return consumer.pop()


class _Batches:
    """One loop over batches of a consumer."""

    __slots__ = ("_consumer", "_limit")

    def __init__(self, consumer: Consumer, limit: int) -> None:
        consumer.queue.driver.check_loop()
        self._consumer = consumer
        self._limit = limit
        consumer.iterations += 1

    def __del__(self) -> None:
        if hasattr(self, "_consumer"):
            self._consumer.iterations -= 1

    def __aiter__(self) -> AsyncIterator[MessageBatch]:
        return self

    async def __anext__(self) -> MessageBatch:
        consumer = self._consumer
        while not consumer.messages:
            consumer._stop_if_closed()  # pyright: ignore[reportPrivateUsage]
            await consumer.arrival()
        return consumer.pop_many(self._limit)


class Drain:
    """Confirms unseen what a filter does not want, and nothing else.

    The counterpart of brokers that drop a message for a subscriber whose filter does not match. Every message
    is evaluated again before it is confirmed: one that is wanted goes to the consumer.
    """

    def __init__(self, consumer: Consumer, complement: Complement) -> None:
        self._consumer = consumer
        self._complement = complement

    def deliver(self, messages: list[Push]) -> None:
        """Take messages in."""
        unwanted: list[bytes] = []
        wanted: list[Push] = []
        for message in messages:
            discard = self._complement.may_discard(properties_of(message, self._consumer.max_message_size))
            if discard:
                unwanted.append(message[2])
            else:
                wanted.append(message)
        if wanted:
            self._consumer.deliver(wanted)
        if unwanted:
            self._consumer.queue.outstanding += len(unwanted)
            self._consumer.queue.confirm_many(unwanted)


def properties_of(message: Push, limit: int) -> Properties | None:
    """Return a message's properties; None when it has none that can be decoded, as the broker sees it."""
    _, _, _, flags, schema_id, compression, data = message
    if not flags & PushFlags.MESSAGE_PROPERTIES:
        return None
    try:
        properties, _ = split_application_data(
            data, has_properties=True, schema_id=schema_id, compression=compression, limit=limit
        )
        len(properties)  # decodes them
    except ProtocolError:
        return None
    return properties


def _share(limit: int, parts: int) -> int:
    return max(1, limit // parts) if limit else 0
