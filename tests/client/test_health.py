# SPDX-License-Identifier: Apache-2.0
"""How a session says that it is, and since when."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import pytest

import bmq
from bmq.wire.control import StatusCategory
from bmq.workers import SubscriberState
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


def refuse_for_now(peer: Peer, *requests: str) -> None:
    peer.refused_as = StatusCategory.E_NOT_READY
    peer.refuse |= set(requests)


@pytest.mark.parametrize("request_", ["OpenQueue", "ConfigureStream"])
async def test_a_queue_that_is_refused_for_now_degrades_the_session_until_it_is_open_again(
    peer: Peer, request_: str
) -> None:
    async with bmq.connect(peer.uri, reconnect_delays=lambda: itertools.repeat(0.001)) as session:
        queue = await session.open_queue(URI, read=True, write=True, default_subscription=True)
        refuse_for_now(peer, request_)
        peer.cut()
        await eventually(lambda: session.health().degraded)
        assert session.health().ready
        assert str(session.health()).startswith(f"degraded: {URI} is not open again yet, tried again: ")
        assert "E_NOT_READY" in str(session.health())
        peer.refuse.clear()
        await eventually(lambda: str(session.health()) == "ready")
        await queue.post(b"1")


@pytest.mark.parametrize("request_", ["OpenQueue", "ConfigureStream"])
async def test_a_queue_whose_reopening_is_not_answered_degrades_the_session(
    peer: Peer, request_: str
) -> None:
    async with bmq.connect(
        peer.uri, open_timeout=0.05, reconnect_delays=lambda: itertools.repeat(0.001)
    ) as session:
        queue = await session.open_queue(URI, read=True, write=True, default_subscription=True)
        peer.hold.add(request_)
        peer.cut()
        await eventually(lambda: session.health().degraded)
        assert f"{URI} is not open again yet, tried again: " in str(session.health())
        peer.hold.clear()
        await eventually(lambda: str(session.health()) == "ready")
        await queue.post(b"1")


async def test_a_delayed_queue_that_is_closed_degrades_the_session_no_longer(peer: Peer) -> None:
    async with bmq.connect(peer.uri, reconnect_delays=lambda: itertools.repeat(0.001)) as session:
        queue = await session.open_queue(URI, write=True)
        refuse_for_now(peer, "OpenQueue")
        peer.cut()
        await eventually(lambda: session.health().degraded)
        await queue.close()
        assert str(session.health()) == "ready"


@pytest.mark.parametrize("leave", ["reopened", "closed"])
async def test_one_side_of_a_delayed_queue_says_nothing_about_the_other(peer: Peer, leave: str) -> None:
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
        assert str(session.health()).startswith(f"degraded: {URI} is not open again yet")
        peer.refuse.clear()
        await eventually(lambda: str(session.health()) == "ready")


async def test_a_session_that_gave_up_says_why(peer: Peer) -> None:
    async with bmq.connect(peer.uri, reconnect=False) as session:
        peer.cut()
        await eventually(lambda: session.state is bmq.SessionState.CLOSED)
        assert str(session.health()).startswith("not ready: the session is over: ")
        await asyncio.sleep(0)


# what stands still


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "bmq.client"]


async def test_posts_without_outcome_degrade_the_session_and_are_logged_once(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async with bmq.connect(peer.uri, liveness=0.2) as session:
        queue = await session.open_queue(URI, write=True)
        peer.hold.add("PUT")
        posts = [queue.post_nowait(b"%d" % number) for number in range(2400)]
        health = session.health()
        assert (str(health), health.oldest_unconfirmed_seconds) == ("ready", None)
        assert health.oldest_unacked_seconds is not None
        await eventually(lambda: session.health().degraded)
        health = session.health()
        assert str(health).startswith(
            f"degraded: the oldest of 2,400 posts to {URI} waits for its acknowledgement for "
        )
        assert health.ready
        assert health.oldest_unacked_seconds is not None
        assert health.oldest_unacked_seconds >= 0.1
        before = health.troubles[0]
        await eventually(lambda: session.health().troubles[0].what != before.what)  # the sentence is of now
        assert session.health().troubles[0].since == before.since
        peer.answer("PUT")
        await asyncio.gather(*posts)
        assert str(session.health()) == "ready"
        assert session.health().oldest_unacked_seconds is None
        begun, ended = lines(caplog)
        assert begun.startswith("the oldest of 2,400 posts")
        assert begun.endswith(f"; the connection to {peer.uri} is alive, and is kept")
        assert ended.startswith(f"{peer.uri} acknowledges posts again after ")


async def test_a_request_without_answer_degrades_the_session(peer: Peer) -> None:
    async with bmq.connect(peer.uri, liveness=0.2) as session:
        peer.hold.add("OpenQueue")
        opening = asyncio.ensure_future(session.open_queue(URI, write=True))
        await eventually(lambda: session.health().degraded)
        assert f"the broker has not answered openQueue of {URI} for " in str(session.health())
        peer.answer("OpenQueue")
        await opening
        assert str(session.health()) == "ready"


async def test_the_status_of_subscribers_shows_a_stall(peer: Peer) -> None:
    app = bmq.App(peer.uri, liveness=0.2)

    @app.consumer(URI)
    async def handle(message: bmq.Message) -> None: ...

    async with app:
        await eventually(lambda: app.status()[0].state is SubscriberState.ACTIVE)
        peer.hold.add("PUT")
        queue = await app.queue(f"{URI}.output")
        post = queue.post_nowait(b"1")
        await eventually(lambda: app.status()[0].state is SubscriberState.STALLED)
        assert " stalled " in str(app.status())
        peer.answer("PUT")
        await post
        await eventually(lambda: app.status()[0].state is SubscriberState.ACTIVE)


async def test_a_silent_broker_degrades_the_session_before_it_is_left(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async with bmq.connect(peer.uri, liveness=0.4) as session:
        assert session.health().silent_seconds is not None
        peer.hold.add("HEARTBEAT_REQ")
        await eventually(lambda: session.health().degraded)
        health = session.health()
        assert str(health).startswith("degraded: the broker is silent for ")
        assert health.silent_seconds is not None
        assert health.silent_seconds > 0.19
        peer.answer("HEARTBEAT_REQ")
        await eventually(lambda: not session.health().degraded)
        begun, ended = lines(caplog)
        assert begun.endswith("dropped if the silence goes on")
        assert "is heard again after " in ended


async def test_a_lost_connection_ends_what_had_stalled(peer: Peer) -> None:
    async with bmq.connect(
        peer.uri, liveness=0.2, reconnect_delays=lambda: itertools.repeat(0.001)
    ) as session:
        queue = await session.open_queue(URI, write=True)
        peer.hold.add("PUT")
        post = queue.post_nowait(b"1")
        await eventually(lambda: session.health().degraded)
        peer.hold.add("clientIdentity")
        peer.cut()
        await eventually(lambda: not session.health().ready)
        assert len(session.health().troubles) == 1
        assert session.health().silent_seconds is None
        peer.answer("PUT", "clientIdentity")
        await post
        await eventually(lambda: str(session.health()) == "ready")


async def test_messages_that_are_held_on_purpose_have_an_age_and_degrade_nothing(peer: Peer) -> None:
    async with bmq.connect(peer.uri, liveness=0.1) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        peer.connection.push(1)
        first = await queue.receive()
        peer.connection.push(2, 3)
        others = [await queue.receive() for _ in range(2)]
        await eventually(lambda: (session.health().oldest_unconfirmed_seconds or 0) > 0.15)
        assert str(session.health()) == "ready"
        for message in others:
            message.confirm()
        age = session.stats().oldest_unconfirmed_seconds
        assert age is not None
        assert age > 0.15, "the first one is held"
        first.confirm()
        assert session.health().oldest_unconfirmed_seconds is None


async def test_messages_that_move_or_go_back_leave_no_age_behind(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        peer.connection.push(*range(10))
        message = await queue.receive()
        assert session.health().oldest_unconfirmed_seconds is not None
        queue.confirm(message.guid)
        await queue.close()
        assert session.health().oldest_unconfirmed_seconds is None
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        peer.connection.push(*range(10, 20), q_id=1)
        await queue.receive()
        peer.cut()
        await eventually(lambda: session.stats().reconnects == 1)
        assert session.health().oldest_unconfirmed_seconds is None


async def test_without_a_limit_only_the_silence_is_unknown(peer: Peer) -> None:
    async with bmq.connect(peer.uri, liveness=None) as session:
        queue = await session.open_queue(URI, write=True)
        peer.hold.add("PUT")
        post = queue.post_nowait(b"1")
        health = session.health()
        assert health.silent_seconds is None
        assert health.oldest_unacked_seconds is not None
        peer.answer("PUT")
        await post
