# SPDX-License-Identifier: Apache-2.0
"""Posting tables: each row becomes a message with an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import bmq
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/table"
COUNT = 10_000
ROWS = {
    "value": [f"order {n}" for n in range(COUNT)],
    "CustomerId": [n % 7 for n in range(COUNT)],
    "OrderType": ["EXPRESS" if n % 3 else None for n in range(COUNT)],
}
PROPERTIES = ["CustomerId", "OrderType"]


def batches(table: Any) -> Any:
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=997))


TABLES = {
    "a table": lambda: pa.table(ROWS),
    "a batch": lambda: pa.record_batch(ROWS),
    "a reader": lambda: batches(pa.table(ROWS)),
    "pandas": lambda: pd.DataFrame(ROWS),
    "Polars": lambda: pl.DataFrame(ROWS),
    "Polars, as categories": lambda: pl.DataFrame(ROWS).with_columns(
        pl.col("OrderType").cast(pl.Categorical)
    ),
}


async def receive(queue: bmq.Queue, count: int) -> list[bmq.Message]:
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
        report = await queue.post_table(make(), properties=PROPERTIES)
        assert (report.posted, report.acknowledged, report.failures) == (COUNT, COUNT, [])
        assert report.bytes == sum(map(len, ROWS["value"]))
        got = [(m.data.decode(), dict(m.properties)) for m in await receive(queue, COUNT)]
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
        report = await queue.post_table(table, properties=[*PROPERTIES, "short"], guid="guid")
        assert report.acknowledged == 1000
        got = await receive(queue, 1000)
    assert seen[1] == (
        b"order 1",
        {"CustomerId": 1, "OrderType": "EXPRESS", "short": bmq.PropertyValue(bmq.PropertyType.SHORT, 3)},
    )
    assert seen[3] == (b"order 3", {"CustomerId": 3, "short": bmq.PropertyValue(bmq.PropertyType.SHORT, 3)})
    assert [m.guid for m in got] == [each.hex().upper() for each in guids]
    assert {m.properties["trace"] for m in got} == {"1"}
    assert got[0].property_types["short"] is bmq.PropertyType.SHORT


async def test_brokers_select_rows_as_they_select_messages(broker: bmq.broker.Broker) -> None:
    """Both ways to post share the session's schema ids."""
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True, default_subscription=False)
        await queue.post(b"first", properties={"OrderType": "EXPRESS", "CustomerId": 3})
        await queue.post_table(pa.table(ROWS), properties=PROPERTIES)
        await queue.post(b"last", properties={"CustomerId": 3})
        async with queue.subscribe("CustomerId == 3") as consumer:
            expected = [f"order {n}" for n in range(COUNT) if n % 7 == 3]
            messages = []
            while len(messages) < len(expected) + 2:
                batch = await consumer.receive_many(timeout=30)
                batch.confirm()
                messages += [m.data.decode() for m in batch]
    assert messages == ["first", *expected, "last"]


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
        for at, put in enumerate(puts):
            if at in refused:
                peer.connection.send(peer.connection.script.ack([put], bmq.AckStatus.LIMIT_MESSAGES))
        peer.connection.send(
            peer.connection.script.ack([put for at, put in enumerate(puts) if at not in refused])
        )
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


async def test_invalid_row_is_named_and_preceding_rows_are_posted(
    broker: bmq.broker.Broker,
) -> None:
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
