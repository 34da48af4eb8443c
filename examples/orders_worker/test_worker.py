# SPDX-License-Identifier: Apache-2.0
"""Tests of the worker in this folder, with pytest and pytest-asyncio, and without a broker."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
import worker
from worker import DEAD, ORDERS, SHIPPED, Order

from bmq.testing import TestApp

pytestmark = pytest.mark.asyncio


class Carrier:
    """Refuses an order a given number of times."""

    def __init__(self) -> None:
        self.refuses: dict[int, int] = {}
        self.taken: dict[int, list[int]] = defaultdict(list)

    async def take(self, order: Order) -> None:
        await asyncio.sleep(0)
        if self.refuses.get(order.number):
            self.refuses[order.number] -= 1
            raise ConnectionError("the carrier does not answer")
        self.taken[order.customer].append(order.number)


@pytest.fixture
def carrier(monkeypatch: pytest.MonkeyPatch) -> Carrier:
    carrier = Carrier()
    monkeypatch.setattr(worker.app.state, "carrier", carrier)
    return carrier


async def test_an_order_is_shipped(carrier: Carrier) -> None:
    async with TestApp(worker.app) as test:
        await test.post(ORDERS, Order(1, customer=7, address="1 Main Street"))
        await test.drained(ORDERS)
        test.broker.assert_posted(SHIPPED, count=1, properties={"CustomerId": 7})
        test.broker.assert_posted(DEAD, count=0)


async def test_orders_of_a_customer_keep_their_order_while_the_carrier_fails(carrier: Carrier) -> None:
    carrier.refuses = {0: 3, 4: 1}
    async with TestApp(worker.app) as test:
        for number in range(20):
            await test.post(ORDERS, Order(number, customer=number % 4, address="x"))
        await test.drained(ORDERS)
        assert carrier.taken == {customer: list(range(customer, 20, 4)) for customer in range(4)}
        assert len(test.retried) == 4


async def test_an_unshippable_order_is_put_aside(carrier: Carrier) -> None:
    carrier.refuses = {1: 100}
    async with TestApp(worker.app) as test:
        await test.post(ORDERS, Order(1, customer=7, address="x"))
        await test.post(ORDERS, Order(2, customer=7))
        await test.post(ORDERS, b"no order")
        await test.post(ORDERS, Order(3, customer=7, address="x"))
        await test.drained(ORDERS, DEAD)
        test.broker.assert_posted(DEAD, count=3)
        test.broker.assert_posted(DEAD, count=1, properties={"bmq_dead_attempts": 4})
        test.broker.assert_posted(DEAD, count=1, properties={"bmq_dead_error": "Reject: no address"})
        test.broker.assert_posted(SHIPPED, count=1)
    assert carrier.taken == {7: [3]}
