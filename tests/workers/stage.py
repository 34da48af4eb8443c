# SPDX-License-Identifier: Apache-2.0
"""Common parts of worker tests: a queue with messages, and a handler's record."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import bmq
from bmq.workers import Failure


@asynccontextmanager
async def consuming(*args: Any, **kwargs: Any) -> Any:
    """Run consume() beside the test, and end it."""
    task = asyncio.create_task(bmq.consume(*args, **kwargs))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()


async def seen_by(session: bmq.Session, uri: str, marker: bytes = b"end") -> list[bytes]:
    """What is in a queue: read until a marker posted now, confirming all."""
    queue = await session.open_queue(uri, read=True, write=True)
    await queue.post(marker)
    found: list[bytes] = []
    async for message in queue:
        message.confirm()
        if message.data == marker:
            break
        found.append(message.data)
    await queue.close()
    return found


class Stage:
    """A queue with messages, and a record of a handler's calls.

    Attributes:
        queue: the queue, without readers.
        broker_uri: the address of a broker for :meth:`left`.
        seen: the messages of :meth:`handle`, :meth:`hold` and :meth:`failing`.
        failures: the failures of :meth:`consuming`.
        begun: set while :meth:`hold` has a message.
        go: lets :meth:`hold` return.
    """

    def __init__(self, queue: bmq.Queue, broker_uri: str) -> None:
        self.queue = queue
        self.broker_uri = broker_uri
        self.seen: asyncio.Queue[bmq.Message] = asyncio.Queue()
        self.failures: asyncio.Queue[Failure] = asyncio.Queue()
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    @property
    def uri(self) -> str:
        return self.queue.uri

    # ---- handlers

    async def handle(self, message: bmq.Message) -> None:
        self.seen.put_nowait(message)

    async def hold(self, message: bmq.Message) -> None:
        """Handle a message once the test sets ``go``."""
        self.begun.set()
        await self.go.wait()
        self.seen.put_nowait(message)

    def failing(
        self, *payloads: bytes, error: BaseException | None = None
    ) -> Callable[[bmq.Message], Awaitable[None]]:
        """A handler that fails on these messages, or on all but b"good"."""

        async def handle(message: bmq.Message) -> None:
            self.seen.put_nowait(message)
            if message.data in payloads or (not payloads and message.data != b"good"):
                raise error or OSError("not today")

        return handle

    # ---- the test

    def consuming(self, handler: Any, **options: Any) -> Any:
        """Run consume() beside the test, with a record of its failures."""
        return consuming(self.queue, handler, **{"on_error": self.failures.put_nowait, **options})

    async def post(self, *items: Any) -> None:
        (await self.queue.post_many(items)).raise_for_failures()

    async def stop(self, task: asyncio.Task[Any], by: str) -> None:
        """Request a stop of a held handler, by a signal or a cancellation, and let it finish."""
        await self.begun.wait()
        if by == "a cancellation":
            task.cancel()
        else:
            os.kill(os.getpid(), signal.Signals[by])
        asyncio.get_running_loop().call_later(0.05, self.go.set)
        await asyncio.wait([task])

    async def next(self, count: int) -> list[bytes]:
        """The payloads of the next messages seen."""
        return [(await self.seen.get()).data for _ in range(count)]

    async def left(self) -> list[bytes]:
        """What another session finds in the queue, closed here."""
        await self.queue.close()
        async with bmq.connect(self.broker_uri) as session:
            return await seen_by(session, self.uri)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


async def post(queue: bmq.Queue, *payloads: bytes) -> None:
    (await queue.post_many(payloads)).raise_for_failures()
