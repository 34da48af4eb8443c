"""What a row of a table may cost, counted in calls: nothing is called for each row but its checksum."""

from __future__ import annotations

import asyncio

import pyarrow as pa

import bmq
from tests.performance.conftest import queue as queue
from tests.performance.conftest import server as server
from tests.performance.conftest import session as session
from tests.performance.server import Server, counted

COUNT = 40_000


async def test_post_table(server: Server, queue: bmq.Queue) -> None:
    columns = {"value": [bytes(256)] * COUNT, "CustomerId": [1234] * COUNT, "OrderType": ["EXPRESS"] * COUNT}
    table = pa.table(columns)
    with counted() as counter:
        task = asyncio.ensure_future(queue.post_table(table, properties=["CustomerId", "OrderType"]))
        await server.until(lambda: server.post_count == COUNT)
    server.acknowledge()
    with counted() as more:
        assert (await task).acknowledged == COUNT
    # Thousands of calls a slice of three thousand rows or so; post_many makes 25 for each row.
    assert (counter.calls + more.calls) / COUNT < 0.5
