"""The same brokers and queues as for the subscriptions, and a clock that need not be waited for."""

from __future__ import annotations

import asyncio

import pytest

from tests.subscriptions.through_broker.conftest import broker_uri, fresh, other_session, session, uri

__all__ = ["FakeClock", "broker_uri", "fresh", "other_session", "session", "uri"]


class FakeClock:
    """Time passes only while somebody sleeps, and then at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
