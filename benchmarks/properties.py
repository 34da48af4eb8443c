# SPDX-License-Identifier: Apache-2.0
"""Receiving messages with two properties: ``async for`` beside the official client.

    python benchmarks/properties.py tcp://localhost:30114 [--rounds 5] [--count 200000]

This program shares no code with ``make bench``. It posts all messages first, opens the queue, and takes the
time from the first message to the last one. Each message is confirmed, and both of its properties are
compared. Each measurement is a new process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
import uuid

DOMAIN = "bmq.test.mem.priority"


async def fill(broker: str, uri: str, count: int) -> None:
    import bmq

    async with bmq.connect(broker) as session:
        queue = await session.open_queue(uri, write=True)
        await queue.post_many(
            bmq.PutMessage(b"x" * 200, {"region": "EMEA", "amount": number}) for number in range(count)
        )


async def ours(broker: str, uri: str, count: int) -> tuple[float, float]:
    import bmq

    number, total, begin, cpu = 0, 0, 0.0, 0.0
    async with bmq.connect(broker) as session:
        queue = await session.open_queue(
            uri, read=True, max_unconfirmed_messages=10_000_000, max_unconfirmed_bytes=2**30
        )
        async for message in queue:
            if not number:
                begin, cpu = time.perf_counter(), time.process_time()
            if message.properties["region"] == "EMEA":
                total += message.properties["amount"]
            message.confirm()
            number += 1
            if number == count:
                break
        result = time.perf_counter() - begin, time.process_time() - cpu
    if total != count * (count - 1) // 2:
        raise SystemExit("a property was wrong")
    return result


def official(broker: str, uri: str, count: int) -> tuple[float, float]:
    import blazingmq

    number, total, begin, cpu = 0, 0, 0.0, 0.0
    end = end_cpu = 0.0
    done = threading.Event()

    def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
        nonlocal number, total, begin, cpu, end, end_cpu
        if not number:
            begin, cpu = time.perf_counter(), time.process_time()
        if message.properties["region"] == "EMEA":
            total += message.properties["amount"]
        handle.confirm()
        number += 1
        if number == count:
            end, end_cpu = time.perf_counter(), time.process_time()
            done.set()

    options = blazingmq.QueueOptions(
        max_unconfirmed_messages=10_000_000, max_unconfirmed_bytes=2**30, consumer_priority=1
    )
    with blazingmq.Session(lambda event: None, on_message=on_message, broker=broker) as session:
        session.open_queue(uri, read=True, options=options)
        if not done.wait(300):
            raise SystemExit(f"{count - number} messages never came")
        session.close_queue(uri)
    if total != count * (count - 1) // 2:
        raise SystemExit("a property was wrong")
    return end - begin, end_cpu - cpu


def one(client: str, broker: str, uri: str, count: int) -> None:
    if client == "fill":
        asyncio.run(fill(broker, uri, count))
    elif client == "official":
        print(json.dumps(official(broker, uri, count)))
    else:
        import bmq

        print(json.dumps(bmq.run(ours(broker, uri, count))))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("broker")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--one", nargs=2, metavar=("CLIENT", "URI"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one[0], options.broker, options.one[1], options.count)
        return

    def run(client: str, uri: str) -> str:
        command = [sys.executable, __file__, options.broker, "--count", str(options.count)]
        done = subprocess.run([*command, "--one", client, uri], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    ratios, cpu = list[float](), list[float]()
    for number in range(options.rounds):
        taken: dict[str, tuple[float, float]] = {}
        for client in ("ours", "official") if number % 2 else ("official", "ours"):
            uri = f"bmq://{DOMAIN}/properties-{uuid.uuid4().hex}"
            run("fill", uri)
            taken[client] = json.loads(run(client, uri))
        rates = {client: options.count / wall for client, (wall, _) in taken.items()}
        micros = {client: used / options.count * 1e6 for client, (_, used) in taken.items()}
        ratios.append(rates["ours"] / rates["official"])
        cpu.append(micros["official"] / micros["ours"])
        print(
            f"round {number + 1}: {rates['ours']:,.0f} and {rates['official']:,.0f} messages a second: "
            f"{ratios[-1]:.2f} times; CPU us {micros['ours']:.2f} and {micros['official']:.2f}",
            flush=True,
        )
    print(
        f"median {statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f}); "
        f"CPU time {statistics.median(cpu):.2f} times less"
    )


if __name__ == "__main__":
    main()
