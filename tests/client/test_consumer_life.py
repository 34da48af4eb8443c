# SPDX-License-Identifier: Apache-2.0
"""The life of a consumer: walks over its table, what callers see in each state, and ``Consumer.wait``."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from bmq.testing import FaultProxy
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


async def test_a_consumer_that_is_paused_and_resumed_without_a_connection_receives_again(
    broker: bmq.broker.Broker,
) -> None:
    async with FaultProxy(broker.uri) as proxy, bmq.connect(proxy.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        consumer = await queue.subscribe()
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: session.state is bmq.SessionState.RECONNECTING)
        await consumer.pause()
        assert consumer.paused
        await consumer.resume()
        assert not consumer.paused
        await proxy.accept()
        await queue.post(b"1")
        message = await consumer.receive(timeout=30)
        assert message.data == b"1"


async def test_a_consumer_that_is_paused_while_it_opens_opens_when_it_is_resumed(
    broker: bmq.broker.Broker,
) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        consumer = queue.subscribe()
        opening = asyncio.create_task(consumer.open())
        await asyncio.sleep(0)
        pausing = asyncio.create_task(consumer.pause())
        await asyncio.sleep(0)
        await consumer.resume()
        await asyncio.gather(opening, pausing)
        assert queue.consumers == [consumer]
        await queue.post(b"1")
        assert (await consumer.receive(timeout=30)).data == b"1"


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)


async def test_waiting_takes_no_message(queue: bmq.Queue) -> None:
    async with queue.subscribe() as consumer:
        with pytest.raises(bmq.TimedOut, match="arrived"):
            await consumer.wait(timeout=0.001)
        await queue.post(b"1")
        await consumer.wait()
        await consumer.wait(timeout=0)
        assert consumer.buffered == 1
        message = consumer.receive_nowait()
        assert message is not None
        assert message.data == b"1"


@pytest.mark.parametrize("cancel", [False, True])
async def test_message_wakes_receivers_and_waiters(queue: bmq.Queue, cancel: bool) -> None:
    async with queue.subscribe() as consumer:
        waiting = [asyncio.create_task(consumer.wait()) for _ in range(3)]
        taking = asyncio.create_task(consumer.receive())
        await eventually(lambda: len(consumer._buffer.waiting) == 4)
        if cancel:
            waiting[0].cancel()
        await queue.post(b"1")
        assert (await taking).data == b"1"
        await queue.post(b"2")
        await asyncio.gather(*waiting, return_exceptions=True)
        assert consumer.buffered == 1


async def test_closing_a_consumer_ends_its_receivers(queue: bmq.Queue) -> None:
    consumer = await queue.subscribe()
    waiting = asyncio.create_task(consumer.wait())
    await eventually(lambda: len(consumer._buffer.waiting) == 1)
    await consumer.close()
    with pytest.raises(bmq.QueueClosed):
        await waiting
