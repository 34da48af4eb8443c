# SPDX-License-Identifier: Apache-2.0
"""Limits of the console's connections: their number, and the time without a request.

aiohttp waits for the first request of a connection without a limit, and accepts any number of connections. A
stranger could use up the descriptors of a process, and the embedded broker in it would accept nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from aiohttp import web

__all__ = ["Door"]

# Connections at the same time, and seconds without a request: before the first, and between two.
_AT_ONCE = 256
_SILENCE = 5.0
_IDLE = 120.0


class Door:
    """Accepts connections; above the limit, the connection without a request for longest is closed.

    Args:
        server: handles the requests of a connection.
    """

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        # Connections without a request at present, the oldest first, and what ends them.
        self._waiting: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        self._listening: asyncio.Server | None = None
        self._lost = server.connection_lost
        # aiohttp reports the end of a connection here only.
        server.connection_lost = self._forget  # type: ignore[method-assign]

    async def open(self, host: str, port: int) -> int:
        """Listen; return the port.

        Raises:
            OSError: the address cannot be used.
        """
        self._listening = await self._loop.create_server(self._accept, host, port)
        number: int = self._listening.sockets[0].getsockname()[1]
        return number

    def close(self) -> None:
        """Listen no longer, and close no connection any more."""
        if self._listening is not None:
            self._listening.close()
        for ending in self._waiting.values():
            ending.cancel()

    def _accept(self) -> web.RequestHandler:
        accepted, seconds = self._server(), _SILENCE
        if len(self._server.connections) >= _AT_ONCE:
            # Connections accepted a moment ago have no transport yet.
            oldest = next((each for each in self._waiting if each.transport is not None), None)
            if oldest is None:
                seconds = 0.0
            else:
                self._end(oldest)
        self._wait(accepted, seconds)
        return accepted

    def _wait(self, connection: web.RequestHandler, seconds: float) -> None:
        self._waiting[connection] = self._loop.call_later(seconds, self._end, connection)

    def _end(self, connection: web.RequestHandler) -> None:
        """Close a connection; an answer not taken yet is lost."""
        self._stop_waiting(connection)
        if connection.transport is not None:
            connection.transport.abort()

    def _forget(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Drop a connection that has gone."""
        self._stop_waiting(handler)
        self._lost(handler, exc)

    def _stop_waiting(self, connection: web.RequestHandler) -> None:
        if (waiting := self._waiting.pop(connection, None)) is not None:
            waiting.cancel()

    @contextmanager
    def asking(self, request: web.Request) -> Generator[None]:
        """Note that a connection has a request."""
        connection = request.protocol
        self._stop_waiting(connection)
        try:
            yield
        finally:
            if connection.transport is not None:  # it has not gone during the request
                self._wait(connection, _IDLE)
