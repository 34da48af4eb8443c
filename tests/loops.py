# SPDX-License-Identifier: Apache-2.0
"""The event loops that tests run on, by name: asyncio's own, and uvloop's where it exists.

Tests that depend on the loop run on each of them, and any other test on one. With BMQ_TEST_LOOP=proactor in
the environment, tests run on the event loop of Windows instead; with uvloop or asyncio, on that loop alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from zlib import crc32

import pytest

__all__ = ["LOOPS", "loops_of"]

#: A function that makes a loop, by the loop's name; the last one is the loop of ``bmq.run``.
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]]

_chosen = os.environ.get("BMQ_TEST_LOOP", "")
if _chosen == "proactor":
    from tests.fakes.proactor import ProactorLoop

    LOOPS = {"proactor": ProactorLoop}
else:
    LOOPS = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:
        pass  # on Windows
    else:
        LOOPS["uvloop"] = uvloop.new_event_loop
    if _chosen:
        LOOPS = {_chosen: LOOPS[_chosen]}


def loops_of(
    item: pytest.Item, on_each: Collection[str]
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return every loop for a test in one of the named files, and otherwise one, drawn by the test's name."""
    if item.path.name in on_each:
        return LOOPS
    names = [*LOOPS]
    name = names[crc32(item.nodeid.encode()) % len(names)]
    return {name: LOOPS[name]}
