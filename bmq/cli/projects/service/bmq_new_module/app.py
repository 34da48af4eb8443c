# SPDX-License-Identifier: Apache-2.0
"""Ships orders: each message of a queue is one order.

An order without an address becomes a dead letter at once. After any other error the service tries three more
times, and then puts the order aside as a dead letter.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Annotated, Any

import bmq

ORDERS = "bmq://bmq.test.mem.priority/bmq-new-project.orders"
DEAD = f"{ORDERS}.dead"

log = logging.getLogger(__name__)
router = bmq.Router()


@dataclass
class Order:
    """A message: JSON. The customer is also a property, so that consumers can select by customer."""

    number: int
    customer: Annotated[int, bmq.Property("CustomerId")]
    address: str = ""


class Carrier:
    """The system that takes parcels; replace it with yours."""

    async def take(self, order: Order) -> None:
        """Accept a parcel, or raise an error."""
        log.info("order %d goes to %s", order.number, order.address)


def get_carrier() -> Carrier:
    """Return the carrier; tests replace this function."""
    return Carrier()


@router.consumer(
    ORDERS,
    concurrency=8,
    key="CustomerId",  # orders of one customer in sequence, orders of different customers in parallel
    timeout=10.0,
    retry=bmq.Backoff(every=1.0, factor=2.0, retries=3, then=bmq.DeadLetter(DEAD)),
)
async def ship(order: Order, carrier: Annotated[Carrier, bmq.Depends(get_carrier)]) -> None:
    """Ship an order. The message is confirmed afterwards: after a crash, an order may arrive twice."""
    if not order.address:
        raise bmq.Reject("no address")  # a retry would fail again
    await carrier.take(order)


def make_app(broker: str | None = None, **options: Any) -> bmq.App:
    """Return the app of the service, or of a test."""
    app = bmq.App(broker, retry_first_connect=True, grace=20, **options)
    app.include(router)
    return app


app = make_app(health=os.environ.get("HEALTH_ADDRESS", "127.0.0.1:8080"))
