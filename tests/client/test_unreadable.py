# SPDX-License-Identifier: Apache-2.0
"""Unreadable messages fail one by one, in every way to read a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bmq
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.padding import padding
from bmq.wire.push import encode_push
from tests.client.bench import opened
from tests.fakes.broker import Peer, guid
from tests.sweeps import sweep
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/unreadable"


def _push(q_id: int, s_id: int, number: int, how: str) -> bytes:
    data = b"%d" % number
    compression = int(how) if how.isdigit() else 0
    options = encode_sub_queue_ids((s_id,))
    if how == "options":
        options += b"\x04\x00\x00\x09" + bytes(4)
    message = encode_push(q_id, guid(number), data + padding(len(data)), options, compression=compression)
    return message[:-1] + b"\x09" if how == "padding" else message


HOW = ["1", "2", "7", "padding", "options"]


@asynccontextmanager
async def delivered(peer: Peer, how: str, count: int = 4) -> AsyncIterator[tuple[bmq.Queue, Any]]:
    """A queue, and a function that delivers one event; every second message of the event is unreadable."""
    connections = len(peer.connections)
    async with opened(peer, URI, read=True, default_subscription=False) as (_, queue):

        def deliver() -> None:
            connection = peer.connection
            ((q_id, s_id),) = connection.s_ids.items()
            body = b"".join(_push(q_id, s_id, n, how if n % 2 else "0") for n in range(count))
            connection.send(pack_event_header(HEADER_SIZE + len(body), EventType.PUSH) + body)

        yield queue, deliver
        assert len(peer.connections) == connections + 1


def read(message: bmq.Message) -> bytes | None:
    """The payload; None if payload, properties and tags raise ProtocolError."""
    try:
        return message.data
    except bmq.ProtocolError:
        for name in ("properties", "tags"):
            with pytest.raises(bmq.ProtocolError):
                getattr(message, name)
        assert isinstance(message.raw, bytes)
        assert len(message.guid) == 32
        assert message.guid in repr(message)
        return None


EXPECTED = [b"0", None, b"2", None]


async def iterating(queue: bmq.Queue) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with queue.subscribe("x == 1") as consumer:
        while len(found) < 4:
            message = await anext(aiter(consumer))
            found.append(read(message))
            message.confirm()
    return found


async def in_a_batch(queue: bmq.Queue) -> list[bytes | None]:
    async with queue.subscribe() as consumer:
        await eventually(lambda: consumer.buffered == 4)
        batch = await consumer.receive_many(4, timeout=20)
        with pytest.raises(bmq.ProtocolError):
            batch.column("x")
        batch.confirm()
        return [read(message) for message in batch]


async def typed(queue: bmq.Queue) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with queue.typed(int).subscribe() as consumer:
        while len(found) < 4:
            message = await consumer.receive(timeout=20)
            try:
                found.append(b"%d" % message.value)
            except (bmq.ProtocolError, bmq.Undecodable):
                found.append(None)
            message.confirm()
    return found


@sweep("how", HOW)
@pytest.mark.parametrize("take", [iterating, in_a_batch, typed])
async def test_the_messages_around_an_unreadable_one_are_read(
    peer: Peer, how: str, take: Callable[[bmq.Queue], Awaitable[list[bytes | None]]]
) -> None:
    async with delivered(peer, how) as (queue, deliver):
        taking = asyncio.ensure_future(take(queue))
        await eventually(lambda: queue.consumers)
        deliver()
        assert await taking == EXPECTED
        confirms = peer.connection.script.confirms
        await eventually(lambda: {each.guid for each in confirms} == {guid(n) for n in range(4)})


async def test_local_routing_treats_an_unreadable_message_as_having_no_properties(peer: Peer) -> None:
    async with delivered(peer, "2") as (queue, deliver):
        async with queue.subscribe("x == 1") as consumer:
            deliver()
            await eventually(lambda: consumer.buffered == 4)
        # The consumer has left: its messages wait for one that wants them.
        async with queue.subscribe("!exists(x)") as other:
            found = [await other.receive(timeout=20) for _ in range(4)]
            assert [read(message) for message in found] == EXPECTED


@sweep("how", ["7", "padding", "options"])
async def test_unreadable_message_has_no_compression(peer: Peer, how: str) -> None:
    async with delivered(peer, how, 2) as (queue, deliver):
        consumer = await queue.subscribe()
        deliver()
        good, bad = [await consumer.receive(timeout=30) for _ in range(2)]
        assert good.compression is bmq.Compression.NONE
        with pytest.raises(bmq.ProtocolError):
            _ = bad.compression
