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
from tests.groups.conftest import Connect, post
from tests.waiting import eventually

TURNS = [*range(20), *range(20, 61, 5)]
OPTIONS: dict[str, Any] = {"key": "k", "buckets": 4, "lease": 0.3}
#: Opens a new queue for writing, and for reading in another session.
OpenBoth = Callable[[], Awaitable[tuple[bmq.Queue, bmq.Queue]]]


@pytest.fixture
async def open_both(bmq_connect: Connect, bmq_session: bmq.Session) -> OpenBoth:
    session = await bmq_connect(close_timeout=1000)

    async def open_both() -> tuple[bmq.Queue, bmq.Queue]:
        uri = fresh_queue_uri("bmq.test.mem.priority", "cancelled")
        writer = await bmq_session.open_queue(uri, write=True)
        return writer, await session.open_queue(uri, read=True)

    return open_both


@pytest.fixture
async def clean(open_both: OpenBoth) -> AsyncIterator[None]:
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
    await post(writer, *range(4))
    taken: set[int] = set()
    while len(taken) < 4:
        message = await group.receive(timeout=10)
        taken.add(int(message.data))
        message.confirm()


async def test_a_cancelled_join_can_be_made_again_at_once(open_both: OpenBoth, clean: None) -> None:
    for turns in TURNS:
        writer, queue = await open_both()
        group = queue.group(**OPTIONS)
        joined = await cancelled(group.open(), turns)
        if turns % 2 and not joined:
            joined = await cancelled(group.open(), turns // 2)
        if turns % 3 and not joined:
            group = queue.group(**OPTIONS)
        async with group:
            await receives(group, writer)
        await writer.close()


async def test_a_cancelled_join_withdraws_its_subscriptions(
    bmq_connect: Connect, open_both: OpenBoth, clean: None
) -> None:
    """Otherwise messages would wait at a member without a receiver."""
    for turns in TURNS:
        writer, queue = await open_both()
        other = await bmq_connect()
        if await cancelled(queue.group(**OPTIONS).open(), turns):
            await queue.close()
        else:
            await eventually(lambda queue=queue: queue.state is bmq.QueueState.OPEN and not queue.consumers)
        async with (await other.open_queue(queue.uri, read=True)).group(**OPTIONS) as group:
            await receives(group, writer)
        await queue.close()
        await writer.close()
        await other.close()


async def test_a_cancelled_join_leaves_another_caller_alone(open_both: OpenBoth, clean: None) -> None:
    for turns in [*TURNS, None]:
        writer, queue = await open_both()
        group = queue.group(**OPTIONS)
        receiving = asyncio.create_task(group.receive())
        opening = asyncio.create_task(group.open())
        while turns is None and not group._joined:  # noqa: ASYNC110 - the very turn in which the join ends
            await asyncio.sleep(0)
        await cancelled(opening, turns or 0)
        await post(writer, 0)
        (await receiving).confirm()
        await group.close()
        await writer.close()


async def test_cancelled_receiving_loses_no_message_and_completes_the_join(
    open_both: OpenBoth, clean: None
) -> None:
    for turns in TURNS:
        writer, queue = await open_both()
        await post(writer, 0)
        group = queue.group(**OPTIONS)
        message = await cancelled(group.receive() if turns % 2 else anext(group), turns)
        if message is None:
            message = await group.receive(timeout=10)
        assert message.data == b"0"
        message.confirm()
        await group.close()
        await writer.close()


async def test_cancelled_close_continues(open_both: OpenBoth, clean: None) -> None:
    for turns in TURNS:
        dropped: list[int] = []
        writer, queue = await open_both()
        group = await queue.group(**OPTIONS, on_revoked=dropped.append)
        await receives(group, writer)
        await cancelled(group.close(), turns)
        if turns:
            with pytest.raises(bmq.QueueClosed):
                await group.open()
        await group.close()
        assert queue.closed
        assert sorted(dropped) == [0, 1, 2, 3]
        await writer.close()


async def test_a_member_that_leaves_inside_a_message_does_not_wait_for_itself(open_both: OpenBoth) -> None:
    writer, queue = await open_both()
    group = queue.group(**OPTIONS)
    await post(writer, 0)
    async with asyncio.timeout(20), await group.receive(timeout=10):
        await group.close()
    assert group.closed
