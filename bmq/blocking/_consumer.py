# SPDX-License-Identifier: Apache-2.0
"""Consumers, groups and tables for threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bmq._live import live
from bmq.blocking._calls import ConsumerCalls, GroupCalls, TablesCalls
from bmq.blocking._message import Message, MessageBatch
from bmq.blocking._receive import BlockingIterator, Prefetch
from bmq.client.consumer import Consumer as _Consumer
from bmq.client.message import Message as _Message
from bmq.client.message import MessageBatch as _MessageBatch

if TYPE_CHECKING:
    from bmq.arrow.tables import Tables as _Tables
    from bmq.blocking._portal import Portal
    from bmq.blocking._queue import Queue
    from bmq.groups import Group as _Group

__all__ = ["Consumer", "Group", "ReceivingCalls", "RecordBatch", "Tables", "in_a_thread"]

#: A batch of pyarrow, which has no type hints.
RecordBatch = Any


def batch_of(queue: Queue, batch: _MessageBatch) -> MessageBatch:
    """Return a batch for threads."""
    return MessageBatch(queue, batch, [Message(queue, message) for message in batch])


class ReceivingCalls:
    """Receives messages: the part of queues and consumers that is the same.

    Attributes:
        _prefetch: the messages.
        _messages_of: the queue of the messages.
    """

    _prefetch: Prefetch
    _messages_of: Queue

    def __iter__(self) -> Iterator[Message]:
        queue, prefetch, take = self._messages_of, self._prefetch, self._prefetch.take
        # Not a generator: several threads may share the loop, and it continues after an exception.
        return iter(lambda: Message(queue, take() or prefetch.next()), None)

    def batches(self, max_messages: int = 1000, max_wait: float = 0.0) -> Iterator[MessageBatch]:
        """Iterate over batches of arrived messages, as :meth:`bmq.Consumer.batches` does.

        Args:
            max_messages: maximum number of messages in a batch.
            max_wait: seconds to wait for a full batch, from the arrival of the first message.

        Raises:
            UsageError: an argument is out of range.
        """
        queue, next_batch = self._messages_of, self._prefetch.batches(max_messages, max_wait)
        return iter(lambda: batch_of(queue, next_batch()), None)

    def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message, as :meth:`bmq.Consumer.receive` does.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Interrupting the call (Ctrl-C) loses no message.
        """
        return Message(self._messages_of, self._prefetch.receive(timeout))

    def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> MessageBatch:
        """Wait for the first message, then return all that have arrived, up to ``max_messages``.

        Args:
            max_messages: maximum number of messages to return.
            timeout: seconds to wait for the first message; None for no limit.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Interrupting the call (Ctrl-C) loses no message.
        """
        return batch_of(self._messages_of, self._prefetch.receive_many(max_messages, timeout))

    def receive_nowait(self) -> Message | None:
        """Return the next message if one has arrived, otherwise None.

        The first call sends the subscription, in the background.
        """
        message = self._prefetch.receive_nowait()
        return None if message is None else Message(self._messages_of, message)


@live
class Consumer(ConsumerCalls, ReceivingCalls):
    """A subscription of a queue, like :class:`bmq.Consumer`.

    Created by :meth:`Queue.subscribe`; ``with`` activates the consumer::

        with queue.subscribe("CustomerId == 1234", priority=10) as consumer:
            for message in consumer:
                ...

    Several threads may receive from one consumer; each message goes to one of them.

    Attributes:
        queue: queue of the consumer.
    """

    def __init__(self, queue: Queue, consumer: _Consumer, prefetch: Prefetch) -> None:
        self.queue = queue
        self._portal = queue._portal
        self._inner = consumer
        self._prefetch = prefetch
        self._messages_of = queue

    @property
    def buffered(self) -> int:
        """Number of messages waiting for the application."""
        return self._inner.buffered + len(self._prefetch)

    def __repr__(self) -> str:
        what = " | ".join(filter(None, self.expressions)) or "everything"
        return f"<bmq.blocking.Consumer of {what!r} on {self.queue.uri}, {self.buffered} waiting>"

    def wait(self, timeout: float | None = None) -> None:
        """Wait until a message has arrived, and take none, as :meth:`bmq.Consumer.wait` does.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: the consumer, its queue or the session was closed.

        Interrupting the call loses no message.
        """

        async def wait() -> None:
            if not self._prefetch:
                await self._inner.wait(timeout)

        self._portal.wait(wait, timeout=timeout)

    def put_back(self, messages: Iterable[Message]) -> None:
        """Return unhandled messages to the line, as :meth:`bmq.Consumer.put_back` does."""
        given = [message._inner for message in messages if not message.confirmed]

        def put_back() -> None:
            self._prefetch.give_back()  # returned messages go before it
            self._inner.put_back(given)

        self._portal.call(put_back)


