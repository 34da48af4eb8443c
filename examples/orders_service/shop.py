# SPDX-License-Identifier: Apache-2.0
"""The counter of the shop, with an outbox.

``python shop.py 7 tea 2``: customer 7 orders two cups of tea.

An order is a row of a table, and :func:`relay` posts the rows. If the
broker is away or the program dies, the next run posts the rows that are
left, under the same GUIDs.
"""

from __future__ import annotations

import os
import sys

import sqlalchemy as sa
from access import credentials
from messages import ORDERS, Order
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateTable

import bmq
from bmq.conventions import derived_guid

taken = sa.Table(
    "taken",
    sa.MetaData(),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("customer", sa.Integer, nullable=False),
    sa.Column("article", sa.String, nullable=False),
    sa.Column("quantity", sa.Integer, nullable=False),
    sa.Column("posted", sa.Boolean, nullable=False),
    # Never the same number again: a GUID derives from the number.
    sqlite_autoincrement=True,
)


async def take(
    engine: AsyncEngine, customer: int, article: str, quantity: int
) -> int:
    """Store an order, and return its number."""
    row = sa.insert(taken).values(
        customer=customer, article=article, quantity=quantity, posted=False
    )
    async with engine.begin() as connection:
        await connection.execute(CreateTable(taken, if_not_exists=True))
        number: int = (
            await connection.execute(row.returning(taken.c.number))
        ).scalar_one()
    return number


async def relay(engine: AsyncEngine, orders: bmq.TypedQueue[Order]) -> None:
    """Post the rows that are not posted.

    The broker stores a repeated GUID once.
    """
    async with engine.connect() as connection:
        rows = (
            await connection.execute(
                sa.select(taken)
                .where(~taken.c.posted)
                .order_by(taken.c.number)
            )
        ).all()
    for row in rows:
        order = Order(row.number, row.customer, row.article, row.quantity)
        await orders.post(
            order, guid=derived_guid("shop", ORDERS, str(row.number))
        )
        posted = (
            sa.update(taken)
            .where(taken.c.number == row.number)
            .values(posted=True)
        )
        async with engine.begin() as connection:
            await connection.execute(posted)


async def main() -> None:
    customer, article, quantity = sys.argv[1:]
    engine = create_async_engine(
        os.environ.get("SHOP_DATABASE", "sqlite+aiosqlite:///shop.db")
    )
    try:
        number = await take(engine, int(customer), article, int(quantity))
        print("order", number)
        async with bmq.connect(credentials=credentials) as session:
            queue = await session.open_queue(ORDERS, write=True)
            await relay(engine, queue.typed(Order))
    finally:
        await engine.dispose()


if __name__ == "__main__":
    bmq.run(main())
