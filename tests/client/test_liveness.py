# SPDX-License-Identifier: Apache-2.0
"""Silent links, over sockets: found whatever the direction, the traffic and the broker's configuration."""

from __future__ import annotations

import itertools
import socket
from typing import Any, cast

import pytest

import bmq
from bmq.events import ConnectionLost, SessionEvent
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/"
LIVENESS = 0.2
FAST: dict[str, Any] = {"liveness": LIVENESS, "reconnect_delays": lambda: itertools.repeat(0.001)}


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
    transport = cast("Any", session._connection.channel)._transport
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
