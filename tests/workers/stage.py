# SPDX-License-Identifier: Apache-2.0
"""Common parts of worker tests: a queue with messages, and a handler's record."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import bmq


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
    """A queue with messages, and a record of a handler's calls."""

    def __init__(self, queue: bmq.Queue) -> None:
        self.queue = queue
        self.seen: asyncio.Queue[bmq.Message] = asyncio.Queue()

    async def handle(self, message: bmq.Message) -> None:
        self.seen.put_nowait(message)

    async def next(self, count: int) -> list[bytes]:
        return [(await self.seen.get()).data for _ in range(count)]


async def post(queue: bmq.Queue, *payloads: bytes) -> None:
    (await queue.post_many(payloads)).raise_for_failures()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]
