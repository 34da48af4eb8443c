# SPDX-License-Identifier: Apache-2.0
"""The programs in ``benchmarks`` run, and their page is what their results say; speed is not tested."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import report
from bmq.testing import BackgroundBroker
from tests.commands import completed

# A guard: clients that poll a socket take sixteen times as long on a busy machine.
pytestmark = pytest.mark.timeout(600)

BENCHMARKS = Path(report.__file__).parent


def test_the_page_and_the_picture_are_those_of_the_results(tmp_path: Path) -> None:
    report.write(report.results(), tmp_path)
    assert (tmp_path / "RESULTS.md").read_text() == (BENCHMARKS / "RESULTS.md").read_text()
    assert (tmp_path / "results.json").read_text() == (BENCHMARKS / "results.json").read_text()
    assert (tmp_path / report.PICTURE).read_text() == (report.ASSETS / report.PICTURE).read_text()


@pytest.mark.parametrize("program", ["throughput", "latency", "filtered", "failover"])
def test_a_program_measures_each_row(program: str, tmp_path: Path) -> None:
    """A cluster is started only with the program of a real broker."""
    command = [sys.executable, BENCHMARKS / "run.py", "--quick", "--rounds", "1", program]
    command += ["--before", BENCHMARKS.parent, "--output", tmp_path]
    with BackgroundBroker() as broker:
        printed = completed(*command, timeout=500, env={"BMQ_BROKER_URI": broker.uri}).stdout
    for row in json.loads((tmp_path / "results.json").read_text())["programs"][program]:
        assert len(row["ours"]) == len(row["before"]) == 1
        assert f"| {row['path']} | {row['unit']} | " in printed
    assert f"## {program.capitalize()}" in (tmp_path / "RESULTS.md").read_text()


def test_ratios_are_those_within_a_round() -> None:
    measured: report.Row = {
        "path": "post", "unit": "a second", "goal": "official >= 2",
        "ours": [10.0, 40.0, 90.0], "official": [5.0, 10.0, 100.0], "floor": [], "before": [],
    }  # fmt: skip
    assert report.cells(measured)[2:5] == ["40 (10-90)", "10", "2.00"]
    assert report.cells(measured)[-1] == "≥ 2 official: met"
    assert report.goal({**measured, "goal": "official <= 1.4"}) == "≤ 1.4 official: not met"
