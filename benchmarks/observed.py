# SPDX-License-Identifier: Apache-2.0
"""The cost of observability: the same work without observers, and with more and more observers.

    python benchmarks/observed.py [--rounds 9] [--count 100000] [--before DIR] [--output NAME]

Measures with the broker of ``BMQ_BROKER_URI``, or with an embedded broker in a separate process. The program
compares the CPU time of the client's process per message, which depends least on other work of the machine.
Every
measurement is a fresh process; each round makes all measurements, and ratios are computed within a round.

``--before`` names a checkout of an older version to measure as well.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from harness import Job, Series, broker, fresh_queue, ratio, write_table

#: The ways to be seen, see ``clients/ours.py``; all are compared with the first.
WAYS = {
    "": "no option enabled; statistics are always counted: the floor",
    "interceptor": "an empty interceptor, in all four methods",
    "otel": "[OpenTelemetry](opentelemetry.md), no SDK",
    "otel sdk": "OpenTelemetry, SDK, sampling 1 %",
    "otel sdk metrics": "the same, with metrics of the SDK",
}
BEFORE = "before"
CASES = {"post_many": "consume_batches", "post_nowait": "consume"}
#: The cases in the order of the columns, with their heads.
HEADS = {
    "post_many": "post_many",
    "post_nowait": "post_nowait",
    "consume": "async for + confirm",
    "consume_batches": "batches + confirm",
}


def measure(uri: str, count: int, rounds: int, ways: dict[str, str], before: str) -> dict[str, Series]:
    """Measure every case in every way, once a round; by ``case way``."""
    series = {
        f"{case} {way}": Series(f"{case} {way}") for pair in CASES.items() for case in pair for way in ways
    }
    for number in range(rounds):
        order = list(ways)
        order = order[number % len(order) :] + order[: number % len(order)]
        for post, consume in CASES.items():
            for way in order:
                # Each measurement of consuming receives the messages of the previous posts.
                job = fresh_queue(Job("ours", post, count))
                for case in (post, consume):
                    old = way == BEFORE
                    one = replace(job, case=case, observed="" if old else way, package=before if old else "")
                    series[f"{case} {way}"].results.append(one.run(uri))
    return series


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--before", default="", metavar="DIR")
    parser.add_argument("--output", type=Path, default=Path("build/observed"), metavar="NAME")
    arguments = parser.parse_args()
    ways = {**WAYS, **({BEFORE: "an older version"} if arguments.before else {})}
    with broker() as (uri, name):
        series = measure(uri, arguments.count, arguments.rounds, ways, arguments.before)
    rows: list[list[str]] = []
    for way, what in ways.items():
        cells: list[str] = []
        for case in HEADS:
            ours, first = series[f"{case} {way}"], series[f"{case} "]
            times, least, greatest = ratio(ours, first, "cpu_us")
            cost = f"{ours.median('cpu_us'):.2f}"
            cells.append(f"{cost} ({times:.2f}, {least:.2f}-{greatest:.2f})" if way else cost)
        rows.append([what, *cells])
    columns = ("CPU us a message (times the first line, spread)", *HEADS.values())
    about = f"broker: {name}; median of {arguments.rounds} rounds of {arguments.count:,} messages"
    found = {name: each.results for name, each in series.items()}
    write_table(arguments.output, columns, rows, about=about, runs=found)


if __name__ == "__main__":
    main()
