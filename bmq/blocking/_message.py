# SPDX-License-Identifier: Apache-2.0
"""Messages for threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from bmq._live import live
from bmq.blocking._calls import MessageCalls
from bmq.client.message import Message as _Message
from bmq.client.message import MessageBatch as _MessageBatch
from bmq.protocol.client.queue import QueueState
from bmq.wire.properties import PlainValue

if TYPE_CHECKING:
    from bmq.blocking._consumer import Consumer
    from bmq.blocking._queue import Queue
    from bmq.client.consumer import Consumer as _Consumer

__all__ = ["Message", "MessageBatch"]


class _Handled:
    """``with`` a message or a batch."""

    __slots__ = ()

    if TYPE_CHECKING:
        _queue: Queue
        _inner: Any

        def confirm(self) -> None: ...

    def __enter__(self) -> Self:
        self._queue._held.enter(self._inner)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if exc_type is None:
                self.confirm()
        finally:
            self._queue._held.leave(self._inner)


@live
class Message(MessageCalls, _Handled):
    """A message, like :class:`bmq.Message`. Created by queues and consumers.

    ``with message:`` confirms on a clean exit, and leaves the message unconfirmed if the block raises.

    Attributes:
        confirmed: whether the application has confirmed the message.
    """

    __slots__ = ("_inner", "_queue", "confirmed")

    confirmed: bool

    def __init__(self, queue: Queue, message: _Message) -> None:
        self._queue = queue
        self._inner = message
        self.confirmed = message.confirmed

    def _consumer_of(self, consumer: _Consumer) -> Consumer:
        return self._queue._consumer_of(consumer)

    def confirm(self) -> None:
        """Confirm to the broker that the message is handled, as :meth:`bmq.Message.confirm` does.

        The call does not wait: confirmations are collected while the session's thread is busy, and sent
        together. A repeated call has no effect, and neither does a call after the queue or the session is
        closed.

        Raises:
            UsageError: the current process is a fork of the session's process.
        """
        if not self.confirmed:
            self._queue._sends.put(self._inner)
            self.confirmed = self._queue.state is not QueueState.CLOSED


@live
class MessageBatch(_Handled, Sequence[Message]):
    """Messages that were received together, like :class:`bmq.MessageBatch`. Created by queues and consumers.

    ``with batch:`` confirms all messages on a clean exit.
    """

    __slots__ = ("_inner", "_messages", "_queue")

    _inner: _MessageBatch

    def __init__(self, queue: Queue, batch: _MessageBatch, messages: list[Message]) -> None:
        self._queue = queue
        self._inner = batch
        self._messages = messages

    def column(self, name: str) -> list[PlainValue | None]:
        """Return one property of all messages, as :meth:`bmq.MessageBatch.column` does."""
        return self._inner.column(name)

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

    def __repr__(self) -> str:
        return f"<bmq.blocking.MessageBatch of {len(self._messages)} from {self._queue.uri}>"
