# SPDX-License-Identifier: Apache-2.0
"""The outbox: rows that cannot be posted do not stop later rows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert, select
from sqlalchemy.exc import OperationalError

import bmq
from tests.programs.test_outbox import left, outbox, stored, write

#: Rows that another program has written past ``record``.
BAD: dict[str, tuple[bytes, Any]] = {
    "no payload": (b"", {}),
    "a fraction": (b"x", {"a": 1.5}),
    "null": (b"x", {"a": None}),
    "a list": (b"x", {"a": [1]}),
    "no mapping": (b"x", [1]),
    "a number as properties": (b"x", 7),
    "a large number": (b"x", {"a": 2**70}),
    "no name": (b"x", {"": 1}),
    "too many": (b"x", {f"p{n}": n for n in range(300)}),
}


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    outbox.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)


def write_past(engine: Engine, payload: bytes, properties: Any, count: int = 1) -> None:
    rows = [{"payload": payload, "properties": properties}] * count
    with engine.begin() as connection:
        connection.execute(insert(outbox.outbox), rows)


def errors(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        found = connection.execute(select(outbox.outbox.c.error).where(outbox.outbox.c.error.is_not(None)))
        return list(found.scalars())


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_row_is_marked_and_the_remaining_rows_are_posted(
    engine: Engine, queue: bmq.Queue, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    write(engine, b"before")
    write_past(engine, *BAD[name])
    write(engine, b"after")
    assert await outbox.relay_some(engine, "shop", queue) == 2
    assert await outbox.relay_some(engine, "shop", queue) == 0
    assert await stored(queue) == [b"before", b"after"]
    assert left(engine) == 1
    assert len(errors(engine)) == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("payload", "properties"),
    [
        *(
            each
            for name, each in BAD.items()
            if name not in ("no mapping", "a number as properties", "too many")
        ),
        ("text", {}),
        (bytearray(b"x"), {}),
        (b"x", {"a": b"bytes"}),
        (b"x", {7: 1}),
        (b"x", {"a": "\udcff"}),
    ],
)
async def test_unpostable_message_is_refused_at_recording(
    engine: Engine, payload: Any, properties: Any
) -> None:
    with engine.begin() as connection, pytest.raises(bmq.UsageError):
        outbox.record(connection, payload, properties)
    assert left(engine) == 0


async def test_a_failing_database_is_queried_again(
    engine: Engine, queue: bmq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.001)
    failures = {"unposted": 2, "note": 2}

    def failing(name: str) -> None:
        original = getattr(outbox, name)

        def call(*arguments: Any) -> Any:
            if failures[name]:
                failures[name] -= 1
                raise OperationalError("select", {}, Exception("gone away"))
            return original(*arguments)

        monkeypatch.setattr(outbox, name, call)

    failing("unposted")
    failing("note")
    write(engine, b"one")
    relaying = asyncio.create_task(outbox.relay(engine, "shop", queue, pause=0.001))
    while left(engine):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    relaying.cancel()
    await asyncio.wait([relaying])
    assert await stored(queue) == [b"one"]
    assert failures == {"unposted": 0, "note": 0}


async def test_a_relay_that_is_cancelled_ends_although_the_database_fails(
    engine: Engine, queue: bmq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.Event()
    posted = outbox.posted

    async def second_finds_no_room(queue: bmq.Queue, row: Any, guid: str) -> asyncio.Future[bmq.Ack]:
        if row.payload == b"two":
            waiting.set()
            await asyncio.Event().wait()
        return await posted(queue, row, guid)

    def note(engine: Engine, numbers: list[int]) -> None:
        raise OperationalError("update", {}, Exception("gone away"))

    monkeypatch.setattr(outbox, "posted", second_finds_no_room)
    monkeypatch.setattr(outbox, "note", note)
    write(engine, b"one", b"two")
    relaying = asyncio.create_task(outbox.relay(engine, "shop", queue))
    await waiting.wait()
    relaying.cancel()
    async with asyncio.timeout(20):
        await asyncio.wait([relaying])
    assert relaying.cancelled()
