# SPDX-License-Identifier: Apache-2.0
"""The cost of typed messages and lanes, each beside its basis, in one process, taking turns.

usage: python benchmarks/programs.py [--messages N] [--rounds N]

Uses the embedded broker in a separate process. The figures are this process's CPU time, which does not depend
on the broker's speed; and the elapsed time for handlers that wait.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import orjson

import bmq

Way = Callable[[bmq.Session, int], Awaitable[float]]


@dataclass
class Order:
    customer: Annotated[int, bmq.Property("CustomerId")]
    kind: Annotated[str, bmq.Property("OrderType")]
    address: str
    items: list[int]


ORDER = Order(1234, "EXPRESS", "1 Main Street", [1, 2, 3])
DATA, PROPERTIES = bmq.codecs.Shape(Order).encode(ORDER)


async def fresh(session: bmq.Session) -> bmq.Queue:
    uri = f"bmq://bmq.test.mem.priority/{uuid.uuid4().hex}"
    return await session.open_queue(uri, read=True, write=True, max_unconfirmed_messages=10_000)


async def post_bytes(session: bmq.Session, count: int) -> float:
    queue = await fresh(session)
    began = time.process_time()
    await queue.post_many(bmq.PutMessage(DATA, PROPERTIES) for _ in range(count))
    took = time.process_time() - began
    await queue.close()
    return took / count * 1e6


async def post_values(session: bmq.Session, count: int) -> float:
    queue = await fresh(session)
    orders = queue.typed(Order)
    began = time.process_time()
    await orders.post_many(ORDER for _ in range(count))
    took = time.process_time() - began
    await queue.close()
    return took / count * 1e6


def receiving(read: Callable[[Any], object], typed: bool, codec: Any = "application/json") -> Way:
    async def receive(session: bmq.Session, count: int) -> float:
        queue = await fresh(session)
        await queue.post_many(bmq.PutMessage(DATA, PROPERTIES) for _ in range(count))
        source: Any = queue.typed(Order, codec=codec) if typed else queue
        left = count
        began = time.process_time()
        async for message in source:
            read(message)
            message.confirm()
            left -= 1
            if not left:
                break
        took = time.process_time() - began
        await queue.close()
        return took / count * 1e6

    return receive


def consuming(pause: float, **how: Any) -> Way:
    """Handle messages of 1,000 keys; return microseconds a message: CPU, or elapsed for waiting handlers."""

    async def consume(session: bmq.Session, count: int) -> float:
        queue = await fresh(session)
        await queue.post_many(bmq.PutMessage(b"x" * 256, {"key": number % 1000}) for number in range(count))
        done, left = asyncio.Event(), count

        async def handle(message: bmq.Message) -> None:
            nonlocal left
            if pause:
                await asyncio.sleep(pause)
            left -= 1
            if not left:
                done.set()

        clock = time.perf_counter if pause else time.process_time
        began = clock()
        task = asyncio.create_task(bmq.consume(queue, handle, **how))
        await done.wait()
        took = clock() - began
        task.cancel()
        await asyncio.wait([task])
        await queue.close()
        return took / count * 1e6

    return consume


CPU: dict[str, Way] = {
    "post_many, bytes with the same properties": post_bytes,
    "post_many, values": post_values,
    "async for, bytes": receiving(lambda message: message.data, False),
    "async for, bytes, and orjson.loads": receiving(lambda message: orjson.loads(message.data), False),
    "async for, a typed queue's messages, value not read": receiving(lambda message: message.data, True),
    "async for, values": receiving(lambda message: message.value, True),
    "async for, values by msgspec": receiving(
        lambda message: message.value, True, bmq.codecs.MsgspecJson(Order)
    ),
    "consume, concurrency=1": consuming(0),
    "consume, concurrency=64": consuming(0, concurrency=64),
    "consume, concurrency=64, key": consuming(0, concurrency=64, key="key"),
}
TIME: dict[str, Way] = {
    "consume, concurrency=1": consuming(0.001),
    "consume, concurrency=64": consuming(0.001, concurrency=64),
    "consume, concurrency=64, key": consuming(0.001, concurrency=64, key="key"),
}


async def measure(uri: str, ways: dict[str, Way], count: int, rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    async with bmq.connect(uri) as session:
        for _ in range(rounds):
            for name, way in ways.items():
                found[name].append(await way(session, count))
    return {name: statistics.median(values) for name, values in found.items()}


def table(title: str, found: dict[str, float]) -> None:
    print(f"\n| {title} | us a message |\n| --- | ---: |")
    for name, value in found.items():
        print(f"| {name} | {value:,.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    command = [sys.executable, "-m", "bmq", "broker", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as broker:
        assert broker.stdout is not None
        line = next(line for line in broker.stdout if "tcp://" in line)
        uri = "tcp://" + line.partition("tcp://")[2].split()[0].rstrip(",.")
        try:
            table("CPU", bmq.run(measure(uri, CPU, options.messages, options.rounds)))
            few = max(64, options.messages // 10)
            table("handlers that wait 1 ms", bmq.run(measure(uri, TIME, few, options.rounds)))
        finally:
            broker.terminate()


if __name__ == "__main__":
    main()
