# SPDX-License-Identifier: Apache-2.0
"""The Spark demo does what its text says, and detects unbalanced books."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from tests.programs.test_demo import books, imported

ROOT = Path(__file__).parent.parent.parent
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module: ModuleType = imported("spark_demo", "examples", monkeypatch)
    return module


@pytest.mark.timeout(400)
def test_a_killed_pipeline_counts_every_flight_once(tmp_path: Path) -> None:
    drawn = tmp_path / "new" / "drawn.svg"
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "spark_demo.py"), "--fast", "--picture", str(drawn)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    said = books(run.stdout)
    assert said["records in the file"] == said["counted in the resulting windows"] == 4015
    assert said["windows, counted without Spark"] == said["resulting windows"] == 674
    assert said["left in the first queue"] == said["windows posted twice"] == 0
    assert said["windows with wrong numbers"] == said["windows missing"] == 0
    assert said["batches interrupted by a kill"] == said["batches repeated after the restart"]
    assert len(re.findall("The driver was killed", run.stdout)) == 1
    assert re.search(
        r"^Throughput: [\d,]+ records a second with .*\. Lag: [\d,]+ records at most, 0 at the end\.$",
        run.stdout,
        re.M,
    )
    assert run.stdout.splitlines()[-2:] == [
        "The books are balanced: no record was lost, and none was counted twice.",
        f"Throughput and lag over time: {drawn}",
    ]
    assert "\x1b" not in run.stdout
    drawing = ElementTree.parse(drawn)
    assert len([each for each in drawing.iter(f"{SVG}rect") if each.get("class") == "down"]) == 2
    assert "driver killed, started again" in {each.text for each in drawing.iter(f"{SVG}text")}


HOURS = {("2013-07-08T09:00", "Delta"): (3, 1, 0), ("2013-07-08T10:00", "Delta"): (2, 0, 1)}


@pytest.mark.parametrize(
    ("acknowledged", "changed", "twice", "left", "balanced"),
    [
        (5, {}, (), 0, True),
        (4, {}, (), 0, False),  # one was not posted
        (5, {("2013-07-08T10:00", "Delta"): None}, (), 0, False),  # a window is missing
        (5, {("2013-07-08T10:00", "Delta"): (2, 1, 1)}, (), 0, False),  # one is wrong
        (5, {("2013-07-08T11:00", "Delta"): (0, 0, 0)}, (), 0, False),  # nobody flew then
        (5, {}, [("2013-07-08T09:00", "Delta")], 0, False),
        (5, {}, (), 1, False),
    ],
)
def test_unbalanced_books_are_reported(
    demo: ModuleType,
    acknowledged: int,
    changed: dict[tuple[str, str], tuple[int, int, int] | None],
    twice: list[tuple[str, str]],
    left: int,
    balanced: bool,
    tmp_path: Path,
) -> None:
    expected = {hour: demo.Numbers(*numbers) for hour, numbers in HOURS.items()}
    windows = {
        h: demo.Numbers(*numbers) for h, numbers in {**HOURS, **changed}.items() if numbers is not None
    }
    console = Console(file=io.StringIO(), record=True)
    driver = demo.Driver("tcp://127.0.0.1:1", tmp_path)
    (tmp_path / "checkpoint" / "commits").mkdir(parents=True)
    (tmp_path / "checkpoint" / "commits" / "1").touch()
    driver.batches = [{"batch": 0, "rows": 3, "too late": 0}, {"batch": 1, "rows": 2, "too late": 0}]
    driver.repeated = [1, 2]
    found = demo.Books(windows=windows, times=Counter([*windows, *twice]))
    assert demo.balance(console, acknowledged, expected, found, driver, left) is balanced
    said = console.export_text()
    assert ("The books are balanced" in said) is balanced
    assert books(said)["batches repeated after the restart"] == 1
