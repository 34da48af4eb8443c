# SPDX-License-Identifier: Apache-2.0
"""The whole comparison: this client, the official client, and the capacity of the broker.

    python benchmarks/run.py [--quick] [--rounds 5] [--count 100000] [--output NAME]
    python benchmarks/run.py --all [options of every.py]

Uses the broker of ``BMQ_BROKER_URI``, or an embedded broker in a separate process. Each measurement is a new
process with a new queue; each round makes all measurements, and the result is the median over the rounds.
Prints tables, writes NAME.json and draws NAME.png; then runs scale.py, stages.py and broker.py. With
``--all``, makes all measurements of docs/performance.md instead, see every.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import broker
import every
import report
import scale
import stages
from harness import Job, Series, fresh_queue, machine, reduced, wait_until_idle
from harness import broker as broker_to_measure
from rich.console import Console
from rich.progress import Progress

Chain = list[tuple[str, Job]]

PAYLOADS = (64, 256, 1024, 4096, 16384)
BURSTS = (1, 10, 100, 1000)
PARTS = ["paths", "latency", "large", "curves"]
PACES = (1_000, 5_000, 10_000, 20_000, 40_000)


def chains(count: int) -> list[Chain]:
    """Return the measurements of one round.

    The jobs of a chain share a queue: each job consumes the previous one's messages.
    """
    many = Job("ours", "post_many", count)
    official, raw = Job("official", "post", count), Job("raw", "post", count)
    plain: list[Chain] = [
        [("post_many", many), ("iterate", Job("ours", "consume", count))],
        [("official post", official), ("official consume", Job("official", "consume", count))],
        [("raw post", raw), ("raw consume", Job("raw", "consume", count))],
        [
            ("post_nowait", Job("ours", "post_nowait", count)),
            ("batches", Job("ours", "consume_batches", count)),
        ],
        [("200 tasks", Job("ours", "post_tasks", count)), ("", Job("raw", "drain", count))],
        [
            ("post_many, asyncio", Job("ours", "post_many", count, loop="asyncio")),
            ("batches, asyncio", Job("ours", "consume_batches", count, loop="asyncio")),
        ],
    ]
    with_properties: list[Chain] = [
        [(f"{name}, properties", replace(job, properties=True)) for name, job in plain[i]]
        for i in (0, 1, 2, 3)
    ]
    workers: list[Chain] = [
        [("", many), (f"consume {name}", Job("ours", "handle", count, concurrency=number, timeout=timeout))]
        for name, number, timeout in (("1", 1, 0.0), ("100", 100, 0.0), ("1, timeout", 1, 30.0))
    ]
    workers.append([("", many), ("iterate, handler", Job("ours", "await_handler", count))])
    return plain + with_properties + workers


def latencies(count: int) -> list[Chain]:
    ack = [
        (name, Job(client, "ack_latency", count, loop=loop, awake=awake))
        for name, client, loop, awake in (
            ("ack", "ours", "uvloop", False),
            ("official ack", "official", "", False),
            ("raw ack", "raw", "", False),
            ("future ack", "floor", "uvloop", False),
            ("future ack, asyncio", "floor", "asyncio", False),
            ("ack, awake", "ours", "uvloop", True),
            ("raw ack, awake", "raw", "", True),
            ("ack, asyncio", "ours", "asyncio", False),
        )
    ]
    push = [
        (name, Job(client, "push_latency", count, loop=loop, awake=awake))
        for name, client, loop, awake in (
            ("push", "ours", "uvloop", False),
            ("official push", "official", "", False),
            ("push, awake", "ours", "uvloop", True),
            ("push, asyncio", "ours", "asyncio", False),
        )
    ]
    first = [
        ("first ack", Job("first_ack", "ours", 1)),
        ("official first ack", Job("first_ack", "official", 1)),
    ]
    drained = [[(name, job), ("", Job("raw", "drain", job.count + 500))] for name, job in ack]
    return [*drained, *([each] for each in push), *([each] for each in first)]


def large(count: int) -> list[Chain]:
    size = 16 * 1024
    return [
        [("16 KiB", Job("ours", "post_many", count, size)), ("", Job("raw", "drain", count))],
        [("raw 16 KiB", Job("raw", "post", count, size)), ("", Job("raw", "drain", count))],
        [("loopback 16 KiB", Job("raw", "loopback", count, size))],
        [("16 KiB, acking", Job("ours", "post_many", count, size, peer="acking"))],
        [("raw 16 KiB, acking", Job("raw", "post", count, size, peer="acking"))],
        [("gathered 16 KiB", Job("floor", "gathered", count, size, peer="acking"))],
    ]


def curves(count: int) -> list[Chain]:
    """Return the measurements for the picture."""
    made: list[Chain] = []
    for size in PAYLOADS:
        for name, client, case in (
            ("ours", "ours", "post_many"),
            ("official", "official", "post"),
            ("raw", "raw", "post"),
        ):
            # The official client raises an error if more than about 100 MB wait.
            n = min(count, (60_000_000 if client == "official" else 400_000_000) // size)
            made.append(
                [(f"payload {size} {name}", Job(client, case, n, size)), ("", Job("raw", "drain", n))]
            )
    made += [
        [
            (f"burst {burst}", Job("ours", "post_nowait", count // 2, burst=burst)),
            ("", Job("raw", "drain", count // 2)),
        ]
        for burst in BURSTS
    ]
    for pace in PACES:
        n = min(count, pace * 2)
        made += [
            [
                (f"pace {pace} {client}", Job(client, "paced", n, pace=pace)),
                ("", Job("raw", "drain", n)),
            ]
            for client in ("ours", "official")
        ]
    return made


def measure(
    uri: str,
    plan: list[Chain],
    rounds: int,
    series: dict[str, Series],
    step: Callable[[str], None],
    patience: float,
) -> None:
    """Make each measurement of the plan once in each round, in random order."""
    for number in range(rounds):
        shift = number * 3 % len(plan)
        for chain in plan[shift:] + plan[:shift]:
            queue = fresh_queue(chain[0][1])
            for name, job in chain:
                step(name)
                wait_until_idle(patience if name else 0)
                result = reduced(replace(job, queue=queue.queue, seed=queue.seed).run(uri))
                if name:
                    series.setdefault(name, Series(name)).results.append(result)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each measurement is made")
    parser.add_argument("--count", type=int, default=100_000, help="messages in each")
    parser.add_argument("--quick", action="store_true", help="a short look: 2 rounds of 20,000, no picture")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=PARTS,
        help="measure only these, and keep the other results of the output file",
    )
    parser.add_argument("--output", type=Path, default=Path("build/benchmark"), metavar="NAME")
    parser.add_argument(
        "--broker-name", default="", help="what the broker is, for the tables and the picture"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long each measurement may wait for the machine to be idle",
    )
    parser.add_argument(
        "--all", action="store_true", help="all measurements of docs/performance.md: every.py"
    )
    if "--all" in sys.argv[1:]:
        return every.main([argument for argument in sys.argv[1:] if argument != "--all"])
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.count, options.only = 2, 20_000, PARTS[:3]
    console = Console()
    series: dict[str, Series] = {}
    with broker_to_measure() as (uri, what), Progress(console=console, transient=True) as progress:
        parts = {
            "paths": (chains(options.count), options.rounds),
            "latency": (latencies(min(options.count // 20, 5_000)), options.rounds),
            "large": (large(options.count // 5), options.rounds),
            "curves": (curves(options.count), max(1, options.rounds // 2)),
        }
        plans = [parts[name] for name in options.only]
        total = sum(len(chain) for plan, rounds in plans for chain in plan for _ in range(rounds))
        task = progress.add_task("measuring", total=total)

        def step(name: str) -> None:
            progress.update(task, advance=1, description=name or "emptying the queue")

        for plan, rounds in plans:
            measure(uri, plan, rounds, series, step, options.patience)
        if "large" in options.only:
            refused = fresh_queue(Job("official", "post_until_refused", options.count // 5, 16 * 1024))
            series["official 16 KiB"] = Series("official 16 KiB", [refused.run(uri)])
            if posted := series["official 16 KiB"].results[0]["posted"]:
                replace(refused, client="raw", case="drain", count=posted).run(uri)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    path = options.output.with_suffix(".json")
    if len(options.only) < len(PARTS) and path.exists():
        kept = json.loads(path.read_text())["runs"]
        series = {name: Series(name, results) for name, results in kept.items()} | series
    document = {
        "machine": machine(),
        "broker": options.broker_name or what,
        "rounds": options.rounds,
        "count": options.count,
        "runs": {name: one.results for name, one in series.items()},
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    report.show(console, document, series)
    console.print(f"written: {path}")
    if any(name.startswith("payload ") for name in series):
        picture = options.output.with_suffix(".png")
        report.picture(picture, document, series)
        console.print(f"written: {picture}")
    if len(options.only) == len(PARTS):
        scale.run(console, options.rounds, options.output.with_name("scale.json"))
        stages.run(console, options.output.with_name("stages.json"))
        broker.run(console, 1_000_000, options.output.with_name("broker.json"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
