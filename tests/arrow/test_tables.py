# SPDX-License-Identifier: Apache-2.0
"""Receiving tables: the rows equal the messages, and are confirmed like messages."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio

import bmq
from bmq.testing import FaultProxy
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/tables"
COUNT = 12_000
VALUES = [f"order {n}" for n in range(COUNT)]
CUSTOMERS = [n % 7 for n in range(COUNT)]
TYPES = ["EXPRESS" if n % 2 else None for n in range(COUNT)]
TABLE = pa.table({"value": VALUES, "CustomerId": CUSTOMERS, "OrderType": TYPES})
PROPERTIES = {"CustomerId": pa.int64(), "OrderType": pa.string()}


@pytest_asyncio.fixture
async def queue(broker: bmq.broker.Broker) -> AsyncIterator[bmq.Queue]:
    """A queue in which the rows wait."""
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post_table(TABLE, properties=["CustomerId", "OrderType"])
        yield queue


async def read(tables: bmq.arrow.Tables, count: int, *, confirm: bool = True) -> Any:
    batches = []
    while sum(batch.num_rows for batch in batches) < count:
        batches.append(await tables.receive(timeout=30))
        if confirm:
            tables.confirm()
    return pa.Table.from_batches(batches)


async def test_every_message_is_a_row(broker: bmq.broker.Broker, queue: bmq.Queue) -> None:
    async with queue.tables(properties=PROPERTIES) as tables:
        table = await read(tables, COUNT)
    assert table.schema == tables.schema
    assert table["value"].to_pylist() == [each.encode() for each in VALUES]
    assert table["CustomerId"].to_pylist() == CUSTOMERS
    assert table["OrderType"].to_pylist() == TYPES
    await eventually(lambda: len(broker.queues[URI]) == 0, 30)


async def test_a_loop_ends_when_the_queue_is_closed(queue: bmq.Queue) -> None:
    rows = 0
    tables = queue.tables()
    async for batch in tables:
        rows += batch.num_rows
        tables.confirm()
        if rows == COUNT:
            asyncio.get_running_loop().call_soon(asyncio.ensure_future, queue.close())
    assert tables.closed
    with pytest.raises(bmq.QueueClosed):
        await tables.receive()


async def test_properties_without_a_schema_become_a_map(queue: bmq.Queue) -> None:
    async with queue.tables(max_rows=2) as tables:
        batch = await tables.receive(timeout=30)
    assert batch.to_pylist() == [
        {"value": b"order 0", "properties": [("CustomerId", "0")]},
        {"value": b"order 1", "properties": [("CustomerId", "1"), ("OrderType", "EXPRESS")]},
    ]


async def test_metadata_adds_columns(queue: bmq.Queue) -> None:
    started = time.time()
    message = await queue.receive(timeout=30)
    names = ["guid", "redelivered", "received_at"]
    await queue.close()
    other = await queue.session.open_queue(URI, read=True)
    tables = await other.tables(
        properties=pa.schema([("CustomerId", pa.int16())]), value="body", metadata=names, max_rows=1
    )
    batch = await tables.receive(timeout=30)
    assert batch.schema.names == ["body", "CustomerId", *names]
    (row,) = batch.to_pylist()
    assert (row["body"], row["guid"], row["redelivered"]) == (message.data, message.guid, True)
    assert started <= row["received_at"].timestamp() <= time.time()


async def test_messages_are_confirmed_only_by_confirm(broker: bmq.broker.Broker, queue: bmq.Queue) -> None:
    tables = await queue.tables(max_rows=1000)
    for n in (1, 2, 3):
        assert (await tables.receive(timeout=30)).num_rows == 1000
        assert tables.unconfirmed == 1000 * n
    assert len(broker.queues[URI]) == COUNT
    assert tables.confirm(1500) == 1500
    await eventually(lambda: queue.stats().confirmed == 1500)
    assert (tables.confirm(0), tables.confirm(), tables.confirm(7), tables.unconfirmed) == (0, 1500, 0, 0)
    await tables.receive(timeout=30)
    await queue.session.close()
    await eventually(lambda: len(broker.queues[URI]) == COUNT - 3000, 30)


async def test_rows_are_confirmed_by_guid_through_the_queue(
    broker: bmq.broker.Broker, queue: bmq.Queue
) -> None:
    tables = await queue.tables(max_rows=COUNT, metadata=["guid"])
    await eventually(lambda: tables.buffered == COUNT, 30)
    batch = await tables.receive()
    tables.release()
    assert (tables.unconfirmed, tables.confirm()) == (0, 0)
    queue.confirm(*batch["guid"].to_pylist()[:100])
    await eventually(lambda: len(broker.queues[URI]) == COUNT - 100, 30)


async def test_waiting_messages_go_to_other_consumers_on_close(queue: bmq.Queue) -> None:
    """In the order of delivery, and in front of what comes later."""
    tables = await queue.tables()
    await eventually(lambda: tables.buffered == COUNT, 30)
    tables._max_rows = 10
    await tables.receive()
    await tables.close()
    await queue.post(b"later")
    messages: list[bmq.Message] = []
    while len(messages) < COUNT - 9:
        batch = await queue.receive_many(timeout=30)
        batch.confirm()
        messages += batch
    assert [m.data.decode() for m in messages] == [*VALUES[10:], "later"]


async def test_messages_of_a_closed_consumer_follow_the_rows_that_wait(queue: bmq.Queue) -> None:
    async with queue.tables() as tables:
        await eventually(lambda: tables.buffered == COUNT, 30)
        later = [b"later %d" % n for n in range(5)]
        async with queue.subscribe(priority=5) as consumer:
            await queue.post_many(later)
            await eventually(lambda: consumer.buffered == len(later))
        table = await read(tables, COUNT + len(later))
    assert table["value"].to_pylist() == [*(each.encode() for each in VALUES), *later]


async def test_interceptors_see_every_message(broker: bmq.broker.Broker, queue: bmq.Queue) -> None:
    seen: dict[str, list[str]] = {"received": [], "confirmed": []}

    class Noting(bmq.Interceptor):
        def on_receive(self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]) -> None:
            seen["received"] += [m.data.decode() for m in messages]

        def on_confirm(self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]) -> None:
            seen["confirmed"] += [m.data.decode() for m in messages]

    async with bmq.connect(broker.uri, interceptors=[Noting()]) as session:
        other = await session.open_queue(URI, read=True)
        async with other.tables(properties=PROPERTIES, max_rows=5000) as tables:
            table = await read(tables, COUNT)
    assert table["CustomerId"].to_pylist() == CUSTOMERS
    assert seen == {"received": VALUES, "confirmed": VALUES}


async def test_lost_connection_loses_no_message(broker: bmq.broker.Broker, queue: bmq.Queue) -> None:
    await queue.close()
    async with FaultProxy(broker.uri) as proxy, bmq.connect(proxy.uri) as session:
        other = await session.open_queue(URI, read=True)
        tables = await other.tables(properties=PROPERTIES, max_rows=1000, metadata=["guid"])
        got: set[str] = set()
        for cuts in range(4):
            for _ in range(2):
                batch = await tables.receive(timeout=30)
                got |= set(batch["guid"].to_pylist())
                tables.confirm()
            if cuts < 3:
                for connection in proxy.connections:
                    connection.cut()
                await eventually(lambda cuts=cuts: session.stats().reconnects == cuts + 1, 30)
        while len(got) < COUNT:
            got |= set((await tables.receive(timeout=30))["guid"].to_pylist())
            tables.confirm()
    await eventually(lambda: len(broker.queues[URI]) == 0, 30)


async def test_a_cancelled_receive_loses_no_message(broker: bmq.broker.Broker) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        async with queue.tables() as tables:
            waiting = asyncio.ensure_future(tables.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(bmq.TimedOut, match=f"no message of {URI} arrived"):
                await tables.receive(timeout=0.01)
            await queue.post(b"here")
            assert (await tables.receive(timeout=30)).num_rows == 1


async def test_a_batch_respects_the_limit_of_bytes(
    broker: bmq.broker.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.arrow.consumer.MAX_BYTES", 50_000)
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        sizes = [1000] * 200 + [60_000] + [30_000, 30_000, 10]
        await queue.post_table(pa.table({"value": [bytes([65]) * size for size in sizes]}))
        async with queue.tables() as tables:
            await eventually(lambda: tables.buffered == len(sizes), 30)
            rows = []
            while tables.buffered:
                rows.append((await tables.receive()).num_rows)
    assert rows == [50] * 4 + [1, 1, 2]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"properties": {"a": pa.float64()}}, "property 'a' cannot be read as double"),
        ({"properties": {"a": "double"}}, "property 'a' cannot be read as double"),
        ({"properties": {"a": "number"}}, "property 'a': 'number' .str. is not an Arrow type"),
        ({"properties": {"a": 4}}, "property 'a': 4 .int. is not an Arrow type"),
        ({"properties": {"value": pa.int8()}}, "several columns are named value: rename the payload's"),
        ({"properties": {"guid": pa.int8()}, "metadata": ["guid"]}, "several columns are named guid"),
        ({"metadata": {"guid": "a"}, "properties": {"a": pa.int8()}}, "several columns are named a:"),
        ({"metadata": ["colour"]}, "unknown metadata colour; known names: guid, redelivered, received_at"),
        ({"max_rows": 0}, "max_rows must be an integer from 1 to"),
    ],
)
async def test_illegal_values_are_refused(peer: Any, options: Any, text: str) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True)
        with pytest.raises(bmq.UsageError, match=text):
            queue.tables(**options)


def test_pandas_is_not_imported() -> None:
    """pandas is not needed, and its import takes longer than many programs run."""
    code = f"""
import asyncio, sys
import bmq, pyarrow as pa

async def main():
    async with bmq.broker.Broker() as broker, bmq.connect(broker.uri) as session:
        queue = await session.open_queue("{URI}", read=True, write=True)
        for n in range(200):
            queue.post_nowait(b"x", properties={{"n": n, "s": "s", "b": n > 100}})
        kinds = {{"n": pa.int8(), "s": pa.string(), "b": pa.bool_()}}
        async with queue.tables(properties=kinds, metadata=["guid", "received_at", "redelivered"]) as tables:
            await tables.receive(timeout=30)

asyncio.run(main())
import bmq.spark, bmq.arrow.encoding
print("pandas" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


async def test_other_consumers_leave_their_messages_to_the_table(queue: bmq.Queue) -> None:
    async with queue.subscribe(max_unconfirmed_messages=COUNT) as consumer:
        await eventually(lambda: consumer.buffered == COUNT, 30)
        tables = await queue.tables(properties=PROPERTIES, max_rows=700)
    await queue.post(b"later")
    table = await read(tables, COUNT + 1)
    assert table["value"].to_pylist() == [*(each.encode() for each in VALUES), b"later"]
    assert table["CustomerId"].to_pylist() == [*CUSTOMERS, None]
