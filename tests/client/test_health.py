# SPDX-License-Identifier: Apache-2.0
"""How a session says that it is, and since when."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import bmq
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


def is_recent(when: datetime) -> bool:
    return timedelta(0) <= datetime.now(UTC) - when < timedelta(seconds=60)


async def test_a_session_is_ready_while_it_is_connected(peer: Peer) -> None:
    session = await bmq.connect(peer.uri)
    assert session.address == peer.uri
    health = session.health()
    assert (health.ready, health.degraded, health.troubles, str(health)) == (True, False, (), "ready")
    assert is_recent(health.since)
    assert session.health().since == health.since
    await session.close()
    health = session.health()
    assert not health.ready
    assert str(health) == "not ready: the session is over"


async def test_a_lost_connection_is_trouble_until_every_queue_is_open_again(peer: Peer) -> None:
    async with bmq.connect(peer.uri, reconnect_delays=lambda: itertools.repeat(0.001)) as session:
        await session.open_queue(URI, read=True, default_subscription=True)
        ready = session.health()
        peer.hold |= {"clientIdentity", "OpenQueue"}
        peer.cut()
        await eventually(lambda: not session.health().ready)
        lost = session.health()
        assert not lost.degraded
        assert lost.since > ready.since
        (trouble,) = lost.troubles
        assert trouble.serious
        assert trouble.what.startswith("the connection was lost: ")
        peer.answer("clientIdentity")
        await eventually(lambda: "queues are being opened again" in str(session.health()))
        assert not session.health().ready
        assert session.health().since == lost.since
        assert session.health().troubles[0].since == trouble.since
        peer.answer("OpenQueue")
        await eventually(lambda: session.health().ready)
        assert session.health().since > lost.since


async def test_an_application_that_does_not_keep_up_degrades_the_session(peer: Peer) -> None:
    async with bmq.connect(peer.uri, max_buffered_messages=4) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        peer.connection.push(*range(10))
        await eventually(lambda: session.health().degraded)
        health = session.health()
        assert health.ready
        assert str(health) == "degraded: the application does not keep up: 10 messages waited for it"
        assert not health.troubles[0].serious
        await queue.receive_many()
        assert str(session.health()) == "ready"


async def test_a_suspended_queue_degrades_the_session_until_it_resumes_or_is_closed(peer: Peer) -> None:
    host = bmq.HostHealth()
    async with bmq.connect(peer.uri, host_health=host) as session:
        queue = await session.open_queue(URI, write=True, suspends_on_bad_host_health=True)
        host.set(False)
        await eventually(lambda: session.health().degraded)
        assert str(session.health()) == f"degraded: {URI} is suspended: the host is unhealthy"
        host.set(True)
        await eventually(lambda: not session.health().degraded)
        host.set(False)
        await eventually(lambda: session.health().degraded)
        await queue.close()
        assert str(session.health()) == "ready"


async def test_a_queue_that_was_not_opened_again_degrades_the_session_until_it_is(peer: Peer) -> None:
    async with bmq.connect(peer.uri, reconnect_delays=lambda: itertools.repeat(0.001)) as session:
        await session.open_queue(URI, write=True)
        peer.refuse.add("OpenQueue")
        peer.cut()
        await eventually(lambda: session.health().degraded)
        assert f"{URI} was not opened again, and is closed: " in str(session.health())
        peer.refuse.clear()
        await session.open_queue(URI, write=True)
        assert str(session.health()) == "ready"


async def test_a_session_that_gave_up_says_why(peer: Peer) -> None:
    async with bmq.connect(peer.uri, reconnect=False) as session:
        peer.cut()
        await eventually(lambda: session.state is bmq.SessionState.CLOSED)
        assert str(session.health()).startswith("not ready: the session is over: ")
        await asyncio.sleep(0)
