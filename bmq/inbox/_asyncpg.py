# SPDX-License-Identifier: Apache-2.0
"""The inbox on asyncpg alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from bmq import _checks
from bmq.errors import UsageError
from bmq.inbox._inbox import Inbox, RowKey

try:
    import asyncpg  # type: ignore[import-untyped, unused-ignore]
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "bmq.inbox.AsyncpgInbox needs asyncpg, which is not installed: pip install asyncpg", name=error.name
    ) from error

# Of an advisory lock: two workers that create a table at once.
_LOCK: Final = 0x626D715F696E
_CLOCK: Final = "(extract(epoch from clock_timestamp()) * 1000)::bigint"


class AsyncpgInbox(Inbox[Any]):
    """An inbox on a pool of asyncpg, for PostgreSQL without SQLAlchemy.

    ::

        pool = await asyncpg.create_pool("postgresql://localhost/shop")
        inbox = bmq.inbox.AsyncpgInbox(pool, keep=7 * 86400)

    The table is the same as for :class:`SqlAlchemyInbox`, so the two can share a table.

    Args:
        pool: the pool. Transactions have a connection of the pool.
        keep: seconds for which GUIDs are kept, see :class:`Inbox`.
        table: name of the table.
        consumer: first part of the key instead of the queue's URI, see :class:`Inbox`.

    Raises:
        UsageError: an argument is not legal.
    """

    def __init__(
        self, pool: Any, *, keep: float, table: str = "bmq_inbox", consumer: str | None = None
    ) -> None:
        super().__init__(keep=keep, table=table, consumer=consumer)
        if not isinstance(pool, asyncpg.Pool):
            raise UsageError(
                f"the inbox needs a pool, 'await asyncpg.create_pool(...)', not {_checks.shown(pool)}"
            )
        self._pool: Any = pool
        self._table = f'"{self._name}"'
        self._own = "consumer = $1 AND guid = $2"

    @asynccontextmanager
    async def _begin(self) -> AsyncGenerator[Any, None]:
        async with self._pool.acquire() as connection, connection.transaction():
            yield connection

    def _is_open(self, connection: Any) -> bool:
        return bool(connection.is_in_transaction())

    async def _create(self) -> None:
        async with self._begin() as connection:
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            if await connection.fetchval("SELECT to_regclass($1)", self._table) is not None:
                return  # a program without the right to create tables may use an existing table
            await connection.execute(
                f"CREATE TABLE {self._table} (consumer VARCHAR NOT NULL, guid VARCHAR(32) NOT NULL, "
                "handled_at BIGINT NOT NULL, outputs BYTEA, PRIMARY KEY (consumer, guid))"
            )
            await connection.execute(f'CREATE INDEX "{self._name}_handled_at" ON {self._table} (handled_at)')

    async def _insert(self, connection: Any, keys: Sequence[RowKey], now: int) -> set[RowKey]:
        rows = await connection.fetch(
            f"INSERT INTO {self._table} (consumer, guid, handled_at) SELECT consumer, guid, "
            f"greatest($3::bigint, {_CLOCK}) FROM unnest($1::varchar[], $2::varchar[]) "
            "AS new (consumer, guid) ORDER BY consumer, guid ON CONFLICT DO NOTHING RETURNING consumer, guid",
            [key[0] for key in keys],
            [key[1] for key in keys],
            now,
        )
        return {(row[0], row[1]) for row in rows}

    async def _stored(self, connection: Any, key: RowKey) -> bytes | None:
        found: bytes | None = await connection.fetchval(
            f"SELECT outputs FROM {self._table} WHERE {self._own}", *key
        )
        return found

    async def _store(self, connection: Any, key: RowKey, outputs: bytes | None) -> None:
        await connection.execute(f"UPDATE {self._table} SET outputs = $3 WHERE {self._own}", *key, outputs)

    async def _delete(self, connection: Any, key: RowKey) -> bool:
        gone = await connection.fetchval(f"DELETE FROM {self._table} WHERE {self._own} RETURNING 1", *key)
        return gone is not None

    async def _purge(self, connection: Any, now: int, keep: int, limit: int) -> int:
        rows = await connection.fetch(
            # A common table expression is evaluated once, with its locks.
            f"WITH old AS (SELECT consumer, guid FROM {self._table} WHERE outputs IS NULL AND handled_at < "
            f"least($1::bigint, {_CLOCK}) - $2::bigint ORDER BY handled_at LIMIT $3 FOR UPDATE SKIP LOCKED) "
            f"DELETE FROM {self._table} WHERE (consumer, guid) IN (SELECT consumer, guid FROM old) "
            "RETURNING 1",
            now,
            keep,
            limit,
        )
        return len(rows)
