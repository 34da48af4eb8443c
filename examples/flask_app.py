# SPDX-License-Identifier: Apache-2.0
"""Orders over HTTP with Flask: each order is in the queue before the request is answered.

    flask --app examples/flask_app.py run
    curl -H 'Content-Type: application/json' -d '{"customer": 7, "item": "tea"}' http://localhost:5000/orders

Every process connects on its first order, because a session does not survive a fork, and servers like
gunicorn fork. All threads of a process share the session.
"""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from typing import Annotated

from flask import Flask, Response, jsonify, request

import bmq
import bmq.blocking

BROKER = os.environ.get("ORDERS_BROKER")
QUEUE = os.environ.get("ORDERS_QUEUE", "bmq://bmq.test.mem.priority/orders")

app = Flask(__name__)


@dataclass
class Order:
    customer: Annotated[int, bmq.Property]
    item: str


class Orders:
    """The queue for orders, opened by the first request of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._session: bmq.blocking.Session | None = None
        self._queue: bmq.blocking.TypedQueue[Order] | None = None

    def queue(self) -> bmq.blocking.TypedQueue[Order]:
        with self._lock:
            if self._queue is None or self._process != os.getpid():
                self._session = bmq.blocking.connect(BROKER)
                self._queue = self._session.open_queue(QUEUE, write=True).typed(Order)
                self._process = os.getpid()
            return self._queue

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


orders = Orders()
# In a forked child, close() leaves the parent's session alone. bmq.blocking is imported above, so its own
# exit function runs after this one.
atexit.register(orders.close)


@app.post("/orders")
def take() -> tuple[Response, int]:
    given = request.get_json()
    try:
        order = Order(int(given["customer"]), str(given["item"]))
    except (KeyError, TypeError, ValueError):
        return jsonify(error="an order needs a customer (a number) and an item"), 400
    try:
        ack = orders.queue().post(order, timeout=5)
    except bmq.Error as error:
        # After a timeout the order may be stored nevertheless; the client should try again.
        return jsonify(error=str(error)), 503
    return jsonify(guid=ack.guid), 202


@app.get("/healthy")
def healthy() -> tuple[Response, int]:
    health = orders.queue().queue.session.health()
    return jsonify(ready=health.ready), 200 if health.ready else 503
