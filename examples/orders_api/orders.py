# SPDX-License-Identifier: Apache-2.0
"""Orders and their shipping: the model for the web service in this folder, and the handler.

    bmq run orders --dir examples/orders_api

runs only the handler; the web service can also run the handler in its own process.
"""

from __future__ import annotations

import logging
from typing import Annotated

import pydantic

import bmq

ORDERS = "bmq://bmq.test.mem.priority/orders"
SHIPPED = "bmq://bmq.test.mem.priority/orders.shipped"
DEAD = "bmq://bmq.test.mem.priority/orders.dead"

log = logging.getLogger("orders")
app = bmq.App()


class Order(pydantic.BaseModel):
    """Checks the request, and is the payload; the customer is also a property for subscriptions."""

    number: int = pydantic.Field(ge=1)
    customer: Annotated[int, bmq.Property("CustomerId")]
    address: str = pydantic.Field(min_length=1, max_length=500)


class Shipped(pydantic.BaseModel):
    number: Annotated[int, bmq.Property("OrderNumber")]
    customer: Annotated[int, bmq.Property("CustomerId")]


@app.on_startup
async def open_queues() -> None:
    app.state.shipped = (await app.queue(SHIPPED)).typed(Shipped)


@app.consumer(
    ORDERS,
    concurrency=16,
    key="CustomerId",  # ship each customer's orders in sequence
    timeout=10.0,
    retry=bmq.Backoff(every=1.0, retries=5, factor=2.0, then=bmq.DeadLetter(DEAD)),
)
async def ship(order: Order) -> None:
    await app.state.shipped.post(Shipped(number=order.number, customer=order.customer))
    log.info("order %d of customer %d is shipped", order.number, order.customer)
