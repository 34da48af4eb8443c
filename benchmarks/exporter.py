# SPDX-License-Identifier: Apache-2.0
"""The cost of `bmq exporter` for a broker: processor time, log, and the latency of posts, with and without.

    python benchmarks/exporter.py --broker tcp://localhost:30114 --pid PID [--log FOLDER]

Opens 1,000 queues with a message each, the most expensive case for the exporter, and posts to another queue
50 times a second. Rounds without and with the exporter alternate. Without --broker, an embedded broker in a
process of its own replaces the broker, to test the benchmark itself. Linux only: processor times come from
/proc.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import bmq

DOMAIN = "bmq://bmq.test.mem.priority"
TICKS = os.sysconf("SC_CLK_TCK")
PAUSE = 0.02


@dataclass(frozen=True)
class Round:
    """Figures of one round: shares of a processor, bytes of log a second, and latencies in milliseconds."""

    exported: bool
    broker: float
    exporter: float
    log: float
    p50: float
    p99: float
    longest: float


def processor(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def logged(folder: Path | None) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) if folder else 0


@contextlib.contextmanager
def embedded() -> Iterator[tuple[str, int]]:
    """Run an embedded broker."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bmq", "broker", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        found = re.search(r"tcp://\S+", process.stdout.readline())
        assert found is not None
        yield found[0], process.pid
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def exporting(broker: str, interval: float, details: int) -> Iterator[tuple[int, str]]:
    """Run the exporter; yields its process and address."""
    words = [sys.executable, "-m", "bmq", "exporter", broker, "--listen", "127.0.0.1:0"]
    words += ["--interval", str(interval), "--max-queues", "2000", "--max-details", str(details)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.pid, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


async def measure(
    queue: bmq.Queue, pid: int, seconds: float, log: Path | None, exporter: tuple[int, str] | None
) -> Round:
    """Post for some time."""
    latencies: list[float] = []
    began, cpu, size = time.monotonic(), processor(pid), logged(log)
    own = processor(exporter[0]) if exporter else 0.0
    scraped = began
    while time.monotonic() - began < seconds:
        at = time.perf_counter()
        await queue.post(b"x" * 100)
        latencies.append(time.perf_counter() - at)
        if exporter and time.monotonic() - scraped >= 15:
            scraped = time.monotonic()
            await asyncio.to_thread(lambda: urllib.request.urlopen(exporter[1]).read())
        await asyncio.sleep(PAUSE)
    passed = time.monotonic() - began
    cuts = statistics.quantiles(latencies, n=100)
    return Round(
        exporter is not None,
        (processor(pid) - cpu) / passed,
        (processor(exporter[0]) - own) / passed if exporter else 0.0,
        (logged(log) - size) / passed,
        statistics.median(latencies) * 1000,
        cuts[98] * 1000,
        max(latencies) * 1000,
    )


async def compare(broker: str, pid: int, chosen: argparse.Namespace) -> None:
    async with bmq.connect(broker, process_name="exporter benchmark") as session:
        for number in range(chosen.queues):
            each = await session.open_queue(f"{DOMAIN}/exported{number:04}", write=True)
            await each.post(b"x" * 100)
        queue = await session.open_queue(f"{DOMAIN}/exported.latency", read=True, write=True)

        async def drain() -> None:
            async for message in queue:
                message.confirm()

        draining = asyncio.create_task(drain())
        rounds: list[Round] = []
        for _ in range(chosen.rounds):
            rounds.append(await measure(queue, pid, chosen.seconds, chosen.log, None))
            with exporting(broker, chosen.interval, chosen.details) as exporter:
                rounds.append(await measure(queue, pid, chosen.seconds, chosen.log, exporter))
                answer = await asyncio.to_thread(lambda: urllib.request.urlopen(exporter[1]).read())
                text = answer.decode()
        draining.cancel()
        await asyncio.wait([draining])
    print(f"{chosen.queues} queues, interval {chosen.interval:g} s, {chosen.details} details a round")
    print("| exporter | broker CPU % | exporter CPU % | log KiB/s | post p50 ms | p99 ms | max ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for done in rounds:
        print(
            f"| {'yes' if done.exported else 'no'} | {done.broker * 100:.1f} | {done.exporter * 100:.1f} | "
            f"{done.log / 1024:.1f} | {done.p50:.2f} | {done.p99:.2f} | {done.longest:.1f} |"
        )
    series = sum(1 for line in text.splitlines() if not line.startswith("#"))
    print(f"{series} series, {len(text) / 1024:.0f} KiB a scrape")
    for line in text.splitlines():
        if line.startswith("bmq_exporter_") and "timestamp" not in line:
            print(line)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--broker", help="address of a broker with the test domains")
    parser.add_argument("--pid", type=int, help="process of this broker")
    parser.add_argument("--log", type=Path, help="folder with the broker's log")
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--details", type=int, default=200)
    parser.add_argument("--interval", type=float, default=15.0)
    parser.add_argument("--seconds", type=float, default=45.0, help="length of a round")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    if chosen.broker is not None:
        if chosen.pid is None:
            parser.error("--broker needs --pid")
        await compare(chosen.broker, chosen.pid, chosen)
        return
    with embedded() as (broker, pid):
        await compare(broker, pid, chosen)


if __name__ == "__main__":
    asyncio.run(main())
