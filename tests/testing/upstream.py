# SPDX-License-Identifier: Apache-2.0
"""A server and clients for tests of the proxy: plain sockets, no protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bmq.testing._proxy import FaultProxy


@dataclass
class End:
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self, n: int) -> bytes:
        return await self.reader.readexactly(n)

    async def rest(self) -> bytes:
        return await self.reader.read()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def close(self) -> None:
        self.writer.close()


@dataclass
class Upstream:
    """A passive server: the test plays the broker."""

    port: int = 0
    accepted: asyncio.Queue[End] = field(default_factory=asyncio.Queue[End])
    peers: list[End] = field(default_factory=list[End])

    @property
    def uri(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    async def connection(self) -> End:
        """Return the other end of the next connection."""
        return await self.accepted.get()


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    up = Upstream()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = End(reader, writer)
        up.peers.append(peer)
        up.accepted.put_nowait(peer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    up.port = server.sockets[0].getsockname()[1]
    try:
        yield up
    finally:
        server.close()
        for peer in up.peers:
            peer.close()


@asynccontextmanager
async def client(proxy: FaultProxy) -> AsyncIterator[End]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield End(reader, writer)
    finally:
        writer.close()


def event(body: bytes) -> bytes:
    """Return an event as the proxy sees it: a length of four bytes, and that many bytes in total."""
    return (8 + len(body)).to_bytes(4, "big") + b"\x41\x02\x00\x00" + body
