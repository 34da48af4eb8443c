# SPDX-License-Identifier: Apache-2.0
"""Tests that run once for each of many seeds, and again for the seed that failed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from bmq import _checks
from bmq.errors import UsageError
from bmq.testing._sim_replay import seeds_to_run
from bmq.testing._simulation import Simulation

__all__ = ["simulated"]


def simulated(
    *, seeds: int = 20, first: int = 1, limit: float = 30 * 86400.0
) -> Callable[[Callable[..., Coroutine[Any, Any, object]]], Callable[..., None]]:
    """Make a test of a coroutine function, run as the process ``main`` of a simulation for each seed.

    ::

        @bmq.testing.simulated(seeds=100)
        async def test_no_order_is_lost(sim):
            broker = sim.broker()
            ...

    A failure ends the test, and reports the seed, the drawn options, the last faults and the end of the
    history. With the seed in the environment variable ``BMQ_SIM_SEED`` the test runs only this seed, with the
    wire trace in the log.

    Args:
        seeds: the number of seeds.
        first: the first seed.
        limit: the virtual seconds after which a run is given up.

    Raises:
        UsageError: an argument is out of its range.
    """
    seeds = _checks.integer("seeds", seeds, 1)
    first = _checks.integer("first", first, -_checks.INT64_MAX)
    limit = _checks.seconds("limit", limit, positive=True)

    def decorate(test: Callable[..., Coroutine[Any, Any, object]]) -> Callable[..., None]:
        _checks.function("the test", test)
        if not inspect.iscoroutinefunction(test):
            raise UsageError("a simulated test must be a coroutine function: async def test(sim)")
        parameters = list(inspect.signature(test).parameters.values())
        if not parameters:
            raise UsageError("a simulated test must accept the simulation: async def test(sim)")

        @functools.wraps(test)
        def run(*fixtures: Any, **named: Any) -> None:
            for seed in seeds_to_run(first, seeds):
                simulation = Simulation(seed, limit=limit)
                simulation.run(functools.partial(test, simulation, *fixtures, **named))

        # The remaining parameters are pytest's fixtures.
        run.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
        del run.__wrapped__
        return run

    return decorate
