# SPDX-License-Identifier: Apache-2.0
"""Sessions in several threads of one process, beside one session and beside threads that only compute.

    PYTHON_GIL=0 python3.14t benchmarks/threads.py [tcp://localhost:30114] [--threads 2] [--rounds 5]

Every thread has an event loop and a session, and posts to a queue of its own. Without the address of a
broker, every thread has an embedded broker too, in the same event loop: no other process takes part of the
cores. The floor is a loop that only computes, in as many threads: in an interpreter with a GIL, threads
compute no faster than one thread.

The table has two ratios. The first compares the time from the common start to the end of the last thread. The
second compares the CPU time of a thread, alone and beside the others: other programs on the machine have
little effect on it. Waiting for a lock is part of the first only.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

from harness import broker_name, write_table

import bmq
from bmq.broker import Broker

SIZE = 256
#: The threshold of the garbage collector that the page advises.
ADVISED = 50_000
#: Waits for the common start, does the work, and returns the CPU seconds of the work.
Work: TypeAlias = Callable[[int, threading.Barrier], float]


async def exchange(uri: str | None, number: int, count: int, start: threading.Barrier) -> float:
    async with AsyncExitStack() as closing:
        if uri is None:
            uri = (await closing.enter_async_context(Broker())).uri
        session = await closing.enter_async_context(bmq.connect(uri))
        payload = bytes(SIZE)  # its own: threads that count references to a shared object wait for each other
        queue_uri = f"bmq://bmq.test.mem.priority/threads-{number}"
        queue = await session.open_queue(queue_uri, write=True)
        start.wait()
        began = time.thread_time()
        report = await queue.post_many([payload] * count)
        if report.acknowledged != count:
            raise SystemExit(f"{count - report.acknowledged} posts failed")
        reader = await session.open_queue(queue_uri, read=True)
        async for batch in reader.batches():
            batch.confirm()
            count -= len(batch)
            if count <= 0:
                break
        return time.thread_time() - began
    raise AssertionError


def compute(count: int, start: threading.Barrier) -> float:
    start.wait()
    began = time.thread_time()
    value = 0
    for number in range(count):
        value = (value * 31 + number) & 0xFFFF
    return time.thread_time() - began


def together(threads: int, work: Work) -> tuple[float, float]:
    """Return the seconds from the common start to the end of the last thread, and the CPU seconds of all."""
    start, used, ends = threading.Barrier(threads + 1), list[float](), list[float]()

    def run(number: int) -> None:
        used.append(work(number, start))
        ends.append(time.perf_counter())

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for each in running:
        each.start()
    start.wait()
    began = time.perf_counter()
    for each in running:
        each.join()
    return max(ends) - began, sum(used)


def spread(found: list[float]) -> str:
    return f"{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("broker", nargs="?")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=400_000)
    parser.add_argument("--output", type=Path, default=Path("build/threads"), metavar="NAME")
    given = parser.parse_args()
    gc.freeze()  # as bmq.run and `bmq run` do

    def sessions(number: int, start: threading.Barrier) -> float:
        return asyncio.run(exchange(given.broker, number, given.count, start))

    def loops(number: int, start: threading.Barrier) -> float:
        return compute(5_000_000, start)

    works: dict[str, tuple[int, Work]] = {
        "sessions": (gc.get_threshold()[0], sessions),
        f"sessions, gc.set_threshold({ADVISED:_})": (ADVISED, sessions),
        "loops that compute": (ADVISED, loops),
    }
    by_time: dict[str, list[float]] = {name: [] for name in works}
    by_cpu: dict[str, list[float]] = {name: [] for name in works}
    rates: list[float] = []
    for _ in range(given.rounds):
        for name, (threshold, work) in works.items():
            gc.set_threshold(threshold)
            one, one_cpu = together(1, work)
            many, many_cpu = together(given.threads, work)
            by_time[name].append(given.threads * one / many)
            by_cpu[name].append(given.threads * given.threads * one_cpu / many_cpu)
            if name == "sessions":
                rates.append(given.count / one)
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    columns = (f"{given.threads} threads, times one", "by time", "by CPU time of the threads")
    rows = [[name, *map(spread, (by_time[name], by_cpu[name]))] for name in works]
    broker = f"broker: {broker_name(given.broker)}" if given.broker else "an embedded broker in each thread"
    about = (
        f"GIL {'on' if gil else 'off'}; {broker}; median of {given.rounds} rounds of {given.count:,} "
        f"messages; one session: {statistics.median(rates):,.0f} messages a second, posted and received"
    )
    write_table(given.output, columns, rows, about=about, by_time=by_time, by_cpu=by_cpu)


if __name__ == "__main__":
    main()
