# SPDX-License-Identifier: Apache-2.0
"""Tables: posted rows become messages, received messages become rows, each with an outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import pytest_asyncio

import bmq
from bmq.testing import FaultProxy
from tests.fakes.broker import Peer
from tests.sweeps import sweep
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
    async with queue.tables() as tables:
        await eventually(lambda: tables.buffered == COUNT, 30)
        await tables.receive(max_rows=10)
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


async def test_other_consumers_leave_their_messages_to_the_table(queue: bmq.Queue) -> None:
    async with queue.subscribe(max_unconfirmed_messages=COUNT) as consumer:
        await eventually(lambda: consumer.buffered == COUNT, 30)
        tables = await queue.tables(properties=PROPERTIES, max_rows=700)
    await queue.post(b"later")
    table = await read(tables, COUNT + 1)
    assert table["value"].to_pylist() == [*(each.encode() for each in VALUES), b"later"]
    assert table["CustomerId"].to_pylist() == [*CUSTOMERS, None]


@sweep(
    "options, text",
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
async def test_illegal_values_are_refused(queue: bmq.Queue, options: Any, text: str) -> None:
    with pytest.raises(bmq.UsageError, match=text):
        queue.tables(**options)


# posting


POSTED = 10_000
ROWS = {
    "value": [f"order {n}" for n in range(POSTED)],
    "CustomerId": [n % 7 for n in range(POSTED)],
    "OrderType": ["EXPRESS" if n % 3 else None for n in range(POSTED)],
}
NAMES = ["CustomerId", "OrderType"]


def batches(table: Any) -> Any:
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=997))


TABLES = {
    "a table": lambda: pa.table(ROWS),
    "a batch": lambda: pa.record_batch(ROWS),
    "a reader": lambda: batches(pa.table(ROWS)),
    "pandas": lambda: pd.DataFrame(ROWS),
    "Polars": lambda: pl.DataFrame(ROWS),
    "Polars, as categories": lambda: pl.DataFrame(ROWS, schema_overrides={"OrderType": pl.Categorical}),
}


async def receive(queue: bmq.Queue | bmq.Consumer, count: int) -> list[bmq.Message]:
    messages: list[bmq.Message] = []
    while len(messages) < count:
        batch = await queue.receive_many(timeout=30)
        batch.confirm()
        messages += batch
    return messages


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
async def test_every_row_is_a_message(broker: bmq.broker.Broker, make: Any) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        report = await queue.post_table(make(), properties=NAMES)
        assert (report.posted, report.acknowledged, report.failures) == (POSTED, POSTED, [])
        assert report.bytes == sum(map(len, ROWS["value"]))
        got = [(m.data.decode(), dict(m.properties)) for m in await receive(queue, POSTED)]
    assert got == [
        (value, {"CustomerId": customer} | ({"OrderType": kind} if kind else {}))
        for value, customer, kind in zip(*ROWS.values(), strict=True)
    ]


async def test_interceptors_see_every_row(broker: bmq.broker.Broker) -> None:
    seen: list[tuple[bytes, dict[str, Any]]] = []

    class Noting(bmq.Interceptor):
        def on_post(self, queue: bmq.Queue, posts: Sequence[bmq.interceptors.OutgoingMessage]) -> None:
            seen.extend((post.data, dict(post.properties)) for post in posts)
            for post in posts:
                post.properties["trace"] = "1"

    guids = [bytes([64, *bytes(13), *divmod(n, 256)]) for n in range(1, 1001)]
    columns = {name: values[:1000] for name, values in ROWS.items()}
    table = pa.table({**columns, "short": pa.array([3] * 1000, pa.int16()), "guid": guids})
    async with bmq.connect(broker.uri, interceptors=[Noting()]) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        report = await queue.post_table(table, properties=[*NAMES, "short"], guid="guid")
        assert report.acknowledged == 1000
        got = await receive(queue, 1000)
    short = bmq.PropertyValue(bmq.PropertyType.SHORT, 3)
    assert seen[1] == (b"order 1", {"CustomerId": 1, "OrderType": "EXPRESS", "short": short})
    assert seen[3] == (b"order 3", {"CustomerId": 3, "short": short})
    assert [m.guid for m in got] == [each.hex().upper() for each in guids]
    assert {m.properties["trace"] for m in got} == {"1"}
    assert got[0].property_types["short"] is bmq.PropertyType.SHORT


async def test_brokers_select_rows_as_they_select_messages(broker: bmq.broker.Broker) -> None:
    """Both ways to post share the session's schema ids."""
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True, default_subscription=False)
        await queue.post(b"first", properties={"OrderType": "EXPRESS", "CustomerId": 3})
        await queue.post_table(pa.table(ROWS), properties=NAMES)
        await queue.post(b"last", properties={"CustomerId": 3})
        async with queue.subscribe("CustomerId == 3") as consumer:
            expected = [f"order {n}" for n in range(POSTED) if n % 7 == 3]
            messages = await receive(consumer, len(expected) + 2)
    assert [m.data.decode() for m in messages] == ["first", *expected, "last"]


