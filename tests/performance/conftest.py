from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

import bmq
from tests.performance.server import Server


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    one = Server()
    listener = await asyncio.get_running_loop().create_server(lambda: one, "127.0.0.1", 0)
    one.port = listener.sockets[0].getsockname()[1]
    yield one
    listener.close()
    await listener.wait_closed()


@pytest_asyncio.fixture
async def session(server: Server) -> AsyncIterator[bmq.Session]:
    async with bmq.connect(f"tcp://127.0.0.1:{server.port}", max_unacked_messages=1_000_000) as session:
        yield session


@pytest_asyncio.fixture
async def queue(session: bmq.Session) -> bmq.Queue:
    return await session.open_queue(
        "bmq://bmq.test.mem.priority/q", read=True, default_subscription=True, write=True
    )
