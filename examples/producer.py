# SPDX-License-Identifier: Apache-2.0
"""Post flight records to a queue, with properties that consumers can subscribe on.

    python examples/producer.py --broker tcp://localhost:30114 --count 100

Start ``bmq broker`` in another terminal if you have no BlazingMQ broker at hand.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import bmq

QUEUE = "bmq://bmq.test.mem.priority/departures"
DATA = Path(__file__).parent / "data" / "departures.csv"
NUMBERS = ("flight", "distance", "dep_delay", "arr_delay", "air_time")
SUBSCRIBABLE = ("carrier", "origin", "dest", "status", "distance", "dep_delay")


def records() -> Iterator[dict[str, str | int]]:
    """Read the departures; an empty field is unknown, and left out."""
    with DATA.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield {name: int(text) if name in NUMBERS else text for name, text in row.items() if text}


def message(record: dict[str, str | int]) -> bmq.PutMessage:
    """The record as JSON, with properties for subscriptions."""
    properties = {name: record[name] for name in SUBSCRIBABLE if name in record}
    return bmq.PutMessage(json.dumps(record).encode(), properties=properties)


async def post_all(queue: bmq.Queue, messages: list[bmq.PutMessage]) -> int:
    """Post every message; a message refused by a full queue is posted again a little later."""
    acknowledged = 0
    while messages:
        report = await queue.post_many(messages)
        acknowledged += report.acknowledged
        for failed in report.failures:
            if not failed.error.retryable:
                raise failed.error
        messages = [messages[failed.index] for failed in report.failures]
        if messages:
            await asyncio.sleep(0.05)
    return acknowledged


async def main() -> None:
    parser = argparse.ArgumentParser(description="Post flight records to a queue.")
    parser.add_argument("--broker", help="default: BMQ_BROKER_URI, or tcp://localhost:30114")
    parser.add_argument(
        "--queue", default="bmq://bmq.test.mem.priority/departures", help="default: %(default)s"
    )
    parser.add_argument("--count", type=int, default=100, help="how many records (default: %(default)s)")
    options = parser.parse_args()

    async with bmq.connect(options.broker) as session:
        queue = await session.open_queue(options.queue, write=True)
        messages = [message(record) for record, _ in zip(records(), range(options.count), strict=False)]
        acknowledged = await post_all(queue, messages)
        print(f"{acknowledged} records acknowledged by {session.address}")


if __name__ == "__main__":
    try:
        bmq.run(main())
    except bmq.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")
