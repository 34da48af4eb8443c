# SPDX-License-Identifier: Apache-2.0
"""Connections that end because of the broker's data: growing pauses, the cause in each error, an end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest

import bmq
from bmq.client import dialer as module
from bmq.client.address import violation_in
from bmq.client.dialer import MOST_VIOLATIONS as MOST
from bmq.events import Disconnected, Reconnecting, SessionEvent
from tests.fakes.broker import Connection, Peer
from tests.waiting import eventually

READ = "bmq://bmq.test.mem.priority/read"
WRITE = "bmq://bmq.test.mem.priority/write"
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
    """Pauses of thousandths of seconds."""
    monkeypatch.setattr(module, "_VIOLATION_PAUSE", 0.001)
    monkeypatch.setattr(module, "_LONGEST_VIOLATION_PAUSE", 0.01)


@pytest.mark.usefixtures("quick")
async def test_a_useful_connection_ends_the_row_of_violations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "USEFUL_SECONDS", 0.0)
    options = bmq.SessionOptions(reconnect_delays=_none)
    async with Garbling() as peer, bmq.connect(peer.uri, options=options) as session:
        events = session.events()
        queue = await session.open_queue(READ, read=True)
        receiving = asyncio.ensure_future(queue.receive())
        delays = {0.0}
        while len(peer.connections) <= MOST:
            event = await anext(events)
            delays |= {event.delay} if isinstance(event, Reconnecting) else set()
        receiving.cancel()
    assert delays == {0.0}


def _none() -> Iterator[float]:
    return repeat(0.0)


@pytest.mark.usefixtures("quick")
async def test_a_broker_that_sends_garbage_again_and_again_ends_the_session_with_the_cause() -> None:
    happened: list[SessionEvent] = []
    async with Garbling() as peer:
        peer.hold = {"PUT"}
        async with bmq.connect(peer.uri, on_event=happened.append, reconnect_delays=_none) as session:
            writer = await session.open_queue(WRITE, write=True)
            pending = writer.post_nowait(b"1")
            opening = asyncio.ensure_future(session.open_queue(READ, read=True))
            with pytest.raises(bmq.PostError, match=WHY) as caught:
                await pending
            assert violation_in(caught.value) is not None
            with pytest.raises(bmq.Error, match=WHY) as failed:
                await asyncio.ensure_future(_receive(opening))
            assert violation_in(failed.value) is not None
            last = happened[-1]
            assert isinstance(last, Disconnected)
            assert WHY in last.reason
            assert f"{MOST} connections in a row" in last.reason
            assert len(peer.connections) == MOST
            pauses = [event.delay for event in happened if isinstance(event, Reconnecting)]
            assert pauses == [0.0, 0.001, 0.002, 0.004, 0.008, 0.01, 0.01, 0.01, 0.01]
            assert WHY in str(session.health())


async def _receive(opening: asyncio.Future[bmq.Queue]) -> bmq.Message:
    return await (await opening).receive()


@pytest.mark.usefixtures("quick")
async def test_a_broker_that_stops_sending_garbage_is_used_again() -> None:
    async with Garbling() as peer, bmq.connect(peer.uri) as session:
        writer = await session.open_queue(WRITE, write=True)
        opening = asyncio.ensure_future(session.open_queue(READ, read=True))
        await eventually(lambda: len(peer.connections) == 4)
        peer.on = False
        await opening
        await writer.post(b"1")
        assert session.health().ready


@pytest.mark.parametrize("sent", [GARBAGE, None], ids=["garbage", "cut"])
async def test_without_reconnecting_every_error_has_the_reason(peer: Peer, sent: bytes | None) -> None:
    happened: list[SessionEvent] = []
    async with bmq.connect(peer.uri, reconnect=False, on_event=happened.append) as session:
        peer.hold = {"PUT", "OpenQueue"}
        peer.answer("OpenQueue")
        writer = await session.open_queue(WRITE, write=True)
        pending = writer.post_nowait(b"1")
        peer.hold |= {"OpenQueue"}
        opening = asyncio.ensure_future(session.open_queue(READ, read=True))
        await eventually(lambda: len(peer.connection.script.requests) == 1)
        if sent is None:
            peer.cut()
        else:
            peer.connection.send(sent)
        why = "the broker closed the connection" if sent is None else WHY
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
        queue = await session.open_queue(WRITE, write=True)
        peer.hold = {"PUT"}
        pending = queue.post_nowait(b"1")
        await eventually(lambda: len(peer.connection.script.puts) == 1)
        peer.connection.send(GARBAGE)
        with pytest.raises(bmq.PostError, match=WHY) as caught:
            await pending
        assert caught.value.status is bmq.AckStatus.TIMEOUT
        assert isinstance(caught.value.__cause__, bmq.ProtocolError)
