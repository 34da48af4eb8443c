# SPDX-License-Identifier: Apache-2.0
"""``bmq.blocking`` beside the asyncio client, the official client, and alternative designs.

    python benchmarks/blocking.py [--rounds 5] [--count 20000] [--output NAME]

Uses the broker of ``BMQ_BROKER_URI``, or an embedded broker in a separate process. Each measurement is a new
process; each round makes all measurements, and ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from harness import Job, Series, broker, fresh_queue, machine, ratio, reduced
from rich.console import Console
from rich.table import Table

LATENCIES = {
    "bmq.blocking": Job("blocking", ""),
    "the asyncio client": Job("ours", ""),
    "the official client": Job("official", ""),
    "run_coroutine_threadsafe": Job("blocking", "", observed="run_coroutine_threadsafe"),
    "the core over a blocking socket": Job("blocking", "", observed="core"),
    "a bare blocking socket": Job("raw", ""),
}
#: Posting cases, with the cases that receive their messages.
RATES = [("post_many", "consume"), ("post_nowait", "consume_batches")]
RATE_CLIENTS = {"bmq.blocking": "blocking", "the asyncio client": "ours"}


def measure(uri: str, count: int, rounds: int) -> dict[str, Series]:
    """Make all measurements once in each round; return the results by ``client: case``."""
    series: dict[str, Series] = {}

    def add(name: str, job: Job) -> None:
        series.setdefault(name, Series(name)).results.append(reduced(job.run(uri)))

    for _ in range(rounds):
        for name, job in LATENCIES.items():
            for case in ("ack_latency", "push_latency"):
                if job.client != "raw" or case == "ack_latency":
                    add(f"{name}: {case}", fresh_queue(replace(job, case=case, count=max(100, count // 10))))
        for post, consume in RATES:
            for name, client in RATE_CLIENTS.items():
                job = fresh_queue(Job(client, post, count))
                add(f"{name}: {post}", job)
                add(f"{name}: {consume}", replace(job, case=consume))
        job = fresh_queue(Job("official", "post", count))
        add("the official client: post", job)
        add("the official client: consume", replace(job, case="consume"))
    return series


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with broker() as (uri, what):
        series = measure(uri, arguments.count, arguments.rounds)
    console = Console(width=None if sys.stdout.isatty() else 160)
    latency = Table(title=f"Microseconds, with {what}; in brackets times the first line")
    for heading in ("client", "post to ack, p50", "p99", "post to own message, p50", "p99"):
        latency.add_column(heading)
    for name in LATENCIES:
        cells: list[str] = []
        for case in ("ack_latency", "push_latency"):
            one, first = series.get(f"{name}: {case}"), series[f"bmq.blocking: {case}"]
            cells += [
                f"{one.median(key):.0f} ({ratio(one, first, key)[0]:.2f})" if one else ""
                for key in ("p50_us", "p99_us")
            ]
        latency.add_row(name, *cells)
    console.print(latency)
    rates = Table(title="Messages a second; in brackets times bmq.blocking")
    rates.add_column("client")
    cases = [case for pair in RATES for case in pair]
    for case in cases:
        rates.add_column(case)
    for name in (*RATE_CLIENTS, "the official client"):
        cells = []
        for case in cases:
            own = {"post_many": "post", "post_nowait": "post", "consume_batches": "consume"}.get(case, case)
            one = series.get(f"{name}: {case}") or series[f"{name}: {own}"]
            times = ratio(one, series[f"bmq.blocking: {case}"])[0]
            cells.append(f"{one.median():,.0f} ({times:.2f})")
        rates.add_row(name, *cells)
    console.print(rates)
    if arguments.output:
        found = {name: each.results for name, each in series.items()}
        arguments.output.with_suffix(".json").write_text(json.dumps({"machine": machine(), "runs": found}))


if __name__ == "__main__":
    main()
