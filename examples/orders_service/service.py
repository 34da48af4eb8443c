# SPDX-License-Identifier: Apache-2.0
"""Orders: a service with an inbox, delayed reminders, requests, dead letters, health, metrics and traces.

    docker compose --file examples/orders_service/docker-compose.yml up --build --wait

starts a broker, two replicas, Prometheus, and Grafana at http://localhost:3000. Without containers:

    pip install '.[cli,inbox,prometheus]' aiosqlite
    bmq broker --port 30114 &
    bmq run service --dir examples/orders_service --processes 2
    bmq post bmq://bmq.test.mem.priority/orders '{"number": 1, "customer": 7, "article": "tea"}'
    bmq tail bmq://bmq.test.mem.priority/letters
    bmq post bmq://bmq.test.mem.priority/orders '{"number": 2, "customer": 7, "article": "unicorn"}'
    bmq dead bmq://bmq.test.mem.priority/orders.dead
    curl localhost:8080/readyz localhost:8080/metrics

Traces need no change of the service: ``pip install '.[otel]' opentelemetry-distro``, and the command is
``opentelemetry-instrument --traces_exporter console bmq run service --dir examples/orders_service``.
"""

from __future__ import annotations

import os
from typing import Any

from handlers import Shared, router
from messages import PRICES, Article

import bmq
from bmq.prometheus import SessionCollector


def credentials() -> bmq.Credentials:
    """Read the password for each connection, or connect without a name."""
    password = os.environ.get("BMQ_PASSWORD")
    if password is None:
        return bmq.Credentials.anonymous()
    return bmq.Credentials.basic(os.environ["BMQ_USER"], password)


def make_app(broker: str | None = None, **options: Any) -> bmq.App[Shared]:
    """Return the app of the service, or of a test."""
    app = bmq.App(
        broker, credentials=credentials, retry_first_connect=True, grace=20, state=Shared(), **options
    )
    app.include(router)

    @app.on_startup
    async def open_prices() -> None:
        app.state.prices = (await app.queue(PRICES)).typed(Article)

    return app


collector = SessionCollector()
app = make_app(health=os.environ.get("ORDERS_HEALTH", "127.0.0.1:8080"), metrics=collector.exposition)
collector.add(lambda: app.session)
