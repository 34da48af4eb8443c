# SPDX-License-Identifier: Apache-2.0
"""Typed queues offer what queues offer: delays, keys, batches, groups, requests, pauses, limits, counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

import bmq
from bmq.broker import Broker

DOMAIN = "bmq://bmq.test.mem.priority/"


@dataclass
class Order:
    number: Annotated[int, bmq.Property]


async def test_values_arrive_in_batches_with_their_values() -> None:
    async with Broker() as broker, bmq.connect(broker.uri) as session:
        orders = (await session.open_queue(DOMAIN + "orders", read=True, write=True)).typed(Order)
        await orders.post_many([Order(number) for number in range(4)])
        assert orders.receive_nowait() is None
        batch = await orders.receive_many(2, timeout=20)
        assert batch.values == [Order(0), Order(1)]
        assert batch[0].value == Order(0)
        assert [message.value for message in batch[1:]] == [Order(1)]
        batch.confirm()
        async for more in orders.batches(2):
            assert [message.value for message in more] == [Order(2), Order(3)]
            more.confirm()
            break
        await orders.flush()
        assert orders.stats().confirmed == 4


async def test_a_value_waits_until_it_is_due() -> None:
    async with Broker() as broker, bmq.connect(broker.uri) as session:
        orders = (await session.open_queue(DOMAIN + "orders", write=True)).typed(Order)
        waiting = await session.open_queue(orders.queue.delay_queue_uri, read=True)
        await orders.post(Order(1), delay=3600, properties={"x": 1}, key="k")
        message = await waiting.receive(20)
        assert message.properties["x"] == 1
        assert message.properties["bmq_destination"] == DOMAIN + "orders"
        with pytest.raises(bmq.UsageError, match="one of the two"):
            await orders.post(Order(1), delay=1, not_before=1.0)


async def test_a_consumer_of_values_pauses_and_changes_its_filter() -> None:
    async with Broker() as broker, bmq.connect(broker.uri) as session:
        orders = (await session.open_queue(DOMAIN + "orders", read=True, write=True)).typed(Order)
        async with orders.subscribe() as consumer:
            await consumer.pause()
            assert consumer.consumer.paused
            await consumer.resume()
            await consumer.configure("number > 1", priority=3)
            assert str(consumer.consumer.expression) == "number > 1"
            with pytest.raises(bmq.InvalidExpression):
                await consumer.configure('number == "one"')
            await orders.post(Order(5))
            message = await consumer.receive(20)
            consumer.put_back([message])
            assert (await consumer.receive(20)).value == Order(5)
            assert consumer.stats().received == 1
