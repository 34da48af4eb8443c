# SPDX-License-Identifier: Apache-2.0
"""Session events and host health, as the application sees them."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator

import pytest

import bmq
from bmq import events
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


async def test_every_iterator_yields_all_events_since_its_start(peer: Peer) -> None:
    outage = ["ConnectionLost", "Reconnecting", "Reconnected", "QueueReopened", "StateRestored"]
    async with bmq.connect(peer.uri) as session:
        first = session.events()
        await session.open_queue(URI, read=True, default_subscription=True)
        peer.cut()
        assert [type(await anext(first)).__name__ for _ in range(5)] == outage
        second = session.events()
        peer.cut()
        assert [type(await anext(second)).__name__ for _ in range(5)] == outage
        assert [type(await anext(first)).__name__ for _ in range(5)] == outage
    assert [event async for event in first] == [event async for event in second] == [events.Disconnected("")]


async def test_a_slow_iterator_loses_the_oldest_events(peer: Peer) -> None:
    begin, said = asyncio.Event(), asyncio.Event()

    class Monitor:
        async def __aiter__(self) -> AsyncIterator[bool]:
            await begin.wait()
            for _ in range(800):
                yield False
                yield True
            said.set()

    async with bmq.connect(peer.uri, host_health=Monitor()) as session:
        iterator = session.events()
        begin.set()
        await said.wait()
        got = [await anext(iterator) for _ in range(1000)]
        assert got[-1] == events.HostHealthRestored()


async def test_iterators_that_are_dropped_are_forgotten(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        dropped = weakref.WeakSet(session.events() for _ in range(100))
        gc.collect()
        assert not dropped


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
        async with bmq.connect(peer.uri, on_event=fail) as session:
            queue = await session.open_queue(URI, write=True)
            peer.cut()
            await queue.post(b"1")
            await eventually(lambda: session.stats().reconnects == 1)
    assert session.state is bmq.SessionState.CLOSED
    assert f"the session event callback failed on {event}" in caplog.text


async def test_a_callback_may_end_the_program(peer: Peer) -> None:
    def leave(happened: events.SessionEvent) -> None:
        if isinstance(happened, events.ConnectionLost):
            raise SystemExit(3)

    ended: list[object] = []

    def work() -> None:
        async def main() -> None:
            async with bmq.connect(peer.uri, on_event=leave) as session:
                queue = await session.open_queue(URI, write=True)
                await queue.post(b"1")
                await asyncio.Event().wait()

        with pytest.raises(SystemExit) as caught:
            asyncio.run(main())
        ended.append(caught.value.code)

    thread = threading.Thread(target=work)
    thread.start()
    await eventually(lambda: peer.posted)
    peer.cut()
    await eventually(lambda: ended == [3])
    thread.join()


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


# host health


async def test_a_failing_health_monitor_is_logged(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    class Monitor:
        async def __aiter__(self) -> AsyncIterator[bool]:
            yield False
            raise ValueError("no such disk")

    async with bmq.connect(peer.uri, host_health=Monitor()) as session:
        queue = await session.open_queue(URI, write=True, suspends_on_bad_host_health=True)
        with pytest.raises(bmq.StateError, match="suspended"):
            queue.post_nowait(b"1")
    assert "the host health monitor failed" in caplog.text
