"""Tests of the loader beside it: also that a crash between commit and confirmation stores nothing twice."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import loader
import pytest
from loader import DEAD, READINGS, Reading

import bmq
from bmq.testing import BackgroundBroker, TestApp

#: The loader as a process, which dies after its first commit, or ends when it has stored everything.
PROGRAM = """
import asyncio, os, sys
import bmq, loader

store, count = loader.store, 0

def store_and_count(database, rows):
    global count
    store(database, rows)
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


def rows(database: Path) -> list[tuple[str, float]]:
    with sqlite3.connect(database) as connection:
        found = connection.execute("SELECT sensor, celsius FROM readings ORDER BY celsius").fetchall()
    connection.close()
    return found


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("READINGS", str(tmp_path / "readings.db"))
    return tmp_path / "readings.db"


@pytest.mark.asyncio
async def test_readings_are_stored_and_confirmed(database: Path) -> None:
    async with TestApp(loader.app) as test:
        for celsius in range(20):
            await test.post(READINGS, Reading("roof", celsius))
        await test.drained(READINGS)
    assert rows(database) == [("roof", celsius) for celsius in range(20)]


@pytest.mark.asyncio
async def test_what_is_no_reading_is_put_aside_and_the_others_are_stored(database: Path) -> None:
    async with TestApp(loader.app) as test:
        await test.post(READINGS, b'{"sensor": "roof"}')
        await test.post(READINGS, Reading("roof", 1.5))
        await test.drained(READINGS)
        (letter,) = test.broker.assert_posted(DEAD, count=1)
        assert "Reading has no celsius" in str(letter.properties["deadletter.error"])
    assert rows(database) == [("roof", 1.5)]


def test_a_crash_between_commit_and_confirmation_stores_nothing_twice(database: Path) -> None:
    async def post(uri: str) -> None:
        async with bmq.connect(uri) as session:
            queue = await session.open_queue(READINGS, write=True)
            await queue.typed(Reading).post_many(Reading("roof", celsius) for celsius in range(30))

    with BackgroundBroker() as broker:
        bmq.run(post(broker.uri))
        # It dies after the first batch; what it had committed is delivered again to the next one.
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
        timeout=60,
        check=False,
    )
