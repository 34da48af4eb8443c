# SPDX-License-Identifier: Apache-2.0
"""Orders are priced and booked. A reminder follows each unpaid order.

::

    orders ──▶ set_price ──▶ orders.priced ──▶ book ──▶ reminders.delayed
                 │    ▲                          │
                 ▼    │                          ▼
                prices    payments ──▶ pay ──▶ the table, and the inbox

    reminders.delayed ──▶ remind ──▶ letters ──▶ mailer
"""

# No "from __future__ import annotations": annotations name dependencies.
import logging
import os
from dataclasses import dataclass
from typing import Annotated

from messages import (
    DEAD,
    PREFIX,
    REMINDERS,
    Article,
    Order,
    Payment,
    Price,
    PricedOrder,
    Reminder,
    UnknownArticle,
)
from repository import Orders

import bmq

# In seconds. The domain deletes a reminder that waits longer than its
# messageTtl.
REMIND_AFTER = float(os.environ.get("ORDERS_REMIND_AFTER", "60"))


@dataclass
class Shared:
    """The state of the app, through which handlers reach its queues."""

    prices: bmq.TypedQueue[Article] | None = None


def get_prices(shared: Shared) -> bmq.TypedQueue[Article]:
    assert shared.prices is not None, "the app opens the queue at its start"
    return shared.prices


Prices = Annotated[bmq.TypedQueue[Article], bmq.Depends(get_prices)]

logger = logging.getLogger("orders")
router = bmq.Router(prefix=PREFIX)
retry = bmq.Backoff(every=1, factor=2, retries=5, then=bmq.DeadLetter(DEAD))


@router.consumer(
    "orders",
    concurrency=8,
    max_unconfirmed_messages=64,
    timeout=20,
    retry=retry,
)
@router.publish_to("orders.priced")
async def set_price(order: Order, prices: Prices) -> PricedOrder:
    """Ask for the price here, to keep the transaction of ``book`` short."""
    try:
        price = await prices.request(
            Article(order.article), reply=Price, timeout=5
        )
    except UnknownArticle as error:
        # Without a retry, to the dead letters.
        raise bmq.Reject(error.detail) from error
    return PricedOrder(
        order.number, order.customer, price.cents * order.quantity
    )


@router.consumer(
    "orders.priced",
    concurrency=8,
    max_unconfirmed_messages=64,
    timeout=20,
    retry=retry,
)
async def book(
    order: PricedOrder, message: bmq.Message, orders: Orders
) -> None:
    """Store the order and post the reminder in one transaction."""
    async with orders.once(message) as changes:
        if changes is not None:
            await changes.add(order.number, order.customer, order.total)
            changes.post(
                REMINDERS, Reminder(order.number), delay=REMIND_AFTER
            )
    logger.info("order %d is booked: %.2f", order.number, order.total / 100)


@router.consumer("payments", timeout=20, retry=retry)
async def pay(
    payment: Payment, message: bmq.Message, orders: Orders
) -> None:
    """Note a payment. If the order is not booked yet, bmq tries again."""
    async with orders.once(message) as changes:
        if changes is not None:
            await changes.pay(payment.number)
    logger.info("order %d is paid", payment.number)
