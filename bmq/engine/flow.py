# SPDX-License-Identifier: Apache-2.0
"""Backpressure for posts, by the window of unacknowledged posts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from bmq.engine.connection import Connection
from bmq.engine.options import SessionOptions
from bmq.engine.room import Room
from bmq.errors import BufferFull
from bmq.protocol.client.queue import QueueCore

__all__ = ["Flow"]


class _Flush:
    """Tasks waiting for the outcomes of the posts to a queue.

    Attributes:
        first: number of the queue's first posts without an outcome.
        waiters: for each task, in the order of arrival, the number of the last awaited posts.
    """

    __slots__ = ("first", "waiters")

    def __init__(self, first: int) -> None:
        self.first = first
        self.waiters: OrderedDict[asyncio.Future[None], int] = OrderedDict()

    def done(self, before: int | None = None) -> None:
        """Wake the tasks waiting for posts with lower numbers; all tasks if None."""
        waiters = self.waiters
        while waiters:
            waiter = next(iter(waiters))
            if before is not None and waiters[waiter] >= before:
                break
            del waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)


class Flow:
    """The tasks waiting for space in the window of unacknowledged posts.

    Args:
        connection: connection of the session.
        options: limits.

    Attributes:
        room: distributes the space of the window.
        for_outcomes: tasks waiting for the outcomes of a queue's posts; read-only.
    """

    def __init__(self, connection: Connection, options: SessionOptions) -> None:
        self._connection = connection
        self._posts = connection.core.posts
        self._options = options
        self.room = Room(connection, options.max_unacked_messages, options.max_unacked_bytes)
        self.for_outcomes: dict[QueueCore, _Flush] = {}

    def full(self, queue: QueueCore) -> BufferFull:
        """Return the error for the full window."""
        options = self._options
        waiting = ", and other tasks wait to post to this queue" if queue in self.room.lines else ""
        return BufferFull(
            f"{len(self._posts):,} posts ({self._posts.bytes:,} bytes) have no outcome yet{waiting}; the "
            f"session allows {options.max_unacked_messages:,} ({options.max_unacked_bytes:,} bytes). "
            "'await queue.post(...)' waits for room"
        )

    async def outcomes(self, queue: QueueCore) -> None:
        """Wait for the outcomes of all posts to a queue so far."""
        if not queue.unacked:
            return
        flush = self.for_outcomes.get(queue)
        if flush is None:
            flush = self.for_outcomes[queue] = _Flush(self._posts.first_batch(queue))
        waiter: asyncio.Future[None] = self._connection.loop.create_future()
        flush.waiters[waiter] = self._posts.last_batch
        self._posts.seal()
        try:
            await waiter
        finally:
            flush.waiters.pop(waiter, None)
            if not flush.waiters and self.for_outcomes.get(queue) is flush:
                del self.for_outcomes[queue]

    def posts_left(self) -> None:
        """Handle posts that left the window."""
        if self.room.lines:
            self.room.wake()
        if not self.for_outcomes:
            return
        for queue, flush in self.for_outcomes.items():
            if not queue.unacked:
                flush.done()
            else:
                flush.first = self._posts.first_batch(queue, flush.first)
                flush.done(before=flush.first)

    # the end

    def finish(self) -> None:
        """Wake all waiting tasks at the end of the session."""
        self.room.finish()
        for flush in self.for_outcomes.values():
            flush.done()
