# SPDX-License-Identifier: Apache-2.0
"""A group's coroutines, cancelled in any turn of the loop, can be repeated and leave no state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import bmq
from bmq.testing import fresh_queue_uri
from tests.garbage import collect
from tests.waiting import eventually

TURNS = [*range(20), *range(20, 61, 5)]
DOMAIN = "bmq.test.mem.priority"
Connect = Callable[..., Awaitable[bmq.Session]]


@pytest.fixture
async def clean() -> AsyncIterator[None]:
    """Fail if a task outlives the test, or an error was never retrieved."""
    loop = asyncio.get_running_loop()
    unretrieved: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unretrieved.append(context))
    before = asyncio.all_tasks()
    yield
    await eventually(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()})
    collect()
    assert not unretrieved


async def cancelled(work: Awaitable[Any], turns: int) -> Any:
    """Cancel a call after some turns; return the result of a faster call."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    return None if task.cancelled() else task.result()


async def receives(group: bmq.groups.Group, writer: bmq.Queue) -> None:
    """Post a message for each bucket, and receive all messages."""
    report = await writer.post_many(bmq.PutMessage(b"%d" % k, {"k": k}) for k in range(group.buckets))
    report.raise_for_failures()
    taken: set[int] = set()
    while len(taken) < group.buckets:
        message = await group.receive(timeout=10)
        taken.add(int(message.data))
        message.confirm()


async def test_a_cancelled_join_can_be_made_again_at_once(
    bmq_connect: Connect, bmq_session: bmq.Session, clean: None
) -> None:
    session = await bmq_connect()
    for turns in TURNS:
        uri = fresh_queue_uri(DOMAIN, "join")
        writer = await bmq_session.open_queue(uri, write=True)
        queue = await session.open_queue(uri, read=True)
        group = queue.group("k", buckets=4, lease=0.3)
        joined = await cancelled(group.open(), turns)
        if turns % 2 and not joined:
            joined = await cancelled(group.open(), turns // 2)
        if turns % 3 and not joined:
            group = queue.group("k", buckets=4, lease=0.3)
        async with group:
            await receives(group, writer)
        await writer.close()
    await session.close()


async def test_a_cancelled_join_withdraws_its_subscriptions(
    bmq_connect: Connect, bmq_session: bmq.Session, clean: None
) -> None:
    """Otherwise messages would wait at a member without a receiver."""
    for turns in TURNS:
        uri = fresh_queue_uri(DOMAIN, "back")
        writer = await bmq_session.open_queue(uri, write=True)
        one, other = await bmq_connect(), await bmq_connect()
        queue = await one.open_queue(uri, read=True)
        if not await cancelled(queue.group("k", buckets=4, lease=0.3).open(), turns):
            await eventually(lambda queue=queue: queue.state is bmq.QueueState.OPEN)
            await eventually(lambda queue=queue: not queue.consumers)
        else:
            await queue.close()
        async with (await other.open_queue(uri, read=True)).group("k", buckets=4, lease=0.3) as group:
            await receives(group, writer)
        await writer.close()
        await one.close()
        await other.close()


async def test_a_cancelled_join_leaves_another_caller_alone(
    bmq_connect: Connect, bmq_session: bmq.Session, clean: None
) -> None:
    session = await bmq_connect()
    for turns in TURNS:
        uri = fresh_queue_uri(DOMAIN, "two")
        writer = await bmq_session.open_queue(uri, write=True)
        group = (await session.open_queue(uri, read=True)).group("k", buckets=4, lease=0.3)
        receiving = asyncio.create_task(group.receive())
        await asyncio.sleep(0)
        await cancelled(group.open(), turns)
        await writer.post(b"0", properties={"k": 0})
        (await receiving).confirm()
        await group.close()
        await writer.close()
    await session.close()


async def test_cancelled_receiving_loses_no_message_and_completes_the_join(
    bmq_connect: Connect, bmq_session: bmq.Session, clean: None
) -> None:
    session = await bmq_connect()
    for turns in TURNS:
        uri = fresh_queue_uri(DOMAIN, "receive")
        writer = await bmq_session.open_queue(uri, write=True)
        await writer.post(b"0", properties={"k": 0})
        group = (await session.open_queue(uri, read=True)).group("k", buckets=4, lease=0.3)
        message = await cancelled(group.receive() if turns % 2 else anext(group), turns)
        if message is None:
            message = await group.receive(timeout=10)
        assert message.data == b"0"
        message.confirm()
        await group.close()
        await writer.close()
    await session.close()


async def test_cancelled_close_continues(bmq_connect: Connect, bmq_session: bmq.Session, clean: None) -> None:
    session = await bmq_connect()
    dropped: list[int] = []
    for turns in TURNS:
        uri = fresh_queue_uri(DOMAIN, "close")
        writer = await bmq_session.open_queue(uri, write=True)
        queue = await session.open_queue(uri, read=True)
        group = queue.group("k", buckets=4, lease=0.3, on_revoked=dropped.append)
        await group.open()
        await receives(group, writer)
        await cancelled(group.close(), turns)
        if turns:
            with pytest.raises(bmq.QueueClosed):
                await group.open()
        await group.close()
        assert queue.closed
        assert sorted(dropped) == [0, 1, 2, 3]
        dropped.clear()
        await writer.close()
    await session.close()


async def test_a_member_that_leaves_inside_a_message_does_not_wait_for_itself(
    bmq_connect: Connect, bmq_session: bmq.Session
) -> None:
    session = await bmq_connect(close_timeout=1000)
    uri = fresh_queue_uri(DOMAIN, "inside")
    writer = await bmq_session.open_queue(uri, write=True)
    group = (await session.open_queue(uri, read=True)).group("k", buckets=4, lease=0.3)
    await writer.post(b"0", properties={"k": 0})
    async with asyncio.timeout(20), await group.receive(timeout=10):
        await group.close()
    assert group.closed
