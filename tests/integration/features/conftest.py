# SPDX-License-Identifier: Apache-2.0
"""Tests of what stands on the client run on one event loop: the client's own tests run on both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop}
