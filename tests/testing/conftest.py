# SPDX-License-Identifier: Apache-2.0
"""The proxy works on both event loops; a test says so with ``pytestmark = BOTH_LOOPS``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.loops import LOOPS


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS
