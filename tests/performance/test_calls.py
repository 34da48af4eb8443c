# SPDX-License-Identifier: Apache-2.0
"""Function calls of actions that are no path of ``tests/budgets``: a profile that does not depend on time.

The limits are the counted calls plus a tenth. A change beyond a limit has added work for each message in
place of work for each batch.
"""

from __future__ import annotations

import asyncio

import bmq
from tests.performance.server import Server, counted

COUNT = 4000
PAYLOAD = bytes(256)
PROPERTIES = {"CustomerId": 1234, "OrderType": "EXPRESS"}


async def test_post_many_of_16_kib_makes_few_calls(server: Server, queue: bmq.Queue) -> None:
    items = [bytes(16 * 1024)] * COUNT
    calls: list[int] = []
    for _ in range(3):  # the system may deliver in more pieces, which takes more turns: the least counts
        server.post_count = 0
        with counted() as counter:
            task = asyncio.ensure_future(queue.post_many(items))
            await server.until(lambda: server.post_count == COUNT)
        server.acknowledge()
        assert (await task).acknowledged == COUNT
        calls.append(counter.calls)
    assert min(calls) / COUNT < 10.0


async def alone(server: Server, queue: bmq.Queue, message: bmq.Message | None) -> tuple[bmq.Message, int]:
    """Confirm, post and receive one message; return the message and the number of calls."""
    before = server.post_count
    with counted(own=True) as going:
        if message is not None:
            message.confirm()
        queue.post_nowait(PAYLOAD)
        receiving = asyncio.ensure_future(queue.receive())
        await server.until(lambda: server.post_count > before)
    server.acknowledge()
    server.deliver(1, PAYLOAD)
    with counted(own=True) as coming:
        message = await receiving
    return message, going.calls + coming.calls


async def test_one_posted_and_received_after_the_other(server: Server, queue: bmq.Queue) -> None:
    """From the confirmation of the one before to the next message, the event loop left out."""
    message: bmq.Message | None = None
    calls: list[int] = []
    for _ in range(20):
        message, count = await alone(server, queue, message)
        calls.append(count)
    assert min(calls[5:]) < 204


async def test_single_post_carries_a_waiting_confirmation_at_once(
    server: Server, session: bmq.Session, queue: bmq.Queue
) -> None:
    message: bmq.Message | None = None
    for _ in range(3):
        message, _ = await alone(server, queue, message)
    assert message is not None
    before, confirmed = session.stats().bytes_sent, server.confirm_count
    message.confirm()
    assert session.stats().bytes_sent == before
    queue.post_nowait(PAYLOAD)
    assert session.stats().bytes_sent > before + len(PAYLOAD), "within the same turn of the event loop"
    await server.until(lambda: server.confirm_count > confirmed)
    server.acknowledge()


async def test_a_property_of_a_batch(server: Server, queue: bmq.Queue) -> None:
    server.deliver(COUNT, PAYLOAD, PROPERTIES)
    left = COUNT
    calls = 0
    async for batch in queue.batches():
        assert batch.column("CustomerId") == [1234] * len(batch)  # what is learned is learned here
        with counted() as counter:
            batch.column("CustomerId")
            batch.column("OrderType")
        calls = max(calls, counter.calls)
        left -= len(batch)
        if not left:
            break
    assert calls < 100, "whatever the number of messages"


async def test_filters_of_received_messages(server: Server, queue: bmq.Queue) -> None:
    server.deliver(COUNT, PAYLOAD, {**PROPERTIES, **bmq.subscriptions.tag_properties(["urgent"])})
    messages: list[bmq.Message] = []
    async for batch in queue.batches():
        messages += batch
        if len(messages) == COUNT:
            break
    expression, tags = bmq.Expression("CustomerId > 1000"), bmq.TagFilter(any_of=["urgent"])
    assert all(expression.matches(message.properties) for message in messages)
    properties = [message.properties for message in messages]
    with counted() as counter:
        assert [expression.matches(each) for each in properties] == [True] * COUNT
    assert counter.calls / COUNT < 3.5
    with counted() as counter:
        assert [tags.matches(each) for each in properties] == [True] * COUNT
    assert counter.calls / COUNT < 5.5
