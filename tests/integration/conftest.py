# SPDX-License-Identifier: Apache-2.0
"""The suite runs with an embedded broker or, unchanged, with the broker of BMQ_BROKER_URI.

Each test runs on asyncio or on uvloop, and those of large and many messages on both.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

import bmq
from tests.loops import loops_of


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return loops_of(item, ("test_posting.py",))


@pytest.fixture(scope="session", autouse=True)
def _clusters_are_healthy() -> None:
    """A broker accepts clients some ten seconds before its cluster has a leader and primaries."""
    uri = os.environ.get("BMQ_BROKER_URI", "")
    if uri:
        asyncio.run(_wait_for_clusters(uri))


async def _wait_for_clusters(uri: str) -> None:
    async with asyncio.timeout(120), bmq.admin.connect(uri) as admin:
        while True:
            names = [cluster.name for cluster in await admin.clusters()]
            if names and all([(await admin.cluster_status(name)).healthy for name in names]):
                return
            await asyncio.sleep(0.2)  # the broker announces nothing
