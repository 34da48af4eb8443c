# SPDX-License-Identifier: Apache-2.0
"""Queues and consumers of values instead of bytes, for threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bmq.blocking._message import Message, TypedMessage
from bmq.blocking._posts import PostFuture
from bmq.client.message import Ack, PostReport, PutMessage
from bmq.codecs import Codec, Shape
from bmq.wire.constants import Compression
from bmq.wire.properties import PropertyInput

if TYPE_CHECKING:
    from bmq.blocking._consumer import Consumer
    from bmq.blocking._queue import Queue
    from bmq.subscriptions import Selector

__all__ = ["TypedConsumer", "TypedQueue"]

T = TypeVar("T")


class TypedQueue(Generic[T]):
    """A queue for values of one type, as :class:`bmq.TypedQueue`. Made by :meth:`Queue.typed`.

    Values are encoded and decoded in the threads that post and receive.

    Attributes:
        queue: the queue itself.
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
        timeout: float | None = None,
    ) -> Ack:
        """Post a value and wait for its acknowledgement, as :meth:`bmq.TypedQueue.post`.

        Raises:
            InvalidPayload: the value is of another type, or cannot be encoded; nothing was posted.
            PostError, InvalidProperty, QueueClosed, SessionClosed, TimedOut: as :meth:`Queue.post`.
        """
        data, own = self._encoded(value, properties)
        return self.queue.post(
            data, properties=own, tags=tags, guid=guid, compression=compression, timeout=timeout
        )

    def post_nowait(
        self,
        value: T,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = (),
        guid: str | None = None,
        compression: Compression | None = None,
    ) -> PostFuture:
        """Post a value without waiting for its acknowledgement, as :meth:`bmq.TypedQueue.post_nowait`.

        Raises:
            InvalidPayload: the value is of another type, or cannot be encoded; nothing was posted.
            BufferFull, InvalidProperty, QueueClosed, SessionClosed: as :meth:`Queue.post_nowait`.
        """
        data, own = self._encoded(value, properties)
        return self.queue.post_nowait(data, properties=own, tags=tags, guid=guid, compression=compression)

    def post_many(self, values: Iterable[T], *, rate: float | None = None) -> PostReport:
        """Post many values, as :meth:`bmq.TypedQueue.post_many`.

        Raises:
            InvalidPayload: a value is of another type, or cannot be encoded; those before it are posted.
            InvalidProperty, QueueClosed, SessionClosed: as :meth:`Queue.post_many`.
        """
        return self.queue.post_many(self._messages(values), rate=rate)

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

    def subscribe(
        self,
        selector: Selector = None,
        *,
        priority: int | None = None,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
        discard_unmatched: bool = False,
    ) -> TypedConsumer[T]:
        """Make a consumer for the messages that match, as :meth:`bmq.TypedQueue.subscribe`.

        Raises:
            InvalidExpression: the filter is not legal, or does not fit the type.
            UsageError: the queue was not opened for reading, or a limit is out of its range.
        """
        self._shape.check(selector)
        consumer = self.queue.subscribe(
            selector,
            priority=priority,
            max_unconfirmed_messages=max_unconfirmed_messages,
            max_unconfirmed_bytes=max_unconfirmed_bytes,
            discard_unmatched=discard_unmatched,
        )
        return TypedConsumer(consumer, self._shape)


class TypedConsumer(Generic[T]):
    """A consumer of values, as :class:`bmq.TypedConsumer`.

    Made by :meth:`TypedQueue.subscribe`; ``with`` activates it.

    Attributes:
        consumer: the consumer itself.
    """

    def __init__(self, consumer: Consumer, shape: Shape[T]) -> None:
        self.consumer = consumer
        self._shape = shape

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        return _Values(iter(self.consumer), self._shape)

    def receive(self, timeout: float | None = None) -> TypedMessage[T]:
        """Wait for the next message, as :meth:`Consumer.receive` does."""
        return TypedMessage(self.consumer.receive(timeout), self._shape)

    def open(self) -> TypedConsumer[T]:
        """Tell the broker about the subscription, as :meth:`Consumer.open` does."""
        self.consumer.open()
        return self

    def close(self) -> None:
        """Take the subscription back, as :meth:`Consumer.close` does."""
        self.consumer.close()

    def __enter__(self) -> TypedConsumer[T]:
        return self.open()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<bmq.blocking.TypedConsumer of {self._shape.name}, {self.consumer!r}>"


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
