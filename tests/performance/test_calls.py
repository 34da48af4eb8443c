# SPDX-License-Identifier: Apache-2.0
"""Work for each batch in place of work for each message, seen in the number of function calls."""

from __future__ import annotations

import bmq
from tests.performance.server import Server, counted

COUNT = 4000
PAYLOAD = bytes(256)
PROPERTIES = {"CustomerId": 1234, "OrderType": "EXPRESS"}


async def test_a_property_of_a_batch(server: Server, queue: bmq.Queue) -> None:
    server.deliver(COUNT, PAYLOAD, PROPERTIES)
    left = COUNT
    calls = 0
    async for batch in queue.batches():
        assert batch.column("CustomerId") == [1234] * len(batch)  # what is learned is learned here
        with counted() as counter:
            batch.column("CustomerId")
            batch.column("OrderType")
        calls = max(calls, counter.calls)
        left -= len(batch)
        if not left:
            break
    assert calls < 100, "whatever the number of messages"
