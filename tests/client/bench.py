# SPDX-License-Identifier: Apache-2.0
"""A session with an open queue, which most tests of the client begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import bmq
from tests.fakes.broker import Peer

__all__ = ["URI", "opened"]

#: The options of ``open_queue`` that tests need.
OF_THE_QUEUE = {"read", "write", "default_subscription", "subscriptions", "suspends_on_bad_host_health"}
URI = "bmq://bmq.test.mem.priority/q"


@asynccontextmanager
async def opened(
    broker: Peer | bmq.broker.Broker, uri: str = URI, **options: Any
) -> AsyncIterator[tuple[bmq.Session, bmq.Queue]]:
    """Connect with some options, and open a queue with the others."""
    how = {name: options.pop(name) for name in OF_THE_QUEUE & options.keys()}
    async with bmq.connect(broker.uri, **options) as session:
        yield session, await session.open_queue(uri, **how)
