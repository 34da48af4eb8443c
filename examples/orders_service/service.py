# SPDX-License-Identifier: Apache-2.0
"""The service, with health and metrics: ``bmq run service``."""

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
        broker,
        credentials=credentials,
        retry_first_connect=True,
        grace=20,
        state=Shared(),
        **options,
    )
    for part in (prices, orders, reminders):
        app.include(part.router)

    @app.on_startup
    async def open_prices() -> None:
        app.state.prices = (await app.queue(PRICES)).typed(Article)

    return app


collector = SessionCollector()
app = make_app(
    health=os.environ.get("ORDERS_HEALTH", "127.0.0.1:8080"),
    metrics=collector.exposition,
)
collector.add(lambda: app.session)
