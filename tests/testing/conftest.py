# SPDX-License-Identifier: Apache-2.0
"""The proxy works on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.loops import loops_of


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return loops_of(item, ("test_proxy.py",))
