# SPDX-License-Identifier: Apache-2.0
"""The service: inbox, outbox, requests, delayed reminders, dead letters, a group, health, metrics and traces.

    docker compose --file examples/orders_service/docker-compose.yml up --build --wait

starts a broker, two replicas, two mailers, Prometheus, and Grafana at http://localhost:3000. In a shell:

    pip install '.[cli,inbox,prometheus]' aiosqlite
    cd examples/orders_service
    bmq broker --port 30114 &
    bmq run service --processes 2 &
    python mailer.py &
    python shop.py 7 tea 2        # customer 7 orders two cups, and receives a letter after a minute
    python shop.py 7 unicorn 1
    bmq dead bmq://bmq.test.mem.priority/orders.dead
    curl localhost:8080/readyz localhost:8080/metrics

Traces need no change of the service: ``pip install '.[otel]' opentelemetry-distro``, and the command is
``opentelemetry-instrument --traces_exporter console bmq run service``. The tutorial builds the service page
by page.
"""

from __future__ import annotations

import os
from typing import Any

import orders
import prices
import reminders
from access import credentials
from messages import PRICES, Article
from orders import Shared

import bmq
from bmq.prometheus import SessionCollector


def make_app(broker: str | None = None, **options: Any) -> bmq.App[Shared]:
    """Return the app of the service, or of a test."""
    app = bmq.App(
        broker, credentials=credentials, retry_first_connect=True, grace=20, state=Shared(), **options
    )
    for part in (prices, orders, reminders):
        app.include(part.router)

    @app.on_startup
    async def open_prices() -> None:
        app.state.prices = (await app.queue(PRICES)).typed(Article)

    return app


collector = SessionCollector()
app = make_app(health=os.environ.get("ORDERS_HEALTH", "127.0.0.1:8080"), metrics=collector.exposition)
collector.add(lambda: app.session)