async def test_guids_come_from_a_column(broker: bmq.broker.Broker) -> None:
    guids = [f"40000000000000000000{n:012X}" for n in range(5)]
    table = pa.table({"value": list("abcde"), "id": guids})
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        for _ in range(2):  # the broker has them the second time
            assert (await queue.post_table(table, guid="id")).acknowledged == 5
        await queue.post(b"end")
        assert [m.guid for m in await receive(queue, 6)][:5] == guids


async def test_rows_are_taken_as_room_permits(peer: Peer) -> None:
    """A reader may give more than memory holds."""
    peer.hold.add("PUT")
    taken = 0

    def rows() -> Iterator[Any]:
        nonlocal taken
        for _ in range(50):
            taken += 1
            yield pa.record_batch({"value": ["1"] * 100})

    table = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.string())]), rows())
    async with bmq.connect(peer.uri, max_unacked_messages=1000) as session:
        queue = await session.open_queue(URI, write=True)
        posting = asyncio.ensure_future(queue.post_table(table))
        await eventually(lambda: len(peer.connection.script.puts) == 1000, 60)
        assert taken <= 12
        peer.answer("PUT")
        assert (await posting).acknowledged == 5000


async def test_refused_rows_are_named_by_number(peer: Peer) -> None:
    peer.hold.add("PUT")
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)
        table = pa.table({"value": [f"{n}" for n in range(10_000)]})
        posting = asyncio.ensure_future(queue.post_table(table))
        await eventually(lambda: len(peer.connection.script.puts) == 10_000, 60)
        puts = peer.connection.script.puts
        refused = [3, 4, 4095, 4096, 9999]
        ack = peer.connection.script.ack
        peer.connection.send(ack([puts[at] for at in refused], bmq.AckStatus.LIMIT_MESSAGES))
        peer.connection.send(ack([put for at, put in enumerate(puts) if at not in refused]))
        report = await posting
    assert (report.posted, report.acknowledged) == (10_000, 9995)
    assert [each.index for each in report.failures] == refused
    assert all(each.error.status is bmq.AckStatus.LIMIT_MESSAGES for each in report.failures)


async def test_lost_connection_loses_and_duplicates_no_row(broker: bmq.broker.Broker) -> None:
    count = 100_000
    table = pa.table({"value": [f"{n}" for n in range(count)]})
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, write=True)
        posting = asyncio.ensure_future(queue.post_table(table))
        for limit in (10_000, 60_000):
            await eventually(lambda limit=limit: URI in broker.queues and len(broker.queues[URI]) > limit, 60)
            await broker.restart(graceful=False)
        assert (await posting).acknowledged == count
        assert session.stats().reconnects == 2
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, max_unconfirmed_messages=count)
        got = [int(m.data) for m in await receive(queue, count)]
    assert sorted(got) == list(range(count))


async def test_invalid_row_is_named_after_the_preceding_slices(broker: bmq.broker.Broker) -> None:
    table = pa.table({"value": ["x"] * 5000 + [""]})
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, write=True)
        with pytest.raises(bmq.InvalidPayload, match="row 5000: column 'value' has 0 bytes"):
            await queue.post_table(table)
        await queue.flush(timeout=30)
        assert 0 < len(broker.queues[URI]) < 5000


async def test_cancelled_post_table_takes_no_more_rows(peer: Peer) -> None:
    peer.hold.add("PUT")
    async with bmq.connect(peer.uri, max_unacked_messages=1000) as session:
        queue = await session.open_queue(URI, write=True)
        table = pa.table({"value": ["1"] * 20_000})
        posting = asyncio.ensure_future(queue.post_table(table))
        await eventually(lambda: len(peer.connection.script.puts) >= 1000, 60)
        posting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await posting
        taken = queue.unacked
        assert taken < 20_000
        peer.answer("PUT")
        await queue.flush(timeout=30)
        assert len(peer.posted) == taken


async def test_scalars_of_numpy_are_property_values(broker: bmq.broker.Broker) -> None:
    properties = {
        "a": np.int64(7),
        "b": np.int16(-7),
        "c": np.uint8(200),
        "d": np.bool_(True),
        "e": np.str_("x"),
    }
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post(b"1", properties=properties)
        await queue.post_many([bmq.PutMessage(b"1", properties)])
        for message in await receive(queue, 2):
            found = dict(message.properties)
            assert found == {"a": 7, "b": -7, "c": 200, "d": True, "e": "x"}
            assert [type(value) for value in found.values()] == [int, int, int, bool, str]
        for value in (np.float64(1.5), np.array([1, 2]), np.datetime64("2026-01-01")):
            with pytest.raises(bmq.InvalidProperty, match="must be bool, int, str, bytes"):
                queue.post_nowait(b"1", properties={"a": value})  # type: ignore[dict-item]
