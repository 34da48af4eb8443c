"""Tests that need control of the broker: always the embedded one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import bmq
import pytest
import pytest_asyncio
from bmq.broker import Broker

ORDERS = "bmq://bmq.test.mem.priority/shop.orders"


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(port=0, posts_kept=100) as broker:
        yield broker


async def test_a_refused_order_is_reported(broker: Broker) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(ORDERS, write=True)
        broker.faults.nack(bmq.AckStatus.LIMIT_MESSAGES, count=1)
        with pytest.raises(bmq.PostError) as caught:
            await queue.post(b"one coffee")
        assert caught.value.retryable
        await queue.post(b"one coffee")
    assert [posted.payload for posted in broker.posted(ORDERS)] == [b"one coffee"]


async def test_orders_survive_a_crash_of_the_broker(broker: Broker) -> None:
    uri = ORDERS.replace(".mem.", ".persistent.")
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(uri, read=True, write=True)
        await queue.post(b"one coffee")
        await broker.stop(graceful=False)
        await broker.start()
        message = await queue.receive(timeout=30)
        message.confirm()
        assert message.data == b"one coffee"
