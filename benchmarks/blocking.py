# SPDX-License-Identifier: Apache-2.0
"""``bmq.blocking`` beside the asyncio client, the official client, and alternative designs.

    python benchmarks/blocking.py [--rounds 5] [--count 20000] [--output NAME]

Uses the broker of ``BMQ_BROKER_URI``, or an embedded broker in a separate process. Each measurement is a new
process; each round makes all measurements, and ratios are taken within a round. Writes two tables for
``benchmarks/page.py``: ``NAME.json`` (latency) and ``NAME_rates.json``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from harness import Job, Series, broker, fresh_queue, ratio, reduced, write_table

LATENCIES = {
    "a bare blocking socket, pre-encoded": Job("raw", ""),
    "the protocol's core over a blocking socket, `examples/sans_io_client.py`": Job(
        "blocking", "", observed="core"
    ),
    "the asyncio client": Job("ours", ""),
    "bmq.blocking": Job("blocking", ""),
    "the official client": Job("official", ""),
    "the asyncio client by `asyncio.run_coroutine_threadsafe`": Job(
        "blocking", "", observed="run_coroutine_threadsafe"
    ),
}
LATENCY_HEADS = (
    "post to ack, p50",
    "p99",
    "p50, times the bare socket (spread)",
    "post to own message, p50",
    "p99",
)
#: Posting cases, with the cases that receive their messages.
RATES = [("post_many", "consume"), ("post_nowait", "consume_batches")]
RATE_CLIENTS = {"bmq.blocking": "blocking", "the asyncio client": "ours"}
RATE_WORDS = {
    "post_many": "`post_many` of an iterator",
    "post_nowait": "`post_nowait`, a future each",
    "consume": "a loop, each message confirmed",
    "consume_batches": "batches",
}


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
    parser.add_argument("--output", type=Path, default=Path("build/blocking"), metavar="NAME")
    arguments = parser.parse_args()
    with broker() as (uri, what):
        series = measure(uri, arguments.count, arguments.rounds)
    about = f"broker: {what}; median of {arguments.rounds} rounds of {arguments.count:,} messages"
    found = {name: each.results for name, each in series.items()}
    columns = ("one message of 256 bytes at a time, us", *LATENCY_HEADS)
    floor = "a bare blocking socket, pre-encoded"
    rows = [[name, *latency(series, name, floor)] for name in LATENCIES]
    write_table(arguments.output, columns, rows, about=about, runs=found)
    columns = ("messages a second (times the asyncio client)", *RATE_CLIENTS, "the official client")
    rows = [[words, *rates(series, case)] for case, words in RATE_WORDS.items()]
    write_table(arguments.output.with_name(f"{arguments.output.name}_rates"), columns, rows, about=about)


def shown(ours: Series, floor: Series, key: str) -> str:
    times, least, greatest = ratio(ours, floor, key)
    return f"{times:.2f} ({least:.2f}-{greatest:.2f})"


def latency(series: dict[str, Series], name: str, floor: str) -> list[str]:
    """Return median, tail and ratio to the floor from post to ack; median and tail to the own message."""
    ack, own = series[f"{name}: ack_latency"], series.get(f"{name}: push_latency")
    cells = [f"{ack.median(key):.0f}" for key in ("p50_us", "p99_us")]
    cells.append("1" if name == floor else shown(ack, series[f"{floor}: ack_latency"], "p50_us"))
    return [*cells, *(f"{own.median(key):.0f}" if own else "" for key in ("p50_us", "p99_us"))]


def rates(series: dict[str, Series], case: str) -> list[str]:
    """Return the rates of a case; with the ratio to the asyncio client, on which ``bmq.blocking`` stands."""
    ours, asyncio = series[f"bmq.blocking: {case}"], series[f"the asyncio client: {case}"]
    official = series[f"the official client: {'post' if case.startswith('post') else 'consume'}"]
    times = ratio(ours, asyncio)[0]
    return [f"{ours.median():,.0f} ({times:.2f})", f"{asyncio.median():,.0f}", f"{official.median():,.0f}"]


if __name__ == "__main__":
    main()