def in_a_thread(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Run a hook in a thread, where the hook may block and use the session."""
    return hook if inspect.iscoroutinefunction(hook) else lambda value: asyncio.to_thread(hook, value)


@live
class Group(GroupCalls):
    """A member of a consumer group, like :class:`bmq.groups.Group`.

    Created by :meth:`Queue.group`; ``with`` joins the group.

    Attributes:
        queue: queue of the group.
        key: name of the property with the key; None for the property ``bmq_bucket``.
        buckets: number of buckets.
        member: name of the member.
        weight: share of the member relative to the others.
    """

    def __init__(self, queue: Queue, group: _Group) -> None:
        self.queue = queue
        self.key = group.key
        self.buckets = group.buckets
        self.member = group.member
        self.weight = group.weight
        self._portal = queue._portal
        self._inner = group
        self._messages = BlockingIterator(queue._portal, group)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        return self._message_of(next(self._messages))

    def _message_of(self, message: _Message) -> Message:
        return Message(self.queue, message)

    def receive_nowait(self) -> Message | None:
        """Return the next message, or None, as :meth:`bmq.groups.Group.receive_nowait` does.

        Raises:
            QueueClosed: this member has left, or the queue or the session was closed.
            Exception: an exception of ``on_assigned`` or ``on_revoked``.
        """
        kept = self._messages.kept
        message = self._portal.call(lambda: kept.popleft() if kept else self._inner.receive_nowait())
        return None if message is None else self._message_of(message)


@live
class Tables(TablesCalls):
    """The messages of a queue as batches of rows, like :class:`bmq.arrow.Tables`.

    Created by :meth:`Queue.tables`; ``with`` activates the subscription, and so does receiving. For use by
    one thread.

    Attributes:
        schema: columns, a ``pyarrow.Schema``.
    """

    def __init__(self, portal: Portal, tables: _Tables) -> None:
        self.schema = tables.schema
        self._portal = portal
        self._inner = tables
        self._batches: BlockingIterator[RecordBatch] = BlockingIterator(portal, tables)

    @property
    def buffered(self) -> int:
        """Number of messages waiting for the application."""
        return self._inner.buffered + self._kept

    @property
    def unconfirmed(self) -> int:
        """Number of rows handed out and not yet confirmed."""
        return self._inner.unconfirmed - self._kept

    @property
    def _kept(self) -> int:
        """Number of rows of interrupted calls, which were not handed out."""
        return sum(int(batch.num_rows) for batch in self._batches.kept)

    def __iter__(self) -> Iterator[RecordBatch]:
        return self

    def __next__(self) -> RecordBatch:
        return next(self._batches)

    def confirm(self, rows: int | None = None) -> int:
        """Confirm rows that were handed out, as :meth:`bmq.arrow.Tables.confirm` does; return their number.

        Args:
            rows: number of rows, the earliest first; None for all.
        """
        # Rows that were not handed out come last.
        return self._portal.call(
            lambda: self._inner.confirm(self.unconfirmed if rows is None else min(rows, self.unconfirmed))
        )
