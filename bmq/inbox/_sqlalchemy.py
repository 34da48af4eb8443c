# SPDX-License-Identifier: Apache-2.0
"""The inbox on SQLAlchemy's asynchronous engines, for SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Final, TypeVar, cast, overload

from bmq._version import install

try:
    import sqlalchemy as sa
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
    from sqlalchemy.schema import CreateIndex, CreateTable
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"bmq.inbox.SqlAlchemyInbox needs SQLAlchemy, which is not installed: {install('inbox')}",
        name=error.name,
    ) from error

from bmq import _checks
from bmq.errors import UsageError
from bmq.inbox._inbox import Inbox, RowKey

C = TypeVar("C", AsyncConnection, AsyncSession)

# Of an advisory lock in PostgreSQL: two workers that create a table at once.
_LOCK: Final = 0x626D715F696E


class SqlAlchemyInbox(Inbox[C]):
    """An inbox on SQLAlchemy 2, with SQLite (aiosqlite) or PostgreSQL (asyncpg, psycopg).

    ::

        engine = create_async_engine("postgresql+asyncpg://localhost/shop")
        # Transactions have an AsyncConnection.
        inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=7 * 86400)
        sessions = async_sessionmaker(engine)
        # Transactions have an AsyncSession.
        inbox = bmq.inbox.SqlAlchemyInbox(sessions, keep=7 * 86400)

    Needs the extra ``bmq[inbox]``. The table has the columns ``consumer``, ``guid``, ``handled_at`` (in
    milliseconds since 1970) and ``outputs``. :meth:`Inbox.start` creates a missing table; a tool for
    migrations sees the table in ``metadata``.

    Args:
        database: an engine, or a factory of sessions bound to an engine.
        keep: seconds for which GUIDs are kept, see :class:`Inbox`.
        table: name of the table.
        consumer: first part of the key instead of the queue's URI, see :class:`Inbox`.
        metadata: receives the table; None for metadata of the inbox alone.

    Attributes:
        table: the table.

    Raises:
        UsageError: an argument is not legal; the database is neither SQLite nor PostgreSQL.
    """

    @overload
    def __init__(
        self: SqlAlchemyInbox[AsyncConnection],
        database: AsyncEngine,
        *,
        keep: float,
        table: str = ...,
        consumer: str | None = ...,
        metadata: sa.MetaData | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: SqlAlchemyInbox[AsyncSession],
        database: async_sessionmaker[AsyncSession],
        *,
        keep: float,
        table: str = ...,
        consumer: str | None = ...,
        metadata: sa.MetaData | None = ...,
    ) -> None: ...

    def __init__(
        self,
        database: AsyncEngine | async_sessionmaker[AsyncSession],
        *,
        keep: float,
        table: str = "bmq_inbox",
        consumer: str | None = None,
        metadata: sa.MetaData | None = None,
    ) -> None:
        super().__init__(keep=keep, table=table, consumer=consumer)
        engine: object = database.kw.get("bind") if isinstance(database, async_sessionmaker) else database
        if not isinstance(engine, AsyncEngine):
            raise UsageError(
                "the inbox needs an AsyncEngine, or an async_sessionmaker bound to an AsyncEngine, not "
                f"{_checks.shown(database)}: create_async_engine(...)"
            )
        dialect = engine.dialect.name
        if dialect not in ("sqlite", "postgresql"):
            raise UsageError(f"the inbox supports SQLite and PostgreSQL, not {dialect}")
        self._engine = engine
        self._database = database
        self._sqlite = dialect == "sqlite"
        # Of the event loop that used the inbox last.
        self._lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self.table = sa.Table(
            self._name,
            sa.MetaData() if metadata is None else _checks.choice("metadata", metadata, sa.MetaData),
            sa.Column("consumer", sa.String, primary_key=True),
            sa.Column("guid", sa.String(32), primary_key=True),
            sa.Column("handled_at", sa.BigInteger, nullable=False),
            sa.Column("outputs", sa.LargeBinary),
            sa.Index(f"{self._name}_handled_at", "handled_at"),
        )
        columns = self.table.c
        latest: sa.ColumnElement[int] = sa.bindparam("now", type_=sa.BigInteger)
        earliest = latest
        if not self._sqlite:  # SQLite has no clock of its own
            clock = sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()) * 1000, sa.BigInteger)
            latest, earliest = sa.func.greatest(latest, clock), sa.func.least(latest, clock)
        # Without RETURNING: a cancelled statement with unread rows would keep SQLite's lock.
        insert = sqlite.insert if self._sqlite else postgresql.insert
        self._insertion = (
            insert(self.table)
            .values(consumer=sa.bindparam("consumer"), guid=sa.bindparam("guid"), handled_at=latest)
            .on_conflict_do_nothing()
        )
        select = (
            sa.select(columns.consumer, columns.guid)
            .where(
                columns.handled_at < earliest - sa.bindparam("keep", type_=sa.BigInteger),
                columns.outputs.is_(None),
            )
            .order_by(columns.handled_at)
            .limit(sa.bindparam("most", type_=sa.Integer))
            .with_for_update(skip_locked=True)
        )
        # PostgreSQL evaluates a common table expression once, with its locks. SQLite has no such locks, and
        # counts no rows of a deletion with a common table expression.
        old = select.subquery("old") if self._sqlite else select.cte("old")
        own_key = sa.tuple_(columns.consumer, columns.guid)
        self._purging_old = sa.delete(self.table).where(own_key.in_(sa.select(old.c.consumer, old.c.guid)))
        own = columns.consumer == sa.bindparam("own_consumer"), columns.guid == sa.bindparam("own_guid")
        self._storing = sa.update(self.table).where(*own).values(outputs=sa.bindparam("new_outputs"))
        self._deletion = sa.delete(self.table).where(*own)
        self._selection = sa.select(columns.outputs).where(*own)

    def _writing(self) -> AbstractAsyncContextManager[None]:
        """SQLite has one writer: tasks wait here, and not in the driver's threads until a timeout."""
        if not self._sqlite:
            return nullcontext()
        loop = asyncio.get_running_loop()
        if self._lock is None or self._lock[0] is not loop:
            self._lock = loop, asyncio.Lock()
        return self._lock[1]

    @asynccontextmanager
    async def _begin(self) -> AsyncGenerator[C, None]:
        async with self._writing(), self._database.begin() as connection:
            yield cast("C", connection)

    def _is_open(self, connection: C) -> bool:
        return connection.in_transaction()

    async def _create(self) -> None:
        async with self._writing(), self._engine.begin() as connection:
            if not self._sqlite:
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            if await connection.run_sync(lambda sync: sa.inspect(sync).has_table(self._name)):
                return  # a program without the right to create tables may use an existing table
            await connection.execute(CreateTable(self.table, if_not_exists=True))
            for index in self.table.indexes:
                await connection.execute(CreateIndex(index, if_not_exists=True))

    async def _insert(self, connection: C, keys: Sequence[RowKey], now: int) -> set[RowKey]:
        return {
            key
            for key in keys
            if await self._count(connection, self._insertion, consumer=key[0], guid=key[1], now=now)
        }

    async def _stored(self, connection: C, key: RowKey) -> bytes | None:
        return (await connection.execute(self._selection, _own(key))).scalar_one_or_none()

    async def _store(self, connection: C, key: RowKey, outputs: bytes | None) -> None:
        await connection.execute(self._storing, {**_own(key), "new_outputs": outputs})

    async def _delete(self, connection: C, key: RowKey) -> bool:
        return bool(await self._count(connection, self._deletion, **_own(key)))

    async def _purge(self, connection: C, now: int, keep: int, limit: int) -> int:
        return await self._count(connection, self._purging_old, now=now, keep=keep, most=limit)

    async def _count(self, connection: C, statement: sa.Executable, **values: str | int) -> int:
        """Execute a statement; return the number of affected rows."""
        # SQLAlchemy drops the number after an INSERT by default.
        options = {"preserve_rowcount": True}
        result = await connection.execute(statement, values, execution_options=options)
        count: int = cast("Any", result).rowcount
        assert count >= 0
        return count


def _own(key: RowKey) -> dict[str, str]:
    return {"own_consumer": key[0], "own_guid": key[1]}
