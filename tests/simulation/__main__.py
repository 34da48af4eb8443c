# SPDX-License-Identifier: Apache-2.0
"""Run worlds for many seeds; repeat a failure with fewer and fewer faults."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from itertools import islice

from bmq.testing._simulation import seeds_to_run
from tests.simulation.runs import WORLDS, Counts, one, quiet, shrink

_AT_ONCE = 4


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
    with ProcessPoolExecutor(options.jobs) if options.jobs > 1 else nullcontext() as pool:
        each = map if pool is None else pool.map
        while batch := list(islice(todo, options.jobs * _AT_ONCE)):
            for name, seed, error, counted in each(one, batch):
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


if __name__ == "__main__":
    sys.exit(main())
