# SPDX-License-Identifier: Apache-2.0
"""Silence and stalls in virtual time: on a busy machine, real silence can be longer than a test may wait."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import bmq
from bmq.events import ConnectionLost, SessionEvent
from bmq.testing import Simulation
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


def simulated_peer(
    test: Callable[[Peer, pytest.LogCaptureFixture], Coroutine[Any, Any, None]],
) -> Callable[[pytest.LogCaptureFixture], None]:
    """Run a test in a simulation, with a scripted broker that listens in the same process."""

    def run(caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            async with Peer() as peer:
                await test(peer, caplog)

        Simulation(1).run(main)

    return run


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "bmq.client"]


@simulated_peer
async def test_posts_without_outcome_degrade_the_session_and_are_logged_once(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async with bmq.connect(peer.uri, liveness=0.2) as session:
        queue = await session.open_queue(URI, write=True)
        peer.hold.add("PUT")
        posts = [queue.post_nowait(b"%d" % number) for number in range(2400)]
        assert str(session.health()) == "ready"
        await eventually(lambda: session.health().degraded)
        health = session.health()
        assert str(health).startswith(
            f"degraded: the oldest of 2,400 posts to {URI} has been waiting for its acknowledgement for "
        )
        assert health.ready
        before = health.troubles[0]
        await eventually(lambda: session.health().troubles[0].what != before.what)  # the sentence is of now
        assert session.health().troubles[0].since == before.since
        peer.answer("PUT")
        await asyncio.gather(*posts)
        assert str(session.health()) == "ready"
        begun, ended = lines(caplog)
        assert begun.startswith("the oldest of 2,400 posts")
        assert begun.endswith(f"; the connection to {peer.uri} is alive, and is kept")
        assert ended.startswith(f"{peer.uri} acknowledges posts again after ")


@simulated_peer
async def test_silent_broker_degrades_the_session_before_the_connection_is_dropped(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async with bmq.connect(peer.uri, liveness=0.4) as session:
        peer.hold.add("HEARTBEAT_REQ")
        await eventually(lambda: session.health().degraded)
        assert str(session.health()).startswith("degraded: the broker has been silent for ")
        peer.answer("HEARTBEAT_REQ")
        await eventually(lambda: not session.health().degraded)
        begun, ended = lines(caplog)
        assert begun.endswith("dropped if the silence continues")
        assert "sends data again after " in ended


@simulated_peer
async def test_broker_that_delivers_without_answering_degrades_the_session_and_is_dropped(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    happened: list[SessionEvent] = []
    async with bmq.connect(peer.uri, liveness=1, on_event=happened.append) as session:
        queue = await session.open_queue(URI, read=True)
        peer.hold.add("HEARTBEAT_REQ")
        numbers = itertools.count()

        async def deliver_until(condition: Callable[[], bool]) -> None:
            while not condition():
                peer.connection.push(next(numbers))
                await queue.receive()
                await asyncio.sleep(0.1)

        def answers_missing() -> bool:
            return str(session.health()).startswith("degraded: the broker has not answered for ")

        await deliver_until(answers_missing)
        assert session.health().ready
        peer.answer("HEARTBEAT_REQ")
        await deliver_until(lambda: str(session.health()) == "ready")
        peer.hold.add("HEARTBEAT_REQ")
        await deliver_until(lambda: any(isinstance(event, ConnectionLost) for event in happened))
        peer.answer("HEARTBEAT_REQ")
        await eventually(lambda: str(session.health()) == "ready")
    reasons = [event.reason for event in happened if isinstance(event, ConnectionLost)]
    assert [reason.split(" for ")[0] for reason in reasons] == ["the broker has not answered"]
    begun, ended, *_ = lines(caplog)
    assert begun.startswith("the broker has not answered for 0.5")
    assert ended.startswith(f"{peer.uri} answers again after ")
