# SPDX-License-Identifier: Apache-2.0
"""The health of a session, and its start time."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest

import bmq
from bmq.wire.control import StatusCategory
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


async def test_a_lost_connection_is_a_trouble_until_every_queue_is_reopened(peer: Peer) -> None:
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


async def test_queue_closed_by_a_failed_reopening_degrades_the_session_until_opened(peer: Peer) -> None:
    async with bmq.connect(peer.uri, reconnect_delays=lambda: itertools.repeat(0.001)) as session:
        await session.open_queue(URI, write=True)
        peer.refuse.add("OpenQueue")
        peer.cut()
        await eventually(lambda: session.health().degraded)
        assert f"{URI} could not be reopened, and is closed: " in str(session.health())
        peer.refuse.clear()
        await session.open_queue(URI, write=True)
        assert str(session.health()) == "ready"


def refuse_for_now(peer: Peer, *requests: str) -> None:
    peer.refused_as = StatusCategory.E_NOT_READY
    peer.refuse |= set(requests)


@pytest.mark.parametrize("answered", [True, False], ids=["refused", "not answered"])
@pytest.mark.parametrize("request_", ["OpenQueue", "ConfigureStream"])
async def test_a_queue_that_cannot_be_reopened_yet_degrades_the_session(
    peer: Peer, request_: str, answered: bool
) -> None:
    async with bmq.connect(
        peer.uri, open_timeout=5 if answered else 0.05, reconnect_delays=lambda: itertools.repeat(0.001)
    ) as session:
        queue = await session.open_queue(URI, read=True, write=True, default_subscription=True, timeout=30.0)
        if answered:
            refuse_for_now(peer, request_)
        else:
            peer.hold.add(request_)
        peer.cut()
        await eventually(lambda: session.health().degraded)
        assert session.health().ready
        assert str(session.health()).startswith(f"degraded: {URI} could not be reopened yet, trying again: ")
        assert ("E_NOT_READY" in str(session.health())) is answered
        peer.refuse.clear()
        peer.hold.clear()
        await eventually(lambda: str(session.health()) == "ready")
        await queue.post(b"1")


@pytest.mark.parametrize("leave", ["reopened", "closed"])
async def test_sides_of_a_delayed_queue_are_reported_separately(peer: Peer, leave: str) -> None:
    async with bmq.connect(peer.uri, reconnect_delays=lambda: itertools.repeat(0.001)) as session:
        events = session.events()
        writing = await session.open_queue(URI, write=True)
        await session.open_queue(URI, read=True, default_subscription=True)
        refuse_for_now(peer, "OpenQueue")
        peer.cut()
        delayed = 0
        async for event in events:
            delayed += isinstance(event, bmq.events.QueueReopenDelayed)
            if delayed == 2:
                break
        if leave == "closed":
            await writing.close()
        else:
            # The reading side is refused for now at its second step.
            peer.refuse = {"ConfigureStream"}
            async for event in events:
                if isinstance(event, bmq.events.QueueReopened):
                    break
        assert str(session.health()).startswith(f"degraded: {URI} could not be reopened yet")
        peer.refuse.clear()
        await eventually(lambda: str(session.health()) == "ready")


# what stands still
