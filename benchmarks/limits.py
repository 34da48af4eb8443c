# SPDX-License-Identifier: Apache-2.0
"""The broker's limit, and the limit of the machine: how much of each a path reaches.

    BMQ_BROKER_URI=tcp://localhost:30114 python benchmarks/limits.py [--rounds 5] [--count 200000]

The broker's limit is its rate with pre-encoded events on a bare socket, whose client needs hardly any CPU
time. A real client shares the cores with the broker: on a machine with few cores, broker and client together
need the CPU time of all cores. The machine's limit of a path is the number of cores, divided by the CPU time
of the broker and of the client for a message. All figures of a line are measured in the same run. Only on
Linux, with a broker on the same machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import Job, broker, fresh_queue, wait_until_idle, write_tables

PATHS = {
    "post_many": [("ours", "post_many"), ("raw", "drain")],
    "post_many, least client": [("least", "post_many"), ("raw", "drain")],
    "post, bare socket": [("raw", "post"), ("raw", "drain")],
    "post, official": [("official", "post"), ("raw", "drain")],
    "batches": [("raw", "post"), ("ours", "consume_batches")],
    "batches, least client": [("raw", "post"), ("least", "batches")],
    "async for": [("raw", "post"), ("ours", "consume")],
    "async for, least client": [("raw", "post"), ("least", "consume")],
    "consume, bare socket": [("raw", "post"), ("raw", "consume")],
    "consume, official": [("raw", "post"), ("official", "consume")],
}
COLUMNS = (
    "path", "messages a second", "part of the broker's limit",
    "CPU us of the broker", "of the client", "limit of the cores", "part of it",
)  # fmt: skip
LIMITS = dict.fromkeys(("post_many", "post_many, least client", "post, official"), "post, bare socket")


def listener(port: int) -> int:
    """Return the process that listens on a port of this machine."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows += [row.split() for row in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1][-4:], 16) == port}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) in sockets:
                return int(link.parts[2])
        except OSError:
            continue
    raise SystemExit(f"no process of this machine listens on port {port}")


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(uri: str, pid: int, path: str, count: int) -> dict[str, Any]:
    first, second = PATHS[path]
    mine = 0 if path.startswith("post") else 1
    base = fresh_queue(Job(*first, count))
    result: dict[str, Any] = {}
    for number, (client, case) in enumerate((first, second)):
        wait_until_idle(5.0)
        before = cpu(pid)
        done = replace(base, client=client, case=case).run(uri)
        if number == mine:
            result = {**done, "broker_us": (cpu(pid) - before) / count * 1e6}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--output", type=Path, default=Path("build/limits"), metavar="NAME")
    options = parser.parse_args()
    cores = os.cpu_count() or 1
    with broker() as (uri, what):
        pid = listener(int(uri.rpartition(":")[2]))
        results: dict[str, list[dict[str, Any]]] = {path: [] for path in PATHS}
        for _ in range(options.rounds):
            for path in PATHS:
                results[path].append(measured(uri, pid, path, options.count))
    rows: list[list[str]] = []
    for path, runs in results.items():
        floor = results[LIMITS.get(path, path if path in LIMITS.values() else "consume, bare socket")]

        def median(key: str, of: list[dict[str, Any]]) -> float:
            return statistics.median(run[key] for run in of)

        part = statistics.median(mine["rate"] / bare["rate"] for mine, bare in zip(runs, floor, strict=True))
        both = median("broker_us", runs) + median("cpu_us", runs)
        rows.append(
            [
                path,
                f"{median('rate', runs):,.0f}",
                f"{part:.0%}",
                f"{median('broker_us', runs):.1f}",
                f"{median('cpu_us', runs):.1f}",
                f"{cores * 1e6 / both:,.0f}",
                f"{median('rate', runs) * both / cores / 1e6:.0%}",
            ]
        )
    about = f"broker: {what}; median of {options.rounds} rounds of {options.count:,} messages"
    write_tables(options.output, {"limits": (COLUMNS, rows)}, about=about, runs=results, cores=cores)


if __name__ == "__main__":
    main()
