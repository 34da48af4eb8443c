# SPDX-License-Identifier: Apache-2.0
"""The queues and messages of the service. Producers import them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import bmq

PREFIX = "bmq://bmq.test.mem.priority/"
ORDERS = PREFIX + "orders"
PRICES = PREFIX + "prices"
PRICED = PREFIX + "orders.priced"
PAYMENTS = PREFIX + "payments"
REMINDERS = PREFIX + "reminders"
LETTERS = PREFIX + "letters"
DEAD = PREFIX + "orders.dead"


@dataclass
class Order:
    number: int
    customer: Annotated[int, bmq.Property("CustomerId")]
    article: str
    quantity: int = 1


@dataclass
class Article:
    name: str


@dataclass
class Price:
    cents: int


class UnknownArticle(
    bmq.RequestFailed,
    type="https://shop.example/problems/unknown-article",
    title="Unknown article",
):
    """The shop does not sell the article."""


@dataclass
class PricedOrder:
    number: int
    customer: Annotated[int, bmq.Property("CustomerId")]
    total: int


@dataclass
class Payment:
    number: int


@dataclass
class Reminder:
    number: int


@dataclass
class Letter:
    customer: Annotated[int, bmq.Property("CustomerId")]
    text: str
