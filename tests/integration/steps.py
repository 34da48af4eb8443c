# SPDX-License-Identifier: Apache-2.0
"""Common steps of many tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import bmq

#: Long enough for a broker on a busy machine; only a guard.
TIMEOUT = 20.0
#: Seconds to wait for a message that must not arrive.
QUIET = 0.15

Connect = Callable[..., Awaitable[bmq.Session]]
NewUri = Callable[..., str]


class HasUri(Protocol):
    """A broker."""

    uri: str


class Receiver(Protocol):
    """A queue or a consumer."""

    async def receive(self, timeout: float | None = None) -> bmq.Message: ...


async def take(receiver: Receiver, count: int) -> list[bmq.Message]:
    """Receive the given number of messages."""
    return [await receiver.receive(timeout=TIMEOUT) for _ in range(count)]


async def payloads(receiver: Receiver, count: int) -> list[bytes]:
    """Receive this many messages and confirm each at once; return their payloads."""
    found: list[bytes] = []
    for _ in range(count):
        message = await receiver.receive(timeout=TIMEOUT)
        message.confirm()
        found.append(message.data)
    return found


async def is_quiet(receiver: Receiver) -> bool:
    """Whether no message arrives for a short time."""
    try:
        await receiver.receive(timeout=QUIET)
    except TimeoutError:
        return True
    return False


async def left_in(connect: Connect, uri: str, last: bytes = b"-- last --") -> list[bytes]:
    """The remaining messages of a priority queue, read by a new session up to a final marker message."""
    session = await connect()
    queue = await session.open_queue(uri, read=True, write=True)
    await queue.post(last)
    found: list[bytes] = []
    while (message := await queue.receive(timeout=TIMEOUT)).data != last:
        message.confirm()
        found.append(message.data)
    message.confirm()
    await queue.close()
    return found
