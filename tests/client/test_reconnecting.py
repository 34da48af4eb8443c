# SPDX-License-Identifier: Apache-2.0
"""Lost connections, also because of the broker's data: the restoration, pauses, causes, and the end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import repeat
from typing import Any

import pytest

import bmq
from bmq.client import dialer
from bmq.client.address import violation_in
from bmq.client.dialer import MOST_VIOLATIONS as MOST
from bmq.events import Disconnected, QueueReopenFailed, Reconnecting, SessionEvent, StateRestored
from tests.client.bench import URI, opened
from tests.fakes.broker import Connection, Peer
from tests.sweeps import sweep
from tests.waiting import eventually

OTHER = "bmq://bmq.test.mem.priority/other"
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


@pytest.mark.statement("4.31")
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
        names = " ".join(type(event).__name__ for event in happened)
        assert names == "Connected ConnectionLost Reconnecting Reconnected QueueReopened StateRestored"
        assert session.stats().reconnects == 1


async def test_a_subscription_is_taken_back_without_waiting_for_a_broker_that_is_away() -> None:
    broker = bmq.broker.Broker()
    await broker.start()
    async with opened(broker, read=True, write=True) as (session, queue):
        one, other = await queue.subscribe("x == 1"), await queue.subscribe("x == 2")
        events = session.events()
        await broker.stop(graceful=False)
        async with asyncio.timeout(20):
            await one.close()
        again = bmq.broker.Broker(port=broker.port)
        async with again:
            while not isinstance(await anext(events), StateRestored):
                pass
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
        with pytest.raises(bmq.SessionClosed, match="could not reconnect"):
            await receiving
        assert session.state is bmq.SessionState.CLOSED
        last = happened[-1]
        assert isinstance(last, Disconnected)
        assert "could not reconnect" in last.reason
        with pytest.raises(bmq.SessionClosed):
            await session.open_queue(URI, write=True)
        assert (await session.close()).clean


@pytest.mark.parametrize("refused", ["clientIdentity", "authenticationRequest"])
async def test_a_refusal_ends_the_attempts(peer: Peer, refused: str) -> None:
    async with bmq.connect(peer.uri, credentials=bmq.Credentials("BASIC", b"a:b"), **AT_ONCE) as session:
        peer.refuse.add(refused)
        peer.cut()
        await eventually(lambda: session.state is bmq.SessionState.CLOSED)


async def test_failed_reopening_is_reported_to_users_of_the_queue_only(peer: Peer) -> None:
    async with session_with_events(peer, **AT_ONCE) as (session, happened):
        gone = await session.open_queue(URI, read=True, default_subscription=True, write=True)
        other = await session.open_queue(OTHER, write=True)
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


@sweep("held", ["", "clientIdentity", "OpenQueue", "ConfigureStream"])
async def test_closing_wins_over_reconnecting_at_every_stage(held: str) -> None:
    async with Peer() as peer:
        session = await bmq.connect(peer.uri, **AT_ONCE)
        await session.open_queue(URI, read=True, default_subscription=True)
        if held:
            peer.hold = {held}
            peer.cut()
            await eventually(lambda: len(peer.connections) > 1 and held in peer.log)
        else:
            await peer.stop()
            await eventually(lambda: session.state is bmq.SessionState.RECONNECTING)
        async with asyncio.timeout(20):
            report = await session.close(timeout=0.2)
        assert session.state is bmq.SessionState.CLOSED
        if held in ("", "clientIdentity"):
            assert report.clean
        await asyncio.sleep(0)  # the cancelled tasks run for the last time
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing could bring it back to life"


@pytest.mark.parametrize("turns", [0, 3], ids=["before its first step", "while it waits"])
async def test_cancelling_all_tasks_ends_the_session_without_hanging(peer: Peer, turns: int) -> None:
    session = await bmq.connect(peer.uri, reconnect_delays=lambda: iter([60.0]))
    queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
    peer.cut()
    await _turns_until(lambda: session.state is bmq.SessionState.RECONNECTING)
    for _ in range(turns):
        await asyncio.sleep(0)
    pending = queue.post_nowait(b"1")
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    async with asyncio.timeout(20):
        with pytest.raises(bmq.PostError):
            await pending
        with pytest.raises(bmq.SessionClosed, match="cancelled"):
            await queue.receive()
    await session.close()


GARBAGE = b"\xff" * 8
WHY = "fragmented events are not allowed"


class Garbling(Peer):
    """A broker that sends garbage as soon as a queue is open for reading."""

    on = True

    def accept(self) -> Connection:
        connection = super().accept()
        react = connection.react

        def garble() -> None:
            react()
            if self.on and "ConnectionGarbled" not in connection.script.log and connection.s_ids:
                connection.script.log.append("ConnectionGarbled")
                connection.send(GARBAGE)

        connection.react = garble  # type: ignore[method-assign]
        return connection


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "_VIOLATION_PAUSE", 0.001)
    monkeypatch.setattr(dialer, "_LONGEST_VIOLATION_PAUSE", 0.01)


@pytest.mark.usefixtures("quick")
async def test_a_useful_connection_ends_the_row_of_violations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "USEFUL_SECONDS", 0.0)
    async with Garbling() as peer, bmq.connect(peer.uri, reconnect_delays=lambda: repeat(0.0)) as session:
        events = session.events()
        opening = asyncio.ensure_future(session.open_queue(URI, read=True, default_subscription=True))
        delays = {0.0}
        while len(peer.connections) <= MOST:
            event = await anext(events)
            delays |= {event.delay} if isinstance(event, Reconnecting) else set()
        assert delays == {0.0}
        # A broker that stops sending garbage is used again.
        peer.on = False
        await opening
        await eventually(lambda: session.health().ready)


@pytest.mark.usefixtures("quick")
async def test_a_broker_that_sends_garbage_again_and_again_ends_the_session_with_the_cause() -> None:
    async with Garbling() as peer:
        peer.hold = {"PUT"}
        async with session_with_events(peer, reconnect_delays=lambda: repeat(0.0)) as (session, happened):
            writer = await session.open_queue(OTHER, write=True)
            pending = writer.post_nowait(b"1")
            opening = asyncio.ensure_future(session.open_queue(URI, read=True, default_subscription=True))
            with pytest.raises(bmq.PostError, match=WHY) as caught:
                await pending
            assert violation_in(caught.value) is not None
            with pytest.raises(bmq.Error, match=WHY) as failed:
                await (await opening).receive()
            assert violation_in(failed.value) is not None
            last = happened[-1]
            assert isinstance(last, Disconnected)
            assert WHY in last.reason
            assert f"{MOST} connections in a row" in last.reason
            assert len(peer.connections) == MOST
            pauses = [event.delay for event in happened if isinstance(event, Reconnecting)]
            assert pauses == [0.0, 0.001, 0.002, 0.004, 0.008, 0.01, 0.01, 0.01, 0.01]
            assert WHY in str(session.health())


@pytest.mark.parametrize("sent", [GARBAGE, None], ids=["garbage", "cut"])
async def test_without_reconnecting_every_error_has_the_reason(peer: Peer, sent: bytes | None) -> None:
    why = "the broker closed the connection" if sent is None else WHY
    async with session_with_events(peer, reconnect=False) as (session, happened):
        writer = await session.open_queue(OTHER, write=True)
        peer.hold = {"PUT", "OpenQueue"}
        pending = writer.post_nowait(b"1")
        opening = asyncio.ensure_future(session.open_queue(URI, read=True))
        await eventually(lambda: len(peer.connection.script.requests) == 1)
        if sent is None:
            peer.cut()
        else:
            peer.connection.send(sent)
        with pytest.raises(bmq.ConnectionFailed, match=why) as caught:
            await opening
        cause: Any = caught.value.__cause__
        assert isinstance(cause, bmq.ConnectionFailed if sent is None else bmq.ProtocolError)
        with pytest.raises(bmq.PostError, match=why):
            await pending
        with pytest.raises(bmq.SessionClosed, match=why):
            await writer.post(b"2")
        last = happened[-1]
        assert isinstance(last, Disconnected)
        assert why in last.reason


async def test_a_post_that_expires_names_the_connection_that_failed(peer: Peer) -> None:
    peer.open_options = {"dedup_ms": 50}
    async with bmq.connect(peer.uri, reconnect_delays=lambda: iter([60.0])) as session:
        queue = await session.open_queue(OTHER, write=True)
        peer.hold = {"PUT"}
        pending = queue.post_nowait(b"1")
        await eventually(lambda: len(peer.connection.script.puts) == 1)
        peer.connection.send(GARBAGE)
        with pytest.raises(bmq.PostError, match=WHY) as caught:
            await pending
        assert caught.value.status is bmq.AckStatus.TIMEOUT
        assert isinstance(caught.value.__cause__, bmq.ProtocolError)
