# SPDX-License-Identifier: Apache-2.0
"""A worker for orders: typed messages, lanes by customer, dead letters for orders without an address.

    bmq broker --port 30114 &
    bmq run worker --dir examples/orders_worker
    bmq post bmq://bmq.test.mem.priority/orders '{"number": 1, "customer": 7, "address": "1 Main Street"}'

Orders of one customer are shipped in the order of posting, orders of different customers in parallel.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated

import bmq

ORDERS = "bmq://bmq.test.mem.priority/orders"
SHIPPED = "bmq://bmq.test.mem.priority/orders.shipped"
DEAD = "bmq://bmq.test.mem.priority/orders.dead"

log = logging.getLogger("orders")
app = bmq.App()


@dataclass
class Order:
    number: int
    customer: Annotated[int, bmq.Property("CustomerId")]
    address: str = ""


@dataclass
class Shipped:
    number: int
    customer: Annotated[int, bmq.Property("CustomerId")]


class Carrier:
    """Ships parcels; replaced in tests."""

    async def take(self, order: Order) -> None:
        log.info("order %d goes to %s", order.number, order.address)


app.state.carrier = Carrier()


@app.on_startup
async def open_queues() -> None:
    app.state.shipped = (await app.queue(SHIPPED)).typed(Shipped)


@app.consumer(
    ORDERS,
    concurrency=64,
    key="CustomerId",
    timeout=10.0,
    retry=bmq.Backoff(every=5.0, retries=3, factor=2.0, then=bmq.DeadLetter(DEAD)),
)
async def ship(order: Order) -> None:
    if not order.address:
        raise bmq.Reject("no address")  # a retry would fail again
    await app.state.carrier.take(order)  # an error fails the attempt
    await app.state.shipped.post(Shipped(order.number, order.customer))


@app.consumer(DEAD)
async def look(message: bmq.Message) -> None:
    """Log every dead letter. Takes the raw message: it may not be a valid Order."""
    reason, tried = message.properties["bmq_dead_error"], message.properties["bmq_dead_attempts"]
    log.warning("put aside after %s attempts: %s: %r", tried, reason, message.data)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    bmq.run(app.run())
