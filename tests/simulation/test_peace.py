# SPDX-License-Identifier: Apache-2.0
"""The first seeds of every world without faults; ``make simulate`` runs any number of them."""

from __future__ import annotations

import pytest

from bmq.testing import Simulation
from tests.simulation.books import log_read
from tests.simulation.peace import PEACE

# Seed 1 runs in test_worlds, twice.
SEEDS = range(2, 6)


@pytest.mark.parametrize("name", PEACE)
def test_counts_times_and_shares_are_exact_in_peace(name: str) -> None:
    for seed in SEEDS:
        sim = Simulation(seed)
        with log_read():
            sim.run(PEACE[name], sim)
