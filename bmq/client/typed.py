# SPDX-License-Identifier: Apache-2.0
"""Queues, consumers and messages with values instead of bytes. Created by :meth:`bmq.Queue.typed`."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, cast, overload

from bmq import _checks
from bmq._live import live
from bmq.client.keywords import ConsumerLimits
from bmq.client.message import Message, MessageBatch
from bmq.client.posts import Ack, PostFuture, PostReport, PutMessage, checked_properties
from bmq.codecs import Codec, Shape
from bmq.errors import UsageError
from bmq.wire.constants import Compression
from bmq.wire.keys import Key
from bmq.wire.properties import PropertyInput

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.queue import Queue
    from bmq.client.stats import ConsumerStats, QueueStats
    from bmq.groups import Group, GroupOptions, GroupStats
    from bmq.subscriptions import ExpressionInput

__all__ = [
    "TypedBatch",
    "TypedConsumer",
    "TypedGroup",
    "TypedMessage",
    "TypedQueue",
    "typed_message",
    "untyped",
]

T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
# The source of messages: any, one with batches, or one with a subscription of its own.
S = TypeVar("S", bound="Queue | Consumer | Group")
Q = TypeVar("Q", bound="Queue | Consumer")
C = TypeVar("C", bound="Consumer | Group")


@live
class TypedMessage(Message, Generic[T]):
    """A message with a value. Created by :class:`TypedQueue` and :class:`TypedConsumer`.

    Otherwise a :class:`bmq.Message`. The payload is decoded when :attr:`value` is read.

    ::

        async for message in queue.typed(Order):
            async with message:
                ship(message.value)
    """

    __slots__ = ("_shape", "_value")

    _value: T

    def __init__(self, message: Message, shape: Shape[T]) -> None:
        super().__init__(message._buffer, message._push, message._arrival)
        self.confirmed = message.confirmed
        # One dictionary for both: an interceptor finds the data of its on_receive in on_confirm.
        if (context := getattr(message, "_context", None)) is not None:
            self._context = context
        self._shape: Shape[T] | None = shape

    @property
    def value(self) -> T:
        """The value, decoded on the first access.

        Raises:
            Undecodable: the payload cannot be decoded to the type.
        """
        if self._shape is not None:
            self._value = self._shape.decode(self)
            self._shape = None
        return self._value


@live
class TypedBatch(MessageBatch, Generic[T]):
    """Messages with values, received together. Created by :meth:`TypedQueue.batches`.

    Otherwise a :class:`bmq.MessageBatch`.
    """

    __slots__ = ()

    def __init__(self, batch: MessageBatch, shape: Shape[T]) -> None:
        super().__init__(batch._buffer, [TypedMessage(message, shape) for message in batch])

    @property
    def values(self) -> list[T]:
        """The values of all messages, in order.

        Raises:
            Undecodable: the payload of a message cannot be decoded to the type.
        """
        return [message.value for message in self]

    @overload
    def __getitem__(self, index: int) -> TypedMessage[T]: ...
    @overload
    def __getitem__(self, index: slice) -> list[TypedMessage[T]]: ...
    def __getitem__(self, index: int | slice) -> TypedMessage[T] | list[TypedMessage[T]]:
        return cast("list[TypedMessage[T]]", self._messages)[index]

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        return iter(cast("list[TypedMessage[T]]", self._messages))


@live
class _Mapped(Generic[A, B]):
    """One loop over messages or batches, each with its values."""

    __slots__ = ("_items", "_with_values")

    def __init__(self, items: AsyncIterator[A], with_values: Callable[[A], B]) -> None:
        self._items = items
        self._with_values = with_values

    def __aiter__(self) -> AsyncIterator[B]:
        return self

    async def __anext__(self) -> B:
        return self._with_values(await self._items.__anext__())


class _Receiver(Generic[S, T]):
    """Receives the values of a queue, a consumer or a group."""

    def __init__(self, source: S, shape: Shape[T]) -> None:
        self._source = source
        self._shape = shape

    def _message(self, message: Message) -> TypedMessage[T]:
        return TypedMessage(message, self._shape)

    def __aiter__(self) -> AsyncIterator[TypedMessage[T]]:
        return _Mapped(self._source.__aiter__(), self._message)

    async def receive(self, timeout: float | None = None) -> TypedMessage[T]:
        """Wait up to ``timeout`` seconds for the next message, as :meth:`bmq.Consumer.receive` does."""
        return self._message(await self._source.receive(timeout))

    def receive_nowait(self) -> TypedMessage[T] | None:
        """Return the next message if one has arrived, as :meth:`bmq.Consumer.receive_nowait` does."""
        message = self._source.receive_nowait()
        return None if message is None else self._message(message)

    def __repr__(self) -> str:
        return f"<bmq.{type(self).__name__} of {self._shape.name}, {self._source!r}>"


class _BatchReceiver(_Receiver[Q, T]):
    """Receives the values of a queue or a consumer, also in batches."""

    def _batch(self, batch: MessageBatch) -> TypedBatch[T]:
        return TypedBatch(batch, self._shape)

    async def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> TypedBatch[T]:
        """Wait for a message, and return all that have arrived, as :meth:`bmq.Consumer.receive_many` does."""
        return self._batch(await self._source.receive_many(max_messages, timeout))

    def batches(self, max_messages: int = 1000, max_wait: float = 0.0) -> AsyncIterator[TypedBatch[T]]:
        """Iterate over batches of messages, as :meth:`bmq.Consumer.batches` does."""
        return _Mapped(self._source.batches(max_messages, max_wait), self._batch)


class _Subscriber(_Receiver[C, T]):
    """Receives the values of a consumer or a group, which ``async with`` (or ``await``) activates."""

    async def open(self) -> Self:
        """Begin to receive, as :meth:`bmq.Consumer.open` and :meth:`bmq.groups.Group.open` do."""
        await self._source.open()
        return self

    async def close(self) -> None:
        """End receiving, as :meth:`bmq.Consumer.close` and :meth:`bmq.groups.Group.close` do."""
        await self._source.close()

    def __await__(self) -> Generator[object, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


@live
class TypedQueue(_BatchReceiver["Queue", T]):
    """A queue for values of one type. Created by :meth:`bmq.Queue.typed`.

    ::

        orders = queue.typed(Order)
        await orders.post(Order(customer=1234, address="1 Main Street"))
        async for message in orders:
            ship(message.value)
            message.confirm()

    A typed queue has no state of its own: to close it, for example, close the queue.

    Attributes:
        queue: underlying queue.
    """

    def __init__(self, queue: Queue, of: type[T], codec: str | Codec[Any]) -> None:
        super().__init__(queue, Shape(of, codec))
        self.queue = queue
        self._codec = codec if isinstance(codec, str) else "application/json"
        self._replies: dict[type, Shape[Any]] = {}

    @property
    def uri(self) -> str:
        """The queue's URI."""
        return self.queue.uri

    def __repr__(self) -> str:
        return f"<bmq.TypedQueue of {self._shape.name}, {self.uri}>"

    # posting

    def _encoded(
        self, value: T, properties: Mapping[str, PropertyInput] | None
    ) -> tuple[bytes, dict[str, PropertyInput]]:
        data, own = self._shape.encode(value)
        if properties is not None:
            own |= checked_properties(properties)
        return data, own

    def _to_post(self, value: T) -> PutMessage:
        return PutMessage(*self._shape.encode(value))

    async def post(
        self,
        value: T,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = (),
        guid: str | None = None,
        compression: Compression | None = None,
        key: Key | None = None,
        delay: float | None = None,
        not_before: datetime | float | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Post a value and wait for its acknowledgement, as :meth:`bmq.Queue.post` does.

        Args:
            value: value to post.
            properties: further properties; override properties derived from fields of the value.
            tags: as for :meth:`bmq.Queue.post`, like all following arguments.
            guid: GUID instead of a generated one.
            compression: compression of the payload.
            key: ordering key.
            delay: seconds until the message is due.
            not_before: due time, instead of ``delay``.
            timeout: seconds to wait for the outcome.

        Raises:
            InvalidPayload: the value has another type, or cannot be encoded; nothing was posted.
            PostError, InvalidProperty, QueueClosed, SessionClosed, TimedOut: as :meth:`bmq.Queue.post`.

        Cancelling the call has the same effect as for :meth:`bmq.Queue.post`.
        """
        data, own = self._encoded(value, properties)
        return await self.queue.post(
            data,
            properties=own,
            tags=tags,
            guid=guid,
            compression=compression,
            key=key,
            delay=delay,
            not_before=not_before,
            timeout=timeout,
        )

    def post_nowait(
        self,
        value: T,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = (),
        guid: str | None = None,
        compression: Compression | None = None,
        key: Key | None = None,
    ) -> PostFuture:
        """Post a value without waiting, as :meth:`bmq.Queue.post_nowait` does.

        Raises:
            InvalidPayload: the value has another type, or cannot be encoded; nothing was posted.
            BufferFull, InvalidProperty, QueueClosed, SessionClosed: as for :meth:`bmq.Queue.post_nowait`.
        """
        data, own = self._encoded(value, properties)
        return self.queue.post_nowait(
            data, properties=own, tags=tags, guid=guid, compression=compression, key=key
        )

    async def post_many(
        self, values: Iterable[T] | AsyncIterable[T], *, rate: float | None = None
    ) -> PostReport:
        """Post many values, batched and with backpressure, as :meth:`bmq.Queue.post_many` does.

        Args:
            values: values to post, from an iterable or an async iterable.
            rate: maximum number of messages a second.

        Raises:
            InvalidPayload: a value has another type, or cannot be encoded; earlier values were posted.
            InvalidProperty, QueueClosed, SessionClosed: as for :meth:`bmq.Queue.post_many`.

        Cancelling the call has the same effect as for :meth:`bmq.Queue.post_many`.
        """
        if isinstance(values, AsyncIterable):
            return await self.queue.post_many(_Mapped(values.__aiter__(), self._to_post), rate=rate)
        if not isinstance(values, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"values must be an iterable of {self._shape.name}, not {_checks.shown(values)}")
        return await self.queue.post_many(map(self._to_post, values), rate=rate)

    @overload
    async def request(
        self,
        value: T,
        *,
        reply: type[R],
        properties: Mapping[str, PropertyInput] | None = None,
        timeout: float = 30.0,
        reply_to: str | None = None,
    ) -> R: ...
    @overload
    async def request(
        self,
        value: T,
        *,
        reply: None = None,
        properties: Mapping[str, PropertyInput] | None = None,
        timeout: float = 30.0,
        reply_to: str | None = None,
    ) -> Message: ...
    async def request(
        self,
        value: T,
        *,
        reply: type[R] | None = None,
        properties: Mapping[str, PropertyInput] | None = None,
        timeout: float = 30.0,
        reply_to: str | None = None,
    ) -> R | Message:
        """Post a value and wait for the reply, as :meth:`bmq.Queue.request` does.

        ::

            price = await queue.typed(Article).request(Article("A4711"), reply=Price)

        Args:
            value: value to post.
            reply: type of the reply's value; None to return the message.
            properties: further properties; override properties derived from fields of the value.
            timeout: seconds to wait for the reply, posting included.
            reply_to: as for :meth:`bmq.Queue.request`.

        Returns:
            The value of the reply, or the reply itself, already confirmed.

        Raises:
            InvalidPayload: the value has another type, or cannot be encoded; nothing was posted.
            UsageError: no codec supports the type of the reply; nothing was posted.
            Undecodable: the reply has no value of this type.
            RequestFailed, TimedOut, PostError, QueueClosed, SessionClosed: as for :meth:`bmq.Queue.request`.

        Cancelling the call has the same effect as for :meth:`bmq.Queue.request`.
        """
        shape = None if reply is None else self._shape_of(reply)
        data, own = self._encoded(value, properties)
        message = await self.queue.request(data, properties=own, timeout=timeout, reply_to=reply_to)
        return message if shape is None else cast("R", shape.decode(message))

    def _shape_of(self, reply: Any) -> Shape[Any]:
        """Return the shape of replies; the queue's codec decodes replies without a content type."""
        kind = cast("type[Any] | None", reply if isinstance(reply, type) else None)
        if kind in self._replies:
            return self._replies[kind]
        shape: Shape[Any] = Shape(reply, self._codec)
        if kind is not None:
            self._replies[kind] = shape
        return shape

    async def flush(self, timeout: float | None = None) -> None:
        """Wait for the outcomes of all posts, as :meth:`bmq.Queue.flush` does."""
        await self.queue.flush(timeout)

    # receiving

    def subscribe(
        self,
        expression: ExpressionInput = None,
        *,
        discard_unmatched: bool = False,
        strict: bool = True,
        **limits: Unpack[ConsumerLimits],
    ) -> TypedConsumer[T]:
        """Create a consumer for matching messages, as :meth:`bmq.Queue.subscribe` does.

        The filter is checked against the type: only properties that are fields of the type are allowed,
        compared with values of the field's type. A type without such fields accepts every filter.

        Args:
            expression: selects messages. This and all following arguments are as for
                :meth:`bmq.Queue.subscribe`.
            discard_unmatched: confirm all unmatched messages.
            strict: if False, an expression is sent unchanged, and not checked against the type.
            limits: priority and limits.

        Raises:
            InvalidExpression: the filter is not legal, or does not fit the type.
            UsageError: the queue was not opened for reading, or a limit is out of range.
        """
        if _checks.boolean("strict", strict):
            self._shape.check(expression)
        consumer = self.queue.subscribe(
            expression, discard_unmatched=discard_unmatched, strict=strict, **limits
        )
        return TypedConsumer(consumer, self._shape)

    def group(
        self,
        key: str | None = None,
        *,
        buckets: int = 128,
        member: str | None = None,
        weight: float = 1.0,
        expression: ExpressionInput = None,
        **options: Unpack[GroupOptions],
    ) -> TypedGroup[T]:
        """Join a group that shares the queue by keys, as :meth:`bmq.Queue.group` does.

        Raises:
            InvalidExpression: the filter or the key is not legal, or does not fit the type.
            UsageError: as for :meth:`bmq.Queue.group`.
        """
        self._shape.check(expression)
        if key is not None:
            self._shape.check(f"{_checks.text('key', key, empty=False)} == 0")
        group = self.queue.group(
            key, buckets=buckets, member=member, weight=weight, expression=expression, **options
        )
        return TypedGroup(group, self._shape)

    async def configure(self, **limits: Unpack[ConsumerLimits]) -> None:
        """Change priority and limits, as :meth:`bmq.Queue.configure` does."""
        await self.queue.configure(**limits)

    def stats(self) -> QueueStats:
        """Return the queue's counters, as :meth:`bmq.Queue.stats` does."""
        return self.queue.stats()


@live
class TypedConsumer(_BatchReceiver["Consumer", T], _Subscriber["Consumer", T]):
    """A consumer of values. Created by :meth:`TypedQueue.subscribe`.

    ``async with`` (or ``await``) activates the consumer.

    Attributes:
        consumer: underlying consumer.
    """

    def __init__(self, consumer: Consumer, shape: Shape[T]) -> None:
        super().__init__(consumer, shape)
        self.consumer = consumer

    async def configure(
        self,
        expression: ExpressionInput = None,
        **limits: Unpack[ConsumerLimits],
    ) -> None:
        """Change the subscription or its limits, as :meth:`bmq.Consumer.configure` does.

        Raises:
            InvalidExpression: the filter is not legal, or does not fit the type.
            ConfigureQueueError, RequestTimeout: as for :meth:`bmq.Consumer.configure`.
        """
        self._shape.check(expression)
        await self.consumer.configure(expression, **limits)

    async def pause(self) -> None:
        """Withdraw the subscription for a time, as :meth:`bmq.Consumer.pause` does."""
        await self.consumer.pause()

    async def resume(self) -> None:
        """Receive messages again, as :meth:`bmq.Consumer.resume` does."""
        await self.consumer.resume()

    def put_back(self, messages: Iterable[Message]) -> None:
        """Return messages to the line, as :meth:`bmq.Consumer.put_back` does."""
        self.consumer.put_back(messages)

    def stats(self) -> ConsumerStats:
        """Return the consumer's counters, as :meth:`bmq.Consumer.stats` does."""
        return self.consumer.stats()


@live
class TypedGroup(_Subscriber["Group", T]):
    """A member of a group, for values. Created by :meth:`TypedQueue.group`.

    Attributes:
        group: underlying member.
    """

    def __init__(self, group: Group, shape: Shape[T]) -> None:
        super().__init__(group, shape)
        self.group = group

    def stats(self) -> GroupStats:
        """Return the member's counters, as :meth:`bmq.groups.Group.stats` does."""
        return self.group.stats()


def typed_message(message: Message, shape: Shape[T], value: T) -> TypedMessage[T]:
    """Return a message with a value that is decoded already."""
    made = TypedMessage(message, shape)
    made._value = value
    made._shape = None
    return made


def untyped(
    source: Queue | Consumer | Group | TypedQueue[Any] | TypedConsumer[Any] | TypedGroup[Any],
) -> tuple[Queue | Consumer | Group, Shape[Any] | None]:
    """Return the underlying source of messages, and the shape of its values; None for an untyped source."""
    if isinstance(source, TypedQueue | TypedConsumer | TypedGroup):
        return source._source, source._shape
    return source, None
