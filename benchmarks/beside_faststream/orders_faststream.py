# SPDX-License-Identifier: Apache-2.0
"""Invoices for orders with FastStream on RabbitMQ: router, dependencies, middleware, reply, dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from faststream import AckPolicy, BaseMiddleware, Depends, FastStream, Header, StreamMessage
from faststream.exceptions import RejectMessage
from faststream.rabbit import RabbitBroker, RabbitQueue, RabbitRouter
from pydantic import BaseModel, PositiveInt


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
            raise RejectMessage
        return self._prices[article]


class Ledger:
    """A transaction of one message."""

    def __init__(self) -> None:
        self.state = "open"
        self.lines: list[Invoice] = []

    def add(self, invoice: Invoice) -> None:
        self.lines.append(invoice)


def prices() -> Prices:
    return Prices({"tea": 300, "coffee": 450})


async def ledger() -> AsyncIterator[Ledger]:
    opened = Ledger()
    yield opened
    opened.state = "committed"


class Counted(BaseMiddleware[Any, Any]):
    """Counts the messages that were handled, and the failures."""

    handled = 0
    failed = 0

    async def consume_scope(self, call_next: Any, msg: StreamMessage[Any]) -> Any:
        try:
            result = await call_next(msg)
        except Exception:
            Counted.failed += 1
            raise
        Counted.handled += 1
        return result


ORDERS = RabbitQueue(
    "orders",
    durable=True,
    arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dead"},
)
router = RabbitRouter()


@router.subscriber(ORDERS, ack_policy=AckPolicy.NACK_ON_ERROR)
@router.publisher("invoices")
async def invoice(
    order: Order,
    customer: Annotated[int, Header("CustomerId")],
    prices: Annotated[Prices, Depends(prices)],
    ledger: Annotated[Ledger, Depends(ledger)],
) -> Invoice:
    made = Invoice(number=order.number, customer=customer, total=prices.of(order.article) * order.quantity)
    ledger.add(made)
    return made


@router.subscriber("prices")
async def price(ask: Ask, prices: Annotated[Prices, Depends(prices)]) -> Price:
    return Price(cents=prices.of(ask.article))


broker = RabbitBroker(middlewares=[Counted])
broker.include_router(router)
app = FastStream(broker)
