# SPDX-License-Identifier: Apache-2.0
"""Tests of the handlers, without a socket.

pip install pytest pytest-asyncio opentelemetry-sdk
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import mailer
import pytest
import shop
from messages import (
    DEAD,
    LETTERS,
    ORDERS,
    PAYMENTS,
    PRICED,
    PRICES,
    Article,
    Letter,
    Order,
    Payment,
    Price,
    PricedOrder,
    UnknownArticle,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
    InMemorySpanExporter,
)
from orders import REMIND_AFTER
from service import make_app
from sqlalchemy.ext.asyncio import create_async_engine

import bmq
from bmq.otel import OpenTelemetry
from bmq.testing import TestApp

pytestmark = pytest.mark.asyncio
LETTER = Letter(7, "Please pay 5.00 for order 1.")


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "ORDERS_DATABASE", f"sqlite+aiosqlite:///{tmp_path}/orders.db"
    )


async def test_an_unpaid_order_is_followed_by_a_letter() -> None:
    async with TestApp(make_app(), skip_pauses=False) as test:
        await test.post(ORDERS, Order(1, 7, "tea", 2))
        await test.drained(ORDERS, PRICED)
        await test.advance(REMIND_AFTER - 10)
        test.assert_posted(LETTERS, count=0)
        await test.advance(10)
        test.assert_posted(
            LETTERS, LETTER, count=1, properties={"CustomerId": 7}
        )


async def test_a_paid_order_needs_no_letter() -> None:
    async with TestApp(make_app()) as test:
        await test.post(PAYMENTS, Payment(1))  # before the order
        await test.post(ORDERS, Order(1, 7, "tea"))
        await test.drained()
        test.assert_posted(LETTERS, count=0)
        test.assert_posted(DEAD, count=0)


async def test_a_message_that_comes_back_is_booked_once() -> None:
    first = "40000100000001E9B778F6C073D04488"
    async with TestApp(make_app()) as test:
        for _ in range(2):  # as dead letters that are put back
            await test.post(
                PRICED,
                PricedOrder(1, 7, 500),
                properties={"bmq_origin": first},
            )
        await test.drained()
        test.assert_posted(LETTERS, LETTER, count=1)
        test.assert_posted(DEAD, count=0)


async def test_an_unknown_article_becomes_a_dead_letter_at_once() -> None:
    order = Order(1, 7, "unicorn")
    async with TestApp(make_app()) as test:
        await test.post(ORDERS, order)
        await test.drained()
        test.assert_posted(
            DEAD,
            order,
            count=1,
            properties={"bmq_dead_error": "Reject: no unicorn"},
        )


async def test_the_responder_knows_the_prices() -> None:
    async with TestApp(make_app()) as test:
        price = await test.request(PRICES, Article("cake"), reply=Price)
        assert price == Price(420)
        with pytest.raises(UnknownArticle):
            await test.request(PRICES, Article("unicorn"), reply=Price)


async def test_the_letter_belongs_to_the_trace_of_the_order() -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = OpenTelemetry(tracer_provider=provider)
    async with TestApp(make_app(interceptors=[telemetry])) as test:
        await test.post(ORDERS, Order(1, 7, "tea", 2))
        await test.drained()
        test.assert_posted(LETTERS, LETTER, count=1)
    found = {
        (span.name, span.context.trace_id)
        for span in spans.get_finished_spans()
        if span.context
    }
    (trace,) = {
        number for name, number in found if name == f"process {ORDERS}"
    }
    assert (f"post {LETTERS}", trace) in found


async def test_stored_orders_are_posted_once(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    numbers = [
        await shop.take(engine, 7, article, 2)
        for article in ("tea", "cake")
    ]
    async with (
        TestApp(make_app()) as test,
        bmq.connect(test.broker.uri) as session,
    ):
        orders = (await session.open_queue(ORDERS, write=True)).typed(Order)
        await shop.relay(engine, orders)
        await shop.relay(engine, orders)
        await test.drained(ORDERS)
        assert test.posted(ORDERS, Order) == [
            Order(numbers[0], 7, "tea", 2),
            Order(numbers[1], 7, "cake", 2),
        ]
    await engine.dispose()


async def test_a_row_posted_twice_is_one_order(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    await shop.take(engine, 7, "tea", 2)
    async with (
        TestApp(make_app()) as test,
        bmq.connect(test.broker.uri) as session,
    ):
        orders = (await session.open_queue(ORDERS, write=True)).typed(Order)
        # As if the program had died before the note of the post.
        for _ in range(2):
            await shop.relay(engine, orders)
            async with engine.begin() as connection:
                await connection.execute(
                    shop.taken.update().values(posted=False)
                )
        await test.drained()
        test.assert_posted(LETTERS, count=1)
    await engine.dispose()


async def test_letters_of_a_customer_are_sent_in_order() -> None:
    sent: list[Letter] = []
    complete = asyncio.Event()

    async def send(letter: Letter) -> None:
        sent.append(letter)
        if len(sent) == 4:
            complete.set()

    letters = [
        Letter(number % 2, f"letter {number}") for number in range(4)
    ]
    async with (
        TestApp(make_app()) as test,
        bmq.connect(test.broker.uri) as session,
    ):
        mailing = asyncio.create_task(mailer.deliver(session, send))
        for letter in letters:
            await test.post(LETTERS, letter)
        await asyncio.wait_for(complete.wait(), 20)
        mailing.cancel()
        await asyncio.wait([mailing])
    for customer in (0, 1):
        theirs = [each for each in sent if each.customer == customer]
        assert theirs == letters[customer::2]


async def test_a_connected_mailer_touches_its_file(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    async with (
        TestApp(make_app()) as test,
        bmq.connect(test.broker.uri) as session,
    ):
        reporting = asyncio.create_task(mailer.report(session, file))
        for _ in iter(file.exists, True):
            await asyncio.sleep(0.001)
        reporting.cancel()
        await asyncio.wait([reporting])
        file.unlink()
        await session.close()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mailer.report(session, file), 0.01)
        assert not file.exists()
