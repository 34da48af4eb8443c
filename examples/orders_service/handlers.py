# SPDX-License-Identifier: Apache-2.0
"""The handlers of the service: orders are priced, booked, and followed by a reminder until the payment.

::

    orders ──▶ set_price ──▶ orders.priced ──▶ book ──▶ reminders.delayed ──▶ remind ──▶ letters
                 │    ▲                          │                              │
                 ▼    │                          ▼                              ▼
                 prices        payments ──▶ pay ──▶ the table of orders, and the inbox
"""

# No "from __future__ import annotations": the annotations name dependencies.
from dataclasses import dataclass
from typing import Annotated

from messages import (
    DEAD,
    PREFIX,
    REMINDERS,
    Article,
    Letter,
    Order,
    Payment,
    Price,
    PricedOrder,
    Reminder,
    UnknownArticle,
)
from repository import Repository, get_repository

import bmq

CENTS = {"tea": 250, "coffee": 300, "cake": 420}
# In seconds; shorter than the messageTtl of the domain, which deletes a reminder that waits longer.
REMIND_AFTER = 60.0

router = bmq.Router(prefix=PREFIX)
retry = bmq.Backoff(every=1, factor=2, retries=5, then=bmq.DeadLetter(DEAD))


@dataclass
class Shared:
    """The state of the app: a router has no app, so handlers reach queues through the state."""

    prices: bmq.TypedQueue[Article] | None = None


def get_prices(shared: Shared) -> bmq.TypedQueue[Article]:
    assert shared.prices is not None, "the app opens the queue at its start"
    return shared.prices


Prices = Annotated[bmq.TypedQueue[Article], bmq.Depends(get_prices)]
Orders = Annotated[Repository, bmq.Depends(get_repository, scope="app")]


@router.responder("prices", concurrency=8)
async def price(article: Article) -> Price:
    """Answer with the price of an article."""
    if article.name not in CENTS:
        raise UnknownArticle(f"no {article.name}")
    return Price(CENTS[article.name])


@router.consumer("orders", concurrency=8, max_unconfirmed_messages=64, timeout=20, retry=retry)
@router.publish_to("orders.priced")
async def set_price(order: Order, prices: Prices) -> PricedOrder:
    """Ask for the price before the transaction of ``book``: a transaction must be short."""
    try:
        price = await prices.request(Article(order.article), reply=Price, timeout=5)
    except UnknownArticle as error:
        raise bmq.Reject(error.detail) from error  # without a retry, to the dead letters
    return PricedOrder(order.number, order.customer, price.cents * order.quantity)


@router.consumer("orders.priced", concurrency=8, max_unconfirmed_messages=64, timeout=20, retry=retry)
async def book(order: PricedOrder, message: bmq.Message, orders: Orders) -> None:
    """Store the order and post the reminder in one transaction."""
    async with orders.once(message) as changes:
        if changes is not None:
            await changes.add(order.number, order.customer, order.total)
            changes.post(REMINDERS, Reminder(order.number), delay=REMIND_AFTER)


@router.consumer("payments", timeout=20, retry=retry)
async def pay(payment: Payment, message: bmq.Message, orders: Orders) -> None:
    """Note a payment. The order may still be on its way: the policy repeats the attempt."""
    async with orders.once(message) as changes:
        if changes is not None:
            await changes.pay(payment.number)


router.mover("reminders.delayed", longest=REMIND_AFTER)


@router.consumer("reminders", timeout=20, retry=retry)
@router.publish_to("letters")
async def remind(reminder: Reminder, orders: Orders) -> Letter | None:
    """Write a letter about an unpaid order, without a change of the table: ``publish_to`` loses no letter."""
    debt = await orders.debt(reminder.number)
    if debt is None:
        return None
    return Letter(debt.customer, f"Please pay {debt.total / 100:.2f} for order {reminder.number}.")
