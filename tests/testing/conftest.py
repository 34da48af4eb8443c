# SPDX-License-Identifier: Apache-2.0
"""The proxy works on both event loops; a test says so with ``pytestmark = BOTH_LOOPS``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
