# SPDX-License-Identifier: Apache-2.0
"""Queues and consumers of values instead of bytes, for threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from bmq import _checks
from bmq._renamed import renamed_arguments
from bmq.blocking._message import Message, TypedBatch, TypedMessage
from bmq.blocking._posts import PostFuture
from bmq.client.message import Ack, PostReport, PutMessage
from bmq.codecs import Codec, Shape
from bmq.wire.constants import Compression
from bmq.wire.keys import Key
from bmq.wire.properties import PropertyInput

if TYPE_CHECKING:
    from bmq.blocking._consumer import Consumer
    from bmq.blocking._group import Group
    from bmq.blocking._queue import Queue
    from bmq.client.stats import ConsumerStats, QueueStats
    from bmq.groups import GroupOptions, GroupStats
    from bmq.subscriptions import ExpressionInput

__all__ = ["TypedConsumer", "TypedGroup", "TypedQueue"]

T = TypeVar("T")


class TypedQueue(Generic[T]):
    """A queue for values of one type, like :class:`bmq.TypedQueue`. Created by :meth:`Queue.typed`.

    Values are encoded and decoded in the posting and receiving threads.

    Attributes:
        queue: underlying queue.
    """

    def __init__(self, queue: Queue, of: type[T], codec: str | Codec[Any]) -> None:
        self.queue = queue
        self._shape = Shape(of, codec)

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
        """Post a value and wait for its acknowledgement, as :meth:`bmq.TypedQueue.post` does.

        Raises:
            InvalidPayload: the value has another type, or cannot be encoded; nothing was posted.
            PostError, InvalidProperty, QueueClosed, SessionClosed, TimedOut: as for :meth:`Queue.post`.
        """
        data, own = self._encoded(value, properties)
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
        """Post a value without waiting for its acknowledgement, as :meth:`bmq.TypedQueue.post_nowait` does.

        Raises:
            InvalidPayload: the value has another type, or cannot be encoded; nothing was posted.
            BufferFull, InvalidProperty, QueueClosed, SessionClosed: as for :meth:`Queue.post_nowait`.
        """
        data, own = self._encoded(value, properties)
        return self.queue.post_nowait(
            data, properties=own, tags=tags, guid=guid, compression=compression, key=key
        )

    def post_many(self, values: Iterable[T], *, rate: float | None = None) -> PostReport:
        """Post many values, as :meth:`bmq.TypedQueue.post_many` does.

        Raises:
            InvalidPayload: a value has another type, or cannot be encoded; the values before it were posted.
            InvalidProperty, QueueClosed, SessionClosed: as for :meth:`Queue.post_many`.
        """
        return self.queue.post_many(self._messages(values), rate=rate)

    def request(
        self,
        value: T,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        timeout: float = 30.0,
        reply_to: str | None = None,
    ) -> Message:
        """Post a value and wait for the reply, as :meth:`Queue.request` does.

        Raises:
            InvalidPayload: the value has another type, or cannot be encoded; nothing was posted.
            ResponderError, TimedOut, PostError, QueueClosed, SessionClosed: as for :meth:`Queue.request`.
        """
        data, own = self._encoded(value, properties)
        return self.queue.request(data, properties=own, timeout=timeout, reply_to=reply_to)

    def flush(self, timeout: float | None = None) -> None:
        """Wait for the outcomes of all posts, as :meth:`Queue.flush` does."""
        self.queue.flush(timeout)

    def _encoded(
        self, value: T, properties: Mapping[str, PropertyInput] | None
    ) -> tuple[bytes, dict[str, PropertyInput]]:
        data, own = self._shape.encode(value)
        if properties:
            own |= properties
        return data, own

    def _messages(self, values: Iterable[T]) -> Iterator[PutMessage]:
        encode = self._shape.encode
        for value in values:
            data, properties = encode(value)
            yield PutMessage(data, properties)

    # receiving

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        return _Values(iter(self.queue), self._shape)

    def receive(self, timeout: float | None = None) -> TypedMessage[T]:
        """Wait for the next message, as :meth:`Queue.receive` does."""
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
        return (TypedBatch(batch, self._shape) for batch in self.queue.batches(max_messages, max_wait))

    @renamed_arguments
    def subscribe(
        self,
        expression: ExpressionInput = None,
        *,
        priority: int | None = None,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
        discard_unmatched: bool = False,
        strict: bool = True,
    ) -> TypedConsumer[T]:
        """Create a consumer for matching messages, as :meth:`bmq.TypedQueue.subscribe` does.

        Raises:
            InvalidExpression: the filter is not legal, or does not fit the type.
            UsageError: the queue was not opened for reading, or a limit is out of range.
        """
        if _checks.boolean("strict", strict):
            self._shape.check(expression)
        consumer = self.queue.subscribe(
            expression,
            priority=priority,
            max_unconfirmed_messages=max_unconfirmed_messages,
            max_unconfirmed_bytes=max_unconfirmed_bytes,
            discard_unmatched=discard_unmatched,
            strict=strict,
        )
        return TypedConsumer(consumer, self._shape)

    @renamed_arguments
    def group(
        self,
        key: str | None = None,
        *,
        buckets: int = 16,
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

    def configure(
        self,
        *,
        priority: int | None = None,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
    ) -> None:
        """Change priority and limits, as :meth:`Queue.configure` does."""
        self.queue.configure(
            priority=priority,
            max_unconfirmed_messages=max_unconfirmed_messages,
            max_unconfirmed_bytes=max_unconfirmed_bytes,
        )

    def stats(self) -> QueueStats:
        """Return the queue's counters, as :meth:`Queue.stats` does."""
        return self.queue.stats()


