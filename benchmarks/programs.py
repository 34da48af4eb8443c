# SPDX-License-Identifier: Apache-2.0
"""The cost of typed messages and lanes, each beside a program by hand, in one process, taking turns.

    python benchmarks/programs.py [--messages N] [--rounds N]

Uses the embedded broker in a separate process. The figures are this process's CPU time, which does not depend
on the broker's speed; and the elapsed time for handlers that wait. The floor of a line is the shortest
program by hand with the same result: it encodes and decodes JSON itself, and handles messages in loops of
its own. Writes ``build/typed.json`` and ``build/lanes.json`` for ``benchmarks/page.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import harness

import bmq
from bmq._json import orjson

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


async def post_by_hand(session: bmq.Session, count: int) -> float:
    queue = await fresh(session)

    def made() -> bmq.PutMessage:
        properties = {"bmq_content_type": "application/json", "CustomerId": ORDER.customer}
        return bmq.PutMessage(orjson.dumps(ORDER), properties | {"OrderType": ORDER.kind})

    began = time.process_time()
    await queue.post_many(made() for _ in range(count))
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


Handle = Callable[[bmq.Message], Awaitable[None]]
Work = Callable[[bmq.Queue, Handle], Awaitable[None]]


def handling(pause: float, work: Work) -> Way:
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
        task = asyncio.ensure_future(work(queue, handle))
        await done.wait()
        took = clock() - began
        task.cancel()
        await asyncio.wait([task])
        await queue.close()
        return took / count * 1e6

    return consume


def consuming(pause: float, **how: Any) -> Way:
    return handling(pause, lambda queue, handle: bmq.consume(queue, handle, **how))


async def loop(queue: bmq.Queue, handle: Handle) -> None:
    """Handle one message after the other."""
    async for message in queue:
        await handle(message)
        message.confirm()


async def tasks(queue: bmq.Queue, handle: Handle) -> None:
    """Handle in 64 tasks, in any order."""

    async def each() -> None:
        while True:
            message = await queue.receive()
            await handle(message)
            message.confirm()

    await asyncio.gather(*(each() for _ in range(LANES)))


async def ordered_tasks(queue: bmq.Queue, handle: Handle) -> None:
    """Handle in 64 tasks; the messages of a key go to one of them, in order."""
    lines = [asyncio.Queue[bmq.Message]() for _ in range(LANES)]

    async def each(line: asyncio.Queue[bmq.Message]) -> None:
        while True:
            message = await line.get()
            await handle(message)
            message.confirm()

    async def share() -> None:
        async for message in queue:
            lines[hash(message.properties["key"]) % LANES].put_nowait(message)

    await asyncio.gather(share(), *(each(line) for line in lines))


LANES = 64
#: Each way of the client, with the name of its floor.
CPU: dict[str, tuple[Way, str]] = {
    "post_many, bytes with the same properties": (post_bytes, ""),
    "post_many, values": (post_values, "orjson.dumps and the properties"),
    "async for, bytes": (receiving(lambda message: message.data, False), ""),
    "async for, a typed queue's messages, value not read": (
        receiving(lambda message: message.data, True),
        "async for, bytes",
    ),
    "async for, values (a dataclass, checked field by field)": (
        receiving(lambda message: message.value, True),
        "orjson.loads and the dataclass, nothing checked",
    ),
    "async for, values by msgspec": (
        receiving(lambda message: message.value, True, bmq.codecs.MsgspecJson(Order)),
        "orjson.loads and the dataclass, nothing checked",
    ),
    "consume, concurrency=1": (consuming(0), "a loop that awaits the handler"),
    "consume, concurrency=64": (consuming(0, concurrency=LANES), "64 tasks that receive"),
    "consume, concurrency=64, key": (consuming(0, concurrency=LANES, key="key"), "64 tasks, by the key"),
}
TIME: dict[str, tuple[Way, str]] = {
    "consume, concurrency=1": (consuming(0.001), "a loop that awaits the handler"),
    "consume, concurrency=64": (consuming(0.001, concurrency=LANES), "64 tasks that receive"),
    "consume, concurrency=64, key": (consuming(0.001, concurrency=LANES, key="key"), "64 tasks, by the key"),
}
CPU_FLOORS: dict[str, Way] = {
    "orjson.dumps and the properties": post_by_hand,
    "orjson.loads and the dataclass, nothing checked": receiving(
        lambda message: Order(**orjson.loads(message.data)), False
    ),
    "a loop that awaits the handler": handling(0, loop),
    "64 tasks that receive": handling(0, tasks),
    "64 tasks, by the key": handling(0, ordered_tasks),
}
TIME_FLOORS: dict[str, Way] = {
    "a loop that awaits the handler": handling(0.001, loop),
    "64 tasks that receive": handling(0.001, tasks),
    "64 tasks, by the key": handling(0.001, ordered_tasks),
}


async def measure(uri: str, ways: dict[str, Way], count: int, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    async with bmq.connect(uri) as session:
        for _ in range(rounds):
            for name, way in ways.items():
                found[name].append(await way(session, count))
    return found


def table(
    uri: str,
    output: Path,
    title: str,
    ways: dict[str, tuple[Way, str]],
    floors: dict[str, Way],
    count: int,
    rounds: int,
) -> None:
    """Measure the ways in turn with their floors, and write a table; the ratios are medians of the rounds."""
    every = {name: way for name, (way, _) in ways.items()} | floors
    found = bmq.run(measure(uri, every, count, rounds))
    rows: list[list[str]] = []
    for name, (_, floor) in ways.items():
        row = [name, f"{statistics.median(found[name]):,.1f}", "", ""]
        if floor:
            times = sorted(ours / hand for ours, hand in zip(found[name], found[floor], strict=True))
            row[2] = f"{statistics.median(found[floor]):,.1f}: {floor}"
            row[3] = f"{statistics.median(times):.2f} ({times[0]:.2f}-{times[-1]:.2f})"
        rows.append(row)
    about = f"an embedded broker; median of {rounds} rounds of {count:,} messages"
    harness.write_table(
        output, (title, "us a message", "floor, by hand", "times (spread)"), rows, about=about
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("build"), metavar="FOLDER")
    options = parser.parse_args()
    with harness.embedded_broker() as (uri, _):
        many, few = options.messages, max(LANES, options.messages // 10)
        table(uri, options.output / "typed", "CPU time", CPU, CPU_FLOORS, many, options.rounds)
        table(
            uri,
            options.output / "lanes",
            "handlers that wait 1 ms",
            TIME,
            TIME_FLOORS,
            few,
            options.rounds,
        )


if __name__ == "__main__":
    main()
