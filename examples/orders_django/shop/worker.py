# SPDX-License-Identifier: Apache-2.0
"""The handlers, run by ``python manage.py worker``."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ParamSpec, TypeVar

from django.conf import settings
from django.db import close_old_connections

import bmq

from .models import Order

ORDERS = "bmq://bmq.test.mem.priority/orders"
DEAD = "bmq://bmq.test.mem.priority/orders.dead"
P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("shop")
app = bmq.App(settings.BMQ_BROKER)


@dataclass
class Placed:
    """The message: an order in the database waits for its shipping."""

    number: int
    customer: Annotated[int, bmq.Property("CustomerId")]


def with_database(handler: Callable[P, R]) -> Callable[P, R]:
    """Close broken and expired database connections before and after a call, as Django does for requests."""

    @functools.wraps(handler)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        close_old_connections()
        try:
            return handler(*args, **kwargs)
        finally:
            close_old_connections()

    return call


@app.consumer(
    ORDERS,
    concurrency=4,
    key="CustomerId",
    retry=bmq.Backoff(every=1.0, retries=5, factor=2.0, then=bmq.DeadLetter(DEAD)),
)
@with_database
def ship(placed: Placed) -> None:
    """Ship an order. A plain function: it runs in a thread, and may use the ORM."""
    order = Order.objects.get(number=placed.number)
    if not order.address:
        raise bmq.Reject("no address")
    Order.objects.filter(number=placed.number).update(shipped=True)
    log.info("order %d of customer %d is shipped", placed.number, placed.customer)
