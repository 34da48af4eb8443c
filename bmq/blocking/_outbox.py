# SPDX-License-Identifier: Apache-2.0
"""Confirmations and posts of a blocking queue on the way to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque

from bmq.blocking._portal import Portal
from bmq.blocking._posts import PostFuture, settle
from bmq.client.message import Message
from bmq.client.options import SessionOptions
from bmq.client.posts import Ack
from bmq.client.queue import Queue
from bmq.wire.constants import Compression
from bmq.wire.properties import PropertyInput

__all__ = ["SMALL", "Outbox"]

_Post = tuple[bytes, dict[str, PropertyInput] | None, Compression | None, PostFuture]

#: Maximum number of posts and confirmations waiting for the event loop, and maximum bytes of a waiting post.
_MOST = 1000
SMALL = 16 * 1024


class Outbox:
    """Confirmations, and posts without a waiting thread, in the order of the calls.

    The first entry wakes the event loop; the event loop sends all entries added before the wake-up.
    """

    def __init__(self, portal: Portal, queue: Queue) -> None:
        self._portal = portal
        self._queue = queue
        self._entries: deque[Message | _Post] = deque()
        self._told = False
        # Number and bytes of posts seen by the event loop and without an outcome.
        self._unsettled = self._unsettled_bytes = 0

    def has_room(self, options: SessionOptions) -> bool:
        """Whether a small post fits into the outbox, and later into the session's window."""
        return (
            len(self._entries) < _MOST
            and self._unsettled + _MOST < options.max_unacked_messages
            and self._unsettled_bytes + _MOST * SMALL < options.max_unacked_bytes
        )

    def put(self, item: Message | _Post) -> None:
        """Confirm a message, or post, in the event loop.

        Raises:
            UsageError: the current process is a fork of the session's process.
        """
        if self._portal.forked:
            self._portal.check()
        self._entries.append(item)
        if self._told:
            return
        try:
            self._told = True
            self._portal.soon(self._send)
        except BaseException:  # a signal came in between
            self._told = False
            raise

    def _send(self) -> None:
        """Send all entries; called in the event loop."""
        self._told = False  # first: entries added from now on are either seen below or announced again
        entries = self._entries
        confirms: list[Message] = []
        while entries:
            each = entries.popleft()
            if isinstance(each, tuple):
                if confirms:
                    self._queue.confirm(*confirms)
                    confirms = []
                self._post(each)
            else:
                confirms.append(each)
        if confirms:
            self._queue.confirm(*confirms)

    def _post(self, post: _Post) -> None:
        payload, properties, compression, future = post
        try:
            posted = self._queue.post_nowait(payload, properties=properties, compression=compression)
        except Exception as error:  # the queue was closed meanwhile, or the window filled by others
            future.set_exception(error)
            return
        size = len(payload)
        self._unsettled += 1
        self._unsettled_bytes += size

        def settled(outcome: asyncio.Future[Ack]) -> None:
            self._unsettled -= 1
            self._unsettled_bytes -= size
            settle(future, outcome)

        posted.add_done_callback(settled)
