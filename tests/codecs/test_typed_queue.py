# SPDX-License-Identifier: Apache-2.0
"""Queues of values: posting, receiving, selecting; through a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import bmq
from tests.codecs.kinds import ORDER, Address, Order, OrderStruct


@pytest.fixture
async def queue(session: bmq.Session, uri: str) -> bmq.Queue:
    return await session.open_queue(uri, read=True, write=True)


def order(customer: int, *, express: bool = False) -> Order:
    return Order(customer, express, Address("Main Street"))


async def test_values_are_posted_and_received(queue: bmq.Queue) -> None:
    orders = queue.typed(Order)
    ack = await orders.post(ORDER, properties={"Region": "eu"}, tags=["new"])
    message = await orders.receive(timeout=10)
    assert message.value == ORDER
    assert message.value is message.value, "decoded once"
    assert (message.guid, message.tags, message.queue_uri) == (ack.guid, {"new"}, orders.uri)
    assert message.properties["Region"] == "eu"
    assert message.properties["CustomerId"] == 7
    assert message.properties["bmq_content_type"] == "application/json"
    queue.confirm(message)
    assert message.confirmed


async def test_post_nowait_and_post_many(queue: bmq.Queue) -> None:
    orders = queue.typed(OrderStruct, codec="application/msgpack")

    async def coming() -> AsyncIterator[OrderStruct]:
        for number in (3, 4):
            yield OrderStruct(number)

    await orders.post_nowait(OrderStruct(0))
    report = await orders.post_many(OrderStruct(number) for number in (1, 2))
    report.raise_for_failures()
    assert report.acknowledged == 2
    assert (await orders.post_many(coming())).acknowledged == 2
    found: list[int] = []
    async for message in orders:
        found.append(message.value.customer)
        message.confirm()
        if len(found) == 5:
            break
    assert found == [0, 1, 2, 3, 4]


async def test_a_subscription_selects_by_fields_and_knows_the_type(queue: bmq.Queue) -> None:
    orders = queue.typed(Order)
    async with (
        orders.subscribe("express && CustomerId > 100", priority=2) as urgent,
        orders.subscribe() as others,
    ):
        await orders.post_many([order(1, express=True), order(200, express=True), order(300)])
        assert (await urgent.receive(timeout=10)).value.customer == 200
        assert [(await others.receive(timeout=10)).value.customer for _ in range(2)] == [1, 300]
    with pytest.raises(bmq.InvalidExpression, match="Order has no property Customer"):
        orders.subscribe("Customer == 7")


async def test_reading_properties_decodes_no_payload(queue: bmq.Queue) -> None:
    await queue.post(b"no JSON", properties={"CustomerId": 7})
    async with queue.typed(Order).subscribe("CustomerId == 7") as orders:
        async for message in orders:
            assert message.properties["CustomerId"] == 7
            with pytest.raises(bmq.Undecodable, match="not a value of Order"):
                _ = message.value
            assert message.data == b"no JSON"
            message.confirm()
            break


async def test_a_misspelt_key_of_a_group_is_refused(queue: bmq.Queue) -> None:
    with pytest.raises(bmq.InvalidExpression, match="did you mean CustomerId"):
        queue.typed(Order).group(key="CustomrId")
    with pytest.raises(bmq.InvalidExpression, match="compares a string with an integer"):
        queue.typed(Order).group(key="grade")
