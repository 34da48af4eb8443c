# SPDX-License-Identifier: Apache-2.0
"""The page's server, with an embedded broker behind it: in the same process, or over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

import bmq
from bmq.console import Console, RemoteBroker

Serve = Callable[..., Awaitable[Console]]


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    monkeypatch.delenv("BMQ_CONSOLE_TOKEN", raising=False)


@pytest.fixture
async def broker() -> AsyncIterator[bmq.broker.Broker]:
    async with bmq.broker.Broker() as broker:
        yield broker


@pytest.fixture
async def session(broker: bmq.broker.Broker) -> AsyncIterator[bmq.Session]:
    async with bmq.connect(broker.uri, process_name="shop") as session:
        yield session


@pytest.fixture
async def serve(broker: bmq.broker.Broker) -> AsyncIterator[Serve]:
    """Serve a page over the wire: ``await serve(read_only=True)``."""
    served: list[Console] = []

    async def start(uri: str | None = None, **options: object) -> Console:
        console = Console(RemoteBroker(uri or broker.uri, timeout=30), interval=0.05, **options)  # type: ignore[arg-type]
        await console.start()
        served.append(console)
        return console

    yield start
    for console in served:
        await console.close()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
