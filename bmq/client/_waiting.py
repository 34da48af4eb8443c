"""Who waits for the window of unacknowledged posts: for room in it, or for posts to leave it."""

from __future__ import annotations

import asyncio

from bmq.client.options import SessionOptions
from bmq.protocol.client.queue import QueueCore
from bmq.protocol.client.window import Window

__all__ = ["Waiting"]


class Waiting:
    """Wakes those who wait for the window.

    Room is given again when the window is half empty: many posts at once cost less than each on its own.
    """

    def __init__(self, window: Window, options: SessionOptions) -> None:
        self._window = window
        self._messages = options.max_unacked_messages
        self._bytes = options.max_unacked_bytes
        self._for_room: list[asyncio.Future[None]] = []
        self._for_outcomes: list[tuple[QueueCore, float, asyncio.Future[None]]] = []

    async def room(self) -> None:
        """Wait until it is worth trying to post again."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_room.append(waiter)
        try:
            await waiter
        finally:
            # Not there any more if others were woken between the cancel and now.
            if waiter.cancelled() and waiter in self._for_room:
                self._for_room.remove(waiter)

    async def outcomes(self, queue: QueueCore, now: float) -> None:
        """Wait until everything posted to a queue until ``now`` has its outcome."""
        if not queue.unacked:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (queue, now, waiter)
        self._for_outcomes.append(entry)
        try:
            await waiter
        finally:
            self._for_outcomes.remove(entry)

    def posts_left(self, writable: bool) -> None:
        """Posts have left the window; ``writable`` says whether the connection keeps up."""
        if self._for_room and writable:
            window = self._window
            if len(window) * 2 <= self._messages and window.bytes * 2 <= self._bytes:
                self.wake()
        for queue, since, waiter in self._for_outcomes:
            oldest = self._window.oldest(queue) if queue.unacked else None
            if (oldest is None or oldest > since) and not waiter.done():
                waiter.set_result(None)

    def wake(self) -> None:
        """Let everybody who waits for room try again."""
        waiters, self._for_room = self._for_room, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def finish(self) -> None:
        """The session is over: nobody waits any more."""
        self.wake()
        for _, _, waiter in self._for_outcomes:
            if not waiter.done():
                waiter.set_result(None)