class TypedConsumer(Generic[T]):
    """A consumer of values, like :class:`bmq.TypedConsumer`.

    Created by :meth:`TypedQueue.subscribe`; ``with`` activates the consumer.

    Attributes:
        consumer: underlying consumer.
    """

    def __init__(self, consumer: Consumer, shape: Shape[T]) -> None:
        self.consumer = consumer
        self._shape = shape

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        return _Values(iter(self.consumer), self._shape)

    def receive(self, timeout: float | None = None) -> TypedMessage[T]:
        """Wait for the next message, as :meth:`Consumer.receive` does."""
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
        return (TypedBatch(batch, self._shape) for batch in self.consumer.batches(max_messages, max_wait))

    @renamed_arguments
    def configure(
        self,
        expression: ExpressionInput = None,
        *,
        priority: int | None = None,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
    ) -> None:
        """Change the subscription or its limits, as :meth:`Consumer.configure` does.

        Raises:
            InvalidExpression: the filter is not legal, or does not fit the type.
            ConfigureQueueError, RequestTimeout: as for :meth:`Consumer.configure`.
        """
        self._shape.check(expression)
        self.consumer.configure(
            expression,
            priority=priority,
            max_unconfirmed_messages=max_unconfirmed_messages,
            max_unconfirmed_bytes=max_unconfirmed_bytes,
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


class TypedGroup(Generic[T]):
    """A group member that receives values, like :class:`bmq.TypedGroup`. Created by :meth:`TypedQueue.group`.

    Attributes:
        group: underlying member.
    """

    def __init__(self, group: Group, shape: Shape[T]) -> None:
        self.group = group
        self._shape = shape

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        return _Values(iter(self.group), self._shape)

    def receive(self, timeout: float | None = None) -> TypedMessage[T]:
        """Wait for the next message, as :meth:`Group.receive` does."""
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


class _Values(Generic[T]):
    """One loop over messages, each with its value."""

    __slots__ = ("_messages", "_shape")

    def __init__(self, messages: Iterator[Message], shape: Shape[T]) -> None:
        self._messages = messages
        self._shape = shape

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        return self

    def __next__(self) -> TypedMessage[T]:
        return TypedMessage(next(self._messages), self._shape)
