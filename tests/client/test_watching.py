# SPDX-License-Identifier: Apache-2.0
"""Session events and host health, as the application sees them."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator

import pytest

import bmq
from bmq import events
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer
from tests.waiting import eventually


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
async def test_callback_may_raise_any_exception(
    peer: Peer, caplog: pytest.LogCaptureFixture, event: str
) -> None:
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
