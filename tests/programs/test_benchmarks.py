# SPDX-License-Identifier: Apache-2.0
"""The programs in ``benchmarks`` run, and their page is what their results say; speed is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report
from bmq.testing import BackgroundBroker

# A guard: clients that poll a socket take sixteen times as long on a busy machine.
pytestmark = pytest.mark.timeout(600)

BENCHMARKS = Path(report.__file__).parent


def run(*arguments: str) -> str:
    with BackgroundBroker() as broker:
        done = subprocess.run(
            [sys.executable, str(BENCHMARKS / "run.py"), "--quick", "--rounds", "1", *arguments],
            capture_output=True,
            text=True,
            timeout=500,
            env=os.environ | {"BMQ_BROKER_URI": broker.uri},
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_and_the_picture_are_those_of_the_results(tmp_path: Path) -> None:
    report.write(report.results(), tmp_path)
    assert (tmp_path / "RESULTS.md").read_text() == (BENCHMARKS / "RESULTS.md").read_text()
    assert (tmp_path / "results.json").read_text() == (BENCHMARKS / "results.json").read_text()
    assert (tmp_path / report.PICTURE).read_text() == (report.ASSETS / report.PICTURE).read_text()


@pytest.mark.parametrize("program", ["throughput", "latency", "filtered", "failover"])
def test_a_program_measures_each_row(program: str, tmp_path: Path) -> None:
    """A cluster is started only with the program of a real broker."""
    printed = run(program, "--before", str(BENCHMARKS.parent), "--output", str(tmp_path))
    for row in json.loads((tmp_path / "results.json").read_text())["programs"][program]:
        assert len(row["ours"]) == len(row["before"]) == 1
        assert f"| {row['path']} | {row['unit']} | " in printed
    assert f"## {program.capitalize()}" in (tmp_path / "RESULTS.md").read_text()


def row(path: str, unit: str, ours: list[float], official: list[float], goal: str = "") -> report.Row:
    return {
        "path": path,
        "unit": unit,
        "goal": goal,
        "ours": ours,
        "official": official,
        "floor": [],
        "before": [],
    }


def test_ratios_are_those_within_a_round() -> None:
    measured = row("post", "a second", [10.0, 40.0, 90.0], [5.0, 10.0, 100.0], "official >= 2")
    assert report.cells(measured)[2:5] == ["40 (10-90)", "10", "2.00"]
    assert report.cells(measured)[-1] == "≥ 2 official: met"


def test_a_missed_goal_is_shown() -> None:
    assert report.goal(row("ack", "p50 us", [3.0], [2.0], "official <= 1.4")) == "≤ 1.4 official: not met"
