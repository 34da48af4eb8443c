# SPDX-License-Identifier: Apache-2.0
"""A handler that blocks the event loop is logged, and stops neither the shutdown nor other handlers.

The handlers advance the clock, a number, so the tests take no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import bmq
from bmq._turn import turn_of
from tests.waiting import eventually
from tests.workers.kinds import register
from tests.workers.stage import Stage, numbered


class Handed:
    """A clock that advances only by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest_asyncio.fixture
async def elapsed() -> AsyncIterator[Handed]:
    """The clock of the event loop's turns."""
    turn, handed = turn_of(asyncio.get_running_loop()), Handed()
    clock, until = turn.clock, turn.until
    turn.clock, turn.until = handed, handed.now
    yield handed
    turn.clock, turn.until = clock, until


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "blocked the event loop" in each.getMessage()]


@pytest.mark.parametrize(
    "kind", ["single", "concurrent", "deadline", "lanes", "on receipt", "batches", "requests", "steps"]
)
async def test_a_blocking_handler_is_logged_once_by_name(
    stage: Stage, elapsed: Handed, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def work(*messages: bmq.Message) -> None:
        nonlocal calls
        if kind == "steps":
            await asyncio.sleep(0)
        elapsed.now += 0.25
        if kind == "steps":
            await asyncio.sleep(0)
        calls += len(messages)

    app = bmq.App(stage.broker_uri, grace=5)
    options = {"max_messages": 1} if kind == "batches" else {}
    handler = register(app, stage.uri, "single" if kind == "steps" else kind, work, **options)
    await stage.post(*numbered(6))
    async with app:
        await eventually(lambda: calls == 6)
    [line] = lines(caplog)
    assert line.startswith(f"{handler.__name__} blocked the event loop for 250 ms")
    assert "plain 'def'" in line


@pytest.mark.parametrize("how", [{}, {"concurrency": 2, "key": "key"}, {"timeout": 60}])
async def test_a_handler_that_waits_is_not_logged(
    stage: Stage, elapsed: Handed, how: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def patient(message: bmq.Message) -> None:
        waiter = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(advance, waiter)
        await waiter
        await stage.handle(message)

    def advance(waiter: asyncio.Future[None]) -> None:
        elapsed.now += 5
        waiter.set_result(None)

    await stage.post(*numbered(4))
    async with stage.consuming(patient, **how):
        await stage.next(4)
    assert not lines(caplog)


@pytest.mark.parametrize("kind", ["single", "concurrent", "lanes", "batches", "values", "requests"])
async def test_an_app_ends_between_two_calls_of_a_handler_that_never_waits(
    stage: Stage, elapsed: Handed, kind: str
) -> None:
    """Stopped with waiting messages, the app handles at most one more message per worker."""
    calls, count = 0, 500

    async def work(*messages: bmq.Message) -> None:
        nonlocal calls
        calls += 1
        elapsed.now += 0.01
        stage.begun.set()

    app = bmq.App(stage.broker_uri, grace=0.05)
    options: dict[str, Any] = {"lanes": {"concurrency": 4}, "batches": {"max_messages": 1}}.get(kind, {})
    register(app, stage.uri, kind, work, **options)
    await stage.post(*numbered(count))
    async with app:
        await stage.begun.wait()
        before = calls
    assert calls - before <= 4 + 4, "no more than the calls that had begun"
    assert calls < count
