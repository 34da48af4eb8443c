# SPDX-License-Identifier: Apache-2.0
"""A driver for SQLite in the place of aiosqlite, without threads; a test decides about each step."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import AsyncAdaptedQueuePool
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

__all__ = ["Driver"]


async def _nothing(step: str) -> None:
    pass


class Driver:
    """Opens a database.

    Args:
        path: the file.
        step: called before and after each operation of a connection, with its name: ``"before INSERT INTO"``.

    Attributes:
        open: open connections, also those of killed programs.
    """

    def __init__(self, path: str, step: Callable[[str], Awaitable[None]] = _nothing) -> None:
        self._path = path
        self.step = step
        self.open: list[sqlite3.Connection] = []
        # Of connections closed meanwhile, too: a cursor with unread rows keeps its lock.
        self._cursors: list[sqlite3.Cursor] = []

    def engine(self) -> AsyncEngine:
        """Return an engine on the database."""
        return create_async_engine(
            "sqlite+aiosqlite:///", async_creator=self._connect, poolclass=AsyncAdaptedQueuePool
        )

    def drop(self) -> None:
        """Close all connections, as the system does after the end of a program: roll back, and unlock."""
        while self._cursors:
            with suppress(sqlite3.ProgrammingError):  # the connection is closed
                self._cursors.pop().close()
        while self.open:
            self.open.pop().close()

    def cursor(self, connection: sqlite3.Connection) -> sqlite3.Cursor:
        """Return a new cursor."""
        self._cursors.append(connection.cursor())
        return self._cursors[-1]

    def closed(self, cursor: sqlite3.Cursor) -> None:
        """Forget a closed cursor."""
        if cursor in self._cursors:
            self._cursors.remove(cursor)

    async def _connect(self) -> Any:
        await self.step("before connect")
        # Without a timeout: the simulation has no other thread that could unlock the database.
        connection = sqlite3.connect(self._path, timeout=0, check_same_thread=False)
        connection.execute("PRAGMA synchronous=OFF")
        self.open.append(connection)
        return _Connection(self, connection)


class _Connection:
    """The part of an aiosqlite connection that SQLAlchemy uses."""

    def __init__(self, driver: Driver, connection: sqlite3.Connection) -> None:
        self._driver = driver
        self._connection = connection
        self._conn = connection

    def closed(self, cursor: sqlite3.Cursor) -> None:
        self._driver.closed(cursor)

    async def run(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        await self._driver.step(f"before {name}")
        result = function(*arguments)
        await self._driver.step(f"after {name}")
        return result

    async def create_function(self, *arguments: Any, **options: Any) -> None:
        self._connection.create_function(*arguments, **options)

    def cursor(self) -> _Cursor:
        return _Cursor(self, self._driver.cursor(self._connection))

    async def commit(self) -> None:
        await self.run("commit", self._connection.commit)

    async def rollback(self) -> None:
        await self.run("rollback", self._connection.rollback)

    async def close(self) -> None:
        self.stop()

    def stop(self) -> None:
        if self._connection in self._driver.open:
            self._driver.open.remove(self._connection)
        self._connection.close()


class _Cursor:
    def __init__(self, connection: _Connection, cursor: sqlite3.Cursor) -> None:
        self._connection = connection
        self._cursor = cursor

    async def __aenter__(self) -> _Cursor:
        return self

    async def execute(self, statement: str, parameters: Any = ()) -> None:
        name = " ".join(statement.split()[:2])
        await self._connection.run(name, self._cursor.execute, statement, parameters)

    async def executemany(self, statement: str, parameters: Any) -> None:
        await self._connection.run(
            " ".join(statement.split()[:2]), self._cursor.executemany, statement, parameters
        )

    async def fetchall(self) -> Any:
        return self._cursor.fetchall()

    async def close(self) -> None:
        self._cursor.close()
        self._connection.closed(self._cursor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)
