# SPDX-License-Identifier: Apache-2.0
"""Messages of any size arrive on any transport and in any pieces, and unreadable ones fail one by one."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import bmq
from bmq.client.channel import Channel
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.padding import padding
from bmq.wire.push import encode_push
from tests.certificates import make_certificates
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer, guid
from tests.sweeps import sweep
from tests.waiting import eventually


@pytest_asyncio.fixture(params=["tcp", "tcps"])
async def session(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Peer, bmq.Session]]:
    certificates = make_certificates(tmp_path) if request.param == "tcps" else None
    context = certificates and certificates.context(ssl.Purpose.CLIENT_AUTH, "broker")
    trusted = certificates and certificates.context(ssl.Purpose.SERVER_AUTH)
    async with Peer(context) as peer, bmq.connect(peer.uri, ssl=trusted) as session:
        yield peer, session


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the client receives into memory of its own, after each change."""
    changes: list[bool] = []
    fill = Channel.fill

    def noting(channel: Channel, space: Any) -> None:
        fill(channel, space)
        changes.append(channel.filling)

    monkeypatch.setattr(Channel, "fill", noting)
    return changes


def payload(number: int, size: int) -> bytes:
    return (b"%d" % number + b" ").ljust(size, b"%d" % (number % 10))


def large_event(peer: Peer, *messages: tuple[int, int]) -> bytes:
    """A PUSH event of messages with a number and a size each."""
    connection = peer.connection
    pushed = [(guid(number), payload(number, size)) for number, size in messages]
    return connection.script.push(0, pushed, (connection.s_ids[0],))


async def reader(session: bmq.Session) -> bmq.Consumer:
    queue = await session.open_queue(URI, read=True)
    return await queue.subscribe(max_unconfirmed_bytes=2**30)


async def check(consumer: bmq.Consumer, *messages: tuple[int, int]) -> None:
    for number, size in messages:
        message = await consumer.receive(timeout=30)
        assert type(message.data) is bytes
        assert message.data == payload(number, size)
        message.confirm()


async def test_messages_of_all_sizes_are_in_order(
    session: tuple[Peer, bmq.Session], fills: list[bool]
) -> None:
    peer, connected = session
    sizes = [100, 1_000_000, 1_000_000, 300_000, 70_000, 20, 3_000_000, 5, 5_000_000, 1_000_000, 10, 10]
    sent = list(enumerate(sizes))
    consumer = await reader(connected)
    peer.connection.send(*(large_event(peer, one) for one in sent))
    await check(consumer, *sent)
    assert fills[0]
    # The next events are small.
    for some in ([(20, 10)], [(21, 10), (22, 10)]):
        peer.connection.send(large_event(peer, *some))
        await check(consumer, *some)
    assert not fills[-1]
    assert connected.stats().bytes_received > sum(sizes)


async def test_a_connection_lost_within_a_large_event_loses_no_message(peer: Peer, fills: list[bool]) -> None:
    async with bmq.connect(peer.uri) as session:
        consumer = await reader(session)
        data = large_event(peer, (1, 10), (2, 2_000_000))
        peer.connection.send(large_event(peer, (0, 10)), data[:1_500_000])
        await check(consumer, (0, 10))
        await eventually(lambda: fills == [True] and session.stats().bytes_received > 1_500_000)
        peer.cut()
        await eventually(lambda: len(peer.connections) == 2 and 0 in peer.connection.s_ids)
        assert consumer.receive_nowait() is None, "half an event is no message"
        peer.connection.send(large_event(peer, (3, 10), (1, 10), (2, 2_000_000)))
        await check(consumer, (3, 10), (1, 10), (2, 2_000_000))


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
    async with opened(peer, read=True, default_subscription=False) as (_, queue):

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


@sweep("how", HOW)
@pytest.mark.parametrize("take", [iterating, in_a_batch])
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
