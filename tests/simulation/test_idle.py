# SPDX-License-Identifier: Apache-2.0
"""An idle session wakes its event loop for heartbeats, and for nothing else."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from bmq.testing import SimulatedBroker, Simulation

QUEUE = "bmq://bmq.test.mem.priority/q"
#: Virtual seconds.
IDLE = 600.0
#: Deadlines of the last post and of the last confirmation are over after this time.
SETTLED = 300.0


def woken(liveness: float | None) -> int:
    """Count the callbacks of an idle session's event loop, with a queue open and a task waiting in it."""
    sim = Simulation(1)
    broker = sim.broker()
    seen = 0

    async def main(sim: Simulation, broker: SimulatedBroker) -> None:
        async with bmq.connect(broker.uri, liveness=liveness) as session:
            queue = await session.open_queue(QUEUE, read=True, write=True)
            await queue.post(b"m")
            (await queue.receive()).confirm()
            waiting = asyncio.ensure_future(queue.receive())
            await asyncio.sleep(SETTLED)
            loop = asyncio.get_running_loop()
            schedule = loop._schedule  # type: ignore[attr-defined]

            def count(handle: asyncio.Handle) -> None:
                nonlocal seen
                seen += 1
                schedule(handle)

            loop._schedule = count  # type: ignore[attr-defined]
            await asyncio.sleep(IDLE)
            del loop._schedule  # type: ignore[attr-defined]
            waiting.cancel()

    sim.run(main, sim, broker)
    return seen - 2  # the sleep of this test


@pytest.mark.parametrize("liveness", [10.0, 30.0])
def test_an_idle_session_wakes_for_heartbeats_alone(liveness: float) -> None:
    """A request and an answer, each third of the limit."""
    assert woken(liveness) == pytest.approx(2 * IDLE / (liveness / 3), abs=4)


def test_without_liveness_an_idle_session_sleeps() -> None:
    assert woken(None) == 0
