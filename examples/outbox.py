# SPDX-License-Identifier: Apache-2.0
"""An outbox: a committed message is posted, and stored once, even if a process dies in between.

    python examples/outbox.py                                           # SQLite and the embedded broker
    python examples/outbox.py --database postgresql+psycopg://localhost/shop --broker tcp://localhost:30114

A service that writes to its database and posts a message can die between the two. The service therefore
writes the message into a table, in the same transaction, and a relay posts the rows of the table. The relay
can die too, between posting a row and marking the row, and then posts the row again. The GUID is derived
from the row's number, so the broker keeps a single copy. For the same reason several relays may run.
SQLAlchemy is required.

A row that cannot be posted, for instance because its payload is empty, is marked with the error and skipped;
later rows are posted. Clear ``error`` to try the row again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import tempfile
from collections.abc import Awaitable, Mapping
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
    String,
    Table,
    create_engine,
    insert,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

import bmq
from bmq.conventions import derived_guid

BATCH = 500
MOST_BYTES = 64 * 1024 * 1024
LONGEST_ERROR = 1000
# Pauses of a relay whose database or session has failed, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0

logger = logging.getLogger("outbox")

metadata = MetaData()
outbox = Table(
    "outbox",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("payload", LargeBinary, nullable=False),
    Column("properties", JSON),
    # The relay selects rows without a time: give a large table an index.
    Column("posted_at", DateTime(timezone=True), index=True),
    # Why a row can never be posted; the relay skips rows with an error.
    Column("error", String(LONGEST_ERROR)),
    sqlite_autoincrement=True,  # never reuse a number, even after rows are deleted
)


def record(
    connection: Connection, payload: bytes, properties: Mapping[str, str | int | bool] | None = None
) -> None:
    """Write a message into the outbox, as part of the caller's transaction.

    Raises:
        bmq.UsageError: the message can never be posted; nothing was written.
    """
    check(payload, properties or {})
    connection.execute(insert(outbox).values(payload=payload, properties=dict(properties or {})))


def check(payload: bytes, properties: Mapping[str, Any]) -> None:
    """Check whether a row can hold the message: only the caller's transaction can still be stopped.

    Raises:
        bmq.UsageError: the message can never be posted.
    """
    given: Any = payload  # a caller without a type checker
    if not isinstance(given, bytes) or not 1 <= len(payload) <= MOST_BYTES:
        raise bmq.UsageError(f"a payload is 1 to {MOST_BYTES:,} bytes")
    name: Any
    for name, value in properties.items():
        # The column is JSON: a value that JSON changes would be another value when posted.
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][^\0]{0,126}", name):
            raise bmq.UsageError(f"{name!r} is not a legal property name")
        if not isinstance(value, str | int):
            raise bmq.UsageError(f"property {name} is a str, an int or a bool, not {value!r:.100}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise bmq.UsageError(f"property {name} has more than 64 bits: {value:.3e}")
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise bmq.UsageError(f"property {name} cannot be encoded in UTF-8") from None


def unposted(engine: Engine) -> list[Any]:
    """The oldest rows not yet marked as posted, or as impossible to post."""
    wanted = (
        select(outbox.c.id, outbox.c.payload, outbox.c.properties)
        .where(outbox.c.posted_at.is_(None), outbox.c.error.is_(None))
        .order_by(outbox.c.id)
        .limit(BATCH)
    )
    with engine.connect() as connection:
        return list(connection.execute(wanted).all())


def note(engine: Engine, numbers: list[int]) -> None:
    """Mark rows as posted."""
    with engine.begin() as connection:
        connection.execute(update(outbox).where(outbox.c.id.in_(numbers)).values(posted_at=datetime.now(UTC)))


def mark(engine: Engine, errors: Mapping[int, str]) -> None:
    """Mark rows as impossible to post."""
    with engine.begin() as connection:
        for number, error in errors.items():
            connection.execute(update(outbox).where(outbox.c.id == number).values(error=error))


async def relay_some(engine: Engine, name: str, queue: bmq.Queue) -> int:
    """Post some rows, and mark the accepted rows; return their number.

    Rows that can never be posted are marked too.

    Args:
        engine: the database.
        name: name of this outbox, unique among the outboxes for the queue.
        queue: the destination.
    """
    rows = await asyncio.to_thread(unposted, engine)
    if not rows:
        return 0
    posts: dict[int, asyncio.Future[bmq.Ack]] = {}
    errors: dict[int, str] = {}
    try:
        for row in rows:
            try:
                posts[row.id] = await posted(queue, row, derived_guid(name, "outbox", str(row.id)))
            except (bmq.InvalidPayload, bmq.InvalidProperty) as error:
                errors[row.id] = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
            except (TypeError, ValueError, AttributeError) as error:  # rows of other programs may be invalid
                errors[row.id] = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
    except BaseException:
        # The session has failed, or the task is cancelled. An error of the database must not hide the reason.
        try:
            await settle(engine, posts, errors)
        except SQLAlchemyError as error:
            logger.warning("the database has failed; rows are posted again: %s", str(error)[:LONGEST_ERROR])
        raise
    return await settle(engine, posts, errors)


async def settle(engine: Engine, posts: Mapping[int, Awaitable[bmq.Ack]], errors: Mapping[int, str]) -> int:
    """Wait for the outcomes of posts, and mark the accepted rows, so that no row is posted again.

    Args:
        engine: the database.
        posts: the outcomes, by row number.
        errors: reasons why rows cannot be posted, by row number.

    Returns:
        The number of accepted rows.
    """
    outcomes = await asyncio.gather(*posts.values(), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    accepted = [
        number
        for number, outcome in zip(posts, outcomes, strict=True)
        if not isinstance(outcome, BaseException)
    ]
    if accepted:
        await asyncio.to_thread(note, engine, accepted)
    if errors:
        number, why = next(iter(errors.items()))
        logger.error("%d rows cannot be posted and are marked; row %d: %s", len(errors), number, why)
        await asyncio.to_thread(mark, engine, errors)
    if refused:  # for example because the queue is full
        logger.warning("%d rows were refused and stay; the first: %s", len(refused), refused[0])
    return len(accepted)


async def posted(queue: bmq.Queue, row: Any, guid: str) -> asyncio.Future[bmq.Ack]:
    """Post a row, and return the future of its outcome. Rows are posted in their order."""
    while True:
        try:
            return queue.post_nowait(row.payload, properties=row.properties or None, guid=guid)
        except bmq.BufferFull:
            await asyncio.sleep(0.01)


async def relay(engine: Engine, name: str, queue: bmq.Queue, *, pause: float = 1.0) -> None:
    """Post the rows of the outbox, until cancelled.

    After an error of the database, the relay tries again after 1, 2, 4, ... 60 seconds.
    """
    failures = 0
    while True:
        try:
            done = await relay_some(engine, name, queue)
        except SQLAlchemyError as error:
            failures += 1
            wait = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)
            logger.warning("the database has failed; again in %g s: %s", wait, str(error)[:LONGEST_ERROR])
            await asyncio.sleep(wait)
            continue
        failures = 0
        if not done:
            await asyncio.sleep(pause)


async def main() -> None:
    parser = argparse.ArgumentParser(description="Post the messages of committed database transactions.")
    parser.add_argument("--broker", help="such as tcp://localhost:30114; default: an embedded broker")
    parser.add_argument("--database", help="an SQLAlchemy URL; default: SQLite in a temporary folder")
    options = parser.parse_args()
    async with AsyncExitStack() as stack:
        address = options.broker or (await stack.enter_async_context(bmq.broker.Broker(port=0))).uri
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        engine = create_engine(options.database or f"sqlite:///{Path(folder) / 'shop.db'}")
        stack.callback(engine.dispose)
        await asyncio.to_thread(metadata.create_all, engine)

        def order(number: int) -> None:
            with engine.begin() as connection:  # the order's own writes belong here
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
