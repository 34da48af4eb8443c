# SPDX-License-Identifier: Apache-2.0
"""The suite runs with an embedded broker or, unchanged, with the broker of BMQ_BROKER_URI.

Each test runs on asyncio and on uvloop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.loops import LOOPS


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS
