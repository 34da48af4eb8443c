# SPDX-License-Identifier: Apache-2.0
"""The broker of these tests, from BMQ_BROKER_URI or embedded, with new queues for each test."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

import bmq
from tests.subscriptions.through_broker.scene import Scene

#: The broker under test; a suite may hide the variable from other programs.
NAMED = os.environ.get("BMQ_BROKER_URI")


@pytest.fixture
async def broker_uri() -> AsyncIterator[str]:
    if NAMED:
        yield NAMED
        return
    async with bmq.broker.Broker(port=0) as broker:
        yield broker.uri


@pytest.fixture
async def session(broker_uri: str) -> AsyncIterator[bmq.Session]:
    async with bmq.connect(broker_uri) as session:
        yield session


@pytest.fixture
async def other_session(broker_uri: str) -> AsyncIterator[bmq.Session]:
    """A second client."""
    async with bmq.connect(broker_uri) as session:
        yield session


@pytest.fixture
def fresh() -> Callable[..., str]:
    """Make the URI of an unused queue, by default in a priority domain."""

    def make(domain: str = "bmq.test.mem.priority") -> str:
        return f"bmq://{domain}/t{uuid.uuid4().hex}"

    return make


@pytest.fixture
def uri(fresh: Callable[..., str], request: pytest.FixtureRequest) -> str:
    """A queue, in the domain of the test's parameter if given."""
    domain: str | None = getattr(request, "param", None)
    return fresh(domain) if domain else fresh()


@pytest.fixture
async def scene(broker_uri: str, uri: str) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(bmq.connect(broker_uri))
        yield Scene(broker_uri, uri, stack, await session.open_queue(uri, write=True))
