# SPDX-License-Identifier: Apache-2.0
"""The listening sockets of an embedded broker.

Without a free file descriptor, asyncio's own server writes a thousand tracebacks a second, and a connection
accepted in the turn of the server's end stays open until its collection.
"""

from __future__ import annotations

import asyncio
import socket
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from bmq._log_limit import LogLimit
from bmq._logging import Log

__all__ = ["Listener"]

_log = Log("bmq.broker")

_BACKLOG = 1024
#: Connections accepted before the event loop does other work.
_AT_ONCE = 64
#: Seconds until the next attempt after file descriptors, buffers or memory have run out.
_RETRY = 1.0
#: Windows: the client of a connection has gone before its connection was accepted.
_ERROR_NETNAME_DELETED = 64


class Listener:
    """The listening sockets of a broker.

    Args:
        welcome: takes over the socket of each connection, and closes the socket; must not raise.
    """

    def __init__(self, welcome: Callable[[socket.socket], Coroutine[Any, Any, None]]) -> None:
        self._welcome = welcome
        self._limited = LogLimit(_log)
        self._sockets: list[socket.socket] = []
        self._tasks: dict[asyncio.Task[None], None] = {}

    @property
    def port(self) -> int:
        """The port; 0 without a socket."""
        port: int = self._sockets[0].getsockname()[1] if self._sockets else 0
        return port

    async def start(self, host: str, port: int) -> None:
        """Listen on every address of a host.

        Raises:
            OSError: the address cannot be used.
        """
        infos = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, *_, address in dict.fromkeys(infos):
                self.listen(family, (address[0], port, *address[2:]))
                port = self.port  # for port 0: the first address's port for every address
        except OSError:
            await self.stop()
            raise

    def listen(self, family: int, address: tuple[Any, ...]) -> None:
        """Listen on one address.

        Raises:
            OSError: the address cannot be used.
        """
        listening = socket.create_server(address, family=family, backlog=_BACKLOG)
        listening.setblocking(False)
        self._sockets.append(listening)
        self._spawn(self._accept(listening))

    async def stop(self) -> None:
        """Stop listening, and drop unfinished connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:
            for each in self._sockets:
                each.close()
            self._sockets.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        accepted = 0
        while True:
            try:
                connection = await _accepted(loop, listening)
            except ConnectionError:
                continue  # the client has gone
            except OSError as error:
                if getattr(error, "winerror", None) == _ERROR_NETNAME_DELETED:
                    continue  # the same on Windows, as asyncio reports it (python/cpython#93821)
                text = "a connection cannot be accepted: %s; trying again every second"
                self._limited.warning("accept", text, error)
                await asyncio.sleep(_RETRY)
                continue
            connection.setblocking(False)
            self._spawn(self._welcome(connection)).add_done_callback(partial(_close_unwelcome, connection))
            accepted += 1
            if accepted % _AT_ONCE == 0:
                await asyncio.sleep(0)


@types.coroutine
def _accepted(
    loop: asyncio.AbstractEventLoop, listening: socket.socket
) -> Generator[asyncio.Future[Any], None, socket.socket]:
    # A task cancelled in the turn of the result of sock_accept() never sees the result: the connection would
    # stay open until its collection (python/cpython#153761; uvloop is affected too).
    steps = loop.sock_accept(listening).__await__()
    try:
        while True:
            waited_for = next(steps)
            try:
                yield waited_for
            except asyncio.CancelledError:
                if not waited_for.cancelled() and waited_for.exception() is None:
                    waited_for.result()[0].close()
                raise
    except StopIteration as end:
        connection: socket.socket = end.value[0]
        return connection
    finally:
        steps.close()


def _close_unwelcome(connection: socket.socket, welcoming: asyncio.Future[None]) -> None:
    # In a callback, because a task cancelled before its first step runs no part of its coroutine.
    if welcoming.cancelled():
        connection.close()
