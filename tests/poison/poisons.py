# SPDX-License-Identifier: Apache-2.0
"""Messages that no consumer can use, in a producer's encoding."""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections.abc import AsyncGenerator, Awaitable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import bmq
from bmq.wire.constants import PropertyType, PutFlags
from bmq.wire.properties import PropertyValue, encode_properties

__all__ = ["POISONS", "UNREADABLE", "Order", "Poisonous", "a_message", "beside", "flood", "post_raw"]


@dataclass
class Order:
    """The value of typed consumers."""

    amount: int


_NOWHERE = "bmq://bmq.no.such.domain/nowhere"


@dataclass(frozen=True, slots=True)
class Poisonous:
    """A poison message.

    Attributes:
        data: application data as transmitted.
        has_properties: whether the header announces properties.
        compression: compression named by the header.
    """

    data: bytes
    has_properties: bool = False
    compression: int = 0


def a_message(payload: bytes = b"{}", **properties: Any) -> Poisonous:
    """A well-formed message."""
    return Poisonous(encode_properties(properties, new=True) + payload, True)


def _twice() -> Poisonous:
    area = bytearray(encode_properties({"aa": 1, "bb": 2}, new=True))
    area[area.index(b"bb") : area.index(b"bb") + 2] = b"aa"
    return Poisonous(bytes(area) + b"{}", True)


#: By name. Each of them is harmless to consumers that do not look at what is wrong with it.
POISONS: dict[str, Poisonous] = {
    "no zlib": Poisonous(b"garbage that is no zlib", compression=1),
    "zlib cut off": Poisonous(zlib.compress(secrets.token_bytes(500))[:100], compression=1),
    "properties that cannot be decoded": Poisonous(b"\xff\0\0\x0a" + b"\xff" * 36, True),
    "a property twice": _twice(),
    "no value": Poisonous(b'{"amount": '),
    "no payload": Poisonous(encode_properties({"n": 1}, new=True) + zlib.compress(b""), True, 1),
    "a full set of properties": a_message(**{f"p{n}": n for n in range(255)}),
    "a destination that is a number": a_message(bmq_destination=7, bmq_reply_to=7),
    "a destination that is no queue": a_message(bmq_destination="nonsense", bmq_reply_to="nonsense"),
    "a destination that is no text": a_message(
        bmq_destination=PropertyValue(PropertyType.STRING, "bmq://\udcff\udcfe"), bmq_reply_to="bmq://\0"
    ),
    "a destination elsewhere": a_message(bmq_destination=_NOWHERE, bmq_reply_to=_NOWHERE),
    "numbers that are texts": a_message(
        bmq_due=0, bmq_attempts="many", bmq_bucket="all", bmq_deadline="soon", bmq_cancel=1, bmq_deaths=b"x"
    ),
    "numbers out of range": a_message(
        bmq_due=-(2**63), bmq_attempts=2_000_000_000, bmq_bucket=-1, bmq_deadline=-1, bmq_cancel="x" * 1000
    ),
}


#: The names of those that cannot be decoded, whatever the consumer makes of them.
UNREADABLE = ("no zlib", "zlib cut off", "properties that cannot be decoded", "a property twice")


def post_raw(queue: bmq.Queue, message: Poisonous) -> asyncio.Future[bmq.Ack]:
    """Post a message unchanged, without the checks of a bmq producer."""
    connection = queue._connection
    flags = PutFlags.ACK_REQUESTED
    if message.has_properties:
        flags |= PutFlags.MESSAGE_PROPERTIES
    future: asyncio.Future[bmq.Ack] = asyncio.get_running_loop().create_future()
    connection.core.post(
        queue._core,
        secrets.token_bytes(16),
        message.data,
        future,
        connection.loop.time(),
        int(flags),
        int(message.has_properties),
        message.compression,
    )
    connection.transmit_soon()
    return future


@asynccontextmanager
async def beside(work: Awaitable[Any]) -> AsyncGenerator[None]:
    """Run a coroutine beside the block; raise its exception."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def flood(queue: bmq.Queue, messages: Iterable[Poisonous]) -> None:
    """Post messages, and wait until the broker has them all."""
    posted: list[asyncio.Future[bmq.Ack]] = []
    for message in messages:
        if len(posted) == 1000:
            await asyncio.gather(*posted)
            posted.clear()
        posted.append(post_raw(queue, message))
    await asyncio.gather(*posted)
