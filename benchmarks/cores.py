# SPDX-License-Identifier: Apache-2.0
"""An app whose handler computes: one process, ``bmq run --processes N``, ``--threads N``, and the floor.

    python benchmarks/cores.py tcp://localhost:30114 [--count 2000] [--milliseconds 2] [--rounds 5]

Each round posts the messages, starts the app, and measures the messages a second from the first tenth of the
messages to the last. The floor is as many independent processes of ``bmq run``, without a supervisor. The
broker takes part of the cores in all of them. Each figure is a ratio within one round. The ratio by CPU time
compares the CPU time of the app for a message, without the start and without the supervisor, which waits:
other programs have little effect on it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import broker_name, write_table

import bmq

APP = """
import os, time
import bmq

app = bmq.App(os.environ["BENCH_BROKER"])
done = os.open(os.environ["BENCH_DONE"], os.O_WRONLY | os.O_APPEND)
TURNS = int(os.environ["BENCH_TURNS"])

@app.consumer(os.environ["BENCH_QUEUE"], max_unconfirmed_messages=8)
async def handle(message):
    value = 0
    for number in range(TURNS):
        value = (value * 31 + number) & 0xFFFF
    os.write(done, b".")

@app.on_startup
def begin():
    app.state.began = time.process_time()

@app.on_shutdown
def end():
    with open(f"{os.environ['BENCH_DONE']}-{os.getpid()}", "w") as file:
        file.write(str(time.process_time() - app.state.began))
"""


def turns_of(milliseconds: float) -> int:
    """Return the turns of the handler's loop in a number of milliseconds."""
    best, turns = 1.0, 20_000
    for _ in range(20):
        began, value = time.thread_time(), 0
        for number in range(turns):
            value = (value * 31 + number) & 0xFFFF
        best = min(best, time.thread_time() - began)
    return int(turns * milliseconds / 1000 / best)


async def post(uri: str, queue_uri: str, count: int) -> None:
    async with bmq.connect(uri) as session:
        queue = await session.open_queue(queue_uri, write=True)
        report = await queue.post_many([bytes(256)] * count)
        assert report.acknowledged == count


def measure(
    folder: Path, broker: str, queue: str, turns: int, count: int, runs: list[list[str]]
) -> tuple[float, float]:
    """Return messages a second, and CPU seconds of the app for a message.

    Each entry of ``runs`` has the command-line options of a process. The handler's loop makes ``turns`` turns
    for each message.
    """
    asyncio.run(post(broker, queue, count))
    done = folder / "done"
    done.write_bytes(b"")
    environment = {
        **os.environ,
        "BENCH_BROKER": broker,
        "BENCH_DONE": str(done),
        "BENCH_TURNS": str(turns),
        "BENCH_QUEUE": queue,
    }
    command = [sys.executable, "-m", "bmq", "run", "bench_app", "--dir", str(folder)]
    with (folder / "log").open("w") as log:
        processes = [
            subprocess.Popen([*command, *options], env=environment, stdout=log, stderr=log)
            for options in runs
        ]
    begin, began = count // 10, 0.0
    while (size := done.stat().st_size) < count:
        if size >= begin and not began:
            first, began = size, time.perf_counter()
        if any(each.poll() is not None for each in processes):
            raise SystemExit((folder / "log").read_text())
        time.sleep(0.002)
    seconds = time.perf_counter() - began
    for each in processes:
        each.send_signal(signal.SIGTERM)
    for each in processes:
        each.wait()
    used = 0.0
    for each in folder.glob("done-*"):
        used += float(each.read_text())
        each.unlink()
    return (count - first) / seconds, used / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("broker")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--milliseconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("build/cores"), metavar="NAME")
    given = parser.parse_args()
    number = str(given.at_once)
    ways = {
        "one process": [[]],
        f"--processes {number}": [["--processes", number]],
        f"--threads {number}": [["--threads", number]],
        f"{number} processes without a supervisor: the floor": [[]] * given.at_once,
    }
    turns = turns_of(given.milliseconds)
    rates: dict[str, list[float]] = {way: [] for way in ways}
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    by_cpu: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bench_app.py").write_text(APP)
        for round_number in range(given.rounds):
            found: dict[str, tuple[float, float]] = {}
            for way, runs in ways.items():
                queue = f"bmq://bmq.test.mem.priority/cores-{os.getpid()}-{round_number}-{len(found)}"
                found[way] = measure(folder, given.broker, queue, turns, given.count, runs)
            one, one_cpu = found["one process"]
            for way, (rate, cpu) in found.items():
                rates[way].append(rate)
                ratios[way].append(rate / one)
                by_cpu[way].append(given.at_once * one_cpu / cpu)
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    rows: list[list[str]] = []
    for way in ways:
        ratio, cpu = ratios[way], by_cpu[way]
        row = [way, f"{statistics.median(rates[way]):,.0f}", "1", ""]
        if way != "one process":
            row[2:] = [
                f"{statistics.median(ratio):.2f} ({min(ratio):.2f}-{max(ratio):.2f})",
                f"{statistics.median(cpu):.2f}",
            ]
        rows.append(row)
    columns = ("way to run the app", "messages a second", "times one process", "by CPU time")
    about = (
        f"GIL {'on' if gil else 'off'}; broker: {broker_name(given.broker)}; {given.milliseconds:g} ms of "
        f"computing a message; median of {given.rounds} rounds of {given.count:,} messages"
    )
    write_table(given.output, columns, rows, about=about, rates=rates, ratios=ratios, by_cpu=by_cpu)


if __name__ == "__main__":
    main()
