# SPDX-License-Identifier: Apache-2.0
"""Large events are received into memory of the client, on any transport and in any pieces."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import bmq
from bmq.client.channel import Channel
from tests.certificates import make_certificates
from tests.fakes.broker import Peer, guid
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/large"


@pytest_asyncio.fixture(params=["tcp", "tcps"])
async def session(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Peer, bmq.Session]]:
    """A scripted broker, and a session with it."""
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


def event(peer: Peer, *messages: tuple[int, int]) -> bytes:
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


async def test_messages_of_all_sizes_arrive_in_order(
    session: tuple[Peer, bmq.Session], fills: list[bool]
) -> None:
    peer, connected = session
    sizes = [100, 1_000_000, 1_000_000, 300_000, 70_000, 20, 3_000_000, 5, 5_000_000, 1_000_000, 10, 10]
    sent = list(enumerate(sizes))
    consumer = await reader(connected)
    peer.connection.send(*(event(peer, one) for one in sent))
    await check(consumer, *sent)
    assert fills[0]
    # The next events are small.
    for some in ([(20, 10)], [(21, 10), (22, 10)]):
        peer.connection.send(event(peer, *some))
        await check(consumer, *some)
    assert not fills[-1]
    assert connected.stats().bytes_received > sum(sizes)


async def test_a_connection_lost_within_a_large_event_loses_no_message(peer: Peer, fills: list[bool]) -> None:
    async with bmq.connect(peer.uri) as session:
        consumer = await reader(session)
        data = event(peer, (1, 10), (2, 2_000_000))
        peer.connection.send(event(peer, (0, 10)), data[:1_500_000])
        await check(consumer, (0, 10))
        await eventually(lambda: fills == [True] and session.stats().bytes_received > 1_500_000)
        peer.cut()
        await eventually(lambda: len(peer.connections) == 2 and 0 in peer.connection.s_ids)
        assert consumer.receive_nowait() is None, "half an event is no message"
        peer.connection.send(event(peer, (3, 10), (1, 10), (2, 2_000_000)))
        await check(consumer, (3, 10), (1, 10), (2, 2_000_000))
