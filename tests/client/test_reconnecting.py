# SPDX-License-Identifier: Apache-2.0
"""Lost connections: speed and order of the restoration, and the end of the attempts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bmq
from bmq.events import (
    ConnectionLost,
    Disconnected,
    QueueReopenFailed,
    Reconnected,
    Reconnecting,
    SessionEvent,
    StateRestored,
)
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"
AT_ONCE: dict[str, Any] = {"reconnect_delays": lambda: itertools.repeat(0.001)}


@asynccontextmanager
async def session_with_events(
    peer: Peer, **options: Any
) -> AsyncIterator[tuple[bmq.Session, list[SessionEvent]]]:
    happened: list[SessionEvent] = []
    async with bmq.connect(peer.uri, on_event=happened.append, **options) as session:
        yield session, happened


async def _turns_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - else what lasts for a moment is missed
            await asyncio.sleep(0)


async def test_restored_session_resumes_its_queues(peer: Peer) -> None:
    async with session_with_events(peer) as (session, happened):
        queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
        peer.hold.add("PUT")
        pending = [queue.post_nowait(b"%d" % n) for n in range(5)]
        await eventually(lambda: len(peer.connection.script.puts) == 5)
        first = list(peer.connection.script.puts)
        peer.cut()
        await _turns_until(lambda: session.state is bmq.SessionState.RECONNECTING)
        pending += [queue.post_nowait(b"%d" % n) for n in range(5, 8)]
        await eventually(lambda: len(peer.connections) == 2 and len(peer.connection.script.puts) == 8)
        assert peer.log == ["clientIdentity", "OpenQueue", "ConfigureStream", "PUT"]
        assert peer.connection.script.puts[:5] == first  # the same GUIDs, in the same order
        peer.answer("PUT")
        acks = await asyncio.gather(*pending)
        assert [bytes.fromhex(ack.guid) for ack in acks[:5]] == [put.guid for put in first]
        assert peer.posted == list(range(8))
        names = [type(event).__name__ for event in happened]
        assert names == [
            "Connected",
            "ConnectionLost",
            "Reconnecting",
            "Reconnected",
            "QueueReopened",
            "StateRestored",
        ]
        assert session.stats().reconnects == 1


async def test_available_broker_is_reached_by_the_first_attempt(broker: bmq.broker.Broker) -> None:
    attempts: list[Reconnecting] = []
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
        events = session.events()
        for _ in range(15):
            await queue.post(b"x")
            for connection in broker._connections:
                assert connection.transport is not None
                connection.transport.abort()
            async for event in events:
                if isinstance(event, Reconnecting):
                    attempts.append(event)
                if isinstance(event, StateRestored):
                    break
    assert [attempt.attempt for attempt in attempts] == [1] * 15
    assert max(attempt.delay for attempt in attempts) <= 0.01


async def test_a_subscription_is_taken_back_without_waiting_for_a_broker_that_is_away() -> None:
    broker = bmq.broker.Broker()
    await broker.start()
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        one, other = await queue.subscribe("x == 1"), await queue.subscribe("x == 2")
        events = session.events()
        await broker.stop(graceful=False)
        async with asyncio.timeout(20):
            await one.close()
        again = bmq.broker.Broker(port=broker.port)
        async with again:
            async for event in events:
                if isinstance(event, StateRestored):
                    break
            acks = [await queue.post(b"x", properties={"x": number}) for number in (1, 2)]
            message = await other.receive(timeout=20)
            assert message.guid == acks[1].guid
            assert queue.unclaimed == 0  # the first message was not delivered: no consumer matches


async def test_the_first_attempt_follows_at_once_and_later_attempts_back_off() -> None:
    delays = [next(bmq.reconnect_delays()) for _ in range(500)]
    assert max(delays) <= 0.01
    assert len(set(delays)) > 400  # not all clients at the same moment
    generator = bmq.reconnect_delays(base=0.1, factor=2, cap=1)
    next(generator)
    for limit in (0.1, 0.2, 0.4, 0.8, 1, 1, 1):
        assert 0 <= next(generator) <= limit
    many = [list(zip(range(50), bmq.reconnect_delays(), strict=False)) for _ in range(300)]
    assert min(run[7][1] for run in many) < 0.1  # full jitter: from zero to the limit
    assert max(run[7][1] for run in many) > 0.8
    # After any outage, the next attempt follows within a second of the broker's return.
    assert max(delay for run in many for _, delay in run) <= 1


async def test_attempts_continue_until_the_broker_is_back() -> None:
    peer = Peer()
    await peer.start()
    async with session_with_events(peer, reconnect_delays=lambda: iter([0.005] * 10_000)) as (
        session,
        happened,
    ):
        queue = await session.open_queue(URI, write=True)
        await peer.stop()
        pending = queue.post_nowait(b"1")
        await eventually(lambda: sum(isinstance(e, Reconnecting) for e in happened) >= 5)
        attempts = [event for event in happened if isinstance(event, Reconnecting)]
        assert [event.attempt for event in attempts] == list(range(1, len(attempts) + 1))
        assert attempts[0].address == peer.uri
        await peer.start()
        await pending
        assert peer.posted == [1]
    await peer.stop()


async def test_no_cut_while_posting_ends_the_session(peer: Peer) -> None:
    async with bmq.connect(peer.uri, **AT_ONCE) as session:
        queue = await session.open_queue(URI, write=True)
        posts: list[asyncio.Future[bmq.Ack]] = []

        async def post() -> None:
            """In every turn of the loop, including between the ends of stream and transport."""
            while True:
                if queue.unacked < 1000:
                    posts.append(queue.post_nowait(b"1"))
                await asyncio.sleep(0)

        posting = asyncio.ensure_future(post())
        for cut in range(1, 21):
            transport = peer.connection.transport
            assert transport is not None
            transport.abort() if cut % 2 else transport.close()
            await eventually(lambda cut=cut: session.stats().reconnects == cut and len(posts) > cut * 10)
        posting.cancel()
        assert len(await asyncio.gather(*posts)) == len(posts)


async def test_another_address_takes_over() -> None:
    first, second = Peer(), Peer()
    await first.start()
    await second.start()
    async with bmq.connect(f"{first.uri},{second.uri}", **AT_ONCE) as session:
        queue = await session.open_queue(URI, write=True)
        await queue.post(b"1")
        await first.stop()
        await queue.post(b"2")
        assert (first.posted, second.posted) == ([1], [2])
    await second.stop()


async def test_a_broker_that_accepts_and_closes_is_tried_less_often(peer: Peer) -> None:
    asked: list[int] = []

    def delays() -> Iterator[float]:
        asked.append(0)
        while True:
            asked[-1] += 1
            yield 0.0 if asked[-1] <= 3 else 60.0

    async with session_with_events(peer, reconnect_delays=delays) as (session, happened):
        # For a while, each connection lives a few milliseconds.
        for cuts in range(1, 24):
            peer.cut()
            if cuts < 23:
                await eventually(lambda n=cuts: sum(isinstance(e, StateRestored) for e in happened) == n)
        await eventually(lambda: isinstance(happened[-1], Reconnecting) and happened[-1].delay == 60.0)
        assert asked == [1] * 19 + [4]
        assert session.state is bmq.SessionState.RECONNECTING


async def test_a_deadline_ends_the_attempts() -> None:
    peer = Peer()
    await peer.start()
    async with session_with_events(peer, reconnect_timeout=0.1, **AT_ONCE) as (session, happened):
        queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
        receiving = asyncio.ensure_future(queue.receive())
        peer.hold.add("PUT")
        pending = queue.post_nowait(b"1")
        await peer.stop()
        with pytest.raises(bmq.PostError) as caught:
            await pending
        assert caught.value.status is bmq.AckStatus.CANCELED
        with pytest.raises(bmq.SessionClosed, match="not reconnected"):
            await receiving
        assert session.state is bmq.SessionState.CLOSED
        last = happened[-1]
        assert isinstance(last, Disconnected)
        assert "not reconnected" in last.reason
        with pytest.raises(bmq.SessionClosed):
            await session.open_queue(URI, write=True)
        assert (await session.close()).clean


async def test_reconnecting_can_be_turned_off(peer: Peer) -> None:
    async with session_with_events(peer, reconnect=False) as (session, happened):
        peer.cut()
        await eventually(lambda: type(happened[-1]).__name__ == "Disconnected")
        assert session.state is bmq.SessionState.CLOSED
        assert [type(event).__name__ for event in happened] == ["Connected", "ConnectionLost", "Disconnected"]


@pytest.mark.parametrize("refused", ["clientIdentity", "authenticationRequest"])
async def test_a_refusal_ends_the_attempts(peer: Peer, refused: str) -> None:
    async with session_with_events(peer, credentials=bmq.Credentials("BASIC", b"a:b"), **AT_ONCE) as (
        session,
        _,
    ):
        peer.refuse.add(refused)
        peer.cut()
        await eventually(lambda: session.state is bmq.SessionState.CLOSED)


async def test_garbage_ends_a_connection_and_not_the_session(peer: Peer) -> None:
    async with session_with_events(peer, **AT_ONCE) as (session, happened):
        queue = await session.open_queue(URI, write=True)
        peer.connection.send(b"\xff" * 100)
        await eventually(lambda: any(isinstance(event, StateRestored) for event in happened))
        lost = next(event for event in happened if isinstance(event, ConnectionLost))
        assert "fragmented" in lost.reason
        await queue.post(b"1")


async def test_failed_reopening_is_reported_to_users_of_the_queue_only(peer: Peer) -> None:
    async with session_with_events(peer, **AT_ONCE) as (session, happened):
        gone = await session.open_queue(URI, read=True, default_subscription=True, write=True)
        other = await session.open_queue("bmq://bmq.test.mem.priority/other", write=True)
        receiving = asyncio.ensure_future(gone.receive())
        looping = asyncio.ensure_future(_collect(gone))
        flushing = asyncio.ensure_future(gone.flush())
        peer.hold |= {"PUT", "OpenQueue"}
        lost, kept = gone.post_nowait(b"1"), other.post_nowait(b"2")
        await asyncio.sleep(0)
        peer.cut()
        await eventually(lambda: len(peer.connections) == 2 and len(peer.connection.script.requests) == 2)
        script = peer.connection.script
        peer.connection.send(script.refuse(script.requests.popleft()))
        peer.answer("PUT", "OpenQueue")
        for waiting in (receiving, looping):
            with pytest.raises(bmq.OpenQueueError, match="not here"):
                await waiting
        with pytest.raises(bmq.PostError):
            await lost
        await kept
        await flushing
        assert gone.closed
        assert session.queues == [other]
        assert any(isinstance(event, QueueReopenFailed) for event in happened)
        with pytest.raises(bmq.QueueClosed):
            await gone.post(b"3")
        await gone.close()
        await session.open_queue(URI, read=True, default_subscription=True)


async def _collect(queue: bmq.Queue) -> list[bytes]:
    return [message.data async for message in queue]


async def test_a_connection_lost_during_restoration_is_restored(peer: Peer) -> None:
    async with session_with_events(peer, **AT_ONCE) as (session, happened):
        queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
        for held in ("clientIdentity", "OpenQueue", "ConfigureStream", "PUT"):
            peer.hold = {held}
            connections = len(peer.connections)
            pending = queue.post_nowait(b"1")
            peer.cut()
            await eventually(lambda n=connections, h=held: len(peer.connections) > n and h in peer.log)
            peer.hold = set()
            peer.cut()
            await pending
        assert any(isinstance(event, Reconnected) for event in happened)


async def test_silence_is_noticed_and_overcome(peer: Peer) -> None:
    peer.welcome = {"interval_ms": 20, "max_missed": 2}
    peer.hold.add("HEARTBEAT_REQ")
    async with session_with_events(peer, **AT_ONCE) as (_, happened):
        peer.welcome = {}
        await eventually(lambda: any(isinstance(event, StateRestored) for event in happened))
        lost = next(event for event in happened if isinstance(event, ConnectionLost))
        assert "silent" in lost.reason


async def test_closing_wins_over_reconnecting_at_every_stage() -> None:
    for held in ("", "clientIdentity", "OpenQueue", "ConfigureStream"):
        async with Peer() as peer:
            session = await bmq.connect(peer.uri, **AT_ONCE)
            await session.open_queue(URI, read=True, default_subscription=True)
            if held:
                peer.hold = {held}
            else:
                await peer.stop()
            peer.cut()
            if held:
                await eventually(lambda p=peer, h=held: len(p.connections) > 1 and h in p.log)
            else:
                await eventually(lambda s=session: s.state is bmq.SessionState.RECONNECTING)
            async with asyncio.timeout(20):
                report = await session.close(timeout=0.2)
            assert session.state is bmq.SessionState.CLOSED
            if held in ("", "clientIdentity"):
                assert report.clean
            await asyncio.sleep(0)  # the cancelled tasks run for the last time
            assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing could bring it back to life"


def _cancel_every_task() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.parametrize("turns", [0, 3], ids=["before its first step", "while it waits"])
async def test_cancelling_all_tasks_ends_the_session_without_hanging(peer: Peer, turns: int) -> None:
    session = await bmq.connect(peer.uri, reconnect_delays=lambda: iter([60.0]))
    queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
    peer.cut()
    await _turns_until(lambda: session.state is bmq.SessionState.RECONNECTING)
    for _ in range(turns):
        await asyncio.sleep(0)
    pending = queue.post_nowait(b"1")
    _cancel_every_task()
    async with asyncio.timeout(20):
        with pytest.raises(bmq.PostError):
            await pending
        with pytest.raises(bmq.SessionClosed, match="cancelled"):
            await queue.receive()
    await session.close()


async def test_cancelling_all_tasks_during_close_ends_the_session_at_once(peer: Peer) -> None:
    session = await bmq.connect(peer.uri)
    queue = await session.open_queue(URI, write=True)
    peer.hold = {"PUT"}
    pending = queue.post_nowait(b"1")
    closing = asyncio.ensure_future(session.close(timeout=60))
    # This task, the caller's task, and the session's task, not run yet.
    await _turns_until(lambda: len(asyncio.all_tasks()) == 3)
    _cancel_every_task()
    async with asyncio.timeout(20):
        with pytest.raises(bmq.PostError):
            await pending
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert session.state is bmq.SessionState.CLOSED
    await session.close()


@pytest.mark.parametrize("drop", [True, False])
async def test_confirmed_redeliveries_are_dropped_unless_they_are_wanted(peer: Peer, drop: bool) -> None:
    async with session_with_events(peer, drop_confirmed_redeliveries=drop, **AT_ONCE) as (session, happened):
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        peer.connection.push(1)
        message = await queue.receive(30)
        peer.cut()
        await eventually(lambda: any(isinstance(event, bmq.events.ConnectionLost) for event in happened))
        message.confirm()
        await eventually(lambda: any(isinstance(event, bmq.events.StateRestored) for event in happened))
        peer.connection.push(1, 2)
        found = [(await queue.receive(30)).data for _ in range(1 if drop else 2)]
        assert found == ([b"2"] if drop else [b"1", b"2"])
