# SPDX-License-Identifier: Apache-2.0
"""The client of the conformance tests: one message at a time, for expected and forbidden output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from bmq.wire.ack import AckMessage
from bmq.wire.control.messages import (
    CloseQueue,
    ConfigureStream,
    ControlBody,
    Disconnect,
    OpenQueue,
    Status,
    StreamParameters,
)
from tests.fakes.client import Got, SocketClient, subscription
from tests.fakes.client import open_queue as open_request

__all__ = ["Connect", "NewUri", "Raw", "dial", "open_queue", "subscription"]

#: Seconds to wait for output that must not arrive.
QUIET = 0.15

Connect = Callable[..., Awaitable["Raw"]]
NewUri = Callable[..., str]


def open_queue(uri: str, q_id: int = 0, *, read: bool = True, write: bool = True, **how: Any) -> OpenQueue:
    """The request: for reading and writing unless told otherwise."""
    return open_request(uri, q_id, read=read, write=write, **how)


class Raw(SocketClient):
    """A connection to the broker."""

    async def open(
        self, uri: str, q_id: int = 0, *, read: bool = True, write: bool = True, sub_id: int = 0
    ) -> ControlBody:
        reply = await self.ask(open_queue(uri, q_id, read=read, write=write, sub_id=sub_id))
        assert not isinstance(reply, Status), reply
        if read and write and not sub_id:
            # Otherwise a node without the queue drops the posts.
            await self.configure(q_id, subscription(2**31 - 1, messages=0, size=0, priority=-(2**30)))
        return reply

    async def close_queue(self, uri: str, q_id: int = 0, *, read: bool = True, write: bool = True) -> None:
        """Close like the SDKs: withdraw the subscriptions, then close."""
        await self.configure(q_id)
        handle = open_queue(uri, q_id, read=read, write=write).handle_parameters
        reply = await self.ask(CloseQueue(handle_parameters=handle, is_final=True))
        assert not isinstance(reply, Status), reply

    async def disconnect(self) -> None:
        await self.ask(Disconnect())
        self.drop()

    def post(self, payload: bytes, q_id: int = 0, *, guid: bytes | None = None, **how: Any) -> bytes:
        """Post a message; return its GUID."""
        return self.put(payload, q_id=q_id, guids=[guid] if guid is not None else None, **how)[0]

    async def ack(self) -> AckMessage:
        return (await self.acks(1))[0]

    async def statuses(self, count: int) -> list[int]:
        return [ack.status for ack in await self.acks(count)]

    async def push(self) -> Got:
        return (await self.pushes(1))[0]

    async def payloads(self, count: int) -> list[bytes]:
        return [got.payload for got in await self.pushes(count)]

    async def no_push(self) -> bool:
        """Whether no message is pushed before the answer to a request."""
        await self.barrier()
        return await self._nothing(self.push())

    async def no_ack(self) -> bool:
        await self.barrier()
        return await self._nothing(self.ack())

    @staticmethod
    async def _nothing(coming: Awaitable[object]) -> bool:
        try:
            await asyncio.wait_for(coming, QUIET)
        except TimeoutError:
            return True
        return False

    async def barrier(self) -> None:
        """Wait until the broker has read all earlier input: the answer to an empty request follows it."""
        empty = StreamParameters(subscriptions=())
        await self.ask(ConfigureStream(q_id=4_000_000_000, stream_parameters=empty))


@asynccontextmanager
async def dial(uri: str) -> AsyncIterator[Raw]:
    """Return a new connection without any traffic."""
    address = urlsplit(uri)
    client: Raw = await Raw.connect(address.hostname, address.port)
    try:
        yield client
    finally:
        client.drop()
        await client.close()
