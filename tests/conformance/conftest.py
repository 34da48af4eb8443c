# SPDX-License-Identifier: Apache-2.0
"""One test for each rule; with an embedded broker or, unchanged, with the broker of BMQ_BROKER_URI.

Each expected value comes from a recording or measurement of a real broker, or from its source; the docstrings
name the rule.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol

import pytest

from tests.conformance.raw import Connect, Raw, dial


class HasUri(Protocol):
    uri: str


@pytest.fixture
async def dialled(bmq_broker: HasUri) -> AsyncIterator[Connect]:
    """Create new connections without any traffic."""
    async with AsyncExitStack() as stack:

        async def connect() -> Raw:
            return await stack.enter_async_context(dial(bmq_broker.uri))

        yield connect


@pytest.fixture
async def client(dialled: Connect) -> Callable[..., Awaitable[Raw]]:
    """Make clients that have negotiated."""

    async def connect(**changes: object) -> Raw:
        raw = await dialled()
        await raw.negotiate(**changes)
        return raw

    return connect
