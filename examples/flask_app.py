# SPDX-License-Identifier: Apache-2.0
"""Orders over HTTP with Flask: each is in the queue before the answer says that it was taken.

    flask --app examples/flask_app.py run
    curl -H 'Content-Type: application/json' -d '{"customer": 7, "item": "tea"}' http://localhost:5000/orders

Every process connects once, when it needs to: a session cannot be taken through a fork, and servers like
gunicorn fork. Threads share it.
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
# In the child of a fork it closes nothing of the parent's. bmq.blocking is imported above: so what it does
# itself at exit comes after this.
atexit.register(orders.close)


@app.post("/orders")
def take() -> tuple[Response, int]:
    given = request.get_json()
    try:
        order = Order(int(given["customer"]), str(given["item"]))
    except (KeyError, TypeError, ValueError):
        return jsonify(error="an order has a customer, which is a number, and an item"), 400
    try:
        ack = orders.queue().post(order, timeout=5)
    except bmq.Error as error:
        # It may have been taken all the same, where the outcome is open: the client tries again.
        return jsonify(error=str(error)), 503
    return jsonify(guid=ack.guid), 202


@app.get("/healthy")
def healthy() -> tuple[Response, int]:
    health = orders.queue().queue.session.health()
    return jsonify(ready=health.ready), 200 if health.ready else 503
