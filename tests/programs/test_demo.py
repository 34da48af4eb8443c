# SPDX-License-Identifier: Apache-2.0
"""The demo does what its text says, and detects unbalanced books."""

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


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported("recording", "docs", monkeypatch)


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


def test_without_a_terminal_each_act_is_one_static_line() -> None:
    run = demonstrate("--count", "200")
    assert "\x1b" not in run.stdout
    assert run.stderr == ""
    acts = [line for line in run.stdout.splitlines() if "crashed" in line]
    assert len(acts) == 1
    assert len(run.stdout.splitlines()) < 32
    assert all(len(line) <= 80 for line in run.stdout.splitlines())


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


async def test_picture_shows_the_crash(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    consoles = [Console(file=io.StringIO(), width=width) for width in (demo.NARROWEST, 120)]
    console = consoles[-1]
    monkeypatch.setattr(demo, "INTERVAL", 0.05)
    shown: list[str] = []
    heights: set[tuple[int, int]] = set()

    def draw(stage: Any) -> None:
        for each in consoles:
            with each.capture() as capture:
                each.print(stage)
            shown.append(capture.get())
            heights.add((each.width, shown[-1].count("\n")))

    async with demo.broker_at_hand(None) as broker:
        assert await demo.run(broker, demo.Pace(4015, 1 / 12), console, draw=draw)
    down = [each for each in shown if "broker down" in each]
    assert any("100 of 100 unacknowledged" in each for each in down), "the producer waits"
    held = [int(each) for picture in shown for each in re.findall(r"(\d+) of 40 unconfirmed", picture)]
    assert max(held) >= 0.8 * 40, "a consumer's window is full: the broker fills it up again from 80 % on"
    assert any("was lost" in each for each in down), "the client's log is shown"
    assert "0 records in the queue" in shown[-1]
    assert not [each for each in shown if "…" in each], "no line is cut"
    assert len(heights) == len(consoles), "the picture does not jump"


def test_recording_shows_each_piece_during_its_lifetime(recording: ModuleType) -> None:
    pictures = [{(0, 0): ">a", (0, 5): ">b"}, {(0, 0): ">a"}, {(0, 0): ">c"}]
    assert recording.stays(pictures) == {
        (0, 2): {(0, 0): ">a"},
        (0, 1): {(0, 5): ">b"},
        (2, 3): {(0, 0): ">c"},
    }
    drawing = ElementTree.fromstring(recording.animated(pictures, 2, 10))
    svg = "{http://www.w3.org/2000/svg}"
    groups = {each.findtext(f"{svg}text"): each for each in drawing.iter(f"{svg}g")}
    assert [name for name, group in groups.items() if "visibility" not in group.attrib] == ["c"]
    values = {name: group.find(f"{svg}animate").attrib["values"] for name, group in groups.items()}  # type: ignore[union-attr]
    assert values == {"a": "visible;hidden", "b": "visible;hidden", "c": "hidden;visible"}


def test_the_recording_in_the_readme_is_of_this_demo(demo: ModuleType) -> None:
    assert "(docs/assets/demo.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")
    drawing = ElementTree.parse(ROOT / "docs" / "assets" / "demo.svg")
    texts = {each.text for each in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert {act for _, act in demo.Pace(1, 1).acts()} <= texts
    assert "The books are balanced: nothing was lost." in texts


def test_the_demo_installs_no_test_dependencies() -> None:
    """`make demo` installs the requirements of the package and its command line, and none of the tests."""
    told = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "demo", "VENV=.venv-nowhere"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "optional-dependencies" in told
    assert "--editable" not in told
