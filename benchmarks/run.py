# SPDX-License-Identifier: Apache-2.0
"""This client beside the official client, the least that any client needs, and an earlier version of itself.

    python benchmarks/run.py [PROGRAM ...] [--quick] [--before CHECKOUT] [--rounds N] [--output FOLDER]

Runs the programs of this folder, with the broker of ``BMQ_BROKER_URI`` or an embedded broker in a process of
its own, and prints one table. A full run, of all programs and without ``--quick``, writes ``results.json``,
from which ``report.py`` makes ``RESULTS.md`` and its picture; other runs write only with ``--output``.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

import report
from harness import HERE, Bench, broker, broker_name, machine, measure

PROGRAMS = ("throughput", "latency", "filtered", "groups", "failover", "spark")
ROUNDS = 3
QUICK = 0.1


def tell(text: str) -> None:
    print(f"\r{text:70}", end="", file=sys.stderr, flush=True)


def version(folder: str) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", folder, "describe", "--always"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "programs", nargs="*", choices=[*PROGRAMS, []], metavar="PROGRAM", help=", ".join(PROGRAMS)
    )
    parser.add_argument("--quick", action="store_true", help="a short look, with a tenth of the messages")
    parser.add_argument("--before", default="", metavar="CHECKOUT", help="an earlier version of this client")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each measurement is made")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="for the results")
    options = parser.parse_args()
    before = str(Path(options.before).resolve()) if options.before else ""
    document: report.Document = {
        "machine": machine(),
        "broker": broker_name(),
        "before": version(before) if before else "",
        "rounds": options.rounds,
        "programs": {},
    }
    output = options.output or (None if options.programs or options.quick else HERE)
    programs: dict[str, list[report.Row]] = document["programs"]
    with broker() as uri:
        bench = Bench(uri, scale=QUICK if options.quick else 1.0)
        for name in options.programs or PROGRAMS:
            programs[name] = measure(importlib.import_module(name), bench, before, options.rounds, tell)
            if output:  # what comes next may fail
                report.write(document, output)
    tell("\n")
    print(report.table([row for rows in programs.values() for row in rows]))
    print(f"\n{report.about(document)}")


if __name__ == "__main__":
    main()
