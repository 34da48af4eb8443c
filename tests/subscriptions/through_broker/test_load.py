# SPDX-License-Identifier: Apache-2.0
"""Ten consumers, twenty changing subscriptions, under load: every message reaches exactly one of them.

Runs for 4 seconds; BMQ_LOAD_SECONDS sets the duration, and BMQ_LOAD_SEED repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import bmq
from bmq.client._definition import Unread, properties_of
from bmq.protocol.client.ports import Arrival
from bmq.wire.push import Push
from tests.subscriptions.through_broker.scene import Scene

SECONDS = float(os.environ.get("BMQ_LOAD_SECONDS", "4"))
CONSUMERS, SUBSCRIPTIONS_EACH = 10, 2
KEYS = 30


def some_expression(random: random.Random) -> str:
    low = random.randrange(KEYS)
    high = min(KEYS, low + random.randrange(1, 15))
    return random.choice(
        [
            f"k >= {low} && k < {high}",
            f"k % {random.randrange(2, 5)} == 0",
            f"exists(t.tag{random.randrange(3)}) && k != {low}",
            f"k < {low} || k > {high}",
        ]
    )


class Watched:
    """A subscription that remembers its state when a message was routed to it."""

    def __init__(self, queue: bmq.Queue, random: random.Random) -> None:
        self.queue = queue
        self.random = random
        self.received: Counter[bytes] = Counter()
        self.astray: list[str] = []
        self.changes = 0
        self.open()

    def open(self) -> None:
        """Make a new consumer, not active yet."""
        text = some_expression(self.random)
        #: What the broker may be routing by: the latest, and those it has not confirmed to have left.
        self.standing = standing = [bmq.Expression(text)]
        self.consumer = consumer = self.queue.subscribe(
            text,
            priority=self.random.randrange(3),
            max_unconfirmed_messages=self.random.choice([1, 10, 100]),
        )
        deliver: Callable[[list[Push], Sequence[int], Arrival], None] = consumer._buffer.deliver

        def watching(messages: list[Push], numbers: Sequence[int], arrival: Arrival) -> None:
            if not consumer.closed:
                for each in messages:
                    properties = properties_of(each)
                    assert not isinstance(properties, Unread)
                    if not any(expression.matches(properties) for expression in standing):
                        self.astray.append(f"{properties} arrived at {standing}")
            deliver(messages, numbers, arrival)

        consumer._buffer.deliver = watching  # type: ignore[method-assign]

    async def receive(self) -> None:
        """Handle messages until the last consumer."""
        while True:
            consumer = self.consumer
            async for message in consumer:
                assert message.consumer is consumer
                self.received[message.data] += 1
                message.confirm()
                if not self.random.randrange(50):
                    await asyncio.sleep(0)
            if consumer is self.consumer:
                return

    async def change(self) -> None:
        """Another expression, other limits, or a new consumer altogether."""
        self.changes += 1
        if self.random.randrange(4):
            text = some_expression(self.random)
            self.standing.append(bmq.Expression(text))
            await self.consumer.configure(text, priority=self.random.randrange(3))
            del self.standing[:-1]
        else:
            old = self.consumer
            self.open()
            await self.consumer.open()
            await old.close()


async def produce(scene: Scene, random: random.Random, until: float) -> int:
    now = asyncio.get_running_loop().time
    posted = 0
    while now() < until:
        batch = [
            bmq.PutMessage(
                b"%d" % number,
                properties={"k": random.randrange(KEYS)},
                tags=[f"tag{n}" for n in range(3) if random.randrange(2)],
            )
            for number in range(posted, posted + random.randrange(1, 60))
        ]
        (await scene.producer.post_many(batch)).raise_for_failures()
        posted += len(batch)
        await asyncio.sleep(0.01)
    return posted


@pytest.mark.timeout(SECONDS + 100)
async def test_every_message_reaches_exactly_one_matching_consumer(
    scene: Scene, record_property: Callable[[str, Any], None]
) -> None:
    seed = int(os.environ.get("BMQ_LOAD_SEED", secrets.randbits(32)))
    print(f"BMQ_LOAD_SEED={seed}")
    chance = random.Random(seed)
    readers = [await scene.reader() for _ in range(CONSUMERS)]
    watched = [
        Watched(reader, random.Random(chance.random()))
        for reader in readers
        for _ in range(SUBSCRIPTIONS_EACH)
    ]
    await asyncio.gather(*[each.consumer.open() for each in watched])
    receiving = [asyncio.create_task(each.receive()) for each in watched]
    until = asyncio.get_running_loop().time() + SECONDS
    producing = asyncio.create_task(produce(scene, random.Random(chance.random()), until))
    while not producing.done():
        await asyncio.gather(*[each.change() for each in chance.sample(watched, 3)])
        await asyncio.sleep(chance.random() * 0.05)
    posted = await producing

    for reader in readers:
        await reader.close()
    await asyncio.gather(*receiving)
    left = Counter(map(str.encode, await scene.left()))
    received = sum((each.received for each in watched), Counter())
    for name, value in [
        ("posted", posted),
        ("left", left.total()),
        ("changes", sum(w.changes for w in watched)),
    ]:
        record_property(name, value)
        print(f"{name}: {value}")
    assert [line for each in watched for line in each.astray] == []
    assert sum((received + left).values()) >= posted
    assert [name for name, count in (received + left).items() if count > 1] == []
    assert len(received + left) == posted
    assert received.total() > posted // 2
