# SPDX-License-Identifier: Apache-2.0
"""Backpressure, both ways: room for posts, and received messages that wait for the application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.client._connection import Connection
from bmq.client._room import Room
from bmq.client.options import SessionOptions
from bmq.errors import BufferFull
from bmq.protocol.client.events import SessionEvent, SlowConsumer, SlowConsumerRecovered
from bmq.protocol.client.queue import QueueCore

__all__ = ["Flow"]


class Flow:
    """Who waits for room in the window of unacknowledged posts, and whether the connection is read.

    Args:
        connection: the session's connection.
        options: the limits.
        publish: hands an event to the application.

    Attributes:
        buffered_messages: how many messages wait for the application.
        buffered_bytes: how many bytes they have.
        room: hands out the room for posts.
        for_outcomes: who waits for the outcomes of a queue's posts, and since when; for reading only.
    """

    def __init__(
        self, connection: Connection, options: SessionOptions, publish: Callable[[SessionEvent], None]
    ) -> None:
        self._connection = connection
        self._posts = connection.core.posts
        self._options = options
        self._max_messages = options.max_buffered_messages
        self._max_bytes = options.max_buffered_bytes
        self._publish = publish
        self.room = Room(connection, options.max_unacked_messages, options.max_unacked_bytes)
        self.for_outcomes: list[tuple[QueueCore, float, asyncio.Future[None]]] = []
        self.buffered_messages = 0
        self.buffered_bytes = 0
        self._slow = False

    # out

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

    # in

    def count(self, messages: int, size: int) -> None:
        """Count messages that wait for the application; pause reading when there are too many."""
        self.buffered_messages += messages
        self.buffered_bytes += size
        if self._slow:
            if (
                self.buffered_messages * 2 <= self._max_messages
                and self.buffered_bytes * 2 <= self._max_bytes
            ):
                self._slow = False
                self._connection.set_reading(True)
                self._publish(SlowConsumerRecovered(self.buffered_messages, self.buffered_bytes))
            elif messages > 0 and self._holds_too_much():
                self._connection.set_reading(False)
        elif self.buffered_messages > self._max_messages or self.buffered_bytes > self._max_bytes:
            self._slow = True
            # While queues are being reopened, the answers may come behind messages: read up to twice as much.
            if self._connection.core.restored or self._holds_too_much():
                self._connection.set_reading(False)
            self._publish(SlowConsumer(self.buffered_messages, self.buffered_bytes))

    def _holds_too_much(self) -> bool:
        """Whether twice as much waits as may."""
        return self.buffered_messages > 2 * self._max_messages or self.buffered_bytes > 2 * self._max_bytes

    def restored(self) -> None:
        """Every queue is reopened: no more answers have to be read."""
        if self._slow:
            self._connection.set_reading(False)

    # the end

    def finish(self) -> None:
        """The session is over: nobody waits any more."""
        self.room.finish()
        for _, _, waiter in self.for_outcomes:
            if not waiter.done():
                waiter.set_result(None)
