# SPDX-License-Identifier: Apache-2.0
"""Some seeds of every world; ``make simulate`` runs any number of them."""

from __future__ import annotations

import pytest

from bmq.testing import Simulation
from tests.simulation.worlds import WORLDS

SEEDS = 20
_AT_ONCE = 5


@pytest.mark.parametrize("first", range(1, SEEDS + 1, _AT_ONCE))
@pytest.mark.parametrize("name", WORLDS)
def test_a_world_keeps_every_promise(name: str, first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        sim = Simulation(seed)
        sim.run(WORLDS[name], sim)
