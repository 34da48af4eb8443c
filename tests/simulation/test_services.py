# SPDX-License-Identifier: Apache-2.0
"""Some seeds of every service; ``BMQ_SIM_SEEDS`` sets their number."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from bmq.testing import Simulation
from tests.simulation.services import SERVICES

SEEDS = int(os.environ.get("BMQ_SIM_SEEDS", "10"))
_AT_ONCE = 5


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing: connections are lost all the time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, _AT_ONCE))
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_keeps_every_promise(name: str, first: int) -> None:
    for seed in range(first, min(first + _AT_ONCE, SEEDS)):
        sim = Simulation(seed)
        try:
            sim.run(SERVICES[name], sim)
        except BaseException as error:
            error.add_note(sim.report())
            raise
