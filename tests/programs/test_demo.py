# SPDX-License-Identifier: Apache-2.0
"""The demos do what their texts say, and detect unbalanced books."""

from __future__ import annotations

import io
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bmq.client.stats import QueueStats
from bmq.testing import BackgroundBroker
from tests.commands import ROOT, completed

EXAMPLES = ROOT / "examples"
SVG = "{http://www.w3.org/2000/svg}"


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return __import__(name)


def demonstrate(*arguments: str) -> str:
    return completed(sys.executable, EXAMPLES / "demo.py", "--fast", *arguments).stdout


def books(said: str) -> dict[str, int]:
    rows = re.findall(r"^│ (.+?) +│ +([\d,]+) │(?: \w|$)", said, re.MULTILINE)
    return {what: int(number.replace(",", "")) for what, number in rows}


def test_every_record_is_in_the_books() -> None:
    printed = demonstrate()
    said = books(printed)
    assert said["posted"] == said["acknowledged"] == 4015
    assert said["confirmed: late"] + said["confirmed: the rest"] == 4015
    assert said["lost"] == said["wrong consumer"] == 0
    assert said["connections restored"] == 2
    assert said["sent again"] >= 10, "posts are in flight when the broker crashes"
    assert "The books are balanced: nothing was lost." in printed
    next_steps = printed.splitlines()[-3:]
    assert (ROOT / next_steps[0].split()[0]).is_file()
    assert [step.split()[:2] for step in next_steps[1:]] == [
        [".venv/bin/python", "-m"],
        ["make", "demo-spark"],
    ]


def test_on_any_other_broker_the_connections_are_cut() -> None:
    with BackgroundBroker() as broker:
        said = books(demonstrate("--broker", broker.uri, "--count", "400"))
    assert said["connections restored"] == 2
    assert said["sent again"] > 0


@pytest.mark.parametrize("name", ["demo.py", "producer.py", "consumer.py"])
def test_an_example_without_a_broker_ends_in_one_line(name: str) -> None:
    run = completed(sys.executable, EXAMPLES / name, "--broker", "tcp://127.0.0.1:1", status=1)
    (line,) = run.stderr.splitlines()
    assert line.startswith("ConnectionFailed: could not connect to tcp://127.0.0.1:1")


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
    monkeypatch: pytest.MonkeyPatch, acknowledged: set[int], late: list[int], wrong: int, balanced: bool
) -> None:
    demo = imported("demo", monkeypatch)
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


# with Spark


@pytest.mark.timeout(400)
def test_a_killed_pipeline_counts_every_flight_once(tmp_path: Path) -> None:
    drawn = tmp_path / "new" / "drawn.svg"
    program = (sys.executable, EXAMPLES / "spark_demo.py", "--fast", "--picture", drawn)
    printed = completed(*program, cwd=tmp_path, timeout=390).stdout
    said = books(printed)
    assert said["records in the file"] == said["counted in the resulting windows"] == 4015
    assert said["windows, counted without Spark"] == said["resulting windows"] == 674
    assert said["left in the first queue"] == said["windows posted twice"] == 0
    assert said["windows with wrong numbers"] == said["windows missing"] == 0
    assert said["batches interrupted by a kill"] == said["batches repeated after the restart"]
    assert len(re.findall("The driver was killed", printed)) == 1
    *_, balanced, picture = printed.splitlines()
    throughput = (
        r"^Throughput: [\d,]+ records a second with .*\. Lag: [\d,]+ records at most, 0 at the end\.$"
    )
    assert re.search(throughput, printed, re.MULTILINE)
    assert balanced == "The books are balanced: no record was lost, and none was counted twice."
    assert picture == f"Throughput and lag over time: {drawn}"
    assert "\x1b" not in printed
    drawing = ElementTree.parse(drawn)
    assert len([each for each in drawing.iter(f"{SVG}rect") if each.get("class") == "down"]) == 2
    assert "driver killed, started again" in {each.text for each in drawing.iter(f"{SVG}text")}
