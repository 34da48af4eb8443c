# SPDX-License-Identifier: Apache-2.0
"""An idle session wakes its event loop for heartbeats, and for nothing else."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import bmq
from bmq.testing import SimulatedBroker, Simulation

QUEUE = "bmq://bmq.test.mem.priority/q"
#: Virtual seconds.
IDLE = 600.0
#: Deadlines of the last post and of the last confirmation are over after this time.
SETTLED = 300.0


def woken(liveness: float | None) -> Counter[str]:
    """Return the callbacks of an idle session's event loop, with a queue open and a task waiting in it."""
    sim = Simulation(1)
    broker = sim.broker()
    seen: Counter[str] = Counter()

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
                seen[handle._callback.__qualname__] += 1  # type: ignore[attr-defined]
                schedule(handle)

            loop._schedule = count  # type: ignore[attr-defined]
            await asyncio.sleep(IDLE)
            del loop._schedule  # type: ignore[attr-defined]
            waiting.cancel()

    sim.run(main, sim, broker)
    for own in ("_set_result_unless_cancelled", "_Task.task_wakeup"):  # the sleep of this test
        assert seen.pop(own) == 1
    return seen


@pytest.mark.parametrize("liveness", [10.0, 30.0])
def test_an_idle_session_wakes_for_heartbeats_alone(liveness: float) -> None:
    beats = round(IDLE / (liveness / 3))
    seen = woken(liveness)
    assert set(seen) == {"SimTransport._read", "weakly.<locals>.call"}
    assert seen["weakly.<locals>.call"] == pytest.approx(beats, abs=2), "one request"
    assert seen["SimTransport._read"] == pytest.approx(beats, abs=2), "one answer"


def test_without_liveness_an_idle_session_sleeps() -> None:
    assert not woken(None)
