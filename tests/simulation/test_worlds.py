# SPDX-License-Identifier: Apache-2.0
"""Some seeds of every world; ``make simulate`` runs any number of them."""

from __future__ import annotations

import pytest

from bmq.testing import Simulation
from tests.simulation.worlds import WORLDS

SEEDS = 50
_AT_ONCE = 10


def run(name: str, seed: int) -> None:
    sim = Simulation(seed)
    sim.run(WORLDS[name], sim)


@pytest.mark.parametrize("first", range(1, SEEDS + 1, _AT_ONCE))
@pytest.mark.parametrize("name", WORLDS)
def test_a_world_keeps_every_promise(name: str, first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        run(name, seed)


@pytest.mark.parametrize(("name", "seed"), [("workers", 79), ("workers", 113)])
def test_a_seed_that_has_failed_passes(name: str, seed: int) -> None:
    run(name, seed)
