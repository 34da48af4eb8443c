# SPDX-License-Identifier: Apache-2.0
"""Sessions in several threads of one process, beside one session and beside threads that only compute.

    PYTHON_GIL=0 python3.14t benchmarks/threads.py tcp://localhost:30114 [--threads 2] [--rounds 5]

Every thread has an event loop and a session, and posts to a queue of its own. The floor is a loop that only
computes, in as many threads: in an interpreter with a GIL, threads compute no faster than one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Callable

import bmq

PAYLOAD = bytes(256)


async def exchange(uri: str, queue_uri: str, count: int, start: threading.Barrier, ends: list[float]) -> None:
    async with bmq.connect(uri) as session:
        queue = await session.open_queue(queue_uri, write=True)
        start.wait()
        report = await queue.post_many([PAYLOAD] * count)
        ends.append(time.perf_counter())
        if report.acknowledged != count:
            raise SystemExit(f"{count - report.acknowledged} posts failed")
        reader = await session.open_queue(queue_uri, read=True)
        async for batch in reader.batches():
            batch.confirm()
            count -= len(batch)
            if count <= 0:
                return


def compute(count: int, start: threading.Barrier, ends: list[float]) -> None:
    start.wait()
    value = 0
    for number in range(count):
        value = (value * 31 + number) & 0xFFFF
    ends.append(time.perf_counter())


def together(threads: int, work: Callable[[int, threading.Barrier, list[float]], None]) -> float:
    """Return the seconds from the common start to the end of the last thread."""
    start, ends = threading.Barrier(threads + 1), list[float]()
    running = [threading.Thread(target=work, args=(number, start, ends)) for number in range(threads)]
    for each in running:
        each.start()
    start.wait()
    began = time.perf_counter()
    for each in running:
        each.join()
    return max(ends) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("broker")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=100_000)
    given = parser.parse_args()

    def sessions(number: int, start: threading.Barrier, ends: list[float]) -> None:
        uri = f"bmq://bmq.test.mem.priority/threads-{number}"
        asyncio.run(exchange(given.broker, uri, given.count, start, ends))

    def loops(number: int, start: threading.Barrier, ends: list[float]) -> None:
        compute(5_000_000, start, ends)

    works = {"sessions": sessions, "loops that compute": loops}
    ratios: dict[str, list[float]] = {name: [] for name in works}
    rates: list[float] = []
    for _ in range(given.rounds):
        for name, work in works.items():
            one = together(1, work)
            many = together(given.threads, work)
            ratios[name].append(given.threads * one / many)
            if name == "sessions":
                rates.append(given.count / one)
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    version, rate = sys.version.split()[0], statistics.median(rates)
    print(f"Python {version}, GIL {'on' if gil else 'off'}, one session {rate:,.0f}/s")
    for name, found in ratios.items():
        spread = f"{min(found):.2f}-{max(found):.2f}"
        print(f"{given.threads} {name}: {statistics.median(found):.2f} ({spread}) times one")


if __name__ == "__main__":
    main()
