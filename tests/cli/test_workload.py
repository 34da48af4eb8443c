# SPDX-License-Identifier: Apache-2.0
"""``bmq bench --workload``: the workload file, the figures, and the comparison with an earlier result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bmq.cli.workload import WORKLOAD_FIELDS
from bmq.testing import BackgroundBroker
from tests.cli.conftest import Bmq

QUEUE = "bmq://bmq.test.mem.priority/load"
PRODUCER = f'[[producers]]\nqueue = "{QUEUE}"\nrate = 200\nproperties = {{ n = "{{{{counter}}}}" }}\n'
CONSUMER = f'[[consumers]]\nqueue = "{QUEUE}"\nexpression = "n > 0"\n'


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker() as broker:
        yield broker


def workload(folder: Path, text: str) -> str:
    (folder / "workload.toml").write_text(text, encoding="utf-8")
    return str(folder / "workload.toml")


def test_figures_and_comparison(offline: Bmq, broker: BackgroundBroker, tmp_path: Path) -> None:
    file = workload(tmp_path, "duration = 0.2\n" + PRODUCER + CONSUMER)
    saved = str(tmp_path / "result.json")
    ran = offline("bench", "--workload", file, "--save", saved, "--json", "--broker", broker.uri)
    assert ran.status == 0, ran.err
    (result,) = ran.json
    assert tuple(result) == WORKLOAD_FIELDS
    assert result == json.loads(Path(saved).read_text(encoding="utf-8"))
    assert result["posted"] == result["accepted"] == result["delivered"] == 40
    for name in ("ack_ms", "delivery_ms"):
        found = result[name]
        assert found["count"] == 40
        assert 0 < found["p50"] <= found["p90"] <= found["p99"] <= found["p99.9"] <= found["p99.99"]
    ran = offline("bench", "--workload", file, "--compare", saved, "--broker", broker.uri)
    assert ran.status == 0, ran.err
    assert "before" in ran.out
    assert "%" in ran.out


def test_absent_broker_is_one_line(offline: Bmq, tmp_path: Path) -> None:
    file = workload(tmp_path, "duration = 0.2\n" + CONSUMER + PRODUCER)
    ran = offline("bench", "--workload", file, "--broker", "tcp://127.0.0.1:1", "--timeout", "0.2")
    assert (ran.status, "Traceback" in ran.err) == (3, False)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "missing required field `duration`"),
        ("duration = 1", "no [[producers]]"),
        ("duration = true\n" + PRODUCER, "got `bool` - at `$.duration`"),
        ("duration = nan\n" + PRODUCER, ">= 0.1 - at `$.duration`"),
        ("duration = 1\nwarmup = 1\n" + PRODUCER, "warmup must be less"),
        ("duration = 1\nspeed = 1\n" + PRODUCER, "unknown field `speed`"),
        ("duration = 1\nproducers = 5", "Expected `array`, got `int` - at `$.producers`"),
        ("duration = 1\n[[producers]]\nrate = 1", "missing required field `queue` - at `$.producers[0]`"),
        ("duration = 1\n" + PRODUCER.replace("200", "0"), "at `$.producers[0].rate`"),
        ("duration = 1\n" + PRODUCER.replace("counter", "cuonter"), "unknown placeholder"),
        (
            "duration = 1\n" + PRODUCER + CONSUMER.replace('"n > 0"', "5"),
            "got `int` - at `$.consumers[0].expression`",
        ),
        ("duration =", "cannot be read"),
    ],
)
def test_wrong_workloads_are_errors(offline: Bmq, tmp_path: Path, text: str, error: str) -> None:
    ran = offline("bench", "--workload", workload(tmp_path, text), "--broker", "tcp://127.0.0.1:1")
    assert (ran.status, ran.out) == (2, "")
    assert error in ran.err


def test_wrong_files_are_errors(offline: Bmq, tmp_path: Path) -> None:
    file = workload(tmp_path, "duration = 1\n" + PRODUCER)
    for words in (["/nowhere"], [file, "--compare", file], [file, "--save", "/nowhere/at/all"]):
        assert offline("bench", "--workload", *words, "--broker", "tcp://127.0.0.1:1").status == 2


@pytest.mark.parametrize(
    "words", [["--save", "x"], ["--workload", "FILE", QUEUE], ["--workload", "FILE", "--phase", "produce"]]
)
def test_options_that_do_not_belong_together_are_errors(
    offline: Bmq, tmp_path: Path, words: list[str]
) -> None:
    file = workload(tmp_path, "duration = 1\n" + PRODUCER)
    given = [file if word == "FILE" else word for word in words]
    ran = offline("bench", *given, "--broker", "tcp://127.0.0.1:1")
    assert (ran.status, "--workload" in ran.err) == (2, True)
