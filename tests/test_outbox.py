# SPDX-License-Identifier: Apache-2.0
"""The outbox of the examples, on every database there is: SQLite always, PostgreSQL where it is installed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select

import bmq

EXAMPLE = Path(__file__).parent.parent / "examples" / "outbox.py"
NewUri = Callable[..., str]


def _load() -> Any:
    specification = spec_from_file_location("outbox", EXAMPLE)
    assert specification
    assert specification.loader
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


outbox = _load()


def postgresql() -> Path | None:
    """The folder of PostgreSQL's programs, which Debian does not have in the PATH."""
    found = [Path(initdb).parent for initdb in (shutil.which("initdb"),) if initdb]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((each for each in found if (each / "pg_ctl").exists()), None)


PROGRAMS = postgresql()
DATABASES = ["sqlite"] + (["postgresql"] if PROGRAMS else [])


class _PostgreSQL:
    """A server of these tests' own, which listens on a socket in a folder."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAMS
        # The server refuses to run as root.
        self._user = {"user": "postgres"} if os.geteuid() == 0 else {}
        if self._user:
            shutil.chown(folder, "postgres")
        self._data = folder / "data"
        self._run(PROGRAMS / "initdb", "-D", self._data, "-U", "bmq", "-A", "trust", "--no-sync")
        settings = f"-k {folder} -c listen_addresses='' -c fsync=off"
        self._control = PROGRAMS / "pg_ctl"
        self._run(self._control, "-D", self._data, "-o", settings, "-l", folder / "log", "-w", "start")
        self.url = f"postgresql+psycopg://bmq@/postgres?host={folder}"

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", check=False, **self._user
        )  # type: ignore[call-overload]
        assert done.returncode == 0, done.stdout.decode()

    def stop(self) -> None:
        self._run(self._control, "-D", self._data, "-m", "immediate", "-w", "stop")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="bmq-pg-"))
    started = None
    try:
        started = _PostgreSQL(folder)
        yield started.url
    finally:
        if started is not None:
            started.stop()
        shutil.rmtree(folder)


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
    """What is in the queue, and nothing besides."""
    await queue.post(b"end")
    found = [(await queue.receive(timeout=10)).data]
    while found[-1] != b"end":
        found.append((await queue.receive(timeout=10)).data)
    return found[:-1]


def test_which_databases_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Not without a word: who runs this is told what was not tried."""
    missing = "" if PROGRAMS else "; PostgreSQL was not tried: there is no initdb and pg_ctl here"
    with capsys.disabled():
        print(f"\nthe outbox on {' and '.join(DATABASES)}{missing}", file=sys.stderr)
    assert DATABASES[0] == "sqlite"


async def test_what_is_committed_is_posted(engine: Engine, queue: bmq.Queue) -> None:
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


async def test_a_relay_that_dies_between_posting_and_noting(
    engine: Engine, queue: bmq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = [b"%d" % number for number in range(700)]
    write(engine, *payloads)

    def die(*arguments: object) -> None:
        raise KeyError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(outbox, "note", die)
        with pytest.raises(KeyError):
            await outbox.relay_some(engine, "shop", queue)
    assert left(engine) == 700
    assert [await outbox.relay_some(engine, "shop", queue) for _ in range(3)] == [500, 200, 0]
    assert await stored(queue) == payloads


async def test_several_relays(engine: Engine, queue: bmq.Queue) -> None:
    """Each row arrives once, though both have posted it; rows written meanwhile arrive too."""
    write(engine, *(b"%d" % number for number in range(50)))
    relays = [asyncio.create_task(outbox.relay(engine, "shop", queue, pause=0.05)) for _ in range(2)]
    found = [(await queue.receive(timeout=20)).data for _ in range(50)]
    await asyncio.to_thread(write, engine, b"meanwhile")
    found.append((await queue.receive(timeout=20)).data)
    for each in relays:
        each.cancel()
    await asyncio.wait(relays)
    assert await stored(queue) == []
    assert sorted(found) == sorted([*(b"%d" % number for number in range(50)), b"meanwhile"])


async def test_what_is_refused_waits(
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


async def test_two_outboxes_do_not_mix(engine: Engine, queue: bmq.Queue) -> None:
    write(engine, b"x")
    assert await outbox.relay_some(engine, "shop", queue) == 1
    outbox.metadata.drop_all(engine)
    outbox.metadata.create_all(engine)
    write(engine, b"y")
    assert await outbox.relay_some(engine, "another", queue) == 1
    assert await stored(queue) == [b"x", b"y"]


def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "posted 5"
    assert done.stdout.splitlines()[-1] == "order 4 {'CustomerId': 4}"
