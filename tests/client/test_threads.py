# SPDX-License-Identifier: Apache-2.0
"""Sessions in several threads, each with an event loop: they share caches and numbers, and nothing else.

In a free-threaded interpreter the threads run at the same time.
"""

from __future__ import annotations

import asyncio
from typing import Any

import bmq
from bmq.broker import Broker

THREADS = 4
COUNT = 100


async def exchange(uri: str, thread: int) -> list[tuple[bytes, dict[str, Any]]]:
    """Post messages whose properties have many schemas, and return what arrives."""
    async with bmq.connect(uri) as session:
        queue = await session.open_queue(f"bmq://bmq.test.mem.priority/{thread}", read=True, write=True)
        for number in range(COUNT):
            queue.post_nowait(
                b"%d of %d" % (number, thread),
                properties={f"p{number % 7}": number, "thread": thread, "text": "t" * (number % 5)},
            )
        arrived: list[tuple[bytes, dict[str, Any]]] = []
        async for message in queue:
            arrived.append((message.data, dict(message.properties)))
            message.confirm()
            if len(arrived) == COUNT:
                return arrived
    raise AssertionError


async def test_sessions_in_threads_exchange_messages_unharmed() -> None:
    async with Broker() as broker:
        uri = broker.uri
        results = await asyncio.gather(
            *(asyncio.to_thread(asyncio.run, exchange(uri, thread)) for thread in range(THREADS))
        )
    for thread, arrived in enumerate(results):
        assert arrived == [
            (
                b"%d of %d" % (number, thread),
                {f"p{number % 7}": number, "thread": thread, "text": "t" * (number % 5)},
            )
            for number in range(COUNT)
        ]
