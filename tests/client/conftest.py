# SPDX-License-Identifier: Apache-2.0
"""Each test of the asyncio client must leave its loop clean, and runs on asyncio, on uvloop, or on both."""

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
from tests.loops import loops_of

# This file tests every public coroutine, also those of tables.
collect_ignore = [] if TABLES else ["test_cancelling_everything.py"]


#: The tests of connections and their ends, which depend on the loop.
ON_EACH = [
    f"test_{name}.py"
    for name in (
        *("backpressure", "closing", "connecting", "health", "leaks", "lifetime"),
        *("loops", "receiving", "reconnecting", "security"),
    )
]


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return loops_of(item, ON_EACH)


@pytest.fixture(autouse=True)
def _no_other_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests use their own broker."""
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
    async with Peer() as peer:
        yield peer


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[bmq.broker.Broker]:
    async with bmq.broker.Broker() as broker:
        yield broker
