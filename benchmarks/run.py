# SPDX-License-Identifier: Apache-2.0
"""The comparison of this client, the official client, and the capacity of the broker.

    python benchmarks/run.py [--quick] [--rounds 5] [--count 100000] [--output NAME]
    python benchmarks/run.py --against ../before     # this client beside another version of it

Uses the broker of ``BMQ_BROKER_URI``, or an embedded broker in a separate process. Each measurement is a new
process with a new queue; each round makes all measurements, and the result is the median over the rounds.
Prints tables, and writes NAME.json, from which ``page.py`` puts the tables into
``docs/explain/performance.md`` and ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from harness import (
    Job,
    Series,
    broker,
    broker_name,
    fresh_queue,
    machine,
    ratio,
    reduced,
    wait_until_idle,
    write_tables,
)

Chain = list[tuple[str, Job]]
Table = tuple[list[str], list[list[str]]]

# Path, our case, the case of the official client and of the bare socket, goal as a multiple of the official
# client, and goal as a part of the limit.
PATHS = (
    ("post_many", "post_many", "post", 3.5, 0.6),
    ("post_nowait, a future each", "post_nowait", "post", 2.0, 0.0),
    ("200 tasks awaiting post", "200 tasks", "post", 1.8, 0.0),
    ("post_many, two properties", "post_many, properties", "post, properties", 4.0, 0.0),
    ("post_nowait, two properties", "post_nowait, properties", "post, properties", 3.0, 0.0),
    ("async for + confirm", "iterate", "consume", 2.5, 0.0),
    ("batches + confirm", "batches", "consume", 4.0, 0.6),
    ("async for, two properties read", "iterate, properties", "consume, properties", 3.0, 0.0),
    ("post_many, plain asyncio", "post_many, asyncio", "post", 0.0, 0.0),
    ("batches, plain asyncio", "batches, asyncio", "consume", 0.0, 0.0),
)
# Case, our case, reference, compared figure, and maximum ratio. CPU time, because rates depend on other load.
BESIDE = (
    ("post_many, two properties: CPU us", "post_many, properties", "post_many", "cpu_us", 1.6),
    ("async for, two properties read: CPU us", "iterate, properties", "iterate", "cpu_us", 1.6),
    ("consume(concurrency=1): CPU us", "consume 1", "iterate", "cpu_us", 1.25),
    ("consume(concurrency=100): CPU us", "consume 100", "iterate", "cpu_us", 1.43),
    ("consume(concurrency=1, timeout=30): CPU us", "consume 1, timeout", "iterate", "cpu_us", 1.67),
    ("async for that awaits a handler: CPU us", "iterate, handler", "iterate", "cpu_us", 0.0),
    ("one task awaiting post, p50 us", "ack", "raw ack", "p50_us", 1.6),
    ("one task awaiting post, p99 us", "ack", "raw ack", "p99_us", 2.0),
    ("one task awaiting post, plain asyncio, p50 us", "ack, asyncio", "raw ack", "p50_us", 0.0),
)
REFERENCES = {"post_many": "without", "iterate": "async for", "raw ack": "a bare blocking socket"}
LATENCIES = (
    ("post to ack", "ack", "official ack", 0.3, 0.4),
    ("post to own message", "push", "official push", 0.3, 0.4),
    ("post to ack, busy_poll", "ack, awake", "official ack", 0.3, 0.4),
    ("post to own message, busy_poll", "push, awake", "official push", 0.3, 0.4),
    ("post to ack, plain asyncio", "ack, asyncio", "official ack", 0.0, 0.0),
    ("post to own message, plain asyncio", "push, asyncio", "official push", 0.0, 0.0),
    ("a bare blocking socket, post to ack", "raw ack", "official ack", 0.0, 0.0),
    ("a bare socket, polled, post to ack", "raw ack, awake", "official ack", 0.0, 0.0),
)


def chains(count: int) -> list[Chain]:
    """Return the measurements of one round.

    The jobs of a chain share a queue: each job consumes the previous one's messages. A job
    without a name is not measured.
    """
    many = Job("ours", "post_many", count)
    plain: list[Chain] = [
        [("post_many", many), ("iterate", Job("ours", "consume", count))],
        [
            ("official post", Job("official", "post", count)),
            ("official consume", Job("official", "consume", count)),
        ],
        [("raw post", Job("raw", "post", count)), ("raw consume", Job("raw", "consume", count))],
        [
            ("post_nowait", Job("ours", "post_nowait", count)),
            ("batches", Job("ours", "consume_batches", count)),
        ],
    ]
    with_properties = [
        [(f"{name}, properties", replace(job, properties=True)) for name, job in chain] for chain in plain
    ]
    others: list[Chain] = [
        [("200 tasks", Job("ours", "post_tasks", count)), ("", Job("raw", "drain", count))],
        [
            ("post_many, asyncio", replace(many, loop="asyncio")),
            ("batches, asyncio", Job("ours", "consume_batches", count, loop="asyncio")),
        ],
        [("", many), ("iterate, handler", Job("ours", "await_handler", count))],
    ]
    for name, concurrency, timeout in (("1", 1, 0.0), ("100", 100, 0.0), ("1, timeout", 1, 30.0)):
        worker = Job("ours", "handle", count, concurrency=concurrency, timeout=timeout)
        others.append([("", many), (f"consume {name}", worker)])
    return plain + with_properties + others


def latencies(count: int) -> list[Chain]:
    made: list[Chain] = []
    for name, client, loop, awake in (
        ("", "ours", "uvloop", False),
        ("official ", "official", "", False),
        ("raw ", "raw", "", False),
        ("", "ours", "uvloop", True),
        ("raw ", "raw", "", True),
        ("", "ours", "asyncio", False),
    ):
        more = ", awake" if awake else ", asyncio" if loop == "asyncio" else ""
        job = Job(client, "ack_latency", count, loop=loop, awake=awake)
        made.append([(f"{name}ack{more}", job), ("", Job("raw", "drain", count + 500))])
        if client != "raw":
            made.append([(f"{name}push{more}", replace(job, case="push_latency"))])
    return made


def versions(plan: list[Chain], package: str) -> list[Chain]:
    """Return the chains of this client, each followed by the same with another version of it."""
    found: list[Chain] = []
    for chain in plan:
        if any(name and job.client == "ours" for name, job in chain):
            other = [
                (
                    f"before: {name}" if name else "",
                    replace(job, package=package if job.client == "ours" else ""),
                )
                for name, job in chain
            ]
            found += [chain, other]
    return found


def measure(uri: str, plan: list[Chain], rounds: int, patience: float) -> dict[str, Series]:
    """Make each measurement of the plan once in each round, in a different order."""
    series: dict[str, Series] = {}
    for number in range(rounds):
        shift = number * 3 % len(plan)
        for at, chain in enumerate(plan[shift:] + plan[:shift], 1):
            queue = fresh_queue(chain[0][1])
            for name, job in chain:
                print(
                    f"\rround {number + 1} of {rounds}, {at} of {len(plan)}",
                    end=" ",
                    file=sys.stderr,
                    flush=True,
                )
                wait_until_idle(patience if name else 0)
                result = reduced(replace(job, queue=queue.queue, seed=queue.seed).run(uri))
                if name:
                    series.setdefault(name, Series(name)).results.append(result)
    print(file=sys.stderr)
    return series


def goal(met: bool, text: str) -> str:
    return f"{text} {'met' if met else 'not met'}" if text else ""


def throughput(series: dict[str, Series]) -> Table:
    rows: list[list[str]] = []
    for title, mine, other, wanted, part in PATHS:
        ours, official, raw = series[mine], series[f"official {other}"], series[f"raw {other}"]
        times, low, high = ratio(ours, official)
        share = ratio(ours, raw)[0]
        rows.append(
            [
                title,
                f"{ours.median():,.0f}",
                f"{official.median():,.0f}",
                f"{times:.1f} ({low:.1f}-{high:.1f})",
                goal(times >= wanted, f"{wanted:.1f}" if wanted else ""),
                f"{raw.median():,.0f}",
                f"{share:.0%}",
                goal(share >= part, f"{part:.0%}" if part else ""),
                f"{ours.median('cpu_us'):.1f}",
                f"{official.median('cpu_us'):.1f}",
            ]
        )
    columns = "path|bmq|official|times (spread)|goal|broker's limit|part of it|goal|CPU us a message|official"
    return columns.split("|"), rows


def latency(series: dict[str, Series]) -> Table:
    rows: list[list[str]] = []
    for title, mine, theirs, *goals in LATENCIES:
        row = [title]
        for key, wanted in zip(("p50_us", "p99_us"), goals, strict=True):
            ours, official = series[mine].median(key), series[theirs].median(key)
            met = goal(ours / official <= wanted, f"{wanted:.1f}" if wanted else "")
            row += [f"{ours:,.0f}", f"{official:,.0f}", f"{ours / official:.2f}", met]
        rows.append(row)
    compared = ("official", "times", "goal")
    return ["path", "p50", *compared, "p99", *compared], rows


def beside(series: dict[str, Series]) -> Table:
    rows: list[list[str]] = []
    for title, mine, other, key, wanted in BESIDE:
        times, low, high = ratio(series[mine], series[other], key)
        digits = 2 if key == "cpu_us" else 1
        rows.append(
            [
                title,
                f"{series[mine].median(key):,.{digits}f}",
                f"{REFERENCES[other]}: {series[other].median(key):,.{digits}f}",
                f"{times:.2f} ({low:.2f}-{high:.2f})",
                goal(times <= wanted, f"{wanted:.2f}" if wanted else ""),
            ]
        )
    return ["what", "", "beside", "times (spread)", "goal"], rows


def against(series: dict[str, Series]) -> Table:
    rows: list[list[str]] = []
    for name in [each for each in series if not each.startswith("before: ")]:
        before, now = series[f"before: {name}"], series[name]
        row = [name]
        for key in ("p50_us" if "p50_us" in now.results[0] else "rate", "cpu_us"):
            times, low, high = ratio(now, before, key)
            middle = f"{times:.2f} ({low:.2f}-{high:.2f})"
            row += [f"{before.median(key):,.1f}", f"{now.median(key):,.1f}", middle]
        rows.append(row)
    return ["path", "rate or p50 us before", "now", "times", "CPU us before", "now", "times"], rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each measurement is made")
    parser.add_argument("--count", type=int, default=100_000, help="messages in each")
    parser.add_argument("--quick", action="store_true", help="a short look: 2 rounds of 20,000")
    parser.add_argument(
        "--patience", type=float, default=5.0, metavar="SECONDS", help="wait for an idle machine"
    )
    parser.add_argument(
        "--against", metavar="CHECKOUT", help="another version of this client, instead of others"
    )
    parser.add_argument("--output", type=Path, default=Path("build/benchmark"), metavar="NAME")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.count = 2, 20_000
    plan = chains(options.count) + latencies(min(options.count // 20, 5_000))
    if options.against:
        plan = versions(plan, str(Path(options.against).resolve()))
    with broker() as (uri, what):
        series = measure(uri, plan, options.rounds, options.patience)
    if options.against:
        tables = {"against": against(series)}
    else:
        tables = {"throughput": throughput(series), "latency": latency(series), "beside": beside(series)}
    about = f"broker: {broker_name(what)}; median of {options.rounds} runs, {options.count:,} messages each"
    call = f"a call of a function that does nothing takes {machine()['call_ns']:.0f} ns"
    runs = {name: one.results for name, one in series.items()}
    write_tables(options.output, tables, about=f"{about}; {call}", runs=runs)


if __name__ == "__main__":
    main()
