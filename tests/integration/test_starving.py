"""Subscriptions with expressions that go quiet under load, as they do on a real broker, are looked after."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.steps import TIMEOUT, Connect

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
async def test_a_subscription_with_room_gets_all_of_a_burst(
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
    [consumer] = queue.subscriptions
    posting = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BURST, bmq_broker.uri, bmq_queue_uri, str(COUNT), stderr=subprocess.PIPE
    )
    received: set[str] = set()
    # Nothing is confirmed: a confirmation would wake the broker.
    while len(received) < COUNT:
        batch = await consumer.receive_many(timeout=TIMEOUT)
        received.update(message.guid for message in batch)
    _, said = await posting.communicate()
    assert posting.returncode == 0, said.decode()
