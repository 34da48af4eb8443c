# SPDX-License-Identifier: Apache-2.0
"""One attempt of a handler, as middlewares, interceptors and handlers see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from bmq import _checks
from bmq.errors import UsageError

if TYPE_CHECKING:
    from bmq.client.message import Message
    from bmq.codecs import Shape

__all__ = ["UNSET", "Attempt", "CallNext", "HandlerInfo", "attempt_of"]

#: Stands for a value to be decoded on the first access.
UNSET: Any = object()

#: Continues an attempt: calls the next middleware, or the handler, and returns the result.
CallNext: TypeAlias = Callable[[], Awaitable[Any]]


class HandlerInfo:
    """The facts that all attempts of a handler share.

    Args:
        name: name of the handler.
        state: state of the app; None without an app.
        key_of: returns the ordering key of a message; None if the handler has no key.
        shape: type of the values; None if the handler takes the messages themselves.
    """

    __slots__ = ("key_of", "name", "shape", "state")

    def __init__(
        self,
        name: str,
        state: Any = None,
        key_of: Callable[[Message], Hashable] | None = None,
        shape: Shape[Any] | None = None,
    ) -> None:
        self.name = name
        self.state = state
        self.key_of = key_of
        self.shape = shape


class Attempt:
    """One attempt of a handler: a call with a message, or with a batch of messages.

    A middleware receives the attempt, and so does a handler with a parameter annotated with
    ``bmq.Attempt``. Create an attempt only for a test of a middleware.

    ::

        @app.consumer(ORDERS, retry=bmq.Backoff(every=5.0, retries=3))
        async def ship(order: Order, attempt: bmq.Attempt) -> None:
            if attempt.number > 1:
                print(f"attempt {attempt.number} of order {order.number}")

    Args:
        messages: the message of the attempt, or the messages of a batch.
        number: number of the attempt, from 1.
        handler: name of the handler.
        value: first argument of the handler; by default the message, or the list of messages of a batch.
        state: state of the app.

    Attributes:
        messages: messages of the attempt: a single message, or all messages of a batch.
        number: number of the attempt, from 1. An attempt after :class:`bmq.RetryAfter` has the same number.
    """

    __slots__ = ("_context", "_info", "_value", "messages", "number")

    def __init__(
        self,
        messages: Sequence[Message],
        number: int = 1,
        *,
        handler: str = "handler",
        value: Any = UNSET,
        state: Any = None,
    ) -> None:
        self.messages: Sequence[Message] = _checks.items("messages", messages, "bmq.Message")
        if not self.messages:
            raise UsageError("messages must contain at least one message: an attempt handles a message")
        self.number: int = _checks.integer("number", number, 1)
        self._info = HandlerInfo(_checks.text("handler", handler), state)
        self._value: Any = value
        self._context: dict[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"<bmq.Attempt {self.number} of {self.handler}, {self.queue_uri}>"

    @property
    def message(self) -> Message:
        """The message.

        Raises:
            UsageError: the attempt handles a batch of several messages: use :attr:`messages`.
        """
        if len(self.messages) != 1:
            raise UsageError(f"the attempt handles a batch of {len(self.messages)}: use attempt.messages")
        return self.messages[0]

    @property
    def value(self) -> Any:
        """First argument of the handler; assign another value to replace the argument.

        The value of the message, decoded on the first access; the message itself for a handler of messages;
        the list of values, or of messages, for a handler of batches.

        Raises:
            Undecodable: the message cannot be decoded to the type of the handler's value.
        """
        value = self._value
        if value is UNSET:
            message, shape = self.messages[0], self._info.shape
            value = self._value = message if shape is None else shape.decode(message)
        return value

    @value.setter
    def value(self, value: Any) -> None:
        self._value = value

    @property
    def handler(self) -> str:
        """Name of the handler."""
        return self._info.name

    @property
    def queue_uri(self) -> str:
        """URI of the queue, with ``?id=`` for an application of a fanout queue."""
        return self.messages[0].queue_uri

    @property
    def key(self) -> Hashable:
        """Ordering key of the message; None if the handler is registered without ``key``."""
        key_of = self._info.key_of
        return None if key_of is None else key_of(self.messages[0])

    @property
    def state(self) -> Any:
        """State of the app; None for a handler of :func:`bmq.consume`."""
        return self._info.state

    @property
    def context(self) -> dict[Any, Any]:
        """Dictionary for data of this attempt, such as data from a middleware for the handler.

        Empty at the beginning of each attempt. :attr:`bmq.Message.context` lasts as long as the message.
        """
        if self._context is None:
            self._context = {}
        return self._context


def attempt_of(messages: Sequence[Message], number: int, info: HandlerInfo, value: Any = UNSET) -> Attempt:
    """Return an attempt of a handler, unchecked: one is made for each attempt."""
    attempt = _new(Attempt)
    attempt.messages = messages
    attempt.number = number
    attempt._info = info
    attempt._value = value
    attempt._context = None
    return attempt


_new = object.__new__
