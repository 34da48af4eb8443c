# SPDX-License-Identifier: Apache-2.0
"""What the packages above need of sessions, queues and consumers beside the public methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bmq.errors import ConnectionFailed
from bmq.protocol.client.events import CloseChannel
from bmq.protocol.client.queue import QueueState

if TYPE_CHECKING:
    from bmq.client._handlers import Handlers
    from bmq.client.attempt import Attempt, CallNext
    from bmq.client.buffer import InHand
    from bmq.client.consumer import Consumer
    from bmq.client.driver import Driver
    from bmq.client.message import Message, MessageBatch
    from bmq.client.queue import Queue
    from bmq.client.session import Session
    from bmq.protocol.client.ports import Arrival
    from bmq.protocol.client.subscription import SubscriptionOptions
    from bmq.wire.properties import Properties
    from bmq.wire.push import Push

__all__ = [
    "Drained",
    "arrival_of",
    "buffer_of",
    "connect_beside",
    "driver_of",
    "drop_connection",
    "give_up",
    "hand_over",
    "handlers_of",
    "handling_of",
    "in_hand_of",
    "limits_of",
    "push_of",
    "take_from",
    "take_many_from",
    "watch_workers",
    "workers_of",
]


def driver_of(session: Session) -> Driver:
    """Return the parts of a session."""
    return session._driver


def handling_of(session: Session) -> tuple[Callable[[Attempt, CallNext], Awaitable[Any]], ...]:
    """Return the interceptors with ``handle``, as middlewares."""
    return session._hooks.handling


def handlers_of(queue: Queue) -> Handlers:
    """Return the messages of a queue inside ``async with message``."""
    return queue._handlers


def in_hand_of(queue: Queue) -> InHand:
    """Return the messages of a queue in the hands of handlers."""
    return queue._subscriptions.in_hand


def push_of(message: Message) -> Push:
    """Return the PUSH message behind a message."""
    return message._push


def arrival_of(message: Message) -> Arrival:
    """Return the arrival of a message."""
    return message._arrival


def limits_of(queue: Queue) -> SubscriptionOptions:
    """Return the default limits and priority of a queue's consumers."""
    return queue._options


def buffer_of(consumer: Consumer) -> Sized:
    """Return the messages waiting for the application, for a look at each message's turn."""
    return consumer._buffer.deliveries


def take_from(consumer: Consumer) -> Callable[[], Message]:
    """Return the function that takes the next message out of the buffer, which must not be empty."""
    return consumer._buffer.pop


def take_many_from(consumer: Consumer, limit: int) -> MessageBatch:
    """Take the buffered messages of a consumer, up to a limit."""
    return consumer._buffer.pop_many(limit)


def hand_over(consumer: Consumer, choose: Callable[[Properties | None], Consumer | None]) -> None:
    """Move the buffered messages to other consumers of the queue; see :meth:`ReceiveBuffer.hand_over`."""
    consumer._buffer.hand_over(choose)


def workers_of(consumer: Consumer) -> Any:
    """Return the workers given to :func:`watch_workers`, or None."""
    return consumer._buffer.workers


def watch_workers(consumer: Consumer, workers: object) -> None:
    """Keep the workers of a consumer with the consumer, for reports.

    A mapping from consumers to workers would keep both for ever, because workers refer to the consumer.
    """
    consumer._buffer.workers = workers


async def connect_beside(session: Session) -> Session:
    """Connect a further session with the addresses and options of a session, without any interceptors.

    For messages that must not wait behind the application's.

    Raises:
        ConnectionFailed, NegotiationError, AuthenticationError: as for :class:`bmq.connect`.
    """
    options = replace(session.options, log_stats_every=0.0, busy_poll=0.0)
    beside = type(session)(session._broker, options, interceptors=None)
    await beside._driver.connect()
    return beside


def drop_connection(session: Session, why: str) -> None:
    """Drop the connection, if any, so that the session reconnects."""
    session._driver.handle(CloseChannel(ConnectionFailed(why)))


def give_up(session: Session) -> None:
    """End a session at once, unless already ended."""
    session._driver.give_up()


class Drained:
    """Decides whether queues are drained after a time without a message.

    Time without a connection does not count. A restored connection delivers messages only after its queues
    are open again. So a wait during which a connection was restored does not count either.

    Args:
        queues: queues to read.
    """

    def __init__(self, *queues: Queue) -> None:
        self._queues = queues
        self._first = self._reconnects = self._restored()

    @property
    def reconnected(self) -> bool:
        """Whether a connection was ever restored, so that messages may have been delivered twice."""
        return self._restored() > self._first

    def _restored(self) -> int:
        sessions = dict.fromkeys(queue.session for queue in self._queues)
        return sum(session.stats().reconnects for session in sessions)

    def after_silence(self) -> bool:
        """Return whether the wait that has just ended without a message counts; otherwise wait again."""
        if any(queue.state is not QueueState.OPEN for queue in self._queues):
            return False
        before, self._reconnects = self._reconnects, self._restored()
        return before == self._reconnects
