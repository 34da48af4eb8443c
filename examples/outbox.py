# SPDX-License-Identifier: Apache-2.0
"""An outbox: what a transaction commits is posted, and posted once, whatever dies in between.

    python examples/outbox.py                                           # SQLite and the embedded broker
    python examples/outbox.py --database postgresql+psycopg://localhost/shop --broker tcp://localhost:30114

A service that writes to its database and posts a message can die between the two. So it writes the message
into a table, in the same transaction, and a relay posts what it finds there. The relay can die too, between
posting and noting that it did, and then posts a row again: under the same GUID, which is made of the row's
number, so that the broker keeps one. Several relays may run for the same reason. It needs SQLAlchemy.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    create_engine,
    insert,
    select,
    update,
)

import bmq
from bmq.conventions import derived_guid

BATCH = 500

metadata = MetaData()
outbox = Table(
    "outbox",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("payload", LargeBinary, nullable=False),
    Column("properties", JSON),
    # The relay asks for what has none: a service in earnest has an index for that.
    Column("posted_at", DateTime(timezone=True), index=True),
    sqlite_autoincrement=True,  # a number is never given twice, also when rows are deleted
)


def record(
    connection: Connection, payload: bytes, properties: Mapping[str, str | int | bool] | None = None
) -> None:
    """Write a message into the outbox, as part of the caller's transaction."""
    connection.execute(insert(outbox).values(payload=payload, properties=dict(properties or {})))


def unposted(engine: Engine) -> list[Any]:
    """The oldest rows that no relay has noted as posted."""
    wanted = (
        select(outbox.c.id, outbox.c.payload, outbox.c.properties)
        .where(outbox.c.posted_at.is_(None))
        .order_by(outbox.c.id)
        .limit(BATCH)
    )
    with engine.connect() as connection:
        return list(connection.execute(wanted).all())


def note(engine: Engine, numbers: list[int]) -> None:
    """Note rows as posted."""
    with engine.begin() as connection:
        connection.execute(update(outbox).where(outbox.c.id.in_(numbers)).values(posted_at=datetime.now(UTC)))


async def relay_some(engine: Engine, name: str, queue: bmq.Queue) -> int:
    """Post some rows, and note those that the broker has accepted; return how many these are.

    Args:
        engine: the database.
        name: of this outbox: no other one that posts to the same queue may have it.
        queue: where to.
    """
    rows = await asyncio.to_thread(unposted, engine)
    if not rows:
        return 0
    report = await queue.post_many(
        bmq.PutMessage(row.payload, row.properties or None, guid=derived_guid(name, "outbox", str(row.id)))
        for row in rows
    )
    refused = {failure.index for failure in report.failures}  # the queue is full, say: next time
    accepted = [row.id for index, row in enumerate(rows) if index not in refused]
    if accepted:
        await asyncio.to_thread(note, engine, accepted)
    return len(accepted)


async def relay(engine: Engine, name: str, queue: bmq.Queue, *, pause: float = 1.0) -> None:
    """Post what is in the outbox, until cancelled."""
    while True:
        if not await relay_some(engine, name, queue):
            await asyncio.sleep(pause)


async def main() -> None:
    parser = argparse.ArgumentParser(description="Post what a database transaction commits.")
    parser.add_argument("--broker", help="such as tcp://localhost:30114; default: an embedded one")
    parser.add_argument("--database", help="an SQLAlchemy URL; default: SQLite in a temporary folder")
    options = parser.parse_args()
    async with AsyncExitStack() as stack:
        address = options.broker or (await stack.enter_async_context(bmq.broker.Broker(port=0))).uri
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        engine = create_engine(options.database or f"sqlite:///{Path(folder) / 'shop.db'}")
        stack.callback(engine.dispose)
        await asyncio.to_thread(metadata.create_all, engine)

        def order(number: int) -> None:
            with engine.begin() as connection:  # what the order itself writes belongs in here
                record(connection, b"order %d" % number, {"CustomerId": number})

        for number in range(5):
            await asyncio.to_thread(order, number)
        session = await stack.enter_async_context(bmq.connect(address))
        uri = f"bmq://bmq.test.mem.priority/outbox-{os.getpid()}"
        queue = await session.open_queue(uri, read=True, write=True)
        print(f"posted {await relay_some(engine, 'shop', queue)}")
        for _ in range(5):
            async with await queue.receive(timeout=10) as message:
                print(message.data.decode(), dict(message.properties))


if __name__ == "__main__":
    bmq.run(main())
