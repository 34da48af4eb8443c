# SPDX-License-Identifier: Apache-2.0
"""Orders, and who ships them: what the web service beside this posts, and the handler that takes it.

    bmq run orders --dir examples/orders_api

runs the handler by itself; the web service can also run it in its own process.
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
    """Checks the request, and is what travels; the customer is a property too, to subscribe by."""

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
    key="CustomerId",  # what one customer has ordered is shipped in that order
    timeout=10.0,
    retry=bmq.Backoff(every=1.0, retries=5, factor=2.0, then=bmq.DeadLetter(DEAD)),
)
async def ship(order: Order) -> None:
    await app.state.shipped.post(Shipped(number=order.number, customer=order.customer))
    log.info("order %d of customer %d is shipped", order.number, order.customer)
