# SPDX-License-Identifier: Apache-2.0
"""Runs of a world: one with a seed, and the search for the fewest faults that still fail."""

from __future__ import annotations

import logging
import os
import traceback
from contextlib import nullcontext
from dataclasses import astuple, dataclass

from bmq.testing import Simulation, Verdict
from bmq.testing._simulation import REPLAY
from tests.simulation import services as services
from tests.simulation import worlds as worlds
from tests.simulation.books import log_read
from tests.simulation.peace import PEACE
from tests.simulation.world import SCENES

__all__ = ["WORLDS", "Counts", "one", "quiet", "run", "shrink"]

WORLDS = {**SCENES, **PEACE}
#: How often a failing run is tried with fewer faults.
_MOST_TRIES = 60


def run(name: str, seed: int) -> tuple[str, Simulation, Verdict | None]:
    """Run a world; return the error, or "", and the counts of the check."""
    simulation = Simulation(seed)
    # A repeated run writes its log, with the wire trace, instead.
    reading = nullcontext() if REPLAY in os.environ else log_read()
    try:
        with reading:
            verdict = simulation.run(WORLDS[name], simulation)
    except Exception as error:
        return "".join(traceback.format_exception(error)), simulation, None
    return "", simulation, verdict


@dataclass
class Counts:
    """What has happened in runs."""

    seconds: float = 0.0
    faults: int = 0
    posted: int = 0
    delivered: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sums."""
        return Counts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def one(job: tuple[str, int]) -> tuple[str, int, str, Counts]:
    """Run a world with a seed, both in ``job``."""
    name, seed = job
    quiet()
    error, simulation, verdict = run(name, seed)
    counts = Counts(simulation.now, len(simulation.fault_numbers))
    if verdict is not None:
        counts.posted, counts.delivered = verdict.posted, verdict.delivered
    return name, seed, error, counts


def shrink(name: str, seed: int) -> tuple[list[int], str]:
    """Leave out as many faults as the failure allows; return those that are left out, and the error."""
    os.environ["BMQ_SIM_SKIP"] = ""
    error, simulation, _ = run(name, seed)
    needed, skipped = list(dict.fromkeys(simulation.fault_numbers)), list[int]()
    tries, part = 0, max(1, len(needed) // 2)
    while part and needed and tries < _MOST_TRIES:
        smaller = False
        for start in range(0, len(needed), part):
            without = needed[start : start + part]
            os.environ["BMQ_SIM_SKIP"] = " ".join(map(str, [*skipped, *without]))
            tries += 1
            again, simulation, _ = run(name, seed)
            if again:
                # Faults that do not come any more need not be left out.
                skipped += without
                needed = [each for each in dict.fromkeys(simulation.fault_numbers) if each not in skipped]
                error, smaller = again, True
                break
        if not smaller:
            part //= 2
    return sorted(skipped), error


def quiet() -> None:
    """Disable the log, except for a repeated run, whose wire trace is needed."""
    if REPLAY not in os.environ:
        logging.disable(logging.CRITICAL)
