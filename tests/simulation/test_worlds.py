# SPDX-License-Identifier: Apache-2.0
"""The first seeds of every world; ``make simulate`` runs any number of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bmq.testing import Simulation
from tests.simulation.books import log_read
from tests.simulation.worlds import WORLDS

SEEDS = 10
# Fewer seeds of a world whose members report all the time.
_FEWER = {"exclusive groups": 2}
_DIGESTS = """
import logging
from tests.simulation.__main__ import WORLDS, run
logging.disable(logging.CRITICAL)
for name in WORLDS:
    error, simulation, _ = run(name, 1)
    print(name, simulation.digest, error)
"""


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_keeps_every_promise(name: str) -> None:
    for seed in range(1, _FEWER.get(name, SEEDS) + 1):
        sim = Simulation(seed)
        with log_read():
            sim.run(WORLDS[name], sim)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("workers", 1104),  # a worker had a message at hand that another one had confirmed
        ("groups", 3172),  # a member was asked to leave, and left after the faults
        ("workers", 4326),  # a paused worker posted a dead letter after the undertaker had left
        (
            "exclusive groups",
            23,
        ),  # two crowns in the queue: a candidate claimed for ever, once for each of them
        ("groups", 4373),  # a broker whose stop was cancelled refused every request after its next start
    ],
)
def test_a_seed_that_has_failed(name: str, seed: int) -> None:
    sim = Simulation(seed)
    sim.run(WORLDS[name], sim)


def test_digests_of_worlds_do_not_depend_on_hash_seeds() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _DIGESTS],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1, told
    assert "posting" in told.pop()
