# SPDX-License-Identifier: Apache-2.0
"""The event loop that our programs and threads run, and what its library can do for us."""

from __future__ import annotations

import asyncio

__all__ = ["gathers", "new_event_loop"]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make one: uvloop's where that is installed, asyncio's otherwise."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def gathers(transport: asyncio.BaseTransport) -> bool:
    """Whether a transport's ``writelines()`` sends the pieces as they are, and can be relied on.

    Only uvloop's does. asyncio's joins the pieces before 3.12; in some releases since then it never pauses
    the protocol, and fails once the connection is lost.
    """
    return type(transport).__module__.startswith("uvloop")
