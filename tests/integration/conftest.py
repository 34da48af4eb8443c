# SPDX-License-Identifier: Apache-2.0
"""The suite runs against an embedded broker, or unchanged against the one that BMQ_BROKER_URI names.

Every test runs on plain asyncio and on uvloop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
