# SPDX-License-Identifier: Apache-2.0
"""Posts without a waiting thread, and items on the way to the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any

from bmq._live import live
from bmq._logging import Log
from bmq.blocking._portal import Portal
from bmq.client.posts import Ack, FailedPost, PostReport, PutMessage, attach_report
from bmq.client.queue import Queue
from bmq.errors import AckStatus, PostError, TimedOut

__all__ = ["Feed", "PostFuture", "settle"]

logger = Log("bmq.blocking")

# Maximum number and bytes of items waiting for the event loop; and number of items posted in one turn.
_AHEAD_ITEMS = 2000
_AHEAD_BYTES = 8 * 1024 * 1024
_CHUNK_ITEMS = 500
_CHUNK_BYTES = 512 * 1024


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
        self._ask()
        try:
            return super().result(timeout)
        except concurrent.futures.TimeoutError:
            raise TimedOut(f"a post had no outcome within {timeout:g} s") from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; return the exception, or None after a success.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            TimedOut: no outcome in time.
        """
        self._ask()
        try:
            return super().exception(timeout)
        except concurrent.futures.TimeoutError:
            raise TimedOut(f"a post had no outcome within {timeout:g} s") from None

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[Ack]], object]) -> None:
        """Call a function with this future after the outcome, in the session's thread.

        Args:
            fn: function, which must be fast. Its exceptions are logged.
        """
        self._asked = True
        super().add_done_callback(fn)

    def _ask(self) -> None:
        self._asked = True
        if not self.done():
            self._portal.check()

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


class Feed:
    """Items of ``post_many``, taken in the posting thread and passed to the event loop.

    The iterable may block, and may belong to its thread, as a database cursor does.
    """

    def __init__(self, portal: Portal, queue: Queue) -> None:
        self._portal = portal
        self._queue = queue
        # Items; at the end, None or the iterable's exception.
        self._items: deque[Any] = deque()
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
                while len(self._items) >= _AHEAD_ITEMS or self._in - self._out >= _AHEAD_BYTES:
                    self._room.clear()
                    if self._over:
                        return
                    if len(self._items) >= _AHEAD_ITEMS or self._in - self._out >= _AHEAD_BYTES:
                        self._room.wait()
                self._in += _size_of(item)
                self._hand_over(item)
        except Exception as error:
            self._hand_over(_End(error))
        else:
            self._hand_over(_End(None))

    def _hand_over(self, item: object) -> None:
        self._items.append(item)
        if not self._told:
            self._told = True
            self._portal.soon(self._arrived.set)

    # in the event loop

    async def post(self, rate: float | None) -> PostReport:
        """Post the items of the thread; see :meth:`bmq.Queue.post_many`."""
        try:
            if rate is not None:
                return await self._queue.post_many(self._one_by_one(), rate=rate)
            return await self._post_chunks()
        finally:
            self._over = True
            self._room.set()

    async def _one_by_one(self) -> AsyncIterator[Any]:
        async for chunk in self._chunks():
            for item in chunk:
                yield item

    async def _chunks(self) -> AsyncGenerator[list[Any], None]:
        """Yield the available items, at most a turn's worth at a time; wait while no item is available."""
        items = self._items
        while True:
            if not items:
                await self._arrived.wait()
            self._arrived.clear()
            self._told = False  # before looking: later items are either seen or announced again
            while items:
                chunk: list[Any] = []
                size = 0
                end: _End | None = None
                while items and len(chunk) < _CHUNK_ITEMS and size < _CHUNK_BYTES:
                    item = items.popleft()
                    if isinstance(item, _End):
                        end = item
                        break
                    size += _size_of(item)
                    chunk.append(item)
                if chunk:
                    yield chunk
                self._out += size
                self._room.set()
                if end is not None:
                    if end.error is not None:
                        raise end.error
                    return

    async def _post_chunks(self) -> PostReport:
        """Post chunk by chunk. A chunk follows once the previous chunk is taken, before any outcome."""
        report = PostReport()
        posting: list[tuple[int, asyncio.Task[PostReport]]] = []
        loop = asyncio.get_running_loop()
        first = 0
        failure: BaseException | None = None
        try:
            try:
                async with aclosing(self._chunks()) as chunks:
                    async for chunk in chunks:
                        taken: asyncio.Future[None] = loop.create_future()
                        task = loop.create_task(self._queue.post_many(_until_taken(chunk, taken)))
                        posting.append((first, task))
                        first += len(chunk)
                        await asyncio.wait((taken, task), return_when=asyncio.FIRST_COMPLETED)
                        if not taken.done():
                            break  # an item is not legal: later items are not posted
                        while posting and posting[0][1].done() and failure is None:
                            failure = _add(report, *posting.pop(0))
            except Exception as error:  # the iterable's
                failure = error
            while posting:
                await asyncio.wait((posting[0][1],))
                failure = _add(report, *posting.pop(0)) or failure
            if failure is not None:
                if isinstance(failure, Exception):
                    attach_report(failure, report)
                raise failure
        finally:
            del failure
            for _, task in posting:
                task.cancel()
        return report


class _End:
    """The end of the items; ``error`` is the iterable's exception."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


def _size_of(item: Any) -> int:
    data = item.data if item.__class__ is PutMessage else item
    return len(data) if isinstance(data, bytes) else 0


def _until_taken(chunk: list[Any], taken: asyncio.Future[None]) -> Iterator[Any]:
    """Yield the items; complete ``taken`` with the last item, which is posted in the same turn."""
    yield from chunk
    if not taken.done():
        taken.set_result(None)


def _add(report: PostReport, first: int, task: asyncio.Task[PostReport]) -> BaseException | None:
    """Add the outcomes of a chunk, and return its exception; ``first`` is the position of its first item."""
    error = task.exception()
    part = task.result() if error is None else getattr(error, "report", PostReport())
    report.posted += part.posted
    report.acknowledged += part.acknowledged
    report.bytes += part.bytes
    report.failures += [FailedPost(first + each.index, each.error) for each in part.failures]
    return error
