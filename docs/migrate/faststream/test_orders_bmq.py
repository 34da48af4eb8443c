# SPDX-License-Identifier: Apache-2.0
"""Tests of the service with bmq's TestApp."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orders_bmq as orders
import pytest
from orders_bmq import PREFIX, Ask, Invoice, Ledger, Order, Price, Prices, app

import bmq
from bmq.testing import TestApp

CUSTOMER = {"CustomerId": 7}
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
async def test(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TestApp]:
    ledgers.clear()
    monkeypatch.setitem(app.overrides, orders.get_ledger, recorded)
    async with TestApp(app) as test:
        yield test


async def test_an_order_is_invoiced(test: TestApp) -> None:
    await test.post(PREFIX + "orders", Order(number=1, article="tea", quantity=2), properties=CUSTOMER)
    await test.drained(PREFIX + "orders")
    (post,) = test.broker.assert_posted(PREFIX + "invoices", count=1)
    assert Invoice.model_validate_json(post.payload) == Invoice(number=1, customer=7, total=600)
    assert ledgers[0].state == "committed"


async def test_an_unknown_article_is_rejected(test: TestApp) -> None:
    await test.post(PREFIX + "orders", Order(number=1, article="gold", quantity=1), properties=CUSTOMER)
    await test.drained(PREFIX + "orders")
    (letter,) = test.broker.assert_posted(PREFIX + "orders.dead", count=1)
    assert letter.properties["bmq_dead_error"] == "Reject: no price for gold"
    assert ledgers[0].state == "rolled back"


async def test_an_invalid_order_is_refused(test: TestApp) -> None:
    await test.post(PREFIX + "orders", b'{"number": 1, "quantity": 0}', properties=CUSTOMER)
    await test.drained(PREFIX + "orders")
    test.broker.assert_posted(PREFIX + "orders.dead", count=1)


async def test_a_missing_property_is_refused(test: TestApp) -> None:
    await test.post(PREFIX + "orders", Order(number=1, article="tea", quantity=1))
    await test.drained(PREFIX + "orders")
    test.broker.assert_posted(PREFIX + "orders.dead", count=1)


async def prices(test: TestApp) -> bmq.TypedQueue[Ask]:
    queue = await test.session.open_queue(PREFIX + "prices", write=True)
    return queue.typed(Ask)


async def test_a_price_is_answered(test: TestApp) -> None:
    asked = await prices(test)
    assert await asked.request(Ask(article="coffee"), reply=Price, timeout=5) == Price(cents=450)


async def test_prices_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(app.overrides, orders.get_prices, lambda: Prices({"gold": 1}))
    async with TestApp(app) as test:
        asked = await prices(test)
        assert await asked.request(Ask(article="gold"), reply=Price, timeout=5) == Price(cents=1)
        with pytest.raises(bmq.RequestFailed, match="no price for tea"):
            await asked.request(Ask(article="tea"), reply=Price, timeout=5)


async def test_attempts_are_counted(test: TestApp) -> None:
    before = app.state.handled, app.state.failed
    for article in ("tea", "gold"):
        await test.post(PREFIX + "orders", Order(number=1, article=article, quantity=1), properties=CUSTOMER)
    await test.drained(PREFIX + "orders")
    assert (app.state.handled, app.state.failed) == (before[0] + 1, before[1] + 1)
