# SPDX-License-Identifier: Apache-2.0
"""Tests of the project, without a broker: ``python manage.py test``."""

from __future__ import annotations

from typing import Any

from django.test import TransactionTestCase, override_settings

import bmq
from bmq.testing import BackgroundBroker, TestApp
from shop.broker import close
from shop.models import Order
from shop.worker import DEAD, ORDERS, Placed, app


class Views(TransactionTestCase):
    """The views, with Django's test client and a broker in a thread."""

    def setUp(self) -> None:
        self.broker = self.enterContext(BackgroundBroker(posts_kept=100))
        self.enterContext(override_settings(BMQ_BROKER=self.broker.uri))
        self.addCleanup(close)

    def put(self, number: int, **order: Any) -> Any:
        return self.client.put(f"/orders/{number}", order, content_type="application/json")

    def test_an_order_is_in_database_and_queue_before_the_response(self) -> None:
        answer = self.put(17, customer=7, address="1 Main Street")
        assert answer.status_code == 202
        assert Order.objects.get(number=17).address == "1 Main Street"
        (post,) = self.broker.call(
            lambda broker: broker.assert_posted(ORDERS, count=1, properties={"CustomerId": 7})
        )
        assert str(post.guid) == answer.json()["guid"]
        assert not self.client.get("/orders/17").json()["shipped"]
        assert self.client.get("/ready").json() == {"session": "ready"}

    def test_a_repeated_request_places_one_order(self) -> None:
        answers = [self.put(17, customer=7, address="x").json()["guid"] for _ in range(3)]
        assert len(set(answers)) == 1
        assert self.broker.call(lambda broker: len(broker.queues[ORDERS])) == 1

    def test_an_invalid_order_is_not_posted(self) -> None:
        assert self.put(17, customer="seven").status_code == 400
        assert not Order.objects.exists()
        self.broker.call(lambda broker: broker.assert_posted(ORDERS, count=0))

    def test_a_full_queue_is_reported_to_the_client(self) -> None:
        self.put(1, customer=7, address="x")
        self.broker.call(lambda broker: broker.faults.nack(bmq.AckStatus.LIMIT_MESSAGES, count=1))
        answer = self.put(2, customer=7, address="x")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert self.put(2, customer=7, address="x").status_code == 202


class Worker(TransactionTestCase):
    """The handlers, without views. A TransactionTestCase, because handlers use connections of their own."""

    async def test_orders_are_shipped(self) -> None:
        for number in range(1, 9):
            await Order.objects.acreate(number=number, customer=number % 2, address="1 Main Street")
        await Order.objects.acreate(number=9, customer=1, address="")
        async with TestApp(app) as test:
            for number in range(1, 10):
                await test.post(ORDERS, Placed(number, customer=number % 2))
            await test.drained(ORDERS, timeout=60)
            test.broker.assert_posted(DEAD, count=1, properties={"bmq_dead_error": "Reject: no address"})
        assert await Order.objects.filter(shipped=True).acount() == 8

    async def test_an_order_missing_from_the_database_is_put_aside(self) -> None:
        async with TestApp(app) as test:
            await test.post(ORDERS, Placed(1, customer=1))
            await test.drained(ORDERS, timeout=60)
            assert len(test.retried) == 5
            test.broker.assert_posted(DEAD, count=1, properties={"bmq_dead_attempts": 6})
