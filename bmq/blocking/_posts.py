"""Posts for which no thread waits yet, and items on their way to the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from bmq.blocking._portal import Portal
from bmq.client.message import Ack, FailedPost, PostReport, PutMessage
from bmq.client.queue import Queue
from bmq.errors import TimedOut

__all__ = ["Feed", "PostFuture"]

logger = logging.getLogger("bmq.blocking")

# Items go to the event loop when there are so many of them, of so many bytes, or when the first has waited
# for so long, in seconds; and so many of these chunks may be on their way.
_CHUNK_ITEMS = 500
_CHUNK_BYTES = 512 * 1024
_CHUNK_SECONDS = 0.01
_CHUNKS = 4


class PostFuture(concurrent.futures.Future[Ack]):
    """The outcome of a post. Made by :meth:`Queue.post_nowait`.

    It is a :class:`concurrent.futures.Future`: ``result(timeout)`` returns the :class:`bmq.Ack` or raises the
    :class:`bmq.PostError`, ``add_done_callback`` calls back in the session's thread. It cannot be cancelled:
    the message is posted. An error that nobody asks for is logged.
    """

    def __init__(self, portal: Portal) -> None:
        super().__init__()
        self._portal = portal
        self._asked = False
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Ack:
        """Wait for the outcome.

        Args:
            timeout: seconds to wait; None waits without bound.

        Raises:
            PostError: the broker did not accept the message, or never answered.
            TimedOut: no outcome in time.
        """
        self._ask()
        try:
            return super().result(timeout)
        except concurrent.futures.TimeoutError:
            raise TimedOut(f"a post had no outcome within {timeout:g} s") from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; return the error, or None if there is none.

        Args:
            timeout: seconds to wait; None waits without bound.

        Raises:
            TimedOut: no outcome in time.
        """
        self._ask()
        try:
            return super().exception(timeout)
        except concurrent.futures.TimeoutError:
            raise TimedOut(f"a post had no outcome within {timeout:g} s") from None

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[Ack]], object]) -> None:
        """Call a function with this future when the outcome is there, in the session's thread.

        Args:
            fn: what to call: it must be quick. What it raises is logged.
        """
        self._asked = True
        super().add_done_callback(fn)

    def _ask(self) -> None:
        self._asked = True
        if not self.done():
            self._portal.check()

    def _settle(self, future: asyncio.Future[Ack]) -> None:
        """Called in the event loop."""
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.set_result(future.result())
        else:
            self.set_exception(error)

    def __del__(self) -> None:
        if getattr(self, "_asked", True) or not self.done():
            return
        error = super().exception()
        if error is not None:
            logger.error("a post failed, and nobody asked for its outcome: %s", error)


class Feed:
    """Items of ``post_many``, taken in the thread that posts and handed to the event loop in chunks.

    The iterable may wait for something, and may belong to its thread, as a database's cursor does.
    """

    def __init__(self, portal: Portal, queue: Queue) -> None:
        self._portal = portal
        self._queue = queue
        self._chunks: asyncio.Queue[list[Any] | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(_CHUNKS)
        self._over = False

    # in the thread that posts

    def fill(self, items: Iterable[Any]) -> None:
        """Hand everything over, as there is room."""
        chunk: list[Any] = []
        size, since = 0, 0.0
        ends: Exception | None = None
        try:
            for item in items:
                if not chunk:
                    since = time.monotonic()
                chunk.append(item)
                data = item.data if item.__class__ is PutMessage else item
                size += len(data) if isinstance(data, bytes) else 0
                full = len(chunk) >= _CHUNK_ITEMS or size >= _CHUNK_BYTES
                if full or time.monotonic() - since >= _CHUNK_SECONDS:
                    self._hand_over(chunk)
                    chunk, size = [], 0
                    if self._over:
                        return
        except Exception as error:
            ends = error
        if chunk:
            self._hand_over(chunk)
        self._portal.soon(self._chunks.put_nowait, ends)

    def _hand_over(self, chunk: list[Any]) -> None:
        self._room.acquire()
        self._portal.soon(self._chunks.put_nowait, chunk)

    # in the event loop

    async def post(self, rate: float | None) -> PostReport:
        """Post what the thread hands over; see :meth:`bmq.Queue.post_many`."""
        try:
            if rate is not None:
                return await self._queue.post_many(self._items(), rate=rate)
            return await self._post_chunks()
        finally:
            self._over = True
            self._room.release(_CHUNKS)

    async def _items(self) -> AsyncIterator[Any]:
        async for chunk in self._handed_over():
            for item in chunk:
                yield item

    async def _handed_over(self) -> AsyncIterator[list[Any]]:
        while (chunk := await self._chunks.get()) is not None:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk
            self._room.release()

    async def _post_chunks(self) -> PostReport:
        """Post chunk by chunk: the next one as soon as one is taken, before its outcomes are there."""
        report = PostReport()
        posting: list[tuple[int, asyncio.Task[PostReport]]] = []
        loop = asyncio.get_running_loop()
        first = 0
        try:
            async for chunk in self._handed_over():
                taken: asyncio.Future[None] = loop.create_future()
                task = loop.create_task(self._queue.post_many(_until_taken(chunk, taken)))
                posting.append((first, task))
                first += len(chunk)
                await asyncio.wait((taken, task), return_when=asyncio.FIRST_COMPLETED)
                while posting and posting[0][1].done():
                    _add(report, *posting.pop(0))
            while posting:
                await asyncio.wait((posting[0][1],))
                _add(report, *posting.pop(0))
        finally:
            for _, task in posting:
                task.cancel()
        return report


def _until_taken(chunk: list[Any], taken: asyncio.Future[None]) -> Iterator[Any]:
    """Yield the items, and tell when the last one was taken: it is posted in the same turn."""
    yield from chunk
    if not taken.done():
        taken.set_result(None)


def _add(report: PostReport, first: int, task: asyncio.Task[PostReport]) -> None:
    """Add what became of a chunk; ``first`` is the position of its first item."""
    part = task.result()
    report.posted += part.posted
    report.acknowledged += part.acknowledged
    report.bytes += part.bytes
    report.failures += [FailedPost(first + each.index, each.error) for each in part.failures]
