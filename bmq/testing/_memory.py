# SPDX-License-Identifier: Apache-2.0
"""Connections in memory: a broker, and clients on the same event loop, without sockets.

Each side of a connection is a transport. Written bytes wait with the peer's transport, and are delivered in
the next turn of the event loop: as with sockets, a protocol is never called from within a call of its peer.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any, Final, cast

from bmq.broker import Broker, DomainConfig
from bmq.broker.domain_config import builtin_domains
from bmq.testing._transport import SocketlessTransport

__all__ = ["MemoryBroker", "MemoryNetwork"]

#: The host of brokers in memory, and their first port. Nothing listens there, and nothing connects.
_HOST: Final = "127.0.0.1"
_USUAL: Final = "bmq.test.mem.priority"
_YEAR: Final = 366 * 86_400


class MemoryNetwork:
    """The brokers in memory of a test.

    Args:
        stir: called at each movement of data.
    """

    def __init__(self, stir: Callable[[], None]) -> None:
        self.stir = stir
        self._brokers: dict[tuple[str, int], MemoryBroker] = {}
        self._ports = count(1)

    def add(self, broker: MemoryBroker) -> str:
        """Make a broker reachable, and return its address for :meth:`create_connection`."""
        port = next(self._ports)
        self._brokers[_HOST, port] = broker
        return f"tcp://{_HOST}:{port}"

    async def create_connection(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect to a broker in memory, or as the running event loop does to other addresses.

        Raises:
            OSError: nothing answers.
        """
        loop = asyncio.get_running_loop()
        broker = self._brokers.get((host, port))
        if broker is None:
            return await loop.create_connection(factory, host, port, **options)
        if not broker.running:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        here, there = ("127.0.0.1", next(self._ports)), (host, port)
        client = _Side(loop, factory(), here, there, self.stir)
        server = _Side(loop, broker.accept(), there, here, self.stir)
        client.peer, server.peer = server, client
        client.begin()
        server.begin()
        return client, client.get_protocol()


class MemoryBroker(Broker):
    """A broker reached in memory by clients on its event loop; the first use of ``uri`` opens a socket."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("builtin", False)
        super().__init__(**options)
        for name, domain in _lasting().items():
            self._node.source.configured.setdefault(name, domain)

    async def _listen(self) -> None:
        if self._port:  # the first run had a socket
            await super()._listen()

    @property
    def port(self) -> int:
        """The listening port; opened now, if the broker is running."""
        if not self._port and self.running:
            self._listener.listen(socket.AF_INET, (self.host, 0))
            self._port = self._listener.port
        return super().port

    def accept(self) -> asyncio.Protocol:
        """Make the broker's side of a connection."""
        return self._accept()


@cache
def _lasting() -> dict[str, Any]:
    """Return the built-in domains, with the usual short retention replaced by a year."""
    usual = cast("DomainConfig", builtin_domains()[_USUAL]).message_ttl
    return {
        name: replace(each, message_ttl=_YEAR)
        if isinstance(each, DomainConfig) and each.message_ttl == usual
        else each
        for name, each in builtin_domains().items()
    }


class _Side(SocketlessTransport):
    """One side of a connection."""

    peer: _Side

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.Protocol,
        own: tuple[str, int],
        other: tuple[str, int],
        stir: Callable[[], None],
    ) -> None:
        super().__init__({"sockname": own, "peername": other}, loop, protocol)
        self._stir = stir
        #: Size of the data from the peer.
        self._size = 0

    def begin(self) -> None:
        """Tell the protocol about the connection."""
        self._context.run(self._protocol.connection_made, self)

    # reading

    def take(self, data: bytes) -> None:
        """Receive data from the peer, or its end of data: b""."""
        if self._closing:
            return
        if data:
            self._inbox.append(data)
            self._size += len(data)
        else:
            self._end_of_input = True
        self._look()

    def _read(self) -> None:
        self._scheduled = False
        if self._paused or self._closing:
            return
        self._stir()
        try:
            if self._inbox:
                data = b"".join(self._inbox)
                self._forget_input()
                self._feed(data)
                self._look()
            elif not self._protocol.eof_received():
                self.close()
        except Exception as error:
            context = {"message": "a protocol failed", "exception": error, "transport": self}
            self._loop.call_exception_handler({**context, "protocol": self._protocol})
            self._end(error)

    def _forget_input(self) -> None:
        self._inbox.clear()
        self._size = 0
        self.peer.drained()

    # writing

    def write(self, data: Any) -> None:
        if self._closing or not data:
            return
        self._stir()
        self.peer.take(bytes(data))
        self._maybe_pause_protocol()

    def drained(self) -> None:
        """Note that the peer has taken all data."""
        if self._protocol_paused and not self._closing:
            self._call(self._maybe_resume_protocol)

    def get_write_buffer_size(self) -> int:
        return self.peer._size

    def write_eof(self) -> None:
        self.peer.take(b"")

    # the end

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._stir()
        self._forget_input()
        self.peer.take(b"")
        self._call(self._protocol.connection_lost, error)
