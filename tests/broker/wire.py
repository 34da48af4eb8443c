# SPDX-License-Identifier: Apache-2.0
"""Clients of a few bytes over real sockets, closed at the end of each test."""

from __future__ import annotations

from tests.fakes.client import SocketClient

_open: list[SocketClient] = []


async def connect(port: int) -> SocketClient:
    made: SocketClient = await SocketClient.connect("127.0.0.1", port)
    _open.append(made)
    return made


async def client(port: int) -> SocketClient:
    """A client that has negotiated."""
    made = await connect(port)
    await made.negotiate()
    return made


async def close_all() -> None:
    while _open:
        await _open.pop().close()
