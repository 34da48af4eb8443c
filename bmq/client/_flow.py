# SPDX-License-Identifier: Apache-2.0
"""Backpressure for posts: room in the window of those without an outcome."""

from __future__ import annotations

import asyncio

from bmq.client._connection import Connection
from bmq.client._room import Room
from bmq.client.options import SessionOptions
from bmq.errors import BufferFull
from bmq.protocol.client.queue import QueueCore

__all__ = ["Flow"]


class Flow:
    """Who waits for room in the window of unacknowledged posts.

    Args:
        connection: the session's connection.
        options: the limits.

    Attributes:
        room: hands out the room for posts.
        for_outcomes: who waits for the outcomes of a queue's posts, and since when; for reading only.
    """

    def __init__(self, connection: Connection, options: SessionOptions) -> None:
        self._connection = connection
        self._posts = connection.core.posts
        self._options = options
        self.room = Room(connection, options.max_unacked_messages, options.max_unacked_bytes)
        self.for_outcomes: list[tuple[QueueCore, float, asyncio.Future[None]]] = []

    def full(self, queue: QueueCore) -> BufferFull:
        """Say how full the window is."""
        options = self._options
        waiting = ", and other tasks wait to post to this queue" if queue in self.room.lines else ""
        return BufferFull(
            f"{len(self._posts):,} posts ({self._posts.bytes:,} bytes) have no outcome yet{waiting}; the "
            f"session allows {options.max_unacked_messages:,} ({options.max_unacked_bytes:,} bytes). "
            "'await queue.post(...)' waits for room"
        )

    async def outcomes(self, queue: QueueCore) -> None:
        """Wait until everything posted to a queue until now has its outcome."""
        if not queue.unacked:
            return
        waiter: asyncio.Future[None] = self._connection.loop.create_future()
        entry = (queue, self._connection.now(), waiter)
        self.for_outcomes.append(entry)
        try:
            await waiter
        finally:
            self.for_outcomes.remove(entry)

    def posts_left(self) -> None:
        """Posts have left the window."""
        if self.room.lines:
            self.room.wake()
        for queue, since, waiter in self.for_outcomes:
            oldest = self._posts.oldest(queue) if queue.unacked else None
            if (oldest is None or oldest > since) and not waiter.done():
                waiter.set_result(None)

    # the end

    def finish(self) -> None:
        """The session is over: nobody waits any more."""
        self.room.finish()
        for _, _, waiter in self.for_outcomes:
            if not waiter.done():
                waiter.set_result(None)
