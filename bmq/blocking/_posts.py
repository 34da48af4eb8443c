# SPDX-License-Identifier: Apache-2.0
"""Posts and confirmations on their way to the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, TypeVar

from bmq._live import live
from bmq._logging import Log
from bmq.blocking._portal import Portal
from bmq.client.message import Message
from bmq.client.options import SessionOptions
from bmq.client.posts import Ack, FailedPost, PostReport, PutMessage, attach_report
from bmq.client.queue import Queue
from bmq.errors import AckStatus, PostError, TimedOut
from bmq.wire.constants import Compression
from bmq.wire.properties import PropertyInput

__all__ = ["ItemFeed", "PostFuture", "SendBuffer", "settle"]

T = TypeVar("T")

logger = Log("bmq.blocking")

_Post = tuple[bytes, dict[str, PropertyInput] | None, Compression | None, "PostFuture"]

# Maximum number of posts and confirmations waiting for the event loop, and maximum bytes of a waiting post.
_BUFFERED = 1000
_BUFFERED_POST = 16 * 1024
# Maximum number and bytes of items of post_many waiting for the event loop, which takes all at a time.
_CHUNK_ITEMS = 2000
_CHUNK_BYTES = 4 * 1024 * 1024


@live
class PostFuture(concurrent.futures.Future[Ack]):
    """The outcome of a post. Created by :meth:`Queue.post_nowait`.

    A :class:`concurrent.futures.Future`: ``result(timeout)`` returns the :class:`bmq.Ack` or raises the
    :class:`bmq.PostError`; ``add_done_callback`` calls back in the session's thread. The future cannot be
    cancelled, because the message is already posted. An error that is never retrieved is logged.
    """

    def __init__(self, portal: Portal) -> None:
        super().__init__()
        self._portal = portal
        self._asked = False
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Ack:
        """Wait for the outcome.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            PostError: the broker refused the message, or never answered.
            TimedOut: no outcome in time.
        """
        return self._wait(super().result, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; return the exception, or None after a success.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            TimedOut: no outcome in time.
        """
        return self._wait(super().exception, timeout)

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[Ack]], object]) -> None:
        """Call a function with this future after the outcome, in the session's thread.

        Args:
            fn: function, which must be fast. Its exceptions are logged.
        """
        self._asked = True
        super().add_done_callback(fn)

    def _wait(self, wait: Callable[[float | None], T], timeout: float | None) -> T:
        self._asked = True
        if not self.done():
            self._portal.check()
        try:
            return wait(timeout)
        except concurrent.futures.TimeoutError:
            raise TimedOut(f"a post had no outcome within {timeout:g} s") from None

    def __del__(self) -> None:
        if getattr(self, "_asked", True) or not self.done():
            return
        error = super().exception()
        if error is not None and not (isinstance(error, PostError) and error.status is AckStatus.CANCELED):
            # The session's log has the number of the posts cancelled by its end.
            logger.error("a post failed, and its outcome was never retrieved: %s", error)


def settle(future: PostFuture, outcome: asyncio.Future[Ack]) -> None:
    """Pass on the outcome of a post; called in the event loop."""
    if outcome.cancelled():
        return
    error = outcome.exception()
    if error is None:
        future.set_result(outcome.result())
    else:
        future.set_exception(error)


class SendBuffer:
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

    def has_room(self, size: int, options: SessionOptions) -> bool:
        """Whether a post of this size fits into the buffer, and later into the session's window."""
        return (
            size <= _BUFFERED_POST
            and len(self._entries) < _BUFFERED
            and self._unsettled + _BUFFERED < options.max_unacked_messages
            and self._unsettled_bytes + _BUFFERED * _BUFFERED_POST < options.max_unacked_bytes
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
            if not isinstance(each, tuple):
                confirms.append(each)
                continue
            if confirms:
                self._queue.confirm(*confirms)
                confirms.clear()
            self._post(*each)
        if confirms:
            self._queue.confirm(*confirms)

    def _post(
        self,
        payload: bytes,
        properties: dict[str, PropertyInput] | None,
        compression: Compression | None,
        future: PostFuture,
    ) -> None:
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


class ItemFeed:
    """Items of ``post_many``, taken in the posting thread and passed to the event loop.

    The iterable may block, and may belong to its thread, as a database cursor does.
    """

    def __init__(self, portal: Portal, queue: Queue) -> None:
        self._portal = portal
        self._queue = queue
        self._items: deque[Any] = deque()
        # Whether the iterable has ended, and its exception.
        self._ended = False
        self._error: Exception | None = None
        self._told = False
        self._arrived = asyncio.Event()
        self._room = threading.Event()
        # Bytes added and bytes removed. Each thread writes only one of the two counts.
        self._in = self._out = 0
        self._over = False

    # in the posting thread

    def fill(self, items: Iterable[Any]) -> None:
        """Pass all items on, as space allows."""
        try:
            for item in items:
                while self._is_full():
                    self._room.clear()
                    if self._over:
                        return
                    if self._is_full():
                        self._room.wait()
                self._in += _size_of(item)
                self._items.append(item)
                self._tell()
        except Exception as error:
            self._error = error
        self._ended = True
        self._tell()

    def _is_full(self) -> bool:
        return len(self._items) >= _CHUNK_ITEMS or self._in - self._out >= _CHUNK_BYTES

    def _tell(self) -> None:
        """Wake the event loop."""
        if not self._told:
            self._told = True
            self._portal.soon(self._arrived.set)

    # in the event loop

    async def post(self, rate: float | None) -> PostReport:
        """Post the items of the thread; see :meth:`bmq.Queue.post_many`."""
        report = PostReport()
        try:
            async with aclosing(self._chunks()) as chunks:
                if rate is not None:
                    items = (item async for chunk in chunks for item in chunk)
                    return await self._queue.post_many(items, rate=rate)
                async for chunk in chunks:
                    await self._post(chunk, report)
        except Exception as error:
            if rate is None:
                attach_report(error, report)
            raise
        finally:
            self._over = True
            self._room.set()
        return report

    async def _post(self, chunk: list[Any], report: PostReport) -> None:
        """Post items, and add their outcomes to a report."""
        part = PostReport()
        try:
            part = await self._queue.post_many(chunk)
        except Exception as error:
            part = getattr(error, "report", part)
            raise
        finally:
            first = report.posted
            report.posted += part.posted
            report.acknowledged += part.acknowledged
            report.bytes += part.bytes
            report.failures += [FailedPost(first + each.index, each.error) for each in part.failures]

    async def _chunks(self) -> AsyncGenerator[list[Any], None]:
        """Yield the available items; wait while no item is available."""
        items = self._items
        while True:
            if not items and not self._ended:
                await self._arrived.wait()
            self._arrived.clear()
            self._told = False  # before looking: later items are either seen or announced again
            ended = self._ended  # before the items: all of them are seen
            chunk = [items.popleft() for _ in range(len(items))]
            self._out += sum(map(_size_of, chunk))
            self._room.set()
            if chunk:
                yield chunk
            if ended:
                if self._error is not None:
                    raise self._error
                return


def _size_of(item: Any) -> int:
    data = item.data if item.__class__ is PutMessage else item
    return len(data) if isinstance(data, bytes) else 0
