"""Tests for any broker: embedded in each test, or the broker in BMQ_BROKER_URI.

The fixtures come with bmq. Each test has queues of its own, so tests do not disturb each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import bmq
from bmq.testing import FaultProxy

Connect = Callable[..., Awaitable[bmq.Session]]


async def test_an_order_arrives_with_its_properties(bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
    await queue.post(b"one coffee", properties={"CustomerId": 7})
    message = await queue.receive(timeout=10)
    message.confirm()
    assert (message.data, message.properties["CustomerId"]) == (b"one coffee", 7)


async def test_a_consumer_gets_the_orders_of_its_expression(
    bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
    async with queue.subscribe('OrderType == "EXPRESS"', priority=2) as express, queue.subscribe() as others:
        await queue.post(b"slow", properties={"OrderType": "PLAIN"})
        await queue.post(b"fast", properties={"OrderType": "EXPRESS"})
        for consumer, expected in ((express, b"fast"), (others, b"slow")):
            message = await consumer.receive(timeout=10)
            message.confirm()
            assert message.data == expected


async def test_an_unconfirmed_order_goes_to_the_next_consumer(
    bmq_session: bmq.Session, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, write=True)
    await queue.post(b"one coffee")
    first = await bmq_connect()
    reading = await first.open_queue(bmq_queue_uri, read=True)
    lost = await reading.receive(timeout=10)
    await first.close()  # without a confirmation, as after a crash

    second = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    message = await second.receive(timeout=10)
    message.confirm()
    assert message.guid == lost.guid


async def test_a_lost_connection_loses_no_order(
    bmq_session: bmq.Session, bmq_proxy: FaultProxy, bmq_queue_uri: str
) -> None:
    """The proxy stands between the session and the broker."""
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
    posts = [asyncio.create_task(queue.post(b"order %d" % number)) for number in range(20)]
    await asyncio.gather(*posts[:10])
    bmq_proxy.cut()
    await asyncio.gather(*posts)
    found: set[bytes] = set()
    while len(found) < len(posts):
        message = await queue.receive(timeout=30)
        message.confirm()
        found.add(message.data)
