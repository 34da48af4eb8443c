# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import bmq
from tests.fakes.broker import Peer


@pytest.fixture(autouse=True)
def _no_other_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about the client, and use their own broker regardless of the environment."""
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)


@pytest_asyncio.fixture
async def peer() -> AsyncIterator[Peer]:
    """A scripted broker."""
    async with Peer() as peer:
        yield peer


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[bmq.broker.Broker]:
    """An embedded broker."""
    async with bmq.broker.Broker() as broker:
        yield broker
