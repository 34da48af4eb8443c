# SPDX-License-Identifier: Apache-2.0
"""Unreadable messages fail one by one, in every way to read a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bmq
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.padding import padding
from bmq.wire.push import encode_push
from tests.extras import TABLES
from tests.fakes.broker import Peer, guid
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
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=False)

        def deliver() -> None:
            connection = peer.connection
            ((q_id, s_id),) = connection.s_ids.items()
            body = b"".join(_push(q_id, s_id, n, how if n % 2 else "0") for n in range(count))
            connection.send(pack_event_header(HEADER_SIZE + len(body), EventType.PUSH) + body)

        yield queue, deliver
        assert len(peer.connections) == 1


def read(message: bmq.Message) -> bytes | None:
    """The payload; None if payload, properties and tags raise ProtocolError."""
    try:
        return message.data
    except bmq.ProtocolError:
        with pytest.raises(bmq.ProtocolError):
            _ = message.properties
        with pytest.raises(bmq.ProtocolError):
            _ = message.tags
        assert isinstance(message.raw, bytes)
        assert len(message.guid) == 32
        assert message.guid in repr(message)
        return None


EXPECTED = [b"0", None, b"2", None]


@pytest.mark.parametrize("how", HOW)
async def test_iteration_reads_the_messages_around_an_unreadable_one(peer: Peer, how: str) -> None:
    async with delivered(peer, how) as (queue, deliver), queue.subscribe("x == 1") as consumer:
        deliver()
        found: list[bytes | None] = []
        async for message in consumer:
            found.append(read(message))
            message.confirm()
            if len(found) == len(EXPECTED):
                break
        assert found == EXPECTED
        await eventually(lambda: len(peer.connection.script.confirms) == len(EXPECTED))
        assert {each.guid for each in peer.connection.script.confirms} == {guid(n) for n in range(4)}


@pytest.mark.parametrize("how", HOW)
async def test_a_batch_holds_unreadable_messages(peer: Peer, how: str) -> None:
    async with delivered(peer, how) as (queue, deliver), queue.subscribe() as consumer:
        deliver()
        batch = await consumer.receive_many(4, timeout=20)
        assert [read(message) for message in batch] == EXPECTED
        with pytest.raises(bmq.ProtocolError):
            batch.column("x")
        batch.confirm()
        await eventually(lambda: len(peer.connection.script.confirms) == len(EXPECTED))


if TABLES:

    @pytest.mark.parametrize("how", HOW)
    @pytest.mark.parametrize("count", [4, 400], ids=["message by message", "as columns"])
    async def test_tables_with_on_invalid_fail_raise_for_each_unreadable_message(
        peer: Peer, how: str, count: int
    ) -> None:
        async with delivered(peer, how, count) as (queue, deliver), queue.tables(on_invalid="fail") as tables:
            deliver()
            rows: list[bytes] = []
            errors: list[str] = []
            while len(rows) + len(errors) < count:
                try:
                    rows += (await tables.receive(timeout=20)).column("value").to_pylist()
                except bmq.ProtocolError as error:
                    errors.append(str(error))
            assert rows == [b"%d" % n for n in range(0, count, 2)]
            assert len(errors) == count // 2
            assert all("cannot be read" in error for error in errors)


@pytest.mark.parametrize("how", HOW)
async def test_a_typed_consumer_raises_for_each_unreadable_message(peer: Peer, how: str) -> None:
    async with delivered(peer, how) as (queue, deliver), queue.typed(int).subscribe() as consumer:
        deliver()
        found: list[int | None] = []
        for _ in EXPECTED:
            message = await consumer.receive(timeout=20)
            try:
                found.append(message.value)
            except (bmq.ProtocolError, bmq.Undecodable):
                found.append(None)
        assert found == [0, None, 2, None]


@pytest.mark.parametrize("how", HOW)
async def test_a_worker_continues_behind_an_unreadable_message(peer: Peer, how: str) -> None:
    handled: list[bytes] = []

    async def handler(message: bmq.Message) -> None:
        handled.append(message.data)

    async with delivered(peer, how) as (queue, deliver), queue.subscribe() as consumer:
        working = asyncio.ensure_future(bmq.consume(consumer, handler))
        deliver()
        await eventually(lambda: handled == [b"0", b"2"])
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_local_routing_treats_an_unreadable_message_as_having_no_properties(peer: Peer) -> None:
    async with delivered(peer, "2") as (queue, deliver):
        async with queue.subscribe("x == 1") as consumer:
            deliver()
            await eventually(lambda: consumer.buffered == 4)
        # The consumer has left: its messages wait for one that wants them.
        async with queue.subscribe("!exists(x)") as other:
            found = [await other.receive(timeout=20) for _ in range(4)]
            assert [read(message) for message in found] == EXPECTED


@pytest.mark.parametrize("how", ["7", "padding", "options"])
async def test_unreadable_message_has_no_compression(peer: Peer, how: str) -> None:
    async with delivered(peer, how, 2) as (queue, deliver):
        consumer = await queue.subscribe()
        deliver()
        good, bad = [await consumer.receive(timeout=30) for _ in range(2)]
        assert good.compression is bmq.Compression.NONE
        with pytest.raises(bmq.ProtocolError):
            _ = bad.compression
