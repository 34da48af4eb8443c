# SPDX-License-Identifier: Apache-2.0
"""Calls end at their documented time, to the millisecond; on a busy machine, only virtual time shows this."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import bmq
from bmq.conventions import delay_queue_of
from bmq.delays import Mover
from bmq.testing import SimulatedBroker, Simulation
from tests.sweeps import sweep

QUEUE = "bmq://bmq.test.mem.priority/q"
#: The network is fast, and no program of these tests computes anything.
SOON = 0.01

Main = Callable[[Simulation, SimulatedBroker], Coroutine[Any, Any, None]]


def simulate(main: Main) -> None:
    sim = Simulation(1)
    broker = sim.broker()
    sim.run(main, sim, broker)


STAGES: dict[str, Callable[[SimulatedBroker], object]] = {
    "answers nothing": lambda broker: broker.process.pause(),
    "is gone": lambda broker: broker.crash(),
    "has no power": lambda broker: broker.crash(machine=True),
}


@sweep("stage", STAGES)
def test_closing_ends_at_its_timeout_with_any_broker(stage: str) -> None:
    async def main(sim: Simulation, broker: SimulatedBroker) -> None:
        session = await bmq.connect(broker.uri)
        queue = await session.open_queue(QUEUE, read=True, write=True)
        STAGES[stage](broker)
        pending = queue.post_nowait(b"unacknowledged")
        began = sim.now
        report = await session.close(timeout=0.2)
        assert 0.2 <= sim.now - began < 0.2 + SOON
        assert report.unacked_posts == 1
        with pytest.raises(bmq.PostError):
            await pending
        if not broker.running:
            broker.start()
        broker.process.resume()

    simulate(main)


def test_a_hung_address_leaves_time_for_the_next_address() -> None:
    async def main(sim: Simulation, broker: SimulatedBroker) -> None:
        hung = sim.broker("hung")
        hung.process.pause()
        began = sim.now
        async with bmq.connect(f"{hung.uri},{broker.uri}", connect_timeout=2) as session:
            assert 0.5 < sim.now - began < 1 + SOON, "the hung address is tried first, for a part of the time"
            assert session.address == broker.uri
        hung.process.resume()

    simulate(main)


def test_silent_addresses_share_one_connect_timeout() -> None:
    async def main(sim: Simulation, broker: SimulatedBroker) -> None:
        some = [broker, sim.broker("second"), sim.broker("third")]
        for each in some:
            each.process.pause()
        began = sim.now
        with pytest.raises(bmq.ConnectionFailed) as caught:
            await bmq.connect(",".join(each.uri for each in some), connect_timeout=0.15)
        assert 0.15 <= sim.now - began < 0.15 + SOON
        failures = str(caught.value).split("; ")
        assert len(failures) == 3
        for each, failure in zip(some, failures, strict=True):
            assert failure.startswith(f"{each.uri} (")
            assert "did not answer within" in failure
            each.process.resume()

    simulate(main)


def test_the_first_connection_is_retried_only_when_asked() -> None:
    attempts = 0

    def delays() -> Iterator[float]:
        nonlocal attempts
        while True:
            attempts += 1
            yield 0.1

    async def main(sim: Simulation, broker: SimulatedBroker) -> None:
        uri = "tcp://broker:1"  # no program listens there
        began = sim.now
        with pytest.raises(bmq.ConnectionFailed):
            await bmq.connect(uri, reconnect_delays=delays)
        assert sim.now - began < SOON
        assert attempts == 0
        began = sim.now
        with pytest.raises(bmq.ConnectionFailed, match=r"within 0\.5 s"):
            await bmq.connect(uri, retry_first_connect=True, reconnect_delays=delays, reconnect_timeout=0.5)
        assert 0.5 <= sim.now - began < 0.5 + SOON
        assert attempts == 5

    simulate(main)


def test_a_request_without_an_answer_ends_at_its_timeout() -> None:
    async def main(sim: Simulation, broker: SimulatedBroker) -> None:
        async with bmq.connect(broker.uri) as session:
            queue = await session.open_queue(QUEUE, write=True)
            began = sim.now
            with pytest.raises(bmq.TimedOut):
                await queue.request(b"anyone?", timeout=0.3)
            assert 0.3 <= sim.now - began < 0.3 + SOON

    simulate(main)


def test_messages_refused_by_a_changing_cluster_are_moved_soon(caplog: pytest.LogCaptureFixture) -> None:
    """A broker refuses with UNKNOWN while its primary changes. The log has one line for all refusals."""

    async def main(sim: Simulation, broker: SimulatedBroker) -> None:
        async with bmq.connect(broker.uri) as session:
            queue = await session.open_queue(QUEUE, read=True, write=True)
            waiting = await session.open_queue(delay_queue_of(QUEUE), read=True, default_subscription=False)
            for number in range(5):
                await queue.post(b"%d" % number, delay=0.5)
            broker.broker.faults.nack(bmq.AckStatus.UNKNOWN, count=5)
            moving = asyncio.create_task(Mover(waiting).run())
            began = sim.now
            found = sorted([(await queue.receive(timeout=20)).data for _ in range(5)])
            assert found == [b"%d" % number for number in range(5)]
            assert 1 <= sim.now - began < 2
            moving.cancel()
            await asyncio.wait([moving])

    with caplog.at_level(logging.INFO, "bmq.delays"):
        simulate(main)
    (line,) = [each.message for each in caplog.records if each.name == "bmq.delays"]
    assert "UNKNOWN" in line
    assert "again in 1 s (similar lines are suppressed for a minute)" in line
