# SPDX-License-Identifier: Apache-2.0
"""Tags: each subscriber of a topic receives the messages with the subscriber's tags, and no others.

    python examples/tags.py                                  # on the embedded broker
    python examples/tags.py --broker tcp://localhost:30114   # on any broker

A fanout queue is the topic, and its applications are the subscribers. BlazingMQ also keeps messages outside
of a subscriber's filter; ``discard_unmatched`` confirms such messages unseen. Pulsar and CMQ drop them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from contextlib import AsyncExitStack

import bmq

SUBSCRIBERS = {
    "foo": bmq.TagFilter(any_of={"urgent", "compressed"}),
    "bar": bmq.TagFilter(any_of={"urgent"}, all_of={"eu"}),
    "baz": bmq.subscriptions.CmqTags(),  # no tags: all messages
}
MESSAGES = [
    ("invoice", {"urgent", "eu"}),
    ("backup", {"compressed"}),
    ("newsletter", {"eu", "high-priority"}),
    ("note", set[str]()),
    ("alarm", {"urgent"}),
]


async def subscribe(consumer: bmq.Consumer, expected: int) -> list[str]:
    received: list[str] = []
    while len(received) < expected:
        async with await consumer.receive(timeout=30) as message:
            received.append(f"{message.data.decode()} {sorted(message.tags)}")
    return received


async def main() -> None:
    parser = argparse.ArgumentParser(description="Filter a topic's messages by tags.")
    parser.add_argument("--broker", help="such as tcp://localhost:30114; default: an embedded broker")
    options = parser.parse_args()

    topic = f"bmq://bmq.test.mem.fanout/topic-{os.getpid()}"
    async with AsyncExitStack() as stack:
        address = options.broker or (await stack.enter_async_context(bmq.broker.Broker())).uri
        session = await stack.enter_async_context(bmq.connect(address))
        tasks: dict[str, asyncio.Task[list[str]]] = {}
        for name, wanted in SUBSCRIBERS.items():
            queue = await session.open_queue(f"{topic}?id={name}", read=True, default_subscription=False)
            consumer = await queue.subscribe(wanted, discard_unmatched=True)
            expected = sum(wanted.matches_tags(tags) for _, tags in MESSAGES)
            tasks[name] = asyncio.create_task(subscribe(consumer, expected))
        producer = await session.open_queue(topic, write=True)
        for text, tags in MESSAGES:
            await producer.post(text.encode(), tags=tags)
        for name, task in tasks.items():
            print(f"{name} subscribes to {SUBSCRIBERS[name]}:")
            for line in await task:
                print(f"    {line}")


if __name__ == "__main__":
    bmq.run(main())
