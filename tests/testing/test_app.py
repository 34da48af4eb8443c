# SPDX-License-Identifier: Apache-2.0
"""TestApp, and the embedded broker's records of posts: readable tests of handlers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

import bmq
from bmq.broker import Broker
from bmq.testing import TestApp
from tests.waiting import eventually

ORDERS = "bmq://bmq.test.mem.priority/orders"
SHIPPED = "bmq://bmq.test.mem.priority/shipped"
DEAD = "bmq://bmq.test.mem.priority/dead"


@dataclass
class Order:
    number: Annotated[int, bmq.Property]


@pytest.fixture
def app() -> bmq.App:
    app = bmq.App("tcp://broker.example:30114", credentials=bmq.Credentials.basic("user", "secret"))
    app.state.prefix = "shipped "

    @app.consumer(ORDERS, retry=bmq.Backoff(every=60, retries=2, then=bmq.DeadLetter(DEAD)))
    async def ship(order: Order) -> None:
        if order.number < 0:
            raise ConnectionError("the carrier does not answer")
        app.state.last = order.number
        shipped = await app.queue(SHIPPED)
        await shipped.post(f"{app.state.prefix}{order.number}".encode(), properties={"number": order.number})

    return app


async def test_app_records_handled_retried_and_given_up_messages(app: bmq.App) -> None:
    async with TestApp(app) as test:
        await test.post(ORDERS, Order(1))
        await test.post(ORDERS, Order(-2), properties={"Region": "eu"})
        await test.post(ORDERS, b"no JSON")
        await test.drained(ORDERS)
        test.broker.assert_posted(SHIPPED, count=1, properties={"number": 1}, payload=b"shipped 1")
        test.broker.assert_posted(DEAD, count=2)
        (letter,) = test.broker.assert_posted(DEAD, count=1, properties={"Region": "eu", "number": -2})
        assert letter.properties["bmq_dead_attempts"] == 3
        assert [str(each.error) for each in test.retried] == ["the carrier does not answer"] * 2
        assert [type(each.error) for each in test.given_up] == [ConnectionError, bmq.Undecodable]
        assert app.state.last == 1
    assert vars(app.state) == {"prefix": "shipped "}, "the app is as it was"
    assert app._settings.broker == "tcp://broker.example:30114"


async def test_failed_assertion_shows_the_posted_messages(app: bmq.App) -> None:
    async with TestApp(app) as test:
        await test.post(ORDERS, Order(1))
        await test.drained()
        with pytest.raises(AssertionError) as caught:
            test.broker.assert_posted(SHIPPED, count=3, properties={"number": 7})
        text = str(caught.value)
        assert f"expected 3 messages with {{'number': 7}} in {SHIPPED}, found 0 of 1 posted messages" in text
        assert "b'shipped 1' {'number': 1}" in text
        assert f"(queues with posts: {ORDERS}, {SHIPPED})" in text
        with pytest.raises(AssertionError, match=r"expected a message b'x' in .*\n    nothing"):
            test.broker.assert_posted(DEAD, payload=b"x")


async def test_remaining_and_failed_work_is_reported() -> None:
    app = bmq.App()

    @app.consumer(ORDERS, retry=bmq.NoRetry("skip"))
    async def ship(order: Order) -> None:
        raise ConnectionError("away")

    async with TestApp(app) as test:
        await test.post(ORDERS, Order(1))
        await eventually(lambda: test.given_up)
        with pytest.raises(AssertionError) as caught:
            await test.drained(ORDERS, timeout=0.01)
    text = str(caught.value)
    assert f"{ORDERS} has 1 messages left after 0.01 s, 1 of them delivered and unconfirmed" in text or (
        f"{ORDERS} has 1 messages left after 0.0" in text
    )
    assert "ship, attempt 1: ConnectionError: away" in text


async def test_missing_queue_is_not_drained() -> None:
    async with Broker() as broker:
        with pytest.raises(
            AssertionError, match=r"the broker has no queue bmq://d.e/q after 0.01 s; its queues: none"
        ):
            await broker.drained("bmq://d.e/q", timeout=0.01)
        with pytest.raises(bmq.StateError, match="keeps no posts"):
            broker.assert_posted("bmq://d.e/q")


async def test_an_app_that_cannot_start_raises_and_leaves_no_task(app: bmq.App) -> None:
    @app.on_startup
    def fail() -> None:
        raise OSError("no database")

    with pytest.raises(OSError, match="no database"):
        async with TestApp(app):
            raise AssertionError("not begun")
    assert app._settings.broker == "tcp://broker.example:30114"


async def test_the_broker_of_the_fixture_keeps_posts(
    bmq_broker: Broker, bmq_session: bmq.Session, app: bmq.App
) -> None:
    async with TestApp(app, bmq_broker) as test:
        queue = await bmq_session.open_queue(ORDERS, write=True)
        await queue.typed(Order).post(Order(5))
        await bmq_broker.drained(ORDERS)
        assert test.broker is bmq_broker
    assert [each.payload for each in bmq_broker.posted(SHIPPED)] == [b"shipped 5"]


async def test_compressed_and_refused_posts_are_recorded(
    bmq_broker: Broker, bmq_session: bmq.Session
) -> None:
    queue = await bmq_session.open_queue(ORDERS, write=True)
    await queue.post(b"x" * 5000, compression=bmq.Compression.ZLIB, properties={"a": 1})
    bmq_broker.faults.nack(count=1)
    with pytest.raises(bmq.PostError):
        await queue.post(b"refused")
    bmq_broker.faults.clear()
    await queue.post(b"again")
    assert [len(each.payload) for each in bmq_broker.assert_posted(ORDERS, count=2)] == [5000, 5]
