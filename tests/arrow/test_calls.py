# SPDX-License-Identifier: Apache-2.0
"""The cost of a table's row, counted in function calls: only the checksum is computed for each row."""

from __future__ import annotations

import asyncio

import pyarrow as pa

import bmq
from tests.performance.conftest import queue as queue
from tests.performance.conftest import server as server
from tests.performance.conftest import session as session
from tests.performance.server import Server, counted

COUNT = 40_000


async def test_post_table_makes_few_calls(server: Server, queue: bmq.Queue) -> None:
    columns = {"value": [bytes(256)] * COUNT, "CustomerId": [1234] * COUNT, "OrderType": ["EXPRESS"] * COUNT}
    table = pa.table(columns)
    names = ["CustomerId", "OrderType"]
    # The first call imports modules.
    first = asyncio.ensure_future(queue.post_table(table.slice(0, 1), properties=names))
    await server.until(lambda: server.post_count == 1)
    server.acknowledge()
    await first
    with counted() as counter:
        task = asyncio.ensure_future(queue.post_table(table, properties=names))
        await server.until(lambda: server.post_count == 1 + COUNT)
    server.acknowledge()
    with counted() as more:
        assert (await task).acknowledged == COUNT
    # Thousands of calls for a slice of about three thousand rows; post_many makes 25 calls a row.
    assert (counter.calls + more.calls) / COUNT < 0.5


async def test_tables_make_few_calls(server: Server, session: bmq.Session) -> None:
    queue = await session.open_queue("bmq://bmq.test.mem.priority/q", read=True)
    properties = {"CustomerId": pa.int64(), "OrderType": pa.string()}
    tables = await queue.tables(properties=properties, max_rows=COUNT, metadata=["guid"])
    server.deliver(COUNT, bytes(256), {"CustomerId": 1234, "OrderType": "EXPRESS"})
    rows = 0
    with counted() as counter:
        async for batch in tables:
            tables.confirm()
            rows += batch.num_rows
            if rows == COUNT:
                break
    await server.until(lambda: server.confirm_count == COUNT)
    # About a hundred calls for an event of two hundred messages; a single message takes ten calls.
    assert counter.calls / COUNT < 2
