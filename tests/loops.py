# SPDX-License-Identifier: Apache-2.0
"""The event loops that tests run on, by name: asyncio's own, and uvloop's where it exists.

With BMQ_TEST_LOOP=proactor in the environment, tests run on the event loop of Windows instead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

__all__ = ["LOOPS"]

#: A function that makes a loop, by the loop's name; the last one is the loop of ``bmq.run``.
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]]

if os.environ.get("BMQ_TEST_LOOP") == "proactor":
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
