# SPDX-License-Identifier: Apache-2.0
"""Each test of the asyncio client runs on asyncio and on uvloop, and must leave its loop clean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

import bmq
from tests.extras import TABLES
from tests.fakes.broker import Peer
from tests.garbage import collect
from tests.loops import LOOPS

# This file tests every public coroutine, also those of tables.
collect_ignore = [] if TABLES else ["test_cancelling_everything.py"]


#: These files take tens of seconds, and do not depend on the event loop.
ONE_LOOP = ("test_cancelling_everything.py", "test_holding.py")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return dict([*LOOPS.items()][:1]) if item.path.name in ONE_LOOP else LOOPS


@pytest.fixture(autouse=True)
def _no_other_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about the client, and use their own broker regardless of the environment."""
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)


@pytest_asyncio.fixture(autouse=True)
async def _quiet_loop(_no_other_broker: None) -> AsyncIterator[None]:
    """Fail the test if the loop's exception handler is called, or if a task is left."""
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    before = asyncio.all_tasks()
    yield
    for _ in range(5):
        await asyncio.sleep(0)
    left = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"
    collect()
    await asyncio.sleep(0)
    assert not complaints, complaints


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
