# SPDX-License-Identifier: Apache-2.0
"""The health of a session and of its host, and session events, as the application sees them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

import bmq
from bmq import events
from bmq.wire.control import StatusCategory
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer
from tests.waiting import eventually


@asynccontextmanager
async def connected(peer: Peer, **options: Any) -> AsyncIterator[bmq.Session]:
    async with bmq.connect(peer.uri, reconnect_delays=lambda: itertools.repeat(0.001), **options) as session:
        yield session


async def test_a_session_is_ready_while_it_is_connected(peer: Peer) -> None:
    session = await bmq.connect(peer.uri)
    assert session.address == peer.uri
    health = session.health()
    assert (health.ready, health.degraded, health.troubles, str(health)) == (True, False, (), "ready")
    assert timedelta(0) <= datetime.now(UTC) - health.since < timedelta(seconds=60)
    assert session.health().since == health.since
    await session.close()
    health = session.health()
    assert not health.ready
    assert str(health) == "not ready: the session is over"


async def test_a_lost_connection_is_a_trouble_until_every_queue_is_reopened(peer: Peer) -> None:
    async with connected(peer) as session:
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
    async with connected(peer) as session:
        await session.open_queue(URI, write=True)
        peer.refuse.add("OpenQueue")
        peer.cut()
        await eventually(lambda: session.health().degraded)
        assert f"{URI} could not be reopened, and is closed: " in str(session.health())
        peer.refuse.clear()
        await session.open_queue(URI, write=True)
        assert str(session.health()) == "ready"


@pytest.mark.parametrize("answered", [True, False], ids=["refused", "not answered"])
@pytest.mark.parametrize("request_", ["OpenQueue", "ConfigureStream"])
async def test_a_queue_not_reopened_yet_degrades_the_session(
    peer: Peer, request_: str, answered: bool
) -> None:
    peer.refused_as = StatusCategory.E_NOT_READY
    async with connected(peer, open_timeout=5 if answered else 0.05) as session:
        queue = await session.open_queue(URI, read=True, write=True, default_subscription=True, timeout=30.0)
        (peer.refuse if answered else peer.hold).add(request_)
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
    peer.refused_as = StatusCategory.E_NOT_READY
    async with connected(peer) as session:
        events = session.events()
        writing = await session.open_queue(URI, write=True)
        await session.open_queue(URI, read=True, default_subscription=True)
        peer.refuse.add("OpenQueue")
        peer.cut()
        for _ in range(2):
            while not isinstance(await anext(events), bmq.events.QueueReopenDelayed):
                pass
        if leave == "closed":
            await writing.close()
        else:
            # The reading side is refused for now at its second step.
            peer.refuse = {"ConfigureStream"}
            while not isinstance(await anext(events), bmq.events.QueueReopened):
                pass
        assert str(session.health()).startswith(f"degraded: {URI} could not be reopened yet")
        peer.refuse.clear()
        await eventually(lambda: str(session.health()) == "ready")


async def test_a_slow_application_does_not_drop_the_connection(peer: Peer) -> None:
    async with connected(peer, liveness=0.2, max_buffered_messages=4) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        peer.connection.push(*range(10))
        await eventually(lambda: session.health().degraded)
        peer.hold.add("HEARTBEAT_REQ")
        assert session.health().silent_seconds is None, "silence is not measured while nothing is read"
        assert str(session.health()).startswith("degraded: the application does not keep up")
        assert len(await queue.receive_many()) == 10
        await eventually(lambda: session.stats().reconnects > 0)


def option(session: bmq.Session, name: str) -> int | None:
    transport = cast("Any", session._connection.channel)._transport
    level = socket.SOL_SOCKET if name.startswith("SO_") else socket.IPPROTO_TCP
    number = getattr(socket, name, None)
    return None if number is None else transport.get_extra_info("socket").getsockopt(level, number)


async def test_the_kernel_probes_follow_the_limit_while_the_session_reads(peer: Peer) -> None:
    async with bmq.connect(peer.uri, liveness=30, max_buffered_messages=4) as session:
        assert option(session, "SO_KEEPALIVE")
        assert option(session, "TCP_KEEPIDLE") in (10, None)
        assert option(session, "TCP_KEEPINTVL") in (10, None)
        assert option(session, "TCP_KEEPCNT") in (3, None)
        assert option(session, "TCP_USER_TIMEOUT") in (60_000, None)
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        peer.connection.push(*range(10))
        await eventually(lambda: option(session, "TCP_USER_TIMEOUT") in (0, None))
        await queue.receive_many()
        await eventually(lambda: option(session, "TCP_USER_TIMEOUT") in (60_000, None))
    async with bmq.connect(peer.uri, liveness=None) as session:
        assert option(session, "SO_KEEPALIVE")
        assert option(session, "TCP_USER_TIMEOUT") in (0, None)


async def test_a_platform_may_lack_socket_options(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT"):
        monkeypatch.delattr(socket, name, raising=False)
    async with bmq.connect(peer.uri) as session:
        assert session.state is bmq.SessionState.STARTED


async def test_every_iterator_yields_all_events_since_its_start(peer: Peer) -> None:
    outage = ["ConnectionLost", "Reconnecting", "Reconnected", "QueueReopened", "StateRestored"]

    async def next_five(iterator: AsyncIterator[events.SessionEvent]) -> list[str]:
        return [type(await anext(iterator)).__name__ for _ in range(5)]

    async with bmq.connect(peer.uri) as session:
        first = session.events()
        await session.open_queue(URI, read=True, default_subscription=True)
        peer.cut()
        assert await next_five(first) == outage
        second = session.events()
        peer.cut()
        assert await next_five(second) == await next_five(first) == outage
        dropped = weakref.WeakSet(session.events() for _ in range(100))
        gc.collect()
        assert not dropped
    assert [event async for event in first] == [event async for event in second] == [events.Disconnected("")]


async def test_a_slow_iterator_loses_the_oldest_events(peer: Peer) -> None:
    begin, said = asyncio.Event(), asyncio.Event()

    async def monitor() -> AsyncIterator[bool]:
        await begin.wait()
        for number in range(1600):
            yield bool(number % 2)
        said.set()

    async with bmq.connect(peer.uri, host_health=monitor()) as session:
        iterator = session.events()
        begin.set()
        await said.wait()
        got = [await anext(iterator) for _ in range(1000)]
        assert got[-1] == events.HostHealthRestored()


@pytest.mark.parametrize("event", ["ConnectionLost", "StateRestored", "Disconnected"])
async def test_callback_may_raise_anything(peer: Peer, caplog: pytest.LogCaptureFixture, event: str) -> None:
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()

    def fail(happened: events.SessionEvent) -> None:
        if type(happened).__name__ == event:
            cancelled.result()

    async with asyncio.timeout(30):
        async with opened(peer, write=True, on_event=fail) as (session, queue):
            peer.cut()
            await queue.post(b"1")
            await eventually(lambda: session.stats().reconnects == 1)
    assert session.state is bmq.SessionState.CLOSED
    assert f"the session event callback failed on {event}" in caplog.text


async def test_a_callback_may_end_the_program(peer: Peer) -> None:
    def leave(happened: events.SessionEvent) -> None:
        if isinstance(happened, events.ConnectionLost):
            raise SystemExit(3)

    async def main() -> None:
        async with opened(peer, write=True, on_event=leave) as (_, queue):
            await queue.post(b"1")
            await asyncio.Event().wait()

    def work() -> None:
        with pytest.raises(SystemExit, match="3"):
            asyncio.run(main())

    working = asyncio.ensure_future(asyncio.to_thread(work))
    await eventually(lambda: peer.posted)
    peer.cut()
    await working


async def test_library_bug_ends_the_session_and_all_waiting_calls(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = await bmq.connect(peer.uri)
    queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
    peer.hold.add("PUT")
    pending = queue.post_nowait(b"1")
    receiving = asyncio.ensure_future(queue.receive())
    await eventually(lambda: peer.connection.script.puts)
    monkeypatch.setattr(session._connection.core, "_pushed", None)
    with caplog.at_level(logging.CRITICAL, "bmq"):
        peer.connection.push(1)
        with pytest.raises(bmq.PostError):
            await pending
    with pytest.raises(bmq.SessionClosed, match="internal error"):
        await receiving
    assert "internal error" in caplog.text
    assert "Traceback" in caplog.text  # who reports it needs no second run
    assert session.state is bmq.SessionState.CLOSED
    await session.close()
    await eventually(lambda: peer.connection.transport is None)


async def test_a_failing_health_monitor_is_logged(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    async def monitor() -> AsyncIterator[bool]:
        yield False
        raise ValueError("no such disk")

    async with opened(peer, write=True, suspends_on_bad_host_health=True, host_health=monitor()) as (
        _session,
        queue,
    ):
        with pytest.raises(bmq.StateError, match="suspended"):
            queue.post_nowait(b"1")
    assert "the host health monitor failed" in caplog.text
