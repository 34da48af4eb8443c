# SPDX-License-Identifier: Apache-2.0
"""A small service: reads orders, ships express orders first, and reports shipped orders."""

from __future__ import annotations

import asyncio
import json
import sys

import bmq

ORDERS = "bmq://bmq.test.mem.priority/orders"
SHIPPED = "bmq://bmq.test.mem.priority/shipped"


async def ship_orders(broker: str | None, orders: str = ORDERS, shipped: str = SHIPPED) -> None:
    """Run until cancelled. An order is confirmed only after its report is stored."""
    async with bmq.connect(broker, process_name="shipping") as session:
        reports = await session.open_queue(shipped, write=True)
        queue = await session.open_queue(orders, read=True)
        async with (
            queue.subscribe('OrderType == "EXPRESS"', priority=2) as express,
            queue.subscribe(priority=1) as others,
            asyncio.TaskGroup() as group,
        ):
            for consumer in (express, others):
                group.create_task(handle(consumer, reports))


async def handle(orders: bmq.Consumer, reports: bmq.Queue) -> None:
    """Ship the orders of one consumer."""
    async for order in orders:
        async with order:  # confirmed on a clean exit, delivered again after an error
            number = json.loads(order.data)["number"]
            await reports.post(json.dumps({"shipped": number}).encode())


if __name__ == "__main__":
    bmq.run(ship_orders(sys.argv[1] if len(sys.argv) > 1 else None))
