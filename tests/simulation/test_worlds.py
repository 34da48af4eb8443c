# SPDX-License-Identifier: Apache-2.0
"""The first seeds of every world; ``make simulate`` runs any number of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.runs import WORLDS, run
from tests.sweeps import sweep

#: Seed 1 of all worlds runs in the processes that compare digests.
SEEDS = range(2, 6)
#: Fewer seeds of worlds that take five times as long as others.
FEWER = {"exclusive groups": range(2, 3), "payments": range(2, 4)}
DIGESTS = """
import logging
from tests.simulation.runs import WORLDS, run
logging.disable(logging.CRITICAL)
for name in WORLDS:
    error, simulation, _ = run(name, 1)
    print(f"{name}: {error or simulation.digest}")
    if error:
        break
"""


def passes(name: str, seed: int) -> None:
    error = run(name, seed)[0]
    assert not error, error


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_keeps_every_promise(name: str) -> None:
    for seed in FEWER.get(name, SEEDS):
        passes(name, seed)


@sweep(
    "name, seed",
    [
        # two crowns in the queue: a candidate claimed for ever, once for each of them
        ("exclusive groups", 23),
        ("exclusive groups", 60461),  # a first leader beside a paused member that had a crown
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
def test_a_seed_that_has_failed(name: str, seed: int) -> None:
    passes(name, seed)


@pytest.mark.timeout(600)  # all worlds, in each process
def test_first_seed_keeps_every_promise_with_one_digest_for_all_hash_seeds() -> None:
    """The processes run side by side, and read the log as the other tests do."""
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", DIGESTS],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = [process.communicate() for process in started]
    names = [line.partition(":")[0] for line in first[0].splitlines()]
    assert names == [*WORLDS], "".join(first)
    assert first == second, "the digests, with two hash seeds"
