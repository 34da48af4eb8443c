# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import bmq
from tests.performance.server import Server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as one:
        yield one


@pytest.fixture
async def session(server: Server) -> AsyncIterator[bmq.Session]:
    async with bmq.connect(server.uri, max_unacked_messages=1_000_000) as session:
        yield session


@pytest.fixture
async def queue(session: bmq.Session) -> bmq.Queue:
    return await session.open_queue(
        "bmq://bmq.test.mem.priority/q", read=True, default_subscription=True, write=True
    )
