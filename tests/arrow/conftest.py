# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import bmq
from tests.fakes.broker import Peer


@pytest.fixture(autouse=True)
def _no_other_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about the client: the broker is theirs, whatever the environment names."""
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)


@pytest_asyncio.fixture
async def peer() -> AsyncIterator[Peer]:
    """A broker that does what a test tells it to."""
    async with Peer() as peer:
        yield peer


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[bmq.broker.Broker]:
    """An embedded broker."""
    async with bmq.broker.Broker() as broker:
        yield broker
