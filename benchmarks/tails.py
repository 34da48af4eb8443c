# SPDX-License-Identifier: Apache-2.0
"""Tail latency at given rates: this client and the official client.

    python benchmarks/tails.py tcp://localhost:30114 [--seconds 60] [--rates 1000 5000 10000 20000]

An independent process writes a tick at the given rate (``clients/pacer.py``). A client posts each tick, and
takes the time from the tick to the acknowledgement, or to the own message. The clients of a line run one
after another, each in a new process with new queues. With ``--rounds``, or with ``--add`` later, a line has
the medians of all rounds. A queue gets 100,000 messages, and then the next queue follows. The queues are
purged after each run: a million stored messages that expire would delay the next run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from harness import DOMAIN, HERE, broker_name, environment, wait_until_idle, write_tables

import bmq.admin

COLUMNS = (
    "path", "a second",
    "p50 us", "official", "times", "p99 us", "official", "times", "p99.9 us", "official", "times",
    "slowest 1 % in a collection", "read together",
)  # fmt: skip
PROGRAM = str(HERE / "clients" / "tails.py")
CASES = {"ack": "post to ack", "own": "post to own message"}
CLIENTS = ("ours", "official")
#: Messages of a queue. A broker stops for 50 to 120 ms when a queue gets its message 134,838 or 269,514,
#: whichever client posts; the doubled number suggests a table that grows.
A_QUEUE = 100_000


def measured(broker: str, case: str, rate: int, seconds: float, client: str, loop: str) -> dict[str, Any]:
    count = int(rate * seconds)
    name = f"bmq://{DOMAIN}/tails-{uuid.uuid4().hex}"
    queues = [f"{name}-{number}" for number in range(math.ceil(count / A_QUEUE))]
    job = {
        "client": client,
        "loop": loop,
        "case": case,
        "rate": rate,
        "count": count,
        "size": 256,
        "poll": 0.0,
        "broker": broker,
        "queues": queues,
        "a_queue": A_QUEUE,
    }
    wait_until_idle(3.0)
    command = [sys.executable, PROGRAM, json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    if done.returncode:
        raise SystemExit(f"{client}, {case}, {rate} a second failed:\n{done.stderr or done.stdout}")
    asyncio.run(purge(broker, queues))
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


async def purge(broker: str, queues: list[str]) -> None:
    """Delete what a run left behind."""
    async with bmq.admin.connect(broker) as admin:
        for uri in queues:
            await admin.queue(uri).purge()


def row(line: str, runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return a row of the table; times in microseconds."""
    case, rate = line.split()

    def median(name: str, key: str) -> float:
        return statistics.median(one[key] for one in runs[name]) / 1000

    cells = [CASES[case], f"{int(rate):,}"]
    for key in ("p50", "p99", "p999"):
        ours, other = median("ours", key), median("official", key)
        ratio = statistics.median(
            a[key] / b[key] for a, b in zip(runs["ours"], runs["official"], strict=True)
        )
        cells += [f"{ours:,.0f}", f"{other:,.0f}", f"{ratio:.2f}"]
    causes = runs["ours"]
    late = sum(one["slowest_hundredth"] for one in causes) or 1
    collected = sum(one["of_these_in_a_collection"] for one in causes)
    together = sum(one["of_these_read_together"] for one in causes)
    return [*cells, f"{collected / late:.0%}", f"{together / late:.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("broker")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rates", type=int, nargs="+", default=[1_000, 5_000, 10_000, 20_000])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("build/tails"), metavar="NAME")
    parser.add_argument("--add", action="store_true", help="add rounds to those in NAME.json, if it exists")
    options = parser.parse_args()
    lines = [(case, rate) for case in options.cases for rate in options.rates]
    runs = {f"{case} {rate}": {name: list[dict[str, Any]]() for name in CLIENTS} for case, rate in lines}
    if options.add and (earlier := options.output.with_suffix(".json")).exists():
        runs |= json.loads(earlier.read_text())["runs"]
    for number in range(options.rounds):
        for case, rate in lines:
            for name in CLIENTS if number % 2 else reversed(CLIENTS):
                runs[f"{case} {rate}"][name].append(
                    measured(options.broker, case, rate, options.seconds, name, options.loop)
                )
        rows = [row(name, both) for name, both in runs.items()]
        rounds = sorted({len(both[CLIENTS[0]]) for both in runs.values()})
        about = f"broker: {broker_name(options.broker)}; {options.seconds:g} s for each client and line"
        if rounds != [1]:
            about += f", median of {' to '.join(map(str, rounds[:: max(1, len(rounds) - 1)]))} rounds"
        write_tables(options.output, {"tails": (COLUMNS, rows)}, about=f"{about}; {options.loop}", runs=runs)


if __name__ == "__main__":
    main()
