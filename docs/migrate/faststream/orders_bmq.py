# SPDX-License-Identifier: Apache-2.0
"""Invoices for orders with bmq: router, dependencies, middleware, reply, dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

from pydantic import BaseModel, PositiveInt

import bmq

PREFIX = "bmq://bmq.test.mem.priority/"
Next = Callable[[], Awaitable[object]]


class Order(BaseModel):
    number: int
    article: str
    quantity: PositiveInt


class Invoice(BaseModel):
    number: int
    customer: int
    total: int


class Ask(BaseModel):
    article: str


class Price(BaseModel):
    cents: int


class Prices:
    """Prices of articles, in cents."""

    def __init__(self, prices: dict[str, int]) -> None:
        self._prices = prices

    def of(self, article: str) -> int:
        if article not in self._prices:
            raise bmq.Reject(f"no price for {article}")
        return self._prices[article]


class Ledger:
    """A transaction of one message."""

    def __init__(self) -> None:
        self.state = "open"
        self.lines: list[Invoice] = []

    def add(self, invoice: Invoice) -> None:
        self.lines.append(invoice)


class Counts:
    """The messages that were handled, and the failures."""

    handled = 0
    failed = 0


def get_prices() -> Prices:
    return Prices({"tea": 300, "coffee": 450})


async def get_ledger() -> AsyncIterator[Ledger]:
    opened = Ledger()
    yield opened
    opened.state = "committed"


async def counted(attempt: bmq.Attempt, call_next: Next) -> object:
    try:
        result = await call_next()
    except Exception:
        app.state.failed += 1
        raise
    app.state.handled += 1
    return result


router = bmq.Router(prefix=PREFIX)
retry = bmq.Backoff(1, 3, then=bmq.DeadLetter(PREFIX + "orders.dead"))


@router.consumer("orders", retry=retry)
@router.publish_to("invoices")
async def invoice(
    order: Order,
    customer: Annotated[int, bmq.Property("CustomerId")],
    prices: Annotated[Prices, bmq.Depends(get_prices)],
    ledger: Annotated[Ledger, bmq.Depends(get_ledger)],
) -> Invoice:
    total = prices.of(order.article) * order.quantity
    made = Invoice(number=order.number, customer=customer, total=total)
    ledger.add(made)
    return made


@router.responder("prices")
async def price(
    ask: Ask,
    prices: Annotated[Prices, bmq.Depends(get_prices)],
) -> Price:
    return Price(cents=prices.of(ask.article))


app = bmq.App(middlewares=[counted], state=Counts())
app.include(router)
