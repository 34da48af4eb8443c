# SPDX-License-Identifier: Apache-2.0
"""Posts and confirmations of one turn leave in one write; work for each batch, not for each message."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

import bmq
from bmq import _world
from tests.performance.server import Server, counted
from tests.waiting import eventually

PAYLOAD = bytes(256)


class CountingSocket(socket.socket):
    """Counts the system calls that move data."""

    calls: Counter[str]

    def send(self, *args: Any) -> int:
        self.calls["write"] += 1
        return super().send(*args)

    def sendmsg(self, *args: Any) -> int:
        self.calls["write"] += 1
        return super().sendmsg(*args)

    def recv(self, *args: Any) -> bytes:
        self.calls["read"] += 1
        return super().recv(*args)

    def recv_into(self, *args: Any) -> int:
        self.calls["read"] += 1
        return super().recv_into(*args)


@pytest.fixture
def calls() -> Counter[str]:
    return Counter()


@pytest.fixture
async def session(server: Server, calls: Counter[str]) -> AsyncIterator[bmq.Session]:
    """A session of asyncio's own event loop with counted system calls; those of uvloop cannot be counted."""
    loop = asyncio.get_running_loop()

    async def connect(factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any) -> Any:
        connected = CountingSocket(socket.AF_INET, socket.SOCK_STREAM)
        connected.calls = calls
        connected.setblocking(False)
        await loop.sock_connect(connected, (host, port))
        return await loop.create_connection(factory, sock=connected)

    token = _world.world.set(replace(_world.REAL, create_connection=connect))
    try:
        async with bmq.connect(server.uri, max_unacked_messages=100_000) as session:
            yield session
    finally:
        _world.world.reset(token)


async def test_a_post_made_alone_is_one_write_and_one_read(
    server: Server, queue: bmq.Queue, calls: Counter[str]
) -> None:
    for number in range(30):
        if number == 10:
            calls.clear()
        posting = asyncio.ensure_future(queue.post(PAYLOAD))
        await server.arrived(number + 1)
        server.acknowledge()
        await posting
    assert calls == {"write": 20, "read": 20}


async def test_10_000_messages_of_post_many_leave_in_few_writes(
    server: Server, queue: bmq.Queue, calls: Counter[str]
) -> None:
    """Each write has the 500 messages of a chunk. The system may accept a write in several pieces."""
    count = 10_000
    calls.clear()
    posting = asyncio.ensure_future(queue.post_many([PAYLOAD] * count))
    await server.arrived(count)
    server.acknowledge()
    await posting
    assert calls["write"] <= 3 * count / 500
    assert calls["read"] <= 10


async def test_1_000_messages_are_confirmed_in_one_write_for_each_read(
    server: Server, queue: bmq.Queue, calls: Counter[str]
) -> None:
    count = 1000
    calls.clear()
    server.deliver(count, PAYLOAD)
    for _ in range(count):
        (await queue.receive()).confirm()
    await eventually(lambda: server.confirm_count == count)
    assert calls["write"] <= calls["read"] <= 6


async def test_a_single_post_and_a_waiting_confirmation_leave_in_one_write(
    server: Server, queue: bmq.Queue, calls: Counter[str]
) -> None:
    server.deliver(1, PAYLOAD)
    message = await queue.receive()
    calls.clear()
    message.confirm()
    queue.post_nowait(PAYLOAD)
    await eventually(lambda: server.confirm_count and server.post_count)
    assert calls["write"] == 1
    server.acknowledge()


COUNT = 4000


async def test_a_property_of_a_batch(server: Server, queue: bmq.Queue) -> None:
    server.deliver(COUNT, bytes(256), {"CustomerId": 1234, "OrderType": "EXPRESS"})
    left = COUNT
    calls = 0
    async for batch in queue.batches():
        assert batch.column("CustomerId") == [1234] * len(batch)  # what is learned is learned here
        with counted() as counter:
            batch.column("CustomerId")
            batch.column("OrderType")
        calls = max(calls, counter.calls)
        left -= len(batch)
        if not left:
            break
    assert calls < 100, "whatever the number of messages"
