# SPDX-License-Identifier: Apache-2.0
"""The first seeds of every service; ``make simulate`` runs any number of seeds."""

from __future__ import annotations

import pytest

from bmq.testing import Simulation
from tests.simulation.books import log_read
from tests.simulation.services import SERVICES
from tests.sweeps import sweep

# Seed 1 runs in test_worlds, twice.
SEEDS = range(2, 6)
# Fewer seeds of the services that take five times as long as others.
_FEWER = {"payments": range(2, 4), "processes": range(2, 4)}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_keeps_every_promise(name: str) -> None:
    for seed in _FEWER.get(name, SEEDS):
        sim = Simulation(seed)
        with log_read():
            sim.run(SERVICES[name], sim)


@sweep(
    "name, seed",
    [
        ("batches", 118),  # another process lost a message confirmed too late
        ("batches", 337),
        ("durable", 5),  # a mover confirmed a delivery of a lost connection, and kept the next delivery
        ("subscriptions", 246),  # a session with small limits held unmatched messages
        ("shop", 70),  # a relay was cancelled while its database failed
        ("durable", 3199),  # a mover's repeated post never ended: its acceptance went to the first post
        ("quotas", 3449),  # refusals were lost, and the posts accepted later, behind newer ones
        ("policies", 3226),  # a worker ended with a message confirmed by another worker
    ],
)
def test_formerly_failing_seeds_pass(name: str, seed: int) -> None:
    sim = Simulation(seed)
    with log_read():
        sim.run(SERVICES[name], sim)
