# SPDX-License-Identifier: Apache-2.0
"""Tests of the loader in this folder, with SQLite, and with PostgreSQL if installed.

A crash between commit and confirmation stores no reading twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import loader
import pytest
from loader import DEAD, READINGS, Reading
from postgresql import PROGRAMS, running
from sqlalchemy import create_engine, select

import bmq
from bmq.testing import BackgroundBroker, TestApp

#: The loader as a process, which dies after its first commit, or ends once all readings are stored.
PROGRAM = """
import asyncio, os, sys
import bmq, loader

store, count = loader.store, 0

def store_and_count(engine, rows):
    global count
    store(engine, rows)
    count += len(rows)
    if sys.argv[1] == "dies":
        print(count, flush=True)
        os._exit(7)  # as by a crash: committed, and not confirmed
    if count == 30:
        loop.call_soon_threadsafe(loader.app.stop)

async def main():
    global loop
    loop = asyncio.get_running_loop()
    await loader.app.run()

loader.store = store_and_count
bmq.run(main())
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running() as url:
        yield url


@pytest.fixture(params=["sqlite", *(["postgresql"] if PROGRAMS else [])])
def database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a database without readings."""
    in_file = request.param == "sqlite"
    url: str = f"sqlite:///{tmp_path / 'readings.db'}" if in_file else request.getfixturevalue("server")
    engine = create_engine(url)
    loader.metadata.drop_all(engine)
    loader.metadata.create_all(engine)
    engine.dispose()
    monkeypatch.setenv("READINGS", url)
    return url


def rows(database: str) -> list[tuple[str, float]]:
    engine = create_engine(database)
    columns = loader.table.c
    with engine.connect() as connection:
        found = connection.execute(select(columns.sensor, columns.celsius).order_by(columns.celsius)).all()
    engine.dispose()
    return [(sensor, celsius) for sensor, celsius in found]


@pytest.mark.asyncio
async def test_readings_are_stored_and_confirmed(database: str) -> None:
    async with TestApp(loader.app) as test:
        for celsius in range(20):
            await test.post(READINGS, Reading("roof", celsius))
        await test.drained(READINGS)
    assert rows(database) == [("roof", celsius) for celsius in range(20)]


@pytest.mark.asyncio
async def test_invalid_readings_are_put_aside_and_valid_readings_are_stored(database: str) -> None:
    async with TestApp(loader.app) as test:
        await test.post(READINGS, b'{"sensor": "roof"}')
        await test.post(READINGS, Reading("roof", 1.5))
        await test.drained(READINGS)
        (letter,) = test.broker.assert_posted(DEAD, count=1)
        assert "missing required field `celsius`" in str(letter.properties["bmq_dead_error"])
    assert rows(database) == [("roof", 1.5)]


def test_a_crash_between_commit_and_confirmation_stores_each_reading_once(database: str) -> None:
    async def post(uri: str) -> None:
        async with bmq.connect(uri) as session:
            queue = await session.open_queue(READINGS, write=True)
            await queue.typed(Reading).post_many(Reading("roof", celsius) for celsius in range(30))

    with BackgroundBroker() as broker:
        bmq.run(post(broker.uri))
        # The first process dies after a batch; the committed batch is delivered again to the next process.
        died = run(broker.uri, "dies")
        assert died.returncode == 7, died.stderr
        stored = int(died.stdout)
        assert 0 < stored <= 30
        assert len(rows(database)) == stored
        assert broker.call(lambda broker: len(broker.queues[READINGS])) == 30, "nothing was confirmed"
        assert run(broker.uri, "ends").returncode == 0
        assert broker.call(lambda broker: len(broker.queues[READINGS])) == 0
    assert Counter(celsius for _, celsius in rows(database)) == Counter(range(30))


def run(uri: str, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        cwd=Path(loader.__file__).parent,
        env=os.environ | {"BMQ_BROKER_URI": uri},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
