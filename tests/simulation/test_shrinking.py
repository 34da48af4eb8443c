# SPDX-License-Identifier: Apache-2.0
"""``make simulate`` finds a failing seed, leaves out needless faults, and says how to repeat the run."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from bmq.testing import Simulation, Verdict, examine
from tests.simulation import __main__ as simulate
from tests.simulation import runs
from tests.simulation.world import World

KIND = "crash"


async def dislikes_crashes(sim: Simulation) -> Verdict:
    """Fail if the broker crashes twice."""
    world = World(sim)
    await world.trouble(30)
    crashes = [each for each in sim.history.events(op="fault") if each.get("kind") == KIND]
    assert len(crashes) < 2, f"{len(crashes)} crashes"
    return examine(world.history)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


def test_failure_is_reduced_to_its_necessary_faults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(runs.WORLDS, "dislikes crashes", dislikes_crashes)
    monkeypatch.setenv("BMQ_SIM_SKIP", "")
    monkeypatch.delenv("BMQ_SIM_SEED", raising=False)
    argv = ["simulate", "--world", "dislikes crashes", "--seeds", "3", "--jobs", "1"]
    monkeypatch.setattr("sys.argv", argv)
    assert simulate.main() == 1
    told = capsys.readouterr().out
    seed, skipped, rest = re.findall(
        r"^BMQ_SIM_SEED=(\d+) BMQ_SIM_SKIP='([\d ]*)' (.*)$", told, re.MULTILINE
    )[0]
    assert rest == "python -m tests.simulation --jobs 1 --world 'dislikes crashes'"
    assert f"failed: dislikes crashes, seed {seed}" in told
    # The command that is printed shows the failure, with two faults that are all crashes.
    monkeypatch.setenv("BMQ_SIM_SKIP", skipped)
    error, simulation, _ = runs.run("dislikes crashes", int(seed))
    assert "2 crashes" in error
    assert len(simulation.fault_numbers) == 2
