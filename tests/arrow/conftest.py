# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

import bmq
from tests.fakes.broker import Peer


@pytest_asyncio.fixture
async def peer() -> AsyncIterator[Peer]:
    async with Peer() as peer:
        yield peer


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[bmq.broker.Broker]:
    async with bmq.broker.Broker() as broker:
        yield broker
