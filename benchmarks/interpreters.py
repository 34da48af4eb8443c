# SPDX-License-Identifier: Apache-2.0
"""``bmq bench`` in several interpreters, one after another, with a real broker.

    python benchmarks/interpreters.py tcp://localhost:30114 python3.11 python3.13 python3.14t [--rounds 5]

Without names in the command, the variable ``BMQ_PYTHONS`` names the interpreters. Each interpreter needs the
dependencies of ``bmq bench``, and runs the code of this checkout. A free-threaded interpreter runs with the
GIL off. The ratios compare with the first interpreter, round by round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import Series, broker_name, ratio, write_table

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = (
    "interpreter",
    *("posted a second", "times", "CPU us a message"),
    *("received a second", "times", "CPU us a message"),
    *("post to ack, p50 us", "times"),
)
NAME = """
import platform, sysconfig
free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(f"CPython {platform.python_version()}" + ("t, GIL off" if free else ""))
"""


def named(python: str) -> str:
    """Return the name of an interpreter for the table."""
    return subprocess.run([python, "-c", NAME], capture_output=True, text=True, check=True).stdout.strip()


def measured(python: str, name: str, broker: str, count: int, round_trips: int) -> dict[str, Any]:
    """Return the figures of a run of ``bmq bench``."""
    command = [python, "-m", "bmq", "bench", "--broker", broker, "--json"]
    command += ["--messages", str(count), "--rounds", str(round_trips)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHON_GIL"}
    environment["PYTHONPATH"] = str(ROOT)
    # Without the variable, an extension module may enable the GIL. With the variable, an interpreter of an
    # ordinary build refuses to start.
    if name.endswith("GIL off"):
        environment["PYTHON_GIL"] = "0"
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)
    result = json.loads(done.stdout)
    figures: dict[str, Any] = {"ack_us": result["ack_seconds"]["p50"] * 1e6}
    for phase in ("produce", "consume"):
        figures[phase] = result[phase]["messages_per_second"]
        figures[f"{phase}_cpu_us"] = result[phase]["cpu_seconds"] / count * 1e6
    return figures


def row(runs: Series, first: Series) -> list[str]:
    """Return the row of an interpreter: medians, and the medians of the ratios."""
    cells = [runs.name]
    for phase in ("produce", "consume"):
        cells += [f"{runs.median(phase):,.0f}", f"{ratio(runs, first, phase)[0]:.2f}"]
        cells.append(f"{runs.median(f'{phase}_cpu_us'):.2f}")
    return [*cells, f"{runs.median('ack_us'):,.0f}", f"{ratio(runs, first, 'ack_us')[0]:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("broker")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=300_000)
    parser.add_argument("--round-trips", type=int, default=5_000)
    parser.add_argument("--output", type=Path, default=Path("build/interpreters"), metavar="NAME")
    given = parser.parse_args()
    pythons = given.pythons or os.environ.get("BMQ_PYTHONS", sys.executable).split()
    runs = [Series(named(python)) for python in pythons]
    for _ in range(given.rounds):
        for python, each in zip(pythons, runs, strict=True):
            figures = measured(python, each.name, given.broker, given.count, given.round_trips)
            each.results.append(figures)
    rows = [row(each, runs[0]) for each in runs]
    about = (
        f"broker: {broker_name(given.broker)}; median of {given.rounds} rounds of {given.count:,} messages "
        f"of 256 bytes, and of {given.round_trips:,} round trips"
    )
    write_table(given.output, COLUMNS, rows, about=about, runs={each.name: each.results for each in runs})


if __name__ == "__main__":
    main()
