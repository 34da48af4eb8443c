# SPDX-License-Identifier: Apache-2.0
"""Clients of a few bytes over real sockets, closed at the end of each test."""

from __future__ import annotations

import ssl

from tests.fakes.client import SocketClient

#: Every connection made.
_open: list[SocketClient] = []


async def connect(port: int, tls: ssl.SSLContext | None = None) -> SocketClient:
    """Return a new connection without any traffic."""
    client: SocketClient = await SocketClient.connect("127.0.0.1", port, tls)
    _open.append(client)
    return client


async def client(port: int, tls: ssl.SSLContext | None = None) -> SocketClient:
    """A client that has negotiated."""
    made = await connect(port, tls)
    await made.negotiate()
    return made


async def close_all() -> None:
    """Close every connection."""
    while _open:
        await _open.pop().close()
