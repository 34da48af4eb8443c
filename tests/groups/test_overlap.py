# SPDX-License-Identifier: Apache-2.0
"""The order of a bucket while a join overlaps: the old owner still has older messages than the new one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

import bmq
from bmq.testing import FaultProxy

Connect = Callable[..., Awaitable[bmq.Session]]


async def post(queue: bmq.Queue, *numbers: int) -> None:
    report = await queue.post_many(bmq.PutMessage(b"%d" % number, {"k": 0}) for number in numbers)
    report.raise_for_failures()


async def received(group: bmq.groups.Group, count: int) -> list[tuple[int, bool]]:
    """Receive and confirm; return each number, and whether the broker marked the message."""
    found: list[tuple[int, bool]] = []
    for _ in range(count):
        message = await group.receive(timeout=10)
        found.append((int(message.data), message.redelivered))
        message.confirm()
    return found


@pytest.mark.parametrize("how", ["leaves", "loses its connection"])
async def test_messages_of_an_old_owner_come_marked_behind_newer_ones_of_the_new_owner(
    bmq_connect: Connect, bmq_broker: bmq.broker.Broker, bmq_queue_uri: str, how: str
) -> None:
    writer = await (await bmq_connect()).open_queue(bmq_queue_uri, write=True)
    newer = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    async with FaultProxy(bmq_broker.uri) as proxy, bmq.connect(proxy.uri, reconnect=False) as session:
        older = await session.open_queue(bmq_queue_uri, read=True)
        old = older.group("k", buckets=1, member="old", weight=0.01, coordination="none")
        await old
        await post(writer, 0, 1, 2, 3)
        assert await received(old, 1) == [(0, False)]
        async with newer.group("k", buckets=1, member="new", weight=100, coordination="none") as new:
            await post(writer, 4, 5)
            assert await received(new, 2) == [(4, False), (5, False)]
            if how == "leaves":
                await old.close()
            else:
                proxy.cut()
            found = await received(new, 3)
            await post(writer, 6)
            found += await received(new, 1)
    assert found == [(1, True), (2, True), (3, True), (6, False)]
