# SPDX-License-Identifier: Apache-2.0
"""Tests of the service with FastStream's test broker, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orders_faststream as orders
import pytest
from faststream.rabbit import RabbitBroker, TestRabbitBroker
from orders_faststream import Ask, Invoice, Ledger, Order, Price, Prices, broker
from pydantic import ValidationError

ledgers: list[Ledger] = []


async def recorded() -> AsyncIterator[Ledger]:
    ledgers.append(opened := Ledger())
    try:
        yield opened
    except Exception:
        opened.state = "rolled back"
        raise
    opened.state = "committed"


@pytest.fixture
async def test() -> AsyncIterator[RabbitBroker]:
    ledgers.clear()
    with broker.provider.scope(orders.ledger, recorded):
        async with TestRabbitBroker(broker) as test:
            yield test


async def test_an_order_is_invoiced(test: RabbitBroker) -> None:
    await test.publish(Order(number=1, article="tea", quantity=2), "orders", headers={"CustomerId": 7})
    assert ledgers[0].lines == [Invoice(number=1, customer=7, total=600)]
    assert ledgers[0].state == "committed"


async def test_an_unknown_article_is_rejected(test: RabbitBroker) -> None:
    await test.publish(Order(number=1, article="gold", quantity=1), "orders", headers={"CustomerId": 7})
    assert ledgers[0].lines == []
    assert ledgers[0].state == "rolled back"


async def test_an_invalid_order_is_refused(test: RabbitBroker) -> None:
    with pytest.raises(ValidationError):
        await test.publish({"number": 1, "quantity": 0}, "orders", headers={"CustomerId": 7})


async def test_a_missing_header_is_refused(test: RabbitBroker) -> None:
    with pytest.raises(ValidationError):
        await test.publish(Order(number=1, article="tea", quantity=1), "orders")


async def test_a_price_is_answered(test: RabbitBroker) -> None:
    answer = await test.request(Ask(article="coffee"), "prices")
    assert Price.model_validate(await answer.decode()) == Price(cents=450)


async def test_prices_are_replaced(test: RabbitBroker) -> None:
    with broker.provider.scope(orders.prices, lambda: Prices({"gold": 1})):
        answer = await test.request(Ask(article="gold"), "prices")
    assert Price.model_validate(await answer.decode()) == Price(cents=1)


async def test_attempts_are_counted(test: RabbitBroker) -> None:
    before = orders.Counted.failed
    for article in ("tea", "gold"):
        await test.publish(Order(number=1, article=article, quantity=1), "orders", headers={"CustomerId": 7})
    assert orders.Counted.failed == before + 1
