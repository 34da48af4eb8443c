# SPDX-License-Identifier: Apache-2.0
"""The outbox: rows that cannot be posted do not stop later rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert, select

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
