# SPDX-License-Identifier: Apache-2.0
"""The cost of a message, and its memory, in the presence of many queues, subscriptions or posts.

    python benchmarks/scale.py [--rounds 5] [--output build/scale.json]

Uses the broker of ``BMQ_BROKER_URI``, or an embedded broker in a separate process. Measurements with
unacknowledged messages always use an embedded broker without acknowledgements. The result is the CPU time of
the client's process, the minimum of the rounds. Broker and client share a core, so that neither slows the
other. Prints a table, and writes a file.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import report
from harness import Job, broker, fresh_queue, machine
from rich.console import Console

SCALES = {
    "messages": (10_000, 100_000, 1_000_000),
    "queues": (1, 10, 100, 1000),
    "subscriptions": (1, 10, 100),
    "unacknowledged": (0, 100_000, 500_000, 1_000_000),
    "plain": (0, 100_000, 500_000, 1_000_000),
}


def measure(case: str, count: int, uri: str) -> dict[str, float]:
    mute = case in ("unacknowledged", "window")
    job = fresh_queue(Job("scale", case, count, peer="mute" if mute else ""))
    result = job.run(uri)
    if case == "messages":
        Job("ours", "consume_batches", count, queue=job.queue).run(uri)
    return result


@contextmanager
def one_core() -> Iterator[None]:
    """Bind started processes to one core, so that the broker never runs beside the client.

    A broker has more work for a hundred subscriptions than for one, and a client beside a busy broker takes a
    tenth more CPU time for the same work.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def run(console: Console, rounds: int, output: Path) -> None:
    """Make all measurements, print them, and write them to ``output``."""
    costs: dict[str, dict[str, list[float]]] = {case: {str(n): [] for n in SCALES[case]} for case in SCALES}
    with one_core(), broker() as (uri, what):
        for _ in range(rounds):
            for case, counts in SCALES.items():
                for count in counts:
                    with console.status(f"{count:,} {case}"):
                        costs[case][str(count)].append(measure(case, count, uri)["cpu_us"])
        window = measure("window", 200_000, uri)["bytes"]
        queues = measure("open_queues", 1000, uri)["bytes"]
    console.print(report.scale(costs).printed())
    console.print(f"an unacknowledged message: {window:.0f} bytes above its payload (goal 400)")
    console.print(f"1,000 open queues: {queues / 1e6:.1f} MB (goal 20)")
    document = {
        "machine": machine(),
        "broker": what,
        "about": f"broker: {what}; {rounds} rounds",
        "cpu_us": costs,
        "window_bytes_a_message": window,
        "bytes_of_1000_queues": queues,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n")
    console.print(f"written: {output}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("build/scale.json"))
    options = parser.parse_args()
    run(Console(), options.rounds, options.output)


if __name__ == "__main__":
    main()
