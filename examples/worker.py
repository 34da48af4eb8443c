# SPDX-License-Identifier: Apache-2.0
"""A service: handlers with concurrency, deadlines, retries and a queue for failed orders.

    python examples/worker.py                                  # generated orders, on the embedded broker
    python examples/worker.py --broker tcp://localhost:30114 --serve   # until SIGTERM or Ctrl-C

Every third order has no address, and every fourth needs a second attempt. After three failures an order goes
to a queue of dead letters, with the reason among its properties, and another handler reads the queue.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
from contextlib import AsyncExitStack

import bmq
from bmq.workers import Failure

log = logging.getLogger("worker")


class Shop:
    """The resources of the handlers."""

    def __init__(self) -> None:
        self.shipped: list[int] = []
        self.unshippable: list[int] = []
        self.seen: set[int] = set()
        self.retries = 0

    def ship(self, order: dict[str, int | str]) -> None:
        number = int(order["number"])
        if "address" not in order:
            raise ValueError("no address")
        if number % 4 == 1 and number not in self.seen:
            self.seen.add(number)
            raise ConnectionError("the carrier does not answer")
        self.shipped.append(number)


def make_app(broker: str, orders: str, dead: str, shop: Shop, expected: int | None) -> bmq.App:
    """Build the service; with ``expected``, the service stops after this number of orders."""

    def count(failure: Failure) -> None:
        shop.retries += failure.retry_in is not None

    app = bmq.App(broker, grace=10, on_error=count)

    def stop_when_done() -> None:
        if len(shop.shipped) + len(shop.unshippable) == expected:
            app.stop()

    @app.consumer(
        orders,
        concurrency=4,  # four orders at a time; 1, the default, would keep their order
        max_unconfirmed_messages=16,  # delivered messages are not available to other workers
        timeout=5.0,
        retry=bmq.Backoff(every=0.1, retries=2, then=bmq.DeadLetter(dead)),
    )
    async def handle(message: bmq.Message) -> None:
        shop.ship(json.loads(message.data))  # an error fails the attempt
        stop_when_done()

    @app.consumer(dead)
    async def look(message: bmq.Message) -> None:
        number = int(json.loads(message.data)["number"])
        tried, why = message.properties["bmq_dead_attempts"], message.properties["bmq_dead_error"]
        log.info("order %d was tried %s times: %s", number, tried, why)
        shop.unshippable.append(number)
        stop_when_done()

    return app


async def post_orders(broker: str, queue_uri: str, count: int) -> None:
    async with bmq.connect(broker) as session:
        queue = await session.open_queue(queue_uri, write=True)
        for number in range(count):
            order = {"number": number} | ({"address": f"{number} Main Street"} if number % 3 else {})
            await queue.post(json.dumps(order).encode())


async def main() -> None:
    parser = argparse.ArgumentParser(description="Handle orders.")
    parser.add_argument("--broker", help="such as tcp://localhost:30114; default: an embedded broker")
    parser.add_argument("--queue", default=f"bmq://bmq.test.mem.priority/orders-{os.getpid()}")
    parser.add_argument(
        "--orders", type=int, default=24, help="number of generated orders (default: %(default)s)"
    )
    parser.add_argument(
        "--serve", action="store_true", help="keep running after these orders, until SIGTERM or SIGINT"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("bmq.workers").addFilter(lambda record: record.exc_info is None)  # no tracebacks here

    async with AsyncExitStack() as stack:
        broker = options.broker or (await stack.enter_async_context(bmq.broker.Broker())).uri
        shop = Shop()
        app = make_app(
            broker, options.queue, f"{options.queue}.dead", shop, None if options.serve else options.orders
        )
        posting = asyncio.create_task(post_orders(broker, options.queue, options.orders))
        try:
            await app.run()
        except bmq.ConnectionFailed as error:
            raise SystemExit(str(error)) from None
        finally:
            posting.cancel()
            await asyncio.gather(posting, return_exceptions=True)
    print(f"{len(shop.shipped)} shipped, {len(shop.unshippable)} put aside, {shop.retries} retries")


if __name__ == "__main__":
    bmq.run(main())
