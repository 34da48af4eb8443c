# SPDX-License-Identifier: Apache-2.0
"""Silent links, over sockets: found whatever the direction, the traffic and the broker's configuration."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

import bmq
from bmq.events import ConnectionLost, SessionEvent
from bmq.testing import Direction, FaultProxy
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/"
LIVENESS = 0.2
FAST: dict[str, Any] = {"liveness": LIVENESS, "reconnect_delays": lambda: itertools.repeat(0.001)}
COUNT = 20


class Party:
    """A session with its own proxy and queue.

    Attributes:
        posting: whether the session posts.
        receiving: whether the session receives.
        happened: events of the session.
        posted: outcomes of the posts.
        received: payloads received and confirmed.
    """

    def __init__(self, name: str, broker: bmq.broker.Broker) -> None:
        self.name = name
        self.posting, self.receiving = name in ("posting", "both"), name in ("receiving", "both")
        self.happened: list[SessionEvent] = []
        self.posted: list[asyncio.Future[bmq.Ack]] = []
        self.received: set[bytes] = set()
        self.proxy = FaultProxy(broker.uri)
        self._task: asyncio.Task[None] | None = None

    async def begin(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self.proxy)
        self.session = await stack.enter_async_context(
            bmq.connect(self.proxy.uri, on_event=self.happened.append, **FAST)
        )
        self.queue = await self.session.open_queue(
            URI + self.name, read=self.receiving, write=self.posting or not self.receiving
        )
        if self.receiving:
            self._task = asyncio.ensure_future(self._receive())
            stack.callback(self._task.cancel)

    async def _receive(self) -> None:
        async for message in self.queue:
            self.received.add(message.data)
            message.confirm()

    def post(self, number: int) -> None:
        if self.posting:
            self.posted.append(self.queue.post_nowait(b"%d" % number))

    @property
    def losses(self) -> list[str]:
        return [event.reason for event in self.happened if isinstance(event, ConnectionLost)]


@pytest.mark.parametrize("heartbeats", [0, 10], ids=["broker without heartbeats", "with heartbeats"])
@pytest.mark.parametrize(
    "direction", [None, *Direction], ids=lambda each: each.value if each else "both ways"
)
async def test_silent_link_is_dropped_without_loss(direction: Direction | None, heartbeats: int) -> None:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(bmq.broker.Broker(max_missed_heartbeats=heartbeats))
        parties = [Party(name, broker) for name in ("idle", "posting", "receiving", "both")]
        for party in parties:
            await party.begin(stack)
        direct = await stack.enter_async_context(bmq.connect(broker.uri))
        queues = {p.name: await direct.open_queue(URI + p.name, write=True) for p in parties}
        links = [party.proxy.connections[0] for party in parties]
        for number in range(2 * COUNT):
            if number == COUNT:
                for link in links:
                    link.swallow(direction)
            for party in parties:
                party.post(number)
                if party.receiving:
                    await queues[party.name].post(b"other %d" % number)
        await eventually(lambda: all(party.losses for party in parties))
        for link in links:
            link.cut()  # the broker's own TCP has given the old connections up
        for party in parties:
            await asyncio.gather(*party.posted)
        expected = {b"other %d" % number for number in range(2 * COUNT)}
        posted = {b"%d" % number for number in range(2 * COUNT)}
        await eventually(lambda: parties[2].received == expected)
        await eventually(lambda: parties[3].received == expected | posted)
        await eventually(lambda: all(party.session.health().ready for party in parties))
        for party in parties:
            assert len(party.losses) == 1
            (seconds,) = re.findall(
                r"the broker (?:has been silent|has not answered) for (\S+) s", party.losses[0]
            )
            assert float(seconds) >= LIVENESS


async def test_a_slow_application_does_not_drop_the_connection(peer: Peer) -> None:
    happened: list[SessionEvent] = []
    async with bmq.connect(peer.uri, max_buffered_messages=4, on_event=happened.append, **FAST) as session:
        queue = await session.open_queue(URI + "slow", read=True, default_subscription=True)
        peer.connection.push(*range(10))
        await eventually(lambda: session.health().degraded)
        peer.hold.add("HEARTBEAT_REQ")
        assert session.health().silent_seconds is None, "silence is not measured while nothing is read"
        assert str(session.health()).startswith("degraded: the application does not keep up")
        assert len(await queue.receive_many()) == 10
        await eventually(lambda: any(isinstance(event, ConnectionLost) for event in happened))


# the operating system's own checks


def option(session: bmq.Session, name: str) -> int | None:
    transport = cast("Any", session._driver.connection._channel)._transport
    level = socket.SOL_SOCKET if name.startswith("SO_") else socket.IPPROTO_TCP
    number = getattr(socket, name, None)
    return None if number is None else transport.get_extra_info("socket").getsockopt(level, number)


async def test_the_kernel_probes_follow_the_limit(peer: Peer) -> None:
    async with bmq.connect(peer.uri, liveness=30) as session:
        assert option(session, "SO_KEEPALIVE")
        assert option(session, "TCP_KEEPIDLE") in (10, None)
        assert option(session, "TCP_KEEPINTVL") in (10, None)
        assert option(session, "TCP_KEEPCNT") in (3, None)
        assert option(session, "TCP_USER_TIMEOUT") in (60_000, None)
    async with bmq.connect(peer.uri, liveness=None) as session:
        assert option(session, "SO_KEEPALIVE")
        assert option(session, "TCP_USER_TIMEOUT") in (0, None)


async def test_paused_reading_does_not_drop_the_connection(peer: Peer) -> None:
    async with bmq.connect(peer.uri, max_buffered_messages=4) as session:
        queue = await session.open_queue(URI + "paused", read=True, default_subscription=True)
        peer.connection.push(*range(10))
        await eventually(lambda: session.health().degraded)
        await eventually(lambda: option(session, "TCP_USER_TIMEOUT") in (0, None))
        await queue.receive_many()
        await eventually(lambda: option(session, "TCP_USER_TIMEOUT") in (20_000, None))


async def test_a_platform_without_socket_options_is_supported(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT"):
        monkeypatch.delattr(socket, name, raising=False)
    async with bmq.connect(peer.uri) as session:
        assert session.state is bmq.SessionState.STARTED
