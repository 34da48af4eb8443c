# SPDX-License-Identifier: Apache-2.0
"""A service that books payments, in four versions: three with a bug, and a correct one."""

from __future__ import annotations

import asyncio
import random

import bmq
from bmq.testing import Recorder

PAYMENTS = "bmq://bmq.test.mem.priority/payments"


class Store:
    """Stands for a database: each call takes a while, and written data survives a crash of the service."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}
        self.booked: set[str] = set()

    async def balance(self, account: str) -> int:
        """Read a balance."""
        await asyncio.sleep(random.uniform(0.001, 0.02))
        return self.balances.get(account, 0)

    async def save(self, account: str, balance: int, guid: str) -> None:
        """Write a balance and the payment's GUID, in one transaction."""
        await asyncio.sleep(random.uniform(0.001, 0.02))
        self.balances[account] = balance
        self.booked.add(guid)

    async def archive(self, guid: str) -> None:
        """Keep a copy of the payment; a second copy replaces the first."""
        await asyncio.sleep(random.uniform(0.001, 0.02))


async def book(message: bmq.Message, store: Store, recorder: Recorder) -> None:
    """Add a payment to the balance of its account."""
    account = str(message.properties["account"])
    with recorder.effect(f"book {message.guid}"):
        balance = await store.balance(account)
        await store.save(account, balance + int(message.data), message.guid)
    await store.archive(message.guid)


def confirms_early(app: bmq.App, store: Store, recorder: Recorder) -> None:
    """A bug: a crash after the confirmation and before the booking loses the payment."""

    @app.consumer(PAYMENTS, ack=bmq.AckPolicy.ON_RECEIPT)
    async def handle(message: bmq.Message) -> None:
        await book(message, store, recorder)


def books_twice(app: bmq.App, store: Store, recorder: Recorder) -> None:
    """A bug: a redelivered payment is booked again."""

    @app.consumer(PAYMENTS)
    async def handle(message: bmq.Message) -> None:
        await book(message, store, recorder)


def loses_updates(app: bmq.App, store: Store, recorder: Recorder) -> None:
    """A bug: two handlers read the same balance, and the second overwrites the result of the first."""

    @app.consumer(PAYMENTS, concurrency=4)
    async def handle(message: bmq.Message) -> None:
        if message.guid not in store.booked:
            await book(message, store, recorder)


def is_right(app: bmq.App, store: Store, recorder: Recorder) -> None:
    """Payments of an account are booked in sequence, each once, and confirmed afterwards.

    A payment whose handler fails for good stays in the queue: the default without a retry policy.
    """

    @app.consumer(PAYMENTS, concurrency=4, key="account")
    async def handle(message: bmq.Message) -> None:
        if message.guid not in store.booked:
            await book(message, store, recorder)
