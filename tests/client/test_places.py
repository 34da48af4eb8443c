# SPDX-License-Identifier: Apache-2.0
"""Every way to receive keeps a bounded number of messages, whatever the broker sends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import bmq
from tests.extras import TABLES
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


# A broker sends far more than the subscription may hold.

SIZE = 10_000
LIMITS = {"max_unconfirmed_messages": 10, "max_unconfirmed_bytes": 20 * SIZE}


async def _never(_message: bmq.Message) -> None:
    await asyncio.Event().wait()


async def _subscribed(queue: bmq.Queue) -> None:
    async with queue.subscribe(**LIMITS):
        await asyncio.Event().wait()


async def _tables(queue: bmq.Queue) -> None:
    async with queue.tables(**LIMITS) as tables:
        await tables.receive(timeout=20)
        await asyncio.Event().wait()


async def _typed(queue: bmq.Queue) -> None:
    async for _ in queue.typed(dict, codec="application/json"):
        await asyncio.Event().wait()


def handled(**options: Any) -> Callable[[bmq.Queue], Awaitable[None]]:
    return lambda queue: bmq.consume(queue, _never, grace=0.0, **options, **LIMITS)


TAKERS: dict[str, Callable[[bmq.Queue], Awaitable[None]]] = {
    "a consumer": _subscribed,
    "handlers": handled(concurrency=8),
    "lanes": handled(concurrency=8, key=lambda message: message.guid),
    "values": _typed,
} | ({"tables": _tables} if TABLES else {})


@pytest.mark.parametrize("taker", TAKERS)
async def test_a_broker_that_ignores_the_limits_cannot_fill_the_memory(peer: Peer, taker: str) -> None:
    limit = 500_000
    async with bmq.connect(peer.uri, max_buffered_bytes=limit) as session:
        queue = await session.open_queue(URI, read=True)
        taking = asyncio.ensure_future(TAKERS[taker](queue))
        try:
            await eventually(lambda: peer.connection.s_ids)
            transport = peer.connection.transport
            assert transport is not None
            sent = quiet = 0
            while sent < 2000 and quiet < 50:
                if transport.get_write_buffer_size() < 1 << 18:
                    peer.connection.push(*range(sent + 1, sent + 21), size=SIZE)
                    sent += 20
                    quiet = 0
                quiet += 1
                await asyncio.sleep(0)
            stats = session.stats()
        finally:
            taking.cancel()
            await asyncio.wait([taking])
        assert sent < 2000, "all 20 MB were read"
        assert limit // 2 < stats.buffered_bytes < 3 * limit
        assert stats.bytes_received < 3 * limit + LIMITS["max_unconfirmed_bytes"]
