# SPDX-License-Identifier: Apache-2.0
"""The first seeds of every world; ``make simulate`` runs any number of them.

Seed 1 of all worlds, with those of ``test_services`` and ``test_peace``, runs in the processes that compare
digests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bmq.broker._storage import MessageStore
from bmq.testing import Simulation
from tests.simulation.books import log_read
from tests.simulation.peace import PEACE
from tests.simulation.services import SERVICES
from tests.simulation.world import World
from tests.simulation.worlds import WORLDS
from tests.sweeps import sweep

SEEDS = range(2, 6)
# Fewer seeds of a world whose members report all the time.
_FEWER = {"exclusive groups": range(2, 3)}
_DIGESTS = """
import logging
from tests.simulation.runs import WORLDS, run
logging.disable(logging.CRITICAL)
for name in WORLDS:
    error, simulation, _ = run(name, 1)
    print(f"{name}: {error or simulation.digest}")
    if error:
        break
"""


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_keeps_every_promise(name: str) -> None:
    for seed in _FEWER.get(name, SEEDS):
        sim = Simulation(seed)
        with log_read():
            sim.run(WORLDS[name], sim)


@sweep(
    "name, seed",
    [
        ("workers", 1104),  # a worker had a message at hand that another one had confirmed
        ("workers", 4326),  # a paused worker posted a dead letter after the undertaker had left
        (
            "exclusive groups",
            23,
        ),  # two crowns in the queue: a candidate claimed for ever, once for each of them
        ("exclusive groups", 60461),  # a first leader beside a paused member that had a crown
    ],
)
def test_a_seed_that_has_failed(name: str, seed: int) -> None:
    sim = Simulation(seed)
    sim.run(WORLDS[name], sim)


@pytest.mark.timeout(600)  # all worlds, in each process
def test_first_seed_keeps_every_promise_with_one_digest_for_all_hash_seeds() -> None:
    """The processes run side by side, and read the log as the other tests do."""
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _DIGESTS],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = [process.communicate() for process in started]
    names = [line.partition(":")[0] for line in first[0].splitlines()]
    assert names == [*WORLDS, *SERVICES, *PEACE], "".join(first)
    assert first == second, "the digests, with two hash seeds"


@pytest.mark.parametrize("stored", [1, 2])
def test_a_broker_that_forgets_confirmed_messages_is_seen(
    stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgement of a message is lost; the post is repeated after the confirmation."""
    if stored == 2:  # a bug planted in the broker: no option makes it forget
        monkeypatch.setattr(MessageStore, "remember", lambda *_: None)
    sim = Simulation(1)

    async def main() -> None:
        world = World(sim)
        uri = world.uri("twice")
        async with world.connect(world.history.process("producer")) as session:
            queue = await session.open_queue(uri, write=True)
            (connection,) = sim.network.connections
            connection.stall(3600, towards_client=True)
            outcome = queue.post_nowait(b"x")
            world.program("reader", lambda recorder: world.read(recorder, uri))
            counts = world.broker.broker.queues[uri].stats
            await sim.until(lambda: counts().confirmed)
            connection.cut()
            await outcome
            await sim.until(lambda: counts().posted == stored)
            assert world.stored_twice() == (
                [f"{uri} stored 2 messages, and 1 GUIDs were posted"] if stored == 2 else []
            )

    sim.run(main)
