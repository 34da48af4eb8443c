# SPDX-License-Identifier: Apache-2.0
"""Client and embedded broker on the event loop of Windows; ``tests/fakes/proactor.py`` describes the loop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import replace
from typing import Any

import pytest

import bmq
import bmq.admin
from bmq import _world
from bmq.broker import Broker
from bmq.testing import Direction, FaultProxy
from tests.fakes.proactor import ProactorLoop, coarse, windows_error

URI = "bmq://bmq.test.mem.priority/windows"
Run = Callable[[Coroutine[Any, Any, None]], ProactorLoop]


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Run:
    """Runs a coroutine on the loop, with the clock of Windows; nothing may be logged about the loop."""
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)

    def run(work: Coroutine[Any, Any, None]) -> ProactorLoop:
        context = copy_context()
        context.run(_world.world.set, replace(_world.REAL, monotonic=coarse))
        with asyncio.Runner(loop_factory=ProactorLoop) as runner:
            runner.run(work, context=context)
            loop = runner.get_loop()
            assert isinstance(loop, ProactorLoop)
            assert loop.port.left == 0, "operations of sockets that nobody closed"
        assert [each.getMessage() for each in caplog.records if each.name == "asyncio"] == []
        return loop

    return run


def test_messages_travel_there_and_back(windows: Run) -> None:
    async def main() -> None:
        async with Broker() as broker, bmq.connect(broker.uri, log_stats_every=60) as session:
            queue = await session.open_queue(URI, read=True, write=True)
            await queue.post(b"small", properties={"n": 1})
            # More than a transport takes: the broker pauses reading, and goes on with what the loop had read.
            big = bytes(3_000_000)
            await asyncio.gather(*(queue.post(big) for _ in range(3)))
            for expected in (b"small", big, big, big):
                message = await queue.receive(timeout=30)
                assert message.data == expected
                message.confirm()
            with pytest.raises(bmq.TimedOut):
                await queue.receive(timeout=0.02)
            async with bmq.admin.connect(broker.uri) as admin:
                assert URI in await admin.queues()

    assert windows(main()).port.begun > 5


@pytest.mark.parametrize("reset", [False, True])
def test_posts_in_flight_are_resent_after_a_lost_connection(windows: Run, reset: bool) -> None:
    async def main() -> None:
        async with (
            Broker() as broker,
            FaultProxy(broker.uri) as proxy,
            bmq.connect(proxy.uri) as session,
        ):
            queue = await session.open_queue(URI, read=True, write=True)
            proxy.stall(Direction.TO_BROKER)
            posts = [asyncio.ensure_future(queue.post(b"%d" % number)) for number in range(5)]
            await asyncio.sleep(0)
            proxy.cut(reset=reset)
            proxy.heal()
            await asyncio.gather(*posts)
            for number in range(5):
                message = await queue.receive(timeout=30)
                assert message.data == b"%d" % number
                message.confirm()
            assert session.stats().reconnects == 1

    assert (windows(main()).failed_shutdowns > 0) or not reset


@pytest.mark.parametrize(
    "error", [windows_error(64), windows_error(64, ConnectionResetError), windows_error(10053)], ids=repr
)
def test_a_client_gone_before_it_was_accepted_delays_no_other_client(
    windows: Run, caplog: pytest.LogCaptureFixture, error: OSError
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProactorLoop)
        async with Broker() as broker:
            loop.port.refusals.append(error)
            with socket.socket() as gone:
                gone.connect(("127.0.0.1", broker.port))
                async with bmq.connect(broker.uri, connect_timeout=30):
                    assert loop.port.refusals == []

    windows(main())
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_program_ends_at_a_signal(windows: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.setattr(asyncio, "new_event_loop", ProactorLoop)
    ended: list[str] = []

    async def main() -> None:
        async with Broker() as broker, bmq.connect(broker.uri):
            try:
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(30)
            finally:
                ended.append(type(asyncio.get_running_loop()).__name__)

    with pytest.raises(KeyboardInterrupt):
        bmq.run(main())
    assert ended == ["ProactorLoop"]
