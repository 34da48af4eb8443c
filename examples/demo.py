"""The main job in one terminal: a producer, two consumers with subscriptions, and a broker.

    python examples/demo.py                                  # on the embedded broker
    python examples/demo.py --broker tcp://localhost:30114   # on any broker

The producer posts four days of New York departures, read from ``examples/data``. One consumer subscribes
to the flights that left more than an hour late, the other one takes the rest; each confirms what it has
handled.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from producer import message, post_all, records
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import bmq
from bmq.broker import Broker

LATE = "dep_delay > 60"
CHUNK = 200


@dataclass
class Tally:
    """What one party has done, for the table at the end."""

    name: str
    received: int = 0
    confirmed: int = 0
    bytes: int = 0
    airlines: set[str] = field(default_factory=set)
    seconds: float = 0.0


async def produce(queue: bmq.Queue, messages: list[bmq.PutMessage], progress: Progress, bar: TaskID) -> int:
    acknowledged = 0
    for start in range(0, len(messages), CHUNK):
        acknowledged += await post_all(queue, messages[start : start + CHUNK])
        progress.update(bar, completed=acknowledged)
    return acknowledged


async def consume(
    consumer: bmq.Consumer, tally: Tally, arrived: asyncio.Event, progress: Progress, bar: TaskID
) -> None:
    started = time.perf_counter()
    async for received in consumer:
        async with received:
            tally.received += 1
            tally.bytes += len(received.data)
            tally.airlines.add(str(received.properties["carrier"]))
        tally.confirmed += received.confirmed
        tally.seconds = time.perf_counter() - started
        progress.advance(bar)
        arrived.set()


def row(
    sent: int | None, acked: int | None, received: int | None, confirmed: int | None, size: int, rate: float
) -> list[str]:
    counts = ["" if n is None else f"{n:,}" for n in (sent, acked, received, confirmed)]
    return [*counts, f"{size / 1024:,.0f}", f"{rate:,.0f}"]


async def run(broker: str, count: int, console: Console) -> bool:
    uri = f"bmq://bmq.test.mem.priority/demo-{os.getpid()}"
    messages = [message(record) for record, _ in zip(records(), range(count), strict=False)]
    late = Tally(f"late: {LATE}")
    rest = Tally("the rest")
    progress = Progress(
        TextColumn("{task.description:>10}"),
        BarColumn(40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    async with AsyncExitStack() as stack:
        producing = await stack.enter_async_context(bmq.connect(broker))
        consuming = await stack.enter_async_context(bmq.connect(broker))
        out = await producing.open_queue(uri, write=True)
        into = await consuming.open_queue(uri, read=True, default_subscription=False)
        late_consumer = await into.subscribe(LATE, priority=10)
        rest_consumer = await into.subscribe(priority=1)
        stack.enter_context(progress)
        posting, receiving = (
            progress.add_task("posted", total=len(messages)),
            progress.add_task("received", total=len(messages)),
        )
        arrived = asyncio.Event()
        started = time.perf_counter()
        tasks = [
            asyncio.create_task(consume(late_consumer, late, arrived, progress, receiving)),
            asyncio.create_task(consume(rest_consumer, rest, arrived, progress, receiving)),
        ]
        acknowledged = await produce(out, messages, progress, posting)
        producing_seconds = time.perf_counter() - started
        while late.confirmed + rest.confirmed < acknowledged:
            await arrived.wait()
            arrived.clear()
        total_seconds = time.perf_counter() - started
        await into.close()
        await asyncio.gather(*tasks)

    table = Table(title=f"{len(messages):,} departures through {uri}", title_justify="left")
    table.add_column("who", no_wrap=True)
    for heading in ("sent", "acked", "received", "confirmed", "KiB", "msg/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    size = sum(len(each.data) for each in messages)
    rate = acknowledged / producing_seconds
    table.add_row("producer", *row(len(messages), acknowledged, None, None, size, rate))
    for tally in (late, rest):
        rate = tally.received / tally.seconds if tally.seconds else 0
        table.add_row(tally.name, *row(None, None, tally.received, tally.confirmed, tally.bytes, rate))
    received, confirmed = late.received + rest.received, late.confirmed + rest.confirmed
    table.add_section()
    totals = (len(messages), acknowledged, received, confirmed, late.bytes + rest.bytes)
    table.add_row("all", *row(*totals, confirmed / total_seconds))
    console.print(table)
    complete = len(messages) == acknowledged == received == confirmed
    airlines = len(late.airlines | rest.airlines)
    console.print(
        f"every message of {airlines} airlines was sent, acknowledged, received once and confirmed"
        if complete
        else "[bold red]the numbers do not add up: something was lost or delivered twice"
    )
    return complete


async def main() -> int:
    parser = argparse.ArgumentParser(description="A producer, two consumers and a broker.")
    parser.add_argument("--broker", help="a broker to use instead of the embedded one")
    parser.add_argument("--count", type=int, default=100_000, help="at most this many records")
    options = parser.parse_args()
    console = Console()
    async with AsyncExitStack() as stack:
        broker = options.broker
        if broker is None:
            embedded = await stack.enter_async_context(Broker(port=0))
            broker = embedded.uri
        console.print(f"broker: {broker}{'' if options.broker else ' (embedded)'}")
        return 0 if await run(broker, options.count, console) else 1


if __name__ == "__main__":
    raise SystemExit(bmq.run(main()))
