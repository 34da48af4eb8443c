# SPDX-License-Identifier: Apache-2.0
"""One queue of an embedded broker: a producer, and members, each with a session of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import bmq
from bmq.testing import FaultProxy

__all__ = ["OPTIONS", "Connect", "Ledger", "Open", "Proxied", "handle", "post"]

Connect = Callable[..., Awaitable[bmq.Session]]
Open = Callable[[], Awaitable[bmq.Queue]]
Proxied = tuple[FaultProxy, bmq.Queue]
OPTIONS: dict[str, Any] = {"buckets": 6, "lease": 0.5}


@pytest.fixture
async def writer(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, write=True)


@pytest.fixture
def open_reader(bmq_connect: Connect, bmq_queue_uri: str) -> Open:
    async def open_reader() -> bmq.Queue:
        return await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)

    return open_reader


@pytest.fixture
async def reader(open_reader: Open) -> bmq.Queue:
    return await open_reader()


@pytest.fixture
async def proxied(bmq_broker: bmq.broker.Broker, bmq_queue_uri: str) -> AsyncIterator[Proxied]:
    """A reader behind a proxy."""
    async with FaultProxy(bmq_broker.uri) as proxy, bmq.connect(proxy.uri) as session:
        yield proxy, await session.open_queue(bmq_queue_uri, read=True)


async def post(queue: bmq.Queue, *keys: int) -> None:
    """Post a message for each key; the payload is the key."""
    report = await queue.post_many(bmq.PutMessage(b"%d" % key, {"k": key}) for key in keys)
    report.raise_for_failures()


class Ledger:
    """The messages handled by the members, in order, and violations of the order of a bucket."""

    def __init__(self, buckets: int = 6) -> None:
        self.handled: list[tuple[str, int, int]] = []
        self.done: set[int] = set()
        self.fences: dict[int, int] = {}
        self.wrong: list[str] = []
        self._buckets = buckets

    def begin(self, name: str, bucket: int, number: int, fence: int) -> None:
        if fence < self.fences.get(bucket, 0):
            self.wrong.append(f"{name}: bucket {bucket} under fence {fence} after {self.fences[bucket]}")
        self.fences[bucket] = max(fence, self.fences.get(bucket, 0))
        if not self.done.issuperset(range(bucket, number, self._buckets)):
            self.wrong.append(f"{name}: {number} of bucket {bucket} before earlier ones are done")
        self.handled.append((name, bucket, number))


async def handle(group: bmq.groups.Group, name: str, ledger: Ledger) -> None:
    """Handle the messages of a member."""
    async for message in group:
        async with message:
            number, bucket = int(message.data), group.bucket_of(message)
            assert bucket is not None
            ledger.begin(name, bucket, number, group.fence(bucket))
            ledger.done.add(number)
