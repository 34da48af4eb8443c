# SPDX-License-Identifier: Apache-2.0
"""Tests of the service in this folder, with pytest, pytest-asyncio and httpx, and without a broker."""

from __future__ import annotations

from collections.abc import Iterator

import api
import orders
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from orders import DEAD, ORDERS, SHIPPED, Order

import bmq
from bmq.testing import BackgroundBroker, TestApp


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[BackgroundBroker]:
    with BackgroundBroker(posts_kept=1000) as broker:
        monkeypatch.setenv("BMQ_BROKER_URI", broker.uri)
        yield broker


@pytest.mark.parametrize("service", [api.api, api.front], ids=["with worker", "without"])
def test_an_order_is_stored_before_the_response(broker: BackgroundBroker, service: FastAPI) -> None:
    with TestClient(service) as client:
        answer = client.put("/orders/17", json={"customer": 7, "address": "1 Main Street"})
        assert answer.status_code == 202
        assert answer.json()["number"] == 17
        (post,) = broker.call(
            lambda inner: inner.assert_posted(ORDERS, count=1, properties={"CustomerId": 7})
        )
        assert Order.model_validate_json(post.payload).address == "1 Main Street"
        assert client.get("/ready").json() == {"session": "ready"}


def test_a_repeated_request_places_one_order(broker: BackgroundBroker) -> None:
    with TestClient(api.front) as client:
        answers = [client.put("/orders/17", json={"customer": 7, "address": "x"}) for _ in range(3)]
    assert len({answer.json()["guid"] for answer in answers}) == 1
    assert broker.call(lambda inner: len(inner.queues[ORDERS])) == 1


def test_an_invalid_order_is_not_posted(broker: BackgroundBroker) -> None:
    with TestClient(api.front) as client:
        assert client.put("/orders/0", json={"customer": 7, "address": "x"}).status_code == 422
        assert client.put("/orders/1", json={"customer": 7, "address": ""}).status_code == 422
        assert client.put("/orders/1", json={"customer": "seven"}).status_code == 422
    broker.call(lambda inner: inner.assert_posted(ORDERS, count=0))


def test_a_full_queue_is_reported_to_the_client(broker: BackgroundBroker) -> None:
    with TestClient(api.front) as client:
        broker.call(lambda inner: inner.faults.nack(bmq.AckStatus.LIMIT_MESSAGES, count=1))
        answer = client.put("/orders/1", json={"customer": 7, "address": "x"})
        assert answer.status_code == 503
        assert answer.headers["Retry-After"] == "5"
        assert "LIMIT_MESSAGES" in answer.json()["detail"]
        assert client.put("/orders/1", json={"customer": 7, "address": "x"}).status_code == 202


@pytest.mark.asyncio
async def test_orders_are_shipped_and_invalid_orders_are_put_aside() -> None:
    async with TestApp(orders.app) as test:
        for number in range(1, 21):
            await test.post(ORDERS, Order(number=number, customer=number % 3, address="1 Main Street"))
        await test.post(ORDERS, b'{"number": 21, "customer": 1, "address": ""}')
        await test.drained(ORDERS)
        shipped = test.broker.assert_posted(SHIPPED, count=20)
        for customer in range(3):
            numbers = [
                each.properties["OrderNumber"]
                for each in shipped
                if each.properties["CustomerId"] == customer
            ]
            assert numbers == sorted(numbers)
        (letter,) = test.broker.assert_posted(DEAD, count=1)
        assert "address" in str(letter.properties["bmq_dead_error"])
