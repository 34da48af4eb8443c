# SPDX-License-Identifier: Apache-2.0
"""The demo does what its text says, and detects unbalanced books."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from bmq.client.stats import QueueStats
from bmq.testing import BackgroundBroker

ROOT = Path(__file__).parent.parent.parent


def imported(name: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.syspath_prepend(str(ROOT / folder))
    return __import__(name)


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported("demo", "examples", monkeypatch)


def demonstrate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), "--fast", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
    )


def books(said: str) -> dict[str, int]:
    rows = re.findall(r"^│ (.+?) +│ +([\d,]+) │(?: \w|$)", said, re.MULTILINE)
    return {what: int(number.replace(",", "")) for what, number in rows}


def test_every_record_is_in_the_books() -> None:
    run = demonstrate()
    assert run.returncode == 0, run.stdout + run.stderr
    said = books(run.stdout)
    assert said["posted"] == said["acknowledged"] == 4015
    assert said["confirmed: late"] + said["confirmed: the rest"] == 4015
    assert said["lost"] == said["wrong consumer"] == 0
    assert said["connections restored"] == 2
    assert said["sent again"] >= 10, "posts are in flight when the broker crashes"
    assert "The books are balanced: nothing was lost." in run.stdout
    next_steps = run.stdout.splitlines()[-3:]
    assert (ROOT / next_steps[0].split()[0]).is_file()
    assert [step.split()[:2] for step in next_steps[1:]] == [
        [".venv/bin/python", "-m"],
        ["make", "demo-spark"],
    ]


def test_on_any_other_broker_the_connections_are_cut() -> None:
    with BackgroundBroker() as broker:
        run = demonstrate("--broker", broker.uri, "--count", "400")
    assert run.returncode == 0, run.stdout + run.stderr
    assert books(run.stdout)["connections restored"] == 2
    assert books(run.stdout)["sent again"] > 0


def test_demo_without_a_broker_ends_with_one_line() -> None:
    run = demonstrate("--broker", "tcp://127.0.0.1:1")
    assert run.returncode == 1
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("acknowledged", "late", "wrong", "balanced"),
    [
        ({0, 1, 2}, [0, 1], 0, True),
        ({0, 1, 2}, [0], 0, False),  # one was lost
        ({0, 1, 2}, [0, 1, 1], 0, True),  # at least once: twice is allowed, and said
        ({0, 1}, [0, 1], 0, False),  # one was posted, and not acknowledged
        ({0, 1, 2}, [0, 1], 1, False),
        ({0, 1, 2}, [0, 1, 3], 0, False),  # nobody posted that
    ],
)
def test_unbalanced_books_are_reported(
    demo: ModuleType, acknowledged: set[int], late: list[int], wrong: int, balanced: bool
) -> None:
    parties = [
        demo.Party("late", demo.LATE, confirmed=Counter(late), wrong=wrong),
        demo.Party("the rest", demo.REST, confirmed=Counter([2])),
    ]
    console = Console(file=io.StringIO(), record=True)
    assert demo.balance(console, 3, acknowledged, parties, QueueStats(retransmitted=5), 2) is balanced
    said = console.export_text()
    assert books(said)["sent again"] == 5
    assert books(said)["lost"] == len(acknowledged - {2, *late})
    assert ("The books are balanced" in said) is balanced
