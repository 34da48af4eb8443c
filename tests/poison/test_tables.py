# SPDX-License-Identifier: Apache-2.0
"""Tables: an unreadable message is put aside, confirmed, a row or an error, and stops no other row."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from tests.poison.poisons import POISONS, UNREADABLE, flood, post_raw
from tests.waiting import eventually, until_depth

pa = pytest.importorskip("pyarrow")

NewUri = Callable[..., str]
GOOD = b"good"
BAD = POISONS["no zlib"]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def test_good_rows_around_unreadable_messages_stay_in_order(queue: bmq.Queue) -> None:
    tables = await queue.tables(properties={"n": pa.int64()}, metadata=["guid"])
    wanted: list[int] = []
    for n in range(300):
        if n % 3:
            wanted.append(n)
            await queue.post(b"x", properties={"n": n})
        else:
            post_raw(queue, POISONS[UNREADABLE[n % 4]])
    found: list[int] = []
    while len(found) < len(wanted):
        batch = await tables.receive(timeout=10, max_rows=7)
        assert batch.num_rows <= 7
        found += batch.column("n").to_pylist()
    assert found == wanted
    assert tables.confirm() == len(wanted)


async def test_an_unreadable_message_is_a_row_with_its_bytes_and_its_error(
    bmq_broker: Any, queue: bmq.Queue
) -> None:
    tables = await queue.tables(
        properties={"n": pa.int64()}, on_invalid="row", metadata={"guid": "id", "error": "wrong"}
    )
    assert tables.schema.names == ["value", "n", "id", "wrong"]
    assert queue.tables(on_invalid="row").schema.names == ["value", "properties", "error"]
    await queue.post(GOOD, properties={"n": 1})
    await flood(queue, [POISONS[name] for name in UNREADABLE])
    await queue.post(GOOD, properties={"n": 2})
    await eventually(lambda: tables.buffered == 6)
    batch = await tables.receive()
    assert batch.column("value").to_pylist() == [GOOD, *(POISONS[name].data for name in UNREADABLE), GOOD]
    assert batch.column("n").to_pylist() == [1, None, None, None, None, 2]
    errors = batch.column("wrong").to_pylist()
    assert [each is None for each in errors] == [True, False, False, False, False, True]
    assert all("ProtocolError" in each and len(each) < 400 for each in errors[1:-1])
    assert tables.unconfirmed == 6
    assert tables.confirm(3) == 3
    await until_depth(bmq_broker.uri, queue.uri, 3)
    assert tables.confirm() == 3
    await until_depth(bmq_broker.uri, queue.uri, 0)


async def test_unreadable_message_is_named_by_an_error_and_omitted(
    bmq_broker: Any, bmq_queue_uri: str
) -> None:
    async with bmq.connect(bmq_broker.uri, max_message_size=1000) as session:
        queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
        payloads = [b"first", b"z" * 5000, b"third", b"z" * 5000, b"z" * 5000, b"last"]
        await queue.post_many([bmq.PutMessage(p, compression=bmq.Compression.ZLIB) for p in payloads])
        tables = await queue.tables(on_invalid="fail", metadata=["guid"])
        await eventually(lambda: tables.buffered == 6)
        for wanted in (b"first", None, b"third", None, None, b"last"):
            if wanted is None:
                with pytest.raises(bmq.ProtocolError, match="stays unconfirmed") as caught:
                    await tables.receive()
                assert "decompresses to more than the limit of 1000 bytes" in str(caught.value)
                assert queue.uri in str(caught.value)
            else:
                assert (await tables.receive()).column("value").to_pylist() == [wanted]
        assert tables.buffered == 0
        assert tables.confirm() == 3
    await until_depth(bmq_broker.uri, queue.uri, 3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_invalid": "drop"}, "on_invalid"),
        ({"on_invalid": None}, "on_invalid"),
        ({"metadata": ["error"]}, "needs on_invalid"),
        ({"on_invalid": "row", "properties": {"error": "string"}}, "several columns are named error"),
        ({"dead_letters": "bmq://bmq.test.mem.priority/other"}, "open the queue for dead letters first"),
        ({"dead_letters": 7}, "dead_letters"),
    ],
)
async def test_illegal_choices_are_refused(queue: bmq.Queue, options: Any, text: str) -> None:
    with pytest.raises(bmq.UsageError, match=text):
        queue.tables(**options)


async def test_queues_that_cannot_take_dead_letters_are_refused(
    bmq_session: bmq.Session, bmq_new_queue_uri: NewUri, letters: bmq.Queue, queue: bmq.Queue
) -> None:
    reader = await bmq_session.open_queue(bmq_new_queue_uri(), read=True)
    with pytest.raises(bmq.UsageError, match="not open for writing"):
        queue.tables(dead_letters=reader)
    with pytest.raises(bmq.UsageError, match="would return"):
        queue.tables(dead_letters=queue)
    for choice in ("row", "fail", "discard"):
        with pytest.raises(bmq.UsageError, match=f"cannot be combined with on_invalid='{choice}'"):
            queue.tables(dead_letters=letters, on_invalid=choice)


@pytest.mark.parametrize("on_invalid", ["skip", "discard"])
@pytest.mark.parametrize(("confirm", "left"), [("next", 0), ("end", 0), ("never", 402)])
async def test_source_continues_after_unreadable_messages_and_confirms_with_its_rows(
    bmq_broker: Any,
    queue: bmq.Queue,
    caplog: pytest.LogCaptureFixture,
    confirm: str,
    left: int,
    on_invalid: str,
) -> None:
    await queue.post(GOOD)
    await flood(queue, [BAD] * 400)
    await queue.post(GOOD)

    def read() -> list[bytes]:
        with bmq.arrow.Source(
            bmq_broker.uri, queue.uri, max_messages=2, max_rows=20, confirm=confirm, on_invalid=on_invalid
        ) as source:
            return [value for batch in source.reader for value in batch.column("value").to_pylist()]

    assert await asyncio.to_thread(read) == [GOOD, GOOD]
    await until_depth(bmq_broker.uri, queue.uri, left or 400 * (on_invalid == "skip"))
    assert len(lines(caplog)) == (1 if on_invalid == "discard" else 3)


async def test_tables_of_threads_take_a_queue_of_threads(
    bmq_broker: Any, letters: bmq.Queue, queue: bmq.Queue
) -> None:
    await flood(queue, [BAD] * 3)
    await queue.post(GOOD)

    def read() -> list[bytes]:
        with bmq.blocking.connect(bmq_broker.uri) as session:
            source = session.open_queue(queue.uri, read=True)
            aside = session.open_queue(letters.uri, write=True)
            with source.tables(dead_letters=aside) as tables:
                rows = tables.receive(timeout=10).column("value").to_pylist()
                tables.confirm()
                return rows

    assert await asyncio.to_thread(read) == [GOOD]
    assert [(await letters.receive(timeout=10)).data for _ in range(3)] == [BAD.data] * 3
