# SPDX-License-Identifier: Apache-2.0
"""The outbox example, with each available database: SQLite always, PostgreSQL if installed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, text

import bmq
from tests.commands import ROOT, completed, loaded
from tests.integration.steps import NewUri

EXAMPLES = ROOT / "examples"
outbox: Any = loaded(EXAMPLES / "outbox.py")
audit: Any = loaded(EXAMPLES / "audit.py")
postgresql: Any = loaded(EXAMPLES / "batch_loader" / "postgresql.py")
DATABASES = ["sqlite"] + (["postgresql"] if postgresql.PROGRAMS else [])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql.running() as url:
        yield url


@pytest.fixture(params=DATABASES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    kind: str = request.param
    url = f"sqlite:///{tmp_path / 'shop.db'}" if kind == "sqlite" else request.getfixturevalue("server")
    engine = create_engine(url)
    outbox.metadata.drop_all(engine)
    outbox.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)


def write(engine: Engine, *payloads: bytes) -> None:
    with engine.begin() as connection:
        for payload in payloads:
            outbox.record(connection, payload, {"size": len(payload)})


def left(engine: Engine) -> int:
    with engine.connect() as connection:
        unposted = select(func.count()).where(outbox.outbox.c.posted_at.is_(None))
        return connection.execute(unposted).scalar_one()


async def stored(queue: bmq.Queue) -> list[bytes]:
    """Return the messages in the queue, and nothing else."""
    await queue.post(b"end")
    found = [(await queue.receive(timeout=10)).data]
    while found[-1] != b"end":
        found.append((await queue.receive(timeout=10)).data)
    return found[:-1]


async def test_committed_rows_are_posted(engine: Engine, queue: bmq.Queue) -> None:
    write(engine, b"one", b"three")
    with engine.connect() as connection, connection.begin() as transaction:
        outbox.record(connection, b"never")
        transaction.rollback()
    assert await outbox.relay_some(engine, "shop", queue) == 2
    assert await outbox.relay_some(engine, "shop", queue) == 0
    first = await queue.receive(timeout=10)
    assert (first.data, dict(first.properties)) == (b"one", {"size": 3})
    assert await stored(queue) == [b"three"]
    assert left(engine) == 0


async def test_refused_messages_wait(
    engine: Engine, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    queue = await bmq_session.open_queue(bmq_new_queue_uri("bmq.test.small.priority"), read=True, write=True)
    payloads = [b"%d" % number for number in range(25)]
    write(engine, *payloads)
    accepted = await outbox.relay_some(engine, "shop", queue)
    assert 0 < accepted < 25
    assert left(engine) == 25 - accepted
    found: list[bytes] = []
    while len(found) < 25:
        for message in await queue.receive_many(timeout=10):
            found.append(message.data)
            message.confirm()
        await outbox.relay_some(engine, "shop", queue)
    assert found == payloads
    assert left(engine) == 0


async def test_two_outboxes_have_different_guids(engine: Engine, queue: bmq.Queue) -> None:
    write(engine, b"x")
    assert await outbox.relay_some(engine, "shop", queue) == 1
    outbox.metadata.drop_all(engine)
    outbox.metadata.create_all(engine)
    write(engine, b"y")
    assert await outbox.relay_some(engine, "another", queue) == 1
    assert await stored(queue) == [b"x", b"y"]


def test_the_example_runs() -> None:
    lines = completed(sys.executable, "-W", "error", EXAMPLES / "outbox.py").stdout.splitlines()
    assert (lines[0], lines[-1]) == ("posted 5", "order 4 {'CustomerId': 4}")


async def test_the_audit_finds_what_was_posted_and_never_handled(
    engine: Engine, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    """A message was lost, and a delayed message waits for a mover."""
    uri = bmq_new_queue_uri()
    delayed = f"{uri}.delayed"
    queue = await bmq_session.open_queue(uri, read=True, write=True)
    waiting = await bmq_session.open_queue(delayed, read=True, write=True)
    with engine.begin() as connection:
        for _ in range(3):
            outbox.record(connection, b"plain")
        past = int((datetime.now(UTC) - timedelta(seconds=1)).timestamp() * 1000)
        for seconds in (0, 0, 3_600_000):
            how = {bmq.conventions.DUE: past + seconds, bmq.conventions.DESTINATION: uri}
            outbox.record(connection, b"delayed", how)
        connection.execute(text("DROP TABLE IF EXISTS bmq_inbox"))
        connection.execute(text("CREATE TABLE bmq_inbox (consumer VARCHAR, guid VARCHAR)"))
        rows = connection.execute(text("SELECT id FROM outbox ORDER BY id")).scalars().all()

    def handled(message: bmq.Message) -> None:
        with engine.begin() as connection:
            values = {"consumer": uri, "guid": message.guid}
            connection.execute(text("INSERT INTO bmq_inbox VALUES (:consumer, :guid)"), values)
        message.confirm()

    def missing(until: datetime | None = None) -> list[int]:
        until = until or datetime.now(UTC) + timedelta(seconds=1)
        found: list[int] = audit.missing(engine, "shop", uri, until=until)
        return found

    with engine.connect() as connection:
        every = list(connection.execute(select(outbox.outbox)).all())
    for row in every:
        target = waiting if row.properties else queue
        guid = bmq.conventions.derived_guid("shop", "outbox", str(row.id))
        await (await outbox.posted(target, row, guid))
    outbox.note(engine, list(rows))
    assert missing() == list(rows[:5]), "the last one is not due yet"
    assert missing(datetime.now(UTC) - timedelta(hours=1)) == []
    for _ in range(3):
        handled(await queue.receive(timeout=10))
    assert missing() == list(rows[3:5]), "there is no mover"
    mover = asyncio.create_task(bmq.delays.Mover(waiting).run())
    handled(await queue.receive(timeout=10))
    (await queue.receive(timeout=10)).confirm()  # lost
    assert len(missing()) == 1
    mover.cancel()
    await asyncio.wait([mover])
