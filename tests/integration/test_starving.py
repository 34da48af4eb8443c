# SPDX-License-Identifier: Apache-2.0
"""Stalled subscriptions with expressions, as under load on a real broker, are revived."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

import bmq
from tests.integration.steps import TIMEOUT, Connect, take
from tests.waiting import eventually

COUNT = 30_000
#: Enough properties for a broker to be busy with, posted in one go from another process.
BURST = """
import asyncio, sys, bmq

async def main():
    async with bmq.connect(sys.argv[1]) as session:
        queue = await session.open_queue(sys.argv[2], write=True)
        properties = {f"p{n:02}": n for n in range(11)} | {"zz": 1}
        await queue.post_many(bmq.PutMessage(b"x", properties) for _ in range(int(sys.argv[3])))

bmq.run(main())
"""


@pytest.mark.statement("1.29")
async def test_a_subscription_with_room_receives_a_whole_burst(
    bmq_broker: Any, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    session = await bmq_connect(repeat_subscriptions_after=0.5)
    queue = await session.open_queue(
        bmq_queue_uri,
        read=True,
        max_unconfirmed_messages=1_000_000,
        max_unconfirmed_bytes=2**30,
        subscriptions=["zz >= 1"],
    )
    [consumer] = queue.consumers
    posting = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BURST, bmq_broker.uri, bmq_queue_uri, str(COUNT), stderr=subprocess.PIPE
    )
    received: set[str] = set()
    # No message is confirmed: a confirmation would wake the broker.
    while len(received) < COUNT:
        batch = await consumer.receive_many(timeout=TIMEOUT)
        received.update(message.guid for message in batch)
    _, said = await posting.communicate()
    assert posting.returncode == 0, said.decode()


@pytest.mark.timeout(60)
async def test_a_burst_of_requests_does_not_wait_for_a_full_window(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    """A responder has a second subscription, for cancellations. A real broker then delivers a window at a
    time, and stalls each time until the subscriptions are repeated."""
    app = bmq.App(bmq_broker.uri)

    @app.responder(bmq_queue_uri, max_unconfirmed_messages=20, concurrency=4)
    async def answer(message: bmq.Message) -> bytes:
        return message.data

    queue = await bmq_session.open_queue(bmq_queue_uri, write=True)
    async with app, asyncio.timeout(20):
        # 50 windows; each would take a second.
        await asyncio.gather(*(queue.request(b"%d" % number, timeout=30) for number in range(1000)))


async def test_a_returning_filter_revives_the_others(bmq_connect: Connect, bmq_queue_uri: str) -> None:
    """One filter leaves under load with unconfirmed messages, and the other starves until it is back.

    Even then, a real broker keeps some of the other's messages until its subscriptions are repeated.
    """
    count = 3000
    writer = await (await bmq_connect()).open_queue(bmq_queue_uri, write=True)

    async def open_filter(text: str, window: int) -> bmq.Consumer:
        session = await bmq_connect(repeat_subscriptions_after=0.5)
        queue = await session.open_queue(
            bmq_queue_uri, read=True, max_unconfirmed_messages=window, subscriptions=[text]
        )
        return queue.consumers[0]

    async def receive(consumer: bmq.Consumer, numbers: set[int]) -> None:
        async for message in consumer:
            numbers.add(int(message.data))
            message.confirm()

    staying: set[int] = set()
    reading = asyncio.create_task(receive(await open_filter("x >= 1", 1000), staying))
    leaving = await open_filter("x == 0", 50)
    first, rest = range(900), range(900, count)
    await writer.post_many([bmq.PutMessage(b"%d" % n, {"x": n % 3}) for n in first])
    await take(leaving, 50)
    await leaving.queue.close()
    for at in range(rest.start, rest.stop, 50):
        report = await writer.post_many([bmq.PutMessage(b"%d" % n, {"x": n % 3}) for n in range(at, at + 50)])
        report.raise_for_failures()
    assert len(staying) < 2000  # the remaining filters have stalled
    back: set[int] = set()
    returning = asyncio.create_task(receive(await open_filter("x == 0", 1000), back))
    await eventually(lambda: len(back) + len(staying) == count, timeout=60)
    assert back == set(range(0, count, 3))
    for task in (reading, returning):
        task.cancel()
    await asyncio.wait([reading, returning])
