"""The health of the host: what suspends queues opened with ``suspends_on_bad_host_health``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

__all__ = ["HostHealth", "HostHealthMonitor"]


class HostHealthMonitor(Protocol):
    """Says whether this host is healthy.

    Iterating yields the present state first and then every change: True for healthy. An async generator
    function is enough, called once for each session::

        async def disk_space():
            while True:
                yield shutil.disk_usage("/").free > 1 << 30
                await asyncio.sleep(10)
    """

    def __aiter__(self) -> AsyncIterator[bool]:
        """Iterate over the states."""
        ...


class HostHealth:
    """A :class:`HostHealthMonitor` that is set by the application; several sessions may share it.

    Args:
        healthy: the state to begin with.
    """

    def __init__(self, healthy: bool = True) -> None:
        self._healthy = healthy
        self._changed: list[asyncio.Event] = []

    @property
    def healthy(self) -> bool:
        """The present state."""
        return self._healthy

    def set(self, healthy: bool) -> None:
        """Change the state; call it in the event loop of the sessions."""
        self._healthy = healthy
        for event in self._changed:
            event.set()

    def __repr__(self) -> str:
        return f"<bmq.HostHealth {'healthy' if self._healthy else 'unhealthy'}>"

    async def __aiter__(self) -> AsyncIterator[bool]:
        event = asyncio.Event()
        self._changed.append(event)
        try:
            while True:
                event.clear()
                yield self._healthy
                await event.wait()
        finally:
            self._changed.remove(event)
