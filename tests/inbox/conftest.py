# SPDX-License-Identifier: Apache-2.0
"""Every inbox, with its database: SQLite always, PostgreSQL if installed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

import bmq
import bmq.inbox
from examples.batch_loader import postgresql

__all__ = ["Database", "Message", "url_of"]

WEEK = 7 * 86400
#: Posts a message under a GUID, and receives the message.
Message = Callable[..., Any]

_POSTGRESQL = ["postgresql-asyncpg", "postgresql-psycopg", "asyncpg"]
KINDS = ["sqlite", "sqlite-session", *(_POSTGRESQL if postgresql.PROGRAMS else [])]


class Database:
    """A database with a table ``effects``, as one process sees it.

    Attributes:
        kind: a kind of :data:`KINDS`.
        source: an engine, a factory of sessions, or a pool of asyncpg.
    """

    def __init__(self, kind: str, source: Any, engine: AsyncEngine | None) -> None:
        self.kind = kind
        self.source = source
        self._engine = engine

    @property
    def is_postgresql(self) -> bool:
        return not self.kind.startswith("sqlite")

    def inbox(self, keep: float = WEEK, **options: Any) -> bmq.inbox.Inbox[Any]:
        """Return an inbox, not started."""
        if self._engine is None:
            return bmq.inbox.AsyncpgInbox(self.source, keep=keep, **options)
        return bmq.inbox.SqlAlchemyInbox(self.source, keep=keep, **options)

    async def execute(self, connection: Any, statement: str) -> Any:
        """Execute a statement; return the rows."""
        if self._engine is None:
            return [tuple(row) for row in await connection.fetch(statement)]
        result = await connection.execute(sa.text(statement))
        return [tuple(row) for row in result.all()] if result.returns_rows else []

    async def effect(self, transaction: bmq.inbox.Transaction[Any], name: str = "x") -> None:
        """Have the effect of a handler."""
        await self.execute(transaction.connection, f"INSERT INTO effects (name) VALUES ('{name}')")

    async def run(self, statement: str) -> Any:
        """Execute a statement alone; return the rows."""
        if self._engine is None:
            async with self.source.acquire() as connection:
                return await self.execute(connection, statement)
        async with self._engine.begin() as connection:
            return await self.execute(connection, statement)

    async def effects(self) -> list[str]:
        """Return the effects so far."""
        return [name for (name,) in await self.run("SELECT name FROM effects ORDER BY name")]

    async def close(self) -> None:
        await (self.source.close() if self._engine is None else self._engine.dispose())


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql.running() as url:
        yield url


def url_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """The URL of the test's database: a file, or the server."""
    if kind.startswith("sqlite"):
        return f"sqlite+aiosqlite:///{folder / 'shop.db'}"
    server: str = request.getfixturevalue("server")
    return server.replace("+psycopg", "" if kind == "asyncpg" else f"+{kind.partition('-')[2]}")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    given: str = request.param
    return given


@pytest.fixture
async def another(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[[], Any]]:
    """A function that opens the test's database as another process would."""
    opened: list[Database] = []

    async def connect() -> Database:
        url = url_of(kind, tmp_path, request)
        if kind == "asyncpg":
            found = Database(kind, await asyncpg.create_pool(url, min_size=0), None)
        else:
            engine = create_async_engine(url)
            sessions = kind in ("sqlite-session", "postgresql-psycopg")
            found = Database(kind, async_sessionmaker(engine) if sessions else engine, engine)
        opened.append(found)
        return found

    first = await connect()
    for table in ("effects", "bmq_inbox", "children", "parents"):
        await first.run(f"DROP TABLE IF EXISTS {table}")
    await first.run("CREATE TABLE effects (name VARCHAR(100))")
    yield connect
    for each in opened:
        await each.close()


@pytest.fixture
async def database(another: Callable[[], Any]) -> Database:
    found: Database = await another()
    return found


@pytest.fixture
async def inbox(database: Database) -> AsyncIterator[bmq.inbox.Inbox[Any]]:
    async with database.inbox() as started:
        yield started


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)


@pytest.fixture
def delivered(queue: bmq.Queue) -> Message:
    async def post(guid: str = "A" * 32, data: bytes = b"x", **properties: Any) -> bmq.Message:
        await queue.post(data, guid=guid, properties=properties)
        return await queue.receive(timeout=20)

    return post


@pytest.fixture
async def output(bmq_session: bmq.Session, bmq_new_queue_uri: Callable[..., str]) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)
