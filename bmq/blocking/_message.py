# SPDX-License-Identifier: Apache-2.0
"""Messages as threads see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from bmq._renamed import renamed
from bmq.client.message import Message as _Message
from bmq.client.message import MessageBatch as _MessageBatch
from bmq.codecs import Shape
from bmq.wire.constants import PropertyType
from bmq.wire.properties import PlainValue, Properties

if TYPE_CHECKING:
    from bmq.blocking._consumer import Consumer
    from bmq.blocking._queue import Queue

__all__ = ["Message", "MessageBatch", "TypedMessage"]

T = TypeVar("T")


@renamed
class Message:
    """A message, as :class:`bmq.Message`. Created by queues and consumers.

    ``with message:`` confirms on a clean exit and leaves the message unconfirmed when the block raises.

    Attributes:
        confirmed: whether the application has confirmed it.
    """

    __slots__ = ("_message", "_queue", "confirmed")

    confirmed: bool

    def __init__(self, queue: Queue, message: _Message) -> None:
        self._queue = queue
        self._message = message
        self.confirmed = False

    @property
    def data(self) -> bytes:
        """The payload, decompressed, as :attr:`bmq.Message.data`."""
        return self._message.data

    @property
    def properties(self) -> Properties:
        """The properties, as :attr:`bmq.Message.properties`."""
        return self._message.properties

    @property
    def raw(self) -> bytes:
        """Properties and payload as they travelled, as :attr:`bmq.Message.raw`."""
        return self._message.raw

    @property
    def property_types(self) -> dict[str, PropertyType]:
        """The type of each property."""
        return self._message.property_types

    @property
    def tags(self) -> frozenset[str]:
        """The tags it was posted with."""
        return self._message.tags

    @property
    def guid(self) -> str:
        """The message's GUID: 32 upper-case hexadecimal digits, the same on every delivery."""
        return self._message.guid

    @property
    def queue_uri(self) -> str:
        """The URI of the queue as it was opened, with ``?id=`` for an application of a fanout queue."""
        return self._message.queue_uri

    @property
    def consumer(self) -> Consumer:
        """The consumer whose subscription the broker routed this message to."""
        return self._queue._consumer_of(self._message.consumer)

    @property
    def redelivered(self) -> bool:
        """Whether the broker marked the message as out of order, as :attr:`bmq.Message.redelivered`."""
        return self._message.redelivered

    @property
    def delivery_attempts_left(self) -> int | None:
        """How many more times it is delivered if it is not confirmed; None where the broker does not say."""
        return self._message.delivery_attempts_left

    @property
    def stale(self) -> bool:
        """Whether the connection it came over was lost since, as :attr:`bmq.Message.stale`."""
        return self._message.stale

    @property
    def age(self) -> float:
        """How long ago the message arrived here, in seconds."""
        return self._message.age

    @property
    def context(self) -> dict[Any, Any]:
        """A place to keep what belongs to this message; empty at first."""
        return self._message.context

    def confirm(self) -> None:
        """Tell the broker that the message is done with, as :meth:`bmq.Message.confirm` does.

        It does not wait: what is confirmed while the session's thread is busy is sent together. Calling it
        again does nothing; after the queue or the session is closed it has no effect.

        Raises:
            UsageError: this is another process, made by a fork.
        """
        if not self.confirmed:
            self._queue._confirm_one(self._message)
            self.confirmed = True

    def __enter__(self) -> Message:
        self._queue._handlers.enter(self._message)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if exc_type is None:
                self.confirm()
        finally:
            self._queue._handlers.leave(self._message)

    def __repr__(self) -> str:
        return f"<bmq.blocking.Message {self.guid} from {self.queue_uri}, {len(self.raw)} bytes>"


class TypedMessage(Message, Generic[T]):
    """A message with a value, as :class:`bmq.TypedMessage`.

    Created by :class:`TypedQueue` and :class:`TypedConsumer`. Decoded when :attr:`value` is read.
    """

    __slots__ = ("_shape", "_value")

    _value: T

    def __init__(self, message: Message, shape: Shape[T]) -> None:
        super().__init__(message._queue, message._message)
        self._shape: Shape[T] | None = shape

    @property
    def value(self) -> T:
        """The value, decoded when it is read first.

        Raises:
            Undecodable: the payload is no such value.
        """
        if self._shape is not None:
            self._value = self._shape.decode(self._message)
            self._shape = None
        return self._value


class MessageBatch(Sequence[Message]):
    """Messages that were received together, as :class:`bmq.MessageBatch`. Created by queues and consumers.

    ``with batch:`` confirms them all on a clean exit.
    """

    __slots__ = ("_batch", "_messages", "_queue")

    def __init__(self, queue: Queue, batch: _MessageBatch) -> None:
        self._queue = queue
        self._batch = batch
        self._messages = [Message(queue, message) for message in batch]

    def column(self, name: str) -> list[PlainValue | None]:
        """Return one property of all messages, as :meth:`bmq.MessageBatch.column` does."""
        return self._batch.column(name)

    def confirm(self) -> None:
        """Confirm every message of the batch that is not confirmed yet, as :meth:`Message.confirm` does."""
        self._queue._confirm_messages(self._messages)

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

    def __enter__(self) -> MessageBatch:
        self._queue._handlers.enter(self._batch)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if exc_type is None:
                self.confirm()
        finally:
            self._queue._handlers.leave(self._batch)

    def __repr__(self) -> str:
        return f"<bmq.blocking.MessageBatch of {len(self._messages)} from {self._queue.uri}>"
