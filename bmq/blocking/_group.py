# SPDX-License-Identifier: Apache-2.0
"""Members of consumer groups for threads."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bmq._live import live
from bmq.blocking._line import following
from bmq.blocking._message import Message
from bmq.client.message import Message as _Message
from bmq.groups import Group as _Group
from bmq.groups import GroupStats

if TYPE_CHECKING:
    from bmq.blocking._consumer import Consumer
    from bmq.blocking._end import QueueEnd
    from bmq.blocking._queue import Queue

__all__ = ["Group", "in_a_thread", "of_messages"]


def in_a_thread(hook: Callable[[int], Any]) -> Callable[[int], Any]:
    """Run a hook in a thread, where the hook may block and use the session."""
    if inspect.iscoroutinefunction(hook):
        return hook

    def called(bucket: int) -> Awaitable[Any]:
        return asyncio.to_thread(hook, bucket)

    return called


def of_messages(end: QueueEnd[Consumer], function: Callable[[Any], Any]) -> Callable[[_Message], Any]:
    """Adapt a function to messages of this package, and run it in a thread."""
    if inspect.iscoroutinefunction(function):
        return function

    def called(message: _Message) -> Awaitable[Any]:
        return asyncio.to_thread(function, Message(end, message))

    return called


@live
class Group:
    """A member of a consumer group, like :class:`bmq.groups.Group`.

    Created by :meth:`Queue.group`; ``with`` joins the group.

    Attributes:
        queue: queue of the group.
        key: name of the property with the key; None for the property ``bmq_bucket``.
        buckets: number of buckets.
        member: name of the member.
        weight: share of the member relative to the others.
    """

    def __init__(self, queue: Queue, end: QueueEnd[Consumer], group: _Group) -> None:
        self.queue = queue
        self._end = end
        self.key = group.key
        self.buckets = group.buckets
        self.member = group.member
        self.weight = group.weight
        self._group = group
        self._portal = end.portal
        # Messages for an interrupted thread.
        self._left: deque[_Message] = deque()

    @property
    def owned(self) -> frozenset[int]:
        """The buckets of this member, like :attr:`bmq.groups.Group.owned`."""
        return self._portal.call(lambda: self._group.owned)

    @property
    def unconfirmed(self) -> dict[int, int]:
        """Number of handed-out messages without a confirmation, for each bucket with such messages."""
        return self._portal.call(lambda: self._group.unconfirmed)

    def fence(self, bucket: int) -> int:
        """Return the fence of an owned bucket, as :meth:`bmq.groups.Group.fence` does.

        Raises:
            UsageError: this member does not own the bucket.
        """
        return self._portal.call(self._group.fence, bucket)

    def stats(self) -> GroupStats:
        """Return a snapshot of this member's counters, as :meth:`bmq.groups.Group.stats` does."""
        return self._portal.call(self._group.stats)

    @property
    def closed(self) -> bool:
        """Whether this member has left, or is leaving."""
        return self._group.closed

    def bucket_of(self, message: Message) -> int | None:
        """Return the bucket of a message of this group; None for a message without a key.

        Raises:
            UsageError: the message is from a different source.
        """
        return self._group.bucket_of(message._message)

    def holds(self, message: Message) -> bool:
        """Whether this member may work on a message now, as :meth:`bmq.groups.Group.holds` does.

        Raises:
            UsageError: the message is from a different source.
        """
        return self._portal.call(self._group.holds, message._message)

    def __repr__(self) -> str:
        return repr(self._group).replace("bmq.groups.Group", "bmq.blocking.Group")

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        async def take() -> _Message:
            return self._left.popleft() if self._left else await anext(self._group)

        return Message(self._end, following(self._portal, take, self._left.appendleft))

    def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message, as :meth:`bmq.groups.Group.receive` does.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: this member has left, or the queue or the session was closed.
            Exception: an exception of ``on_assigned`` or ``on_revoked``; the group is then unusable.

        Interrupting the call loses no message.
        """

        async def take() -> _Message:
            return self._left.popleft() if self._left else await self._group.receive(timeout)

        return Message(self._end, self._portal.run(take, timeout=timeout, undo=self._left.appendleft))

    def receive_nowait(self) -> Message | None:
        """Return the next message, or None, as :meth:`bmq.groups.Group.receive_nowait` does.

        Raises:
            QueueClosed: this member has left, or the queue or the session was closed.
            Exception: an exception of ``on_assigned`` or ``on_revoked``.
        """
        message = self._portal.call(
            lambda: self._left.popleft() if self._left else self._group.receive_nowait()
        )
        return None if message is None else Message(self._end, message)

    def open(self) -> Group:
        """Join the group, as :meth:`bmq.groups.Group.open` does; ``with`` does the same.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time.
            UsageError: the queue has other subscriptions, which would compete with the group's.
        """
        self._portal.run(self._group.open)
        return self

    def close(self) -> None:
        """Leave the group, and close the queue, as :meth:`bmq.groups.Group.close` does. Idempotent.

        Raises:
            RequestTimeout: the broker did not answer in time; the queue is closed nevertheless.
            Exception: an exception of ``on_revoked``.
        """
        if not (self._portal.forked or self._portal.over):
            self._portal.run(self._group.close)

    def __enter__(self) -> Group:
        return self.open()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
