# SPDX-License-Identifier: Apache-2.0
"""Orders: a service with health, metrics, container, Kubernetes manifest and dashboard.

    docker compose --file examples/orders_service/docker-compose.yml up --build --wait

starts a broker, two replicas, Prometheus, and Grafana at http://localhost:3000. Without containers:

    bmq broker --port 30114 &
    bmq run service --dir examples/orders_service
    bmq post bmq://bmq.test.mem.priority/orders '{"number": 1, "customer": 7, "article": "tea"}'
    curl localhost:8080/readyz localhost:8080/metrics
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Annotated

import bmq
from bmq.prometheus import SessionCollector

ORDERS = "bmq://bmq.test.mem.priority/orders"
DEAD = "bmq://bmq.test.mem.priority/orders.dead"

log = logging.getLogger("orders")
collector = SessionCollector()


def credentials() -> bmq.Credentials:
    """Read the password for each connection, or connect without a name."""
    password = os.environ.get("BMQ_PASSWORD")
    if password is None:
        return bmq.Credentials.anonymous()
    return bmq.Credentials.basic(os.environ["BMQ_USER"], password)


app = bmq.App(
    credentials=credentials,
    health=os.environ.get("ORDERS_HEALTH", "127.0.0.1:8080"),
    metrics=collector.exposition,
    retry_first_connect=True,
    grace=20,
)
collector.add(lambda: app.session)


@dataclass
class Order:
    number: int
    customer: Annotated[int, bmq.Property("CustomerId")]
    article: str


@app.consumer(
    ORDERS,
    concurrency=8,
    key="CustomerId",
    max_unconfirmed_messages=64,
    timeout=10,
    retry=bmq.Backoff(every=1, retries=5, factor=2, then=bmq.DeadLetter(DEAD)),
)
async def take(order: Order) -> None:
    """Take an order."""
    log.info("order %d of customer %d: %s", order.number, order.customer, order.article)
