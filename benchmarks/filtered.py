# SPDX-License-Identifier: Apache-2.0
"""Delivery to subscriptions with expressions beside delivery without, on a real broker.

A producer in a process of its own posts all messages at once; the consumers, a session each, confirm every
message. The time runs from the first post to the last confirmation. Runs with and without an expression take
turns. The floor is what the broker needs for the expressions alone: the same load with room for everything,
and without a confirmation.

usage: python benchmarks/filtered.py --broker tcp://localhost:30114 [--reader tcp://...] [--domain NAME]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
import uuid

import bmq

#: Consumers, window, and selection: "all" matches everything, "own" a share for each consumer.
CASES = [
    *((1, window, "all") for window in (10, 100, 1_000, 10_000)),
    *((count, window, "own") for count in (3, 10, 100) for window in (100, 1_000)),
    (1, 1_000, "tenth"),
    (1, 1_000, "thousandth"),
]
EXPRESSIONS = {"all": "x >= 0", "tenth": "tenth == 0", "thousandth": "thousandth == 0"}
SHARE = {"tenth": 10, "thousandth": 1000}
LIMIT = 60.0
PRODUCER = """
import sys, bmq

async def main(broker, uri, count, consumers):
    async with bmq.connect(broker) as session:
        queue = await session.open_queue(uri, write=True)
        print("ready", flush=True)
        sys.stdin.readline()
        await queue.post_many(
            bmq.PutMessage(
                bytes(100), {"x": n, "own": n % consumers, "tenth": n % 10, "thousandth": n % 1000}
            )
            for n in range(count)
        )

bmq.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process; 0 without a process."""
    if not pid:
        return 0.0
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run(
    options: argparse.Namespace, consumers: int, window: int, kind: str, *, confirm: bool = True
) -> tuple[float, float, int]:
    """Return the seconds of one run, the broker's seconds, and the number of repeated subscriptions."""
    window = window if confirm else 10 * options.count
    uri = f"bmq://{options.domain}/filtered-{uuid.uuid4().hex[:12]}"
    wanted = options.count // SHARE.get(kind, 1)
    received, ended, done = 0, 0.0, asyncio.Event()
    sessions = [await bmq.connect(options.reader or options.broker) for _ in range(consumers)]

    async def consume(consumer: bmq.Consumer) -> None:
        nonlocal received, ended
        async for message in consumer:
            if confirm:
                message.confirm()
            received += 1
            if received == wanted:
                ended = time.perf_counter()
                done.set()

    tasks = []
    for number, session in enumerate(sessions):
        queue = await session.open_queue(uri, read=True, default_subscription=False)
        expression = f"own == {number}" if kind == "own" else EXPRESSIONS.get(kind)
        consumer = queue.subscribe(expression, max_unconfirmed_messages=window)
        await consumer.open()
        tasks.append(asyncio.create_task(consume(consumer)))
    command = [sys.executable, "-c", PRODUCER, options.broker, uri, str(options.count), str(consumers)]
    producer = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert producer.stdin is not None
    assert producer.stdout is not None
    await producer.stdout.readline()
    used, began = cpu_seconds(options.pid), time.perf_counter()
    producer.stdin.write(b"go\n")
    try:
        await asyncio.wait_for(done.wait(), LIMIT)
    except TimeoutError:
        ended = began + LIMIT
    used = cpu_seconds(options.pid) - used
    repeated = sum(session.stats().repeated_subscriptions for session in sessions)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(session.close() for session in sessions))
    await producer.wait()
    return ended - began, used, repeated


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", default="tcp://localhost:30114", help="the producer's broker")
    parser.add_argument("--reader", default="", help="the consumers' broker, for example a proxy")
    parser.add_argument("--domain", default="bmq.test.mem.priority")
    parser.add_argument("--count", type=int, default=20_000, help="messages of a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pid", type=int, default=0, help="the broker's process, for its processor time")
    options = parser.parse_args()
    print(
        "| consumers | window | selection | s without | s with | ratio | floor | broker CPU | repetitions |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for consumers, window, kind in CASES:
        pairs = [
            (
                bmq.run(run(options, consumers, window, "none")),
                bmq.run(run(options, consumers, window, kind)),
                bmq.run(run(options, consumers, window, kind, confirm=False)),
            )
            for _ in range(options.rounds)
        ]
        plain, filtered = (statistics.median(pair[at][0] for pair in pairs) for at in (0, 1))
        ratio, floor = (
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
            for ratios in (sorted(pair[at][0] / pair[0][0] for pair in pairs) for at in (1, 2))
        )
        work = [sum(pair[at][1] for pair in pairs) for at in (0, 1)]
        cpu = f"{work[1] / work[0]:.2f}" if work[0] else ""
        repeated = statistics.median(pair[1][2] for pair in pairs)
        row = (
            consumers,
            f"{window:,}",
            kind,
            f"{plain:.3f}",
            f"{filtered:.3f}",
            ratio,
            floor,
            cpu,
            f"{repeated:.0f}",
        )
        print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()
