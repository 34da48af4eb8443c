# SPDX-License-Identifier: Apache-2.0
"""A message that kills its worker is put aside after some deaths, and the others are handled."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bmq
from bmq.workers._failures import Quarantine
from tests.sweeps import sweep
from tests.waiting import until_depth

NewUri = Callable[..., str]


@asynccontextmanager
async def workers(*arguments: str) -> Any:
    """Run a worker, and restart it whenever it dies; yield the list of exit reasons."""
    ends: list[int] = []

    async def keep() -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.poison.dying_worker", *arguments
            )
            try:
                ends.append(await process.wait())
            finally:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()

    keeping = asyncio.create_task(keep())
    try:
        yield ends
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


@pytest.mark.parametrize("kind", ["plain", "four", "batches"])
async def test_a_message_becomes_a_dead_letter_after_three_deaths(
    bmq_broker: Any, bmq_session: bmq.Session, letters: bmq.Queue, bmq_new_queue_uri: NewUri, kind: str
) -> None:
    queue = await bmq_session.open_queue(bmq_new_queue_uri(), write=True)
    results = await bmq_session.open_queue(bmq_new_queue_uri(), read=True)
    others = [b"%d" % number for number in range(50)]
    await queue.post_many([*others[:10], b"kill", *others[10:]])
    async with workers(bmq_broker.uri, queue.uri, letters.uri, results.uri, kind) as ends:
        letter = await letters.receive(timeout=40)
        assert letter.data == b"kill"
        found: set[bytes] = set()
        while len(found) < len(others):
            found.add((await results.receive(timeout=40)).data)
        assert ends == [9, 9, 9]
        await until_depth(bmq_broker.uri, queue.uri, 0)
    assert found == set(others)
    assert letter.properties["bmq_dead_attempts"] == 3
    assert "3 processes died" in str(letter.properties["bmq_dead_error"])
    assert "bmq_deaths" not in letter.properties


async def redelivered(
    session: bmq.Session, connect: Any, uri: str, properties: dict[str, Any]
) -> tuple[bmq.Queue, bmq.Message]:
    """Return a message that another consumer had."""
    writer = await session.open_queue(uri, write=True)
    other = await connect()
    reader = await other.open_queue(uri, read=True)
    await writer.post(b"x", properties=properties)
    await reader.receive(timeout=10)
    await other.close()
    queue = await (await connect()).open_queue(uri, read=True)
    message = await queue.receive(timeout=10)
    assert message.redelivered
    return queue, message


@pytest.mark.parametrize(
    ("properties", "count"),
    [
        ({}, 1),
        ({"bmq_deaths": 1}, 1),
        ({"bmq_deaths": 2_000_000_000}, 1),
        ({"bmq_deaths": "many"}, None),
        ({"bmq_deaths": 1, "bmq_origin": "A" * 32}, 2),
        ({f"p{n}": n for n in range(255)}, None),
    ],
)
async def test_count_of_deaths_in_a_message_is_checked(
    bmq_session: bmq.Session,
    bmq_connect: Any,
    bmq_queue_uri: str,
    letters: bmq.Queue,
    properties: dict[str, Any],
    count: int | None,
) -> None:
    queue, message = await redelivered(bmq_session, bmq_connect, bmq_queue_uri, properties)
    quarantine = Quarantine(bmq.DeadLetter(letters), 3, "a test")
    assert await quarantine.took(message, asyncio.sleep) is (count is not None)
    assert message.confirmed is (count is not None)
    if count is not None:
        again = await queue.receive(timeout=10)
        assert (again.data, again.properties["bmq_deaths"]) == (b"x", count)


@sweep(
    "options, why",
    [
        ({"after": 0}, "after"),
        ({"after": "3"}, "after"),
        ({"quarantine": "bmq://d/dead"}, "quarantine"),
        ({"quarantine": bmq.DeadLetter("bmq://d/q")}, "would return"),
        ({"quarantine": bmq.DeadLetter("bmq://d/dead"), "key": "k"}, "key"),
        ({"quarantine": bmq.DeadLetter("bmq://d/dead"), "ack": bmq.AckPolicy.ON_RECEIPT}, "ON_RECEIPT"),
    ],
)
def test_an_impossible_quarantine_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(bmq.UsageError, match=why):
        bmq.App().consumer("bmq://d/q", **options)
    with pytest.raises(bmq.UsageError, match="every application"):
        bmq.App().consumer("bmq://d/q?id=a", quarantine=bmq.DeadLetter("bmq://d/dead"))
