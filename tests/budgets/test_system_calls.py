# SPDX-License-Identifier: Apache-2.0
"""The system calls of a session on a socket.

On asyncio's event loop, the session has a socket that counts the calls. The system calls of uvloop cannot be
counted in Python: on uvloop, the tests count the writes to the transport, and the reads reported by the
transport. The budgets in memory hold for both event loops, because the counts agree here.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

import bmq
from bmq import _world
from tests.budgets.bench import URI
from tests.loops import LOOPS
from tests.performance.server import Server

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


class _Counted:
    """A transport of uvloop with counted writes."""

    def __init__(self, transport: asyncio.Transport, calls: Counter[str]) -> None:
        self._transport = transport
        self._calls = calls

    def write(self, data: bytes) -> None:
        self._calls["write"] += 1
        self._transport.write(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self._calls["write"] += 1
        self._transport.writelines(pieces)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


_Counted.__module__ = "uvloop.counted"  # bmq recognises the transports of uvloop by the module


def counting_protocol(protocol: asyncio.Protocol, calls: Counter[str]) -> asyncio.Protocol:
    """Return the protocol with counted reads, and with a transport that counts writes."""
    made, received = protocol.connection_made, protocol.data_received

    def connection_made(transport: asyncio.BaseTransport) -> None:
        made(cast("asyncio.BaseTransport", _Counted(cast("asyncio.Transport", transport), calls)))

    def data_received(data: bytes) -> None:
        calls["read"] += 1
        received(data)

    protocol.connection_made, protocol.data_received = connection_made, data_received  # type: ignore[method-assign]
    return protocol


@asynccontextmanager
async def opened(server: Server, calls: Counter[str]) -> AsyncGenerator[bmq.Queue]:
    """A queue of a session with counted system calls."""
    loop = asyncio.get_running_loop()

    async def connect(factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any) -> Any:
        if not isinstance(loop, asyncio.SelectorEventLoop):
            return await loop.create_connection(lambda: counting_protocol(factory(), calls), host, port)
        connected = CountingSocket(socket.AF_INET, socket.SOCK_STREAM)
        connected.calls = calls
        connected.setblocking(False)
        await loop.sock_connect(connected, (host, port))
        return await loop.create_connection(factory, sock=connected)

    token = _world.world.set(replace(_world.REAL, create_connection=connect))
    try:
        async with bmq.connect(server.uri, max_unacked_messages=100_000) as session:
            yield await session.open_queue(URI, read=True, write=True, default_subscription=True)
    finally:
        _world.world.reset(token)


def run(loop: str, path: Callable[[Server, bmq.Queue, Counter[str]], Any]) -> Counter[str]:
    """Run a path; return the system calls since the path has cleared the counter."""
    calls: Counter[str] = Counter()

    async def main() -> None:
        async with Server() as server, opened(server, calls) as queue:
            await path(server, queue, calls)
            taken.update(calls)

    taken: Counter[str] = Counter()
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())
    return taken


@pytest.mark.parametrize("loop", LOOPS)
def test_a_post_made_alone_is_one_write_and_one_read(loop: str) -> None:
    async def path(server: Server, queue: bmq.Queue, calls: Counter[str]) -> None:
        for number in range(30):
            if number == 10:
                calls.clear()
            before = server.post_count
            posting = asyncio.ensure_future(queue.post(PAYLOAD))
            await server.until(lambda before=before: server.post_count > before)
            server.acknowledge()
            await posting

    assert run(loop, path) == {"write": 20, "read": 20}


@pytest.mark.parametrize("loop", LOOPS)
def test_10_000_messages_of_post_many_leave_in_few_writes(loop: str) -> None:
    """Each write has the 500 messages of a chunk. The system may accept a write in several pieces."""
    count, pieces = 10_000, 3 if loop == "asyncio" else 1

    async def path(server: Server, queue: bmq.Queue, calls: Counter[str]) -> None:
        calls.clear()
        posting = asyncio.ensure_future(queue.post_many([PAYLOAD] * count))
        await server.until(lambda: server.post_count == count)
        server.acknowledge()
        await posting

    calls = run(loop, path)
    assert calls["write"] <= count / 500 * pieces
    assert calls["read"] <= 10


@pytest.mark.parametrize("loop", LOOPS)
def test_1_000_messages_are_confirmed_in_one_write_for_each_read(loop: str) -> None:
    count = 1000

    async def path(server: Server, queue: bmq.Queue, calls: Counter[str]) -> None:
        calls.clear()
        server.deliver(count, PAYLOAD)
        left = count
        async for message in queue:
            message.confirm()
            left -= 1
            if not left:
                break
        await server.until(lambda: server.confirm_count == count)

    calls = run(loop, path)
    assert calls["write"] <= calls["read"] <= 6
