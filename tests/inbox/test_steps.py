# SPDX-License-Identifier: Apache-2.0
"""The database goes away, or the handler is cancelled, before and after every single step."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker

import bmq
import bmq.inbox
from tests.inbox.driver import Driver

Inbox = bmq.inbox.Inbox[Any]


class Trouble:
    """Fails or cancels one step of a task.

    Attributes:
        steps: names of the steps so far.
    """

    def __init__(self, kind: str, number: int, task: asyncio.Task[Any]) -> None:
        self.steps: list[str] = []
        self._kind = kind
        self._number = number
        self._task = task

    async def __call__(self, step: str) -> None:
        self.steps.append(step)
        if len(self.steps) == self._number:
            if self._kind == "gone":
                raise sqlite3.OperationalError("connection closed")
            self._task.cancel()
            await asyncio.sleep(0)


async def work(inbox: Inbox, messages: list[bmq.Message], output: str) -> None:
    async with inbox.batch(messages) as transaction:
        if transaction is not None:
            for message in transaction.messages:
                effect = sa.text("INSERT INTO effects VALUES (:name)")
                await transaction.connection.execute(effect, {"name": message.data.decode()})
            transaction.post(output, b"done")
    for message in messages:
        message.confirm()


@pytest.mark.parametrize(("kind", "session"), [("gone", False), ("cancelled", True)])
async def test_trouble_at_any_step_leaves_one_effect_and_no_connection(
    kind: str, session: bool, queue: bmq.Queue, output: bmq.Queue, tmp_path: Path
) -> None:
    driver = Driver(str(tmp_path / "shop.db"))
    engine = Driver(str(tmp_path / "shop.db")).engine()
    async with engine.begin() as connection:
        await connection.execute(sa.text("CREATE TABLE effects (name TEXT)"))
    await bmq.inbox.SqlAlchemyInbox(engine, keep=1000)._create()

    async def rows() -> list[str]:
        async with engine.connect() as connection:
            return list((await connection.execute(sa.text("SELECT name FROM effects"))).scalars())

    expected: list[str] = []
    seen = set[str]()
    number = 0
    while True:
        number += 1
        names = [f"{number}-{each}" for each in range(2)]
        await queue.post_many([name.encode() for name in names])
        messages = [await queue.receive(timeout=20) for _ in names]
        first = driver.engine()
        source: Any = async_sessionmaker(first) if session else first
        async with bmq.inbox.SqlAlchemyInbox(source, keep=1000) as inbox:
            await first.dispose()  # the handler connects again
            task = asyncio.create_task(work(inbox, messages, output.uri))
            driver.step = trouble = Trouble(kind, number, task)
            (failed,) = await asyncio.gather(task, return_exceptions=True)
            seen.update(trouble.steps)
            driver.step = quiet
            assert first.pool.status().endswith("Current Checked out connections: 0")
            await first.dispose()
        driver.drop()
        again = driver.engine()
        async with bmq.inbox.SqlAlchemyInbox(again, keep=1000) as restarted:
            await work(restarted, messages, output.uri)
        await again.dispose()
        expected += names
        assert sorted(await rows()) == sorted(expected), (trouble.steps[number - 1 :], failed)
        if len(trouble.steps) < number:
            break
    assert {"before connect", "before INSERT INTO", "after commit", "before UPDATE bmq_inbox"} <= seen
    assert number > 12
    await output.post(b"end")
    found = [await output.receive(timeout=20) for _ in range(number + 1)]
    assert [each.data for each in found] == [b"done"] * number + [b"end"]
    await engine.dispose()


async def quiet(step: str) -> None:
    pass
