# SPDX-License-Identifier: Apache-2.0
"""Topic routing: one queue of orders, and services that select their orders by subscriptions.

    python examples/topic_routing.py                                  # on the embedded broker
    python examples/topic_routing.py --broker tcp://localhost:30114   # on any broker

Orders of one important customer go to a separate service, express orders to a second service, the rest to a
third. A routing table predicts the service of each order without a broker: see the table printed first.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from contextlib import AsyncExitStack

import bmq

#: The services: the first match counts, from the highest priority to the lowest.
ROUTES = [
    ("CustomerId == 1234", 10, "important"),
    ('OrderType == "EXPRESS" && exists(DestinationId)', 5, "express"),
    (None, 0, "rest"),
]
ORDERS = [
    bmq.PutMessage(
        f"order {number}".encode(),
        properties={"CustomerId": customer, "OrderType": kind, "DestinationId": "ABC"},
    )
    for number, (customer, kind) in enumerate(
        [(1234, "EXPRESS"), (77, "EXPRESS"), (77, "PLAIN"), (1234, "PLAIN"), (5, "EXPRESS"), (5, "PLAIN")]
    )
]


async def serve(name: str, consumer: bmq.Consumer, handled: asyncio.Queue[str]) -> None:
    async for message in consumer:
        async with message:  # confirms on a clean exit
            customer, kind = message.properties["CustomerId"], message.properties["OrderType"]
            print(f"{name:>9} got {message.data.decode()}: customer {customer!r}, {kind!r}")
        handled.put_nowait(name)


async def main() -> None:
    parser = argparse.ArgumentParser(description="Route orders by subscriptions.")
    parser.add_argument("--broker", help="such as tcp://localhost:30114; default: an embedded broker")
    options = parser.parse_args()

    table = bmq.subscriptions.RoutingTable(ROUTES)
    print(table.explain(ORDERS[0].properties), "\n")
    async with AsyncExitStack() as stack:
        address = options.broker or (await stack.enter_async_context(bmq.broker.Broker())).uri
        session = await stack.enter_async_context(bmq.connect(address))
        queue = await session.open_queue(
            f"bmq://bmq.test.mem.priority/routing-{os.getpid()}",
            read=True,
            write=True,
            default_subscription=False,
        )
        consumers = {name: queue.subscribe(text, priority=priority) for text, priority, name in ROUTES}
        # Opened together, the subscriptions reach the broker in one request: no order goes to the wrong
        # service.
        await asyncio.gather(*[consumer.open() for consumer in consumers.values()])
        handled: asyncio.Queue[str] = asyncio.Queue()
        services = [asyncio.create_task(serve(name, each, handled)) for name, each in consumers.items()]
        (await queue.post_many(ORDERS)).raise_for_failures()
        counted = [await handled.get() for _ in ORDERS]
        await queue.close()  # ends the services
        await asyncio.gather(*services)
    expected = [table.route(order.properties).names[0] for order in ORDERS]
    assert sorted(counted) == sorted(expected)
    print("\n" + ", ".join(f"{name}: {counted.count(name)}" for name in consumers))


if __name__ == "__main__":
    bmq.run(main())
