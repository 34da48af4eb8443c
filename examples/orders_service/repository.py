# SPDX-License-Identifier: Apache-2.0
"""The booked orders, in SQLite or PostgreSQL, with an inbox.

Each message changes the orders once.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    create_async_engine,
)
from sqlalchemy.schema import CreateTable

import bmq

KEEP = 7 * 86400.0  # seconds; longer than messages and dead letters wait
orders = sa.Table(
    "orders",
    sa.MetaData(),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("customer", sa.Integer, nullable=False),
    sa.Column("total", sa.Integer, nullable=False),
    sa.Column("paid", sa.Boolean, nullable=False),
)


@dataclass
class Debt:
    customer: int
    total: int


class Changes:
    """The changes made by one message: all happen, or none."""

    def __init__(
        self, transaction: bmq.inbox.Transaction[AsyncConnection]
    ) -> None:
        self._transaction = transaction

    async def add(self, number: int, customer: int, total: int) -> None:
        row = sa.insert(orders).values(
            number=number, customer=customer, total=total, paid=False
        )
        await self._transaction.connection.execute(row)

    async def pay(self, number: int) -> None:
        paid = (
            sa.update(orders)
            .where(orders.c.number == number)
            .values(paid=True)
        )
        done = await self._transaction.connection.execute(paid)
        if not done.rowcount:
            raise LookupError(f"no order {number} yet")

    def post(
        self, uri: str, value: object, *, delay: float | None = None
    ) -> None:
        """Post a value after the commit, and only then."""
        self._transaction.post(uri, value, delay=delay)


class Repository:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=KEEP)

    @asynccontextmanager
    async def once(
        self, message: bmq.Message
    ) -> AsyncGenerator[Changes | None]:
        """Return the changes for a message, or None for a repetition."""
        async with self.inbox.once(message) as transaction:
            yield Changes(transaction) if transaction is not None else None

    async def debt(self, number: int) -> Debt | None:
        """Return the customer and the total of an unpaid order, or None."""
        unpaid = sa.select(orders.c.customer, orders.c.total).where(
            orders.c.number == number, ~orders.c.paid
        )
        async with self._engine.connect() as connection:
            row = (await connection.execute(unpaid)).first()
        return Debt(row.customer, row.total) if row is not None else None


async def get_repository() -> AsyncIterator[Repository]:
    """Open the database for a run of the app."""
    engine = create_async_engine(
        os.environ.get("ORDERS_DATABASE", "sqlite+aiosqlite:///orders.db")
    )
    try:
        async with engine.begin() as connection:
            await connection.execute(
                CreateTable(orders, if_not_exists=True)
            )
        repository = Repository(engine)
        async with repository.inbox:
            yield repository
    finally:
        await engine.dispose()


#: Declared by handlers: one repository for a run of the app.
Orders = Annotated[Repository, bmq.Depends(get_repository, scope="app")]
