# SPDX-License-Identifier: Apache-2.0
"""A queue, a producer, and any number of clients that read it."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from typing import Any

import bmq

__all__ = ["Scene", "names", "nothing"]

_SECONDS = 20


class Scene:
    """A queue with a producer and several readers, each with a separate session."""

    def __init__(self, broker_uri: str, uri: str, stack: AsyncExitStack, producer: bmq.Queue) -> None:
        self.broker_uri = broker_uri
        self.uri = uri
        self.stack = stack
        self.producer = producer
        self.sessions: dict[bmq.Queue, bmq.Session] = {}

    async def reader(self, **options: Any) -> bmq.Queue:
        """Open the queue for reading in a new session, without a default subscription."""
        session = await self.stack.enter_async_context(bmq.connect(self.broker_uri))
        queue = await session.open_queue(self.uri, read=True, **{"default_subscription": False, **options})
        self.sessions[queue] = session
        return queue

    async def post(self, **messages: dict[str, Any]) -> None:
        """Post messages, in this order: the name is the payload, the value is the properties."""
        items = [bmq.PutMessage(name.encode(), properties=given) for name, given in messages.items()]
        (await self.producer.post_many(items)).raise_for_failures()

    async def round_trip(self, *readers: bmq.Queue) -> None:
        """Send a request in each reader's session; earlier messages have then arrived."""
        for reader in readers:
            queue = await self.sessions[reader].open_queue(f"{self.uri}-{uuid.uuid4().hex[:8]}", read=True)
            await queue.close()

    async def left(self) -> list[str]:
        """Take the remaining messages of the queue, after all other readers have closed."""
        queue = await self.reader()
        async with queue.subscribe() as consumer:
            await self.producer.post(b"(end)")
            found: list[str] = []
            while (found or [""])[-1] != "(end)":
                found += await names(consumer, 1)
        await queue.close()
        return found[:-1]


async def names(consumer: bmq.Consumer | bmq.Queue, count: int) -> list[str]:
    """Receive and confirm messages; return their names."""
    found: list[str] = []
    for _ in range(count):
        message = await consumer.receive(timeout=_SECONDS)
        message.confirm()
        found.append(message.data.decode())
    return found


def nothing(*consumers: bmq.Consumer | bmq.Queue) -> bool:
    """Whether no message waits; messages routed before another one of the session have arrived by then."""
    return all(consumer.receive_nowait() is None for consumer in consumers)
