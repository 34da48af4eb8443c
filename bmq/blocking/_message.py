# SPDX-License-Identifier: Apache-2.0
"""Messages for threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from bmq._live import live
from bmq.client.message import Message as _Message
from bmq.client.message import MessageBatch as _MessageBatch
from bmq.codecs import Shape
from bmq.protocol.client.queue import QueueState
from bmq.wire.constants import Compression, PropertyType
from bmq.wire.properties import PlainValue, Properties

if TYPE_CHECKING:
    from bmq.blocking._consumer import Consumer
    from bmq.blocking._end import QueueEnd

__all__ = ["Message", "MessageBatch", "TypedBatch", "TypedMessage"]

T = TypeVar("T")


@live
class Message:
    """A message, like :class:`bmq.Message`. Created by queues and consumers.

    ``with message:`` confirms on a clean exit, and leaves the message unconfirmed if the block raises.

    Attributes:
        confirmed: whether the application has confirmed the message.
    """

    __slots__ = ("_end", "_message", "confirmed")

    confirmed: bool

    def __init__(self, end: QueueEnd[Consumer], message: _Message) -> None:
        self._end = end
        self._message = message
        self.confirmed = False

    @property
    def data(self) -> bytes:
        """The payload, decompressed, like :attr:`bmq.Message.data`."""
        return self._message.data

    @property
    def properties(self) -> Properties:
        """The properties, like :attr:`bmq.Message.properties`."""
        return self._message.properties

    @property
    def raw(self) -> bytes:
        """Properties and payload as transmitted, like :attr:`bmq.Message.raw`."""
        return self._message.raw

    @property
    def compression(self) -> Compression:
        """The compression as transmitted, like :attr:`bmq.Message.compression`."""
        return self._message.compression

    @property
    def property_types(self) -> dict[str, PropertyType]:
        """The type of each property."""
        return self._message.property_types

    @property
    def tags(self) -> frozenset[str]:
        """The tags of the message."""
        return self._message.tags

    @property
    def guid(self) -> str:
        """The GUID of the message: 32 upper-case hexadecimal digits, the same in each delivery."""
        return self._message.guid

    @property
    def queue_uri(self) -> str:
        """The URI of the opened queue, with ``?id=`` for an application of a fanout queue."""
        return self._message.queue_uri

    @property
    def consumer(self) -> Consumer:
        """The consumer to which the broker routed the message."""
        return self._end.consumer_of(self._message.consumer)

    @property
    def redelivered(self) -> bool:
        """Whether the broker marked the message as out of order, like :attr:`bmq.Message.redelivered`."""
        return self._message.redelivered

    @property
    def delivery_attempts_left(self) -> int | None:
        """Number of remaining deliveries if the message stays unconfirmed; None if unknown."""
        return self._message.delivery_attempts_left

    @property
    def stale(self) -> bool:
        """Whether the message's connection was lost, like :attr:`bmq.Message.stale`."""
        return self._message.stale

    @property
    def age(self) -> float:
        """Seconds since the arrival of the message."""
        return self._message.age

    @property
    def context(self) -> dict[Any, Any]:
        """A dictionary for data that belongs to this message; empty at first."""
        return self._message.context

    def confirm(self) -> None:
        """Confirm to the broker that the message is handled, as :meth:`bmq.Message.confirm` does.

        The call does not wait: confirmations are collected while the session's thread is busy, and sent
        together. A repeated call has no effect, and neither does a call after the queue or the session is
        closed.

        Raises:
            UsageError: the current process is a fork of the session's process.
        """
        if not self.confirmed:
            self._end.outbox.put(self._message)
            self.confirmed = self._end.queue.state is not QueueState.CLOSED

    def __enter__(self) -> Self:
        self._end.handlers.enter(self._message)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if exc_type is None:
                self.confirm()
        finally:
            self._end.handlers.leave(self._message)

    def __repr__(self) -> str:
        return f"<bmq.blocking.Message {self.guid} from {self.queue_uri}, {len(self.raw)} bytes>"


class TypedMessage(Message, Generic[T]):
    """A message with a value, like :class:`bmq.TypedMessage`.

    Created by :class:`TypedQueue` and :class:`TypedConsumer`. Decoded when :attr:`value` is read.
    """

    __slots__ = ("_shape", "_value")

    _value: T

    def __init__(self, message: Message, shape: Shape[T]) -> None:
        super().__init__(message._end, message._message)
        self._shape: Shape[T] | None = shape

    @property
    def value(self) -> T:
        """The value, decoded on the first access.

        Raises:
            Undecodable: the payload cannot be decoded to the type.
        """
        if self._shape is not None:
            self._value = self._shape.decode(self._message)
            self._shape = None
        return self._value


@live
class MessageBatch(Sequence[Message]):
    """Messages that were received together, like :class:`bmq.MessageBatch`. Created by queues and consumers.

    ``with batch:`` confirms all messages on a clean exit.
    """

    __slots__ = ("_batch", "_end", "_messages")

    def __init__(self, end: QueueEnd[Consumer], batch: _MessageBatch) -> None:
        self._end = end
        self._batch = batch
        self._messages = [Message(end, message) for message in batch]

    def column(self, name: str) -> list[PlainValue | None]:
        """Return one property of all messages, as :meth:`bmq.MessageBatch.column` does."""
        return self._batch.column(name)

    def confirm(self) -> None:
        """Confirm each unconfirmed message of the batch, as :meth:`Message.confirm` does."""
        for message in self._messages:
            message.confirm()

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __enter__(self) -> Self:
        self._end.handlers.enter(self._batch)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if exc_type is None:
                self.confirm()
        finally:
            self._end.handlers.leave(self._batch)

    def __repr__(self) -> str:
        return f"<bmq.blocking.MessageBatch of {len(self._messages)} from {self._end.uri}>"


class TypedBatch(MessageBatch, Generic[T]):
    """Messages with values that were received together, like :class:`bmq.typed.TypedBatch`.

    Otherwise a :class:`MessageBatch`.
    """

    __slots__ = ()

    def __init__(self, batch: MessageBatch, shape: Shape[T]) -> None:
        super().__init__(batch._end, batch._batch)
        self._messages = [TypedMessage(message, shape) for message in self._messages]

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
        return self._values[index]

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        return iter(self._values)

    @property
    def _values(self) -> list[TypedMessage[T]]:
        messages: Any = self._messages
        typed: list[TypedMessage[T]] = messages
        return typed
