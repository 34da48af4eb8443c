# SPDX-License-Identifier: Apache-2.0
"""Queues and consumers of values instead of bytes, for threads.

Values are encoded and decoded in the posting and receiving threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast, overload

from bmq import _checks
from bmq._live import live
from bmq.blocking._message import Message, MessageBatch, TypedBatch, TypedMessage
from bmq.blocking._posts import PostFuture
from bmq.client.posts import Ack, PostReport, PutMessage
from bmq.codecs import Codec, Shape
from bmq.errors import UsageError
from bmq.wire.constants import Compression
from bmq.wire.keys import Key
from bmq.wire.properties import PropertyInput

if TYPE_CHECKING:
    from bmq.blocking._consumer import Consumer
    from bmq.blocking._group import Group
    from bmq.blocking._queue import Queue
    from bmq.client.limits import ConsumerLimits
    from bmq.client.stats import ConsumerStats, QueueStats
    from bmq.groups import GroupOptions, GroupStats
    from bmq.subscriptions import ExpressionInput

__all__ = ["TypedConsumer", "TypedGroup", "TypedQueue"]

T = TypeVar("T")
R = TypeVar("R")


def _encoded(
    shape: Shape[T], value: T, properties: Mapping[str, PropertyInput] | None
) -> tuple[bytes, dict[str, PropertyInput]]:
    data, own = shape.encode(value)
    if properties is not None:
        own |= _checks.mapping("properties", properties)
    return data, own


def _messages(shape: Shape[T], values: Iterable[T]) -> Iterator[PutMessage]:
    if not isinstance(values, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"values must be an iterable of {shape.name}, not {_checks.shown(values)}")
    return (PutMessage(*shape.encode(value)) for value in values)


# Below: generated from bmq/client/typed.py by tests/blocking/typed.py.


@live
class TypedQueue(Generic[T]):
    """A queue for values of one type. Created by :meth:`Queue.typed`.

    ::

        orders = queue.typed(Order)
        orders.post(Order(customer=1234, address="1 Main Street"))
        for message in orders:
            ship(message.value)
            message.confirm()

    A typed queue has no state of its own: to close it, for example, close the queue.

    Attributes:
        queue: underlying queue.
    """

    def __init__(self, queue: Queue, of: type[T], codec: str | Codec[Any]) -> None:
        self.queue = queue
        self._shape = Shape(of, codec)
        self._codec = codec if isinstance(codec, str) else "application/json"
        self._replies: dict[type, Shape[Any]] = {}

    @property
    def uri(self) -> str:
        """The queue's URI."""
        return self.queue.uri

    def __repr__(self) -> str:
        return f"<bmq.blocking.TypedQueue of {self._shape.name}, {self.uri}>"

    # posting

    def post(
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
        """Post a value and wait for its acknowledgement, as :meth:`Queue.post` does.

        Args:
            value: value to post.
            properties: further properties; override properties derived from fields of the value.
            tags: as for :meth:`Queue.post`, like all following arguments.
            guid: GUID in place of a generated one.
            compression: compression of the payload.
            key: ordering key.
            delay: seconds until the message is due.
            not_before: due time, in place of ``delay``.
            timeout: seconds to wait for the outcome.

        Raises:
            InvalidPayload: the value has another type, or cannot be encoded; nothing was posted.
            PostError, InvalidProperty, QueueClosed, SessionClosed, TimedOut: as :meth:`Queue.post`.

        Interrupting the call has the same effect as for :meth:`Queue.post`.
        """
        data, own = _encoded(self._shape, value, properties)
        return self.queue.post(
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
        """Post a value without waiting, as :meth:`Queue.post_nowait` does.

        Raises:
            InvalidPayload: the value has another type, or cannot be encoded; nothing was posted.
            BufferFull, InvalidProperty, QueueClosed, SessionClosed: as for :meth:`Queue.post_nowait`.
        """
        data, own = _encoded(self._shape, value, properties)
        return self.queue.post_nowait(
            data, properties=own, tags=tags, guid=guid, compression=compression, key=key
        )

    def post_many(self, values: Iterable[T], *, rate: float | None = None) -> PostReport:
        """Post many values, batched and with backpressure, as :meth:`Queue.post_many` does.

        Args:
            values: values to post.
            rate: maximum number of messages a second.

        Raises:
            InvalidPayload: a value has another type, or cannot be encoded; earlier values were posted.
            InvalidProperty, QueueClosed, SessionClosed: as for :meth:`Queue.post_many`.

        Interrupting the call has the same effect as for :meth:`Queue.post_many`.
        """
        return self.queue.post_many(_messages(self._shape, values), rate=rate)

    @overload
    def request(
        self,
        value: T,
        *,
        reply: type[R],
        properties: Mapping[str, PropertyInput] | None = None,
        timeout: float = 30.0,
        reply_to: str | None = None,
    ) -> R: ...
    @overload
    def request(
        self,
        value: T,
        *,
        reply: None = None,
        properties: Mapping[str, PropertyInput] | None = None,
        timeout: float = 30.0,
        reply_to: str | None = None,
    ) -> Message: ...
    def request(
        self,
        value: T,
        *,
        reply: type[R] | None = None,
        properties: Mapping[str, PropertyInput] | None = None,
        timeout: float = 30.0,
        reply_to: str | None = None,
    ) -> R | Message:
        """Post a value and wait for the reply, as :meth:`Queue.request` does.

        ::

            price = queue.typed(Article).request(Article("A4711"), reply=Price)

        Args:
            value: value to post.
            reply: type of the reply's value; None to return the message.
            properties: further properties; override properties derived from fields of the value.
            timeout: seconds to wait for the reply, posting included.
            reply_to: as for :meth:`Queue.request`.

        Returns:
            The value of the reply, or the reply itself, already confirmed.

        Raises:
            InvalidPayload: the value has another type, or cannot be encoded; nothing was posted.
            UsageError: no codec supports the type of the reply; nothing was posted.
            Undecodable: the reply has no value of this type.
            RequestFailed, TimedOut, PostError, QueueClosed, SessionClosed: as for :meth:`Queue.request`.

        Interrupting the call has the same effect as for :meth:`Queue.request`.
        """
        shape = None if reply is None else self._shape_of(reply)
        data, own = _encoded(self._shape, value, properties)
        message = self.queue.request(data, properties=own, timeout=timeout, reply_to=reply_to)
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

    def flush(self, timeout: float | None = None) -> None:
        """Wait for the outcomes of all posts, as :meth:`Queue.flush` does."""
        self.queue.flush(timeout)

    # receiving

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        return _Values(self.queue.__iter__(), self._shape)

    def receive(self, timeout: float | None = None) -> TypedMessage[T]:
        """Wait up to ``timeout`` seconds for the next message, as :meth:`Queue.receive` does."""
        return TypedMessage(self.queue.receive(timeout), self._shape)

    def receive_nowait(self) -> TypedMessage[T] | None:
        """Return the next message if one has arrived, as :meth:`Queue.receive_nowait` does."""
        message = self.queue.receive_nowait()
        return None if message is None else TypedMessage(message, self._shape)

    def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> TypedBatch[T]:
        """Wait for a message, and return all that have arrived, as :meth:`Queue.receive_many` does."""
        return TypedBatch(self.queue.receive_many(max_messages, timeout), self._shape)

    def batches(self, max_messages: int = 1000, max_wait: float = 0.0) -> Iterator[TypedBatch[T]]:
        """Iterate over batches of messages, as :meth:`Queue.batches` does."""
        return _Batches(self.queue.batches(max_messages, max_wait), self._shape)

    def subscribe(
        self,
        expression: ExpressionInput = None,
        *,
        discard_unmatched: bool = False,
        strict: bool = True,
        **limits: Unpack[ConsumerLimits],
    ) -> TypedConsumer[T]:
        """Create a consumer for matching messages, as :meth:`Queue.subscribe` does.

        The filter is checked against the type: only properties that are fields of the type are allowed,
        compared with values of the field's type. A type without such fields accepts every filter.

        Args:
            expression: selects messages. This and all following arguments are as for
                :meth:`Queue.subscribe`.
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
            expression,
            discard_unmatched=discard_unmatched,
            strict=strict,
            **limits,
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
        """Join a group that shares the queue by keys, as :meth:`Queue.group` does.

        Raises:
            InvalidExpression: the filter is not legal, or does not fit the type.
            UsageError: as for :meth:`Queue.group`.
        """
        self._shape.check(expression)
        group = self.queue.group(
            key, buckets=buckets, member=member, weight=weight, expression=expression, **options
        )
        return TypedGroup(group, self._shape)

    def configure(self, **limits: Unpack[ConsumerLimits]) -> None:
        """Change priority and limits, as :meth:`Queue.configure` does."""
        self.queue.configure(
            **limits,
        )

    def stats(self) -> QueueStats:
        """Return the queue's counters, as :meth:`Queue.stats` does."""
        return self.queue.stats()


@live
class TypedConsumer(Generic[T]):
    """A consumer of values. Created by :meth:`TypedQueue.subscribe`.

    ``with`` activates the consumer.

    Attributes:
        consumer: underlying consumer.
    """

    def __init__(self, consumer: Consumer, shape: Shape[T]) -> None:
        self.consumer = consumer
        self._shape = shape

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        return _Values(self.consumer.__iter__(), self._shape)

    def receive(self, timeout: float | None = None) -> TypedMessage[T]:
        """Wait up to ``timeout`` seconds for the next message, as :meth:`Consumer.receive` does."""
        return TypedMessage(self.consumer.receive(timeout), self._shape)

    def receive_nowait(self) -> TypedMessage[T] | None:
        """Return the next message if one has arrived, as :meth:`Consumer.receive_nowait` does."""
        message = self.consumer.receive_nowait()
        return None if message is None else TypedMessage(message, self._shape)

    def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> TypedBatch[T]:
        """Wait for a message, and return all that have arrived, as :meth:`Consumer.receive_many` does."""
        return TypedBatch(self.consumer.receive_many(max_messages, timeout), self._shape)

    def batches(self, max_messages: int = 1000, max_wait: float = 0.0) -> Iterator[TypedBatch[T]]:
        """Iterate over batches of messages, as :meth:`Consumer.batches` does."""
        return _Batches(self.consumer.batches(max_messages, max_wait), self._shape)

    def configure(
        self,
        expression: ExpressionInput = None,
        **limits: Unpack[ConsumerLimits],
    ) -> None:
        """Change the subscription or its limits, as :meth:`Consumer.configure` does.

        Raises:
            InvalidExpression: the filter is not legal, or does not fit the type.
            ConfigureQueueError, RequestTimeout: as for :meth:`Consumer.configure`.
        """
        self._shape.check(expression)
        self.consumer.configure(
            expression,
            **limits,
        )

    def pause(self) -> None:
        """Withdraw the subscription for a time, as :meth:`Consumer.pause` does."""
        self.consumer.pause()

    def resume(self) -> None:
        """Receive messages again, as :meth:`Consumer.resume` does."""
        self.consumer.resume()

    def put_back(self, messages: Iterable[Message]) -> None:
        """Return messages to the line, as :meth:`Consumer.put_back` does."""
        self.consumer.put_back(messages)

    def stats(self) -> ConsumerStats:
        """Return the consumer's counters, as :meth:`Consumer.stats` does."""
        return self.consumer.stats()

    def open(self) -> TypedConsumer[T]:
        """Send the subscription to the broker, as :meth:`Consumer.open` does."""
        self.consumer.open()
        return self

    def close(self) -> None:
        """Withdraw the subscription, as :meth:`Consumer.close` does."""
        self.consumer.close()

    def __enter__(self) -> TypedConsumer[T]:
        return self.open()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<bmq.blocking.TypedConsumer of {self._shape.name}, {self.consumer!r}>"


@live
class TypedGroup(Generic[T]):
    """A member of a group, for values. Created by :meth:`TypedQueue.group`.

    Attributes:
        group: underlying member.
    """

    def __init__(self, group: Group, shape: Shape[T]) -> None:
        self.group = group
        self._shape = shape

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        return _Values(self.group.__iter__(), self._shape)

    def receive(self, timeout: float | None = None) -> TypedMessage[T]:
        """Wait up to ``timeout`` seconds for the next message, as :meth:`Group.receive` does."""
        return TypedMessage(self.group.receive(timeout), self._shape)

    def receive_nowait(self) -> TypedMessage[T] | None:
        """Return the next message if one has arrived, as :meth:`Group.receive_nowait` does."""
        message = self.group.receive_nowait()
        return None if message is None else TypedMessage(message, self._shape)

    def open(self) -> TypedGroup[T]:
        """Join the group, as :meth:`Group.open` does."""
        self.group.open()
        return self

    def close(self) -> None:
        """Leave the group, as :meth:`Group.close` does."""
        self.group.close()

    def stats(self) -> GroupStats:
        """Return the member's counters, as :meth:`Group.stats` does."""
        return self.group.stats()

    def __enter__(self) -> TypedGroup[T]:
        return self.open()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<bmq.blocking.TypedGroup of {self._shape.name}, {self.group!r}>"


@live
class _Values(Generic[T]):
    """One loop over messages, each with a value."""

    __slots__ = ("_messages", "_shape")

    def __init__(self, messages: Iterator[Message], shape: Shape[T]) -> None:
        self._messages = messages
        self._shape = shape

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        return self

    def __next__(self) -> TypedMessage[T]:
        return TypedMessage(self._messages.__next__(), self._shape)


@live
class _Batches(Generic[T]):
    """One loop over batches, each with values."""

    __slots__ = ("_batches", "_shape")

    def __init__(self, batches: Iterator[MessageBatch], shape: Shape[T]) -> None:
        self._batches = batches
        self._shape = shape

    def __iter__(self) -> Iterator[TypedBatch[T]]:
        return self

    def __next__(self) -> TypedBatch[T]:
        return TypedBatch(self._batches.__next__(), self._shape)
