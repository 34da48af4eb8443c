# SPDX-License-Identifier: Apache-2.0
"""The page's server, with an embedded broker behind it: in the same process, or over the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

import bmq
from bmq.console import Console, Embedded, RemoteBroker

ORDERS = "bmq://bmq.test.mem.priority/orders"
PRICES = "bmq://bmq.test.mem.fanout/prices"


class Web:
    """A console, and requests to it."""

    def __init__(self, http: aiohttp.ClientSession, console: Console) -> None:
        self.http, self.console = http, console
        url, _, self.token = console.url.partition("#token=")
        self.url = url.replace("0.0.0.0", "127.0.0.1")
        self.port: int = console._port

    async def ask(self, method: str, path: str, status: int = 200, **options: Any) -> Any:
        async with self.http.request(method, f"{self.url}api/{path}", **options) as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def get(self, path: str, status: int = 200, **query: object) -> Any:
        values = {name: str(value) for name, value in query.items()}
        return await self.ask("GET", path, status, params=values)

    async def post(self, path: str, status: int = 200, **body: object) -> Any:
        return await self.ask("POST", path, status, json=body)

    @asynccontextmanager
    async def live(self, **options: Any) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """Follow the figures; the value waits for a line."""
        async with self.http.get(self.url + "api/live", **options) as response:
            assert response.status == 200

            async def until(wanted: Callable[[Any], Any] = lambda line: True) -> Any:
                async with asyncio.timeout(20):
                    async for line in response.content:
                        if wanted(found := json.loads(line)):
                            return found
                raise AssertionError("it has ended")

            yield until

    async def figures(self) -> Any:
        """Return the first line with figures or trouble."""
        async with self.live() as until:
            return await until(lambda line: line["error"] != "not yet queried")


Serve = Callable[..., Awaitable[Web]]


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
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def serve(http: aiohttp.ClientSession, broker: bmq.broker.Broker) -> AsyncIterator[Serve]:
    """Serve a page over the wire: ``await serve(read_only=True)``."""
    async with AsyncExitStack() as served:

        async def start(uri: str | None = None, **options: Any) -> Web:
            console = Console(RemoteBroker(uri or broker.uri, timeout=30), interval=0.05, **options)
            return Web(http, await served.enter_async_context(console))

        yield start


@pytest.fixture
async def web(http: aiohttp.ClientSession, broker: bmq.broker.Broker) -> AsyncIterator[Web]:
    """The page of an embedded broker in the same process."""
    async with Console(Embedded(broker), interval=0.05) as console:
        yield Web(http, console)
