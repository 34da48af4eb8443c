# SPDX-License-Identifier: Apache-2.0
"""Run worlds for many seeds; repeat a failure with fewer and fewer faults."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from itertools import islice

from bmq.testing import Simulation, Verdict
from bmq.testing._sim_replay import REPLAY, seeds_to_run
from tests.simulation.books import log_read
from tests.simulation.peace import PEACE
from tests.simulation.services import SERVICES
from tests.simulation.worlds import WORLDS as FIRST

WORLDS = {**FIRST, **SERVICES, **PEACE}
_AT_ONCE = 4
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


def one(name: str, seed: int) -> tuple[str, int, str, Counts]:
    """Run a world in a process of the pool."""
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


def work(names: list[str], seeds: list[int]) -> Iterator[tuple[str, int]]:
    """Yield what is to be run: all worlds of one seed before the next seed."""
    for seed in seeds:
        for name in names:
            yield name, seed


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds of each world")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes")
    parser.add_argument(
        "--world", action="append", choices=sorted(WORLDS), help="only this one; may be repeated"
    )
    options = parser.parse_args()
    names, seeds = options.world or list(WORLDS), seeds_to_run(options.first, options.seeds)
    total, began, counts, failed = (
        len(seeds) * len(names),
        time.monotonic(),
        Counts(),
        list[tuple[str, int]](),
    )
    todo, done = work(names, seeds), 0
    with ProcessPoolExecutor(options.jobs) as pool:
        while batch := list(islice(todo, options.jobs * _AT_ONCE)):
            for name, seed, error, counted in pool.map(_one_of, batch):
                done, counts = done + 1, counts.plus(counted)
                if error:
                    failed.append((name, seed))
                    print(f"\n{name}, seed {seed}:\n{error}", flush=True)
            rate = done / (time.monotonic() - began)
            print(
                f"\r{done} of {total} runs, {len(failed)} failed, {counts.seconds / 3600:.1f} virtual hours, "
                f"{counts.faults} faults, {counts.posted} posts, {counts.delivered} deliveries, "
                f"{rate:.1f} runs a second, {(total - done) / rate:.0f} s left ",
                end="",
                flush=True,
            )
    print()
    quiet()
    for name, seed in failed[:5]:
        skipped, error = shrink(name, seed)
        print(f"{name}, seed {seed}, with the fewest faults:\n{error}")
        left_out = " ".join(map(str, skipped))
        command = f"python -m tests.simulation --jobs 1 --world '{name}'"
        print(f"BMQ_SIM_SEED={seed} BMQ_SIM_SKIP='{left_out}' {command}\n")
    for name, seed in failed:
        print(f"failed: {name}, seed {seed}")
    return 1 if failed else 0


def _one_of(job: tuple[str, int]) -> tuple[str, int, str, Counts]:
    return one(*job)


if __name__ == "__main__":
    sys.exit(main())
