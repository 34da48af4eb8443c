# SPDX-License-Identifier: Apache-2.0
"""Function calls for each message: a profile that does not depend on time.

The budgets are the counted calls plus a tenth. A change beyond a budget has added work for each message in
place of work for each batch.
"""

from __future__ import annotations

import asyncio

import pytest

import bmq
from tests.performance.server import Server, counted

COUNT = 4000
PAYLOAD = bytes(256)
PROPERTIES = {"CustomerId": 1234, "OrderType": "EXPRESS"}


@pytest.mark.parametrize(
    ("item", "budget"),
    [
        pytest.param(PAYLOAD, 9.2, id="payload"),
        pytest.param(bmq.PutMessage(PAYLOAD, PROPERTIES), 16.9, id="properties"),
        pytest.param(bytes(16 * 1024), 10.0, id="16 KiB"),
    ],
)
async def test_post_many_makes_few_calls(
    server: Server, queue: bmq.Queue, item: bytes | bmq.PutMessage, budget: float
) -> None:
    items = [item] * COUNT
    calls: list[int] = []
    for _ in range(3):  # the system may deliver in more pieces, which takes more turns: the least counts
        server.post_count = 0
        with counted() as counter:
            task = asyncio.ensure_future(queue.post_many(items))
            await server.until(lambda: server.post_count == COUNT)
        server.acknowledge()
        assert (await task).acknowledged == COUNT
        calls.append(counter.calls)
    assert min(calls) / COUNT < budget


async def test_post_nowait_makes_few_calls(server: Server, queue: bmq.Queue) -> None:
    with counted() as counter:
        futures = [queue.post_nowait(PAYLOAD) for _ in range(COUNT)]
        await server.until(lambda: server.post_count == COUNT)
    server.acknowledge()
    await asyncio.gather(*futures)
    assert counter.calls / COUNT < 25.5


async def test_one_awaited_post_after_the_other(server: Server, queue: bmq.Queue) -> None:
    """From the post to the resumed task, without the event loop."""
    calls: list[int] = []
    for _ in range(20):
        before = server.post_count
        with counted(own=True) as going:
            task = asyncio.ensure_future(queue.post(PAYLOAD))
            await server.until(lambda before=before: server.post_count > before)
        server.acknowledge()
        with counted(own=True) as coming:
            await task
        calls.append(going.calls + coming.calls)
    assert min(calls[5:]) < 53


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


async def test_acknowledgements_of_post_many(server: Server, queue: bmq.Queue) -> None:
    task = asyncio.ensure_future(queue.post_many([PAYLOAD] * COUNT))
    await server.until(lambda: server.post_count == COUNT)
    server.acknowledge()
    with counted() as counter:
        report = await task
    assert report.acknowledged == COUNT
    assert counter.calls / COUNT < 2.3


async def test_iterating_and_confirming_make_few_calls(server: Server, queue: bmq.Queue) -> None:
    server.deliver(COUNT, PAYLOAD)
    left = COUNT
    with counted() as counter:
        async for message in queue:
            assert message.data == PAYLOAD
            message.confirm()
            left -= 1
            if not left:
                break
        await server.until(lambda: server.confirm_count == COUNT)
    assert counter.calls / COUNT < 18.3


async def test_handling_a_message_makes_few_calls(server: Server, queue: bmq.Queue) -> None:
    """One handler after the other; imports and first compilations are excluded."""
    left = 0
    done = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    working = asyncio.create_task(bmq.consume(queue._default_consumer(), handle))
    calls: list[int] = []
    for _ in range(3):
        left = COUNT
        done.clear()
        server.confirm_count = 0
        server.deliver(COUNT, PAYLOAD)
        with counted() as counter:
            await done.wait()
            await server.until(lambda: server.confirm_count == COUNT)
        calls.append(counter.calls)
    working.cancel()
    await asyncio.wait([working])
    assert min(calls) / COUNT < 20.3


async def test_receiving_batches_makes_few_calls(server: Server, queue: bmq.Queue) -> None:
    server.deliver(COUNT, PAYLOAD)
    left = COUNT
    with counted() as counter:
        async for batch in queue.batches():
            for message in batch:
                assert message.data == PAYLOAD
            batch.confirm()
            left -= len(batch)
            if not left:
                break
        await server.until(lambda: server.confirm_count == COUNT)
    assert counter.calls / COUNT < 6.2


async def test_reading_two_properties_makes_few_calls(server: Server, queue: bmq.Queue) -> None:
    server.deliver(COUNT, PAYLOAD, PROPERTIES)
    left = COUNT
    with counted() as counter:
        async for message in queue:
            properties = message.properties
            assert properties["CustomerId"] == 1234
            assert properties["OrderType"] == "EXPRESS"
            assert message.data == PAYLOAD
            message.confirm()
            left -= 1
            if not left:
                break
        await server.until(lambda: server.confirm_count == COUNT)
    assert counter.calls / COUNT < 27.1


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
