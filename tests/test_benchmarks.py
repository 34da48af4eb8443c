"""The programs in ``benchmarks`` run and tell what they measured; how fast something is is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(program: str, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"}
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_comparison_with_the_official_client(tmp_path: Path) -> None:
    output = tmp_path / "benchmark"
    parts = ("--only", "paths", "latency", "large")
    printed = run(
        "run.py", "--rounds", "1", "--count", "200", "--patience", "0", "--output", str(output), *parts
    )
    assert "Messages a second" in printed
    runs = json.loads(output.with_suffix(".json").read_text())["runs"]
    for name in ("post_many", "official post", "raw post", "batches", "official consume"):
        assert runs[name][0]["rate"] > 0
    assert runs["ack, awake"][0]["p99_us"] >= runs["ack, awake"][0]["p50_us"] > 0


def test_faults() -> None:
    printed = run("soak.py", "--only", "ours", "--seconds", "6", "--lap", "6", "--seed", "4")
    cells = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines()]
    rows = {line[1]: line[2] for line in cells if len(line) == 4}
    assert int(rows["posted"].replace(",", "")) > 0
    assert rows["acknowledged and lost"] == rows["without outcome"] == "0"
    assert int(rows["cuts measured"]) > 0
    assert rows["cut to restored, 90 %"].endswith(" s")
