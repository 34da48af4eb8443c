"""Posts for which no thread waits yet, and items on their way to the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from bmq.blocking._portal import Portal
from bmq.client.message import Ack, PutMessage
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

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._chunks: asyncio.Queue[list[Any] | BaseException | None] = asyncio.Queue()
        self._room = threading.Semaphore(_CHUNKS)
        self._over = False

    # in the thread that posts

    def fill(self, items: Iterable[Any]) -> None:
        """Hand everything over, as there is room."""
        chunk: list[Any] = []
        size, since = 0, 0.0
        ends: BaseException | None = None
        try:
            for item in items:
                if not chunk:
                    since = time.monotonic()
                chunk.append(item)
                data = item.data if item.__class__ is PutMessage else item
                size += len(data) if isinstance(data, bytes) else 0
                if (
                    len(chunk) >= _CHUNK_ITEMS
                    or size >= _CHUNK_BYTES
                    or time.monotonic() - since >= _CHUNK_SECONDS
                ):
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

    async def items(self) -> AsyncIterator[Any]:
        """What ``post_many`` takes."""
        while True:
            chunk = await self._chunks.get()
            if chunk is None:
                return
            if isinstance(chunk, BaseException):
                raise chunk
            for item in chunk:
                yield item
            self._room.release()

    def end(self, _: object = None) -> None:
        """Nobody takes items any more."""
        self._over = True
        self._room.release(_CHUNKS)
