# SPDX-License-Identifier: Apache-2.0
"""The same measurement in several interpreters, one after another, with a real broker.

    python benchmarks/interpreters.py tcp://localhost:30114 python3.11 python3.13 python3.14t [--rounds 5]

Without names, the variable ``BMQ_PYTHONS`` has the interpreters. Each needs the dependencies of
``bmq bench``, and runs the code of this checkout. A free-threaded interpreter runs with the GIL off. The
ratios compare with the first interpreter, round by round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import broker_name, write_table

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
    """Return the result of ``bmq bench``."""
    command = [python, "-m", "bmq", "bench", "--broker", broker, "--json"]
    command += ["--messages", str(count), "--rounds", str(round_trips)]
    # Without the variable, an extension module may enable the GIL. Other interpreters end with an error.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHON_GIL"}
    environment["PYTHONPATH"] = str(ROOT)
    if name.endswith("GIL off"):
        environment["PYTHON_GIL"] = "0"
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def cells(runs: list[dict[str, Any]], first: list[dict[str, Any]]) -> list[str]:
    """Return the cells of an interpreter: medians, and the median of the ratios."""

    def middle(values: list[float]) -> float:
        return statistics.median(values)

    def times(values: list[float], others: list[float]) -> str:
        return f"{middle([mine / other for mine, other in zip(values, others, strict=True)]):.2f}"

    found: list[str] = []
    for phase in ("produce", "consume"):
        rates, others = ([run[phase]["messages_per_second"] for run in each] for each in (runs, first))
        cpu = [run[phase]["cpu_seconds"] / run[phase]["messages"] * 1e6 for run in runs]
        found += [f"{middle(rates):,.0f}", times(rates, others), f"{middle(cpu):.2f}"]
    acks, others = ([run["ack_seconds"]["p50"] * 1e6 for run in each] for each in (runs, first))
    return [*found, f"{middle(acks):,.0f}", times(acks, others)]


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
    names = [named(python) for python in pythons]
    runs: list[list[dict[str, Any]]] = [[] for _ in names]
    for _ in range(given.rounds):
        for python, name, kept in zip(pythons, names, runs, strict=True):
            kept.append(measured(python, name, given.broker, given.count, given.round_trips))
    rows = [[name, *cells(each, runs[0])] for name, each in zip(names, runs, strict=True)]
    about = (
        f"broker: {broker_name(given.broker)}; median of {given.rounds} rounds of {given.count:,} messages "
        f"of 256 bytes, and of {given.round_trips:,} round trips"
    )
    write_table(given.output, COLUMNS, rows, about=about, runs=dict(zip(names, runs, strict=True)))


if __name__ == "__main__":
    main()
