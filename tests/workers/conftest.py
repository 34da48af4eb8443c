# SPDX-License-Identifier: Apache-2.0
"""The same brokers and queues as for the subscriptions, and clocks that need no waiting."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from tests.subscriptions.through_broker.conftest import broker_uri, fresh, other_session, session, uri
from tests.workers.stage import Stage

__all__ = ["FakeClock", "Standstill", "broker_uri", "fresh", "other_session", "session", "uri"]


class FakeClock:
    """Time passes only during a sleep, and then at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class Standstill(FakeClock):
    """Pauses end when the test sets ``go_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.resting, self.go_on = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.resting.set()
        await self.go_on.wait()


@pytest.fixture(autouse=True)
def _no_other_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests name their broker, ``broker_uri`` or their own; some test the absence of a broker."""
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def standstill() -> Standstill:
    return Standstill()


@pytest.fixture
async def stage(session: bmq.Session, uri: str, broker_uri: str) -> Stage:
    """A queue for this test alone, without readers."""
    queue = await session.open_queue(uri, read=True, write=True, default_subscription=False)
    return Stage(queue, broker_uri)
