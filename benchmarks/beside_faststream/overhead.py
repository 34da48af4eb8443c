# SPDX-License-Identifier: Apache-2.0
"""CPU time of a client process for each message: a bare loop, and handlers of a framework.

    python overhead.py CASE COUNT ADDRESS

posts COUNT messages of 64 bytes to a broker that runs already, handles them, and prints the CPU time of this
process for receiving and handling, in microseconds a message. Every case decodes JSON into the same pydantic
model and acknowledges each message. "posting" and "publish" also post an invoice for each message to a second
queue, and wait for the broker's answer before the message is acknowledged.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from pydantic import BaseModel

import bmq

WINDOW = 100


class Order(BaseModel):
    number: int
    article: str
    quantity: int


class Invoice(BaseModel):
    number: int
    total: int


class Prices:
    pass


class Ledger:
    pass


async def get_prices() -> Prices:  # FastStream calls plain functions in threads, which costs more
    return PRICES


async def get_ledger() -> AsyncIterator[Ledger]:
    yield Ledger()


PRICES = Prices()
PAYLOAD = Order(number=1, article="tea from Assam, one pound", quantity=2).model_dump_json().encode()


class Clock:
    """Counts handled messages, and reads the process's CPU time at the first and the last one."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._count = count
        self._began = 0.0
        self._used = 0.0
        self.done = asyncio.Event()

    def tick(self) -> None:
        if self._left == self._count:
            self._began = time.process_time()
        self._left -= 1
        if not self._left:
            self._used = time.process_time() - self._began
            self.done.set()

    @property
    def microseconds(self) -> float:
        return self._used / (self._count - 1) * 1e6


async def with_bmq(case: str, count: int, address: str) -> float:
    clock = Clock(count)
    uri = f"bmq://bmq.test.mem.priority/{uuid.uuid4().hex}"
    invoices = f"{uri}.invoices"

    async def pass_on(attempt: bmq.Attempt, call_next: Callable[[], Awaitable[object]]) -> object:
        return await call_next()

    app = bmq.App(address, middlewares=[pass_on] if case == "middleware" else [])
    options: dict[str, Any] = {"max_unconfirmed_messages": WINDOW}

    if case in ("value", "middleware"):

        @app.consumer(uri, **options)
        async def value(order: Order) -> None:
            clock.tick()

    elif case == "message":

        @app.consumer(uri, **options)
        async def message(message: bmq.Message) -> None:
            Order.model_validate_json(message.data)
            clock.tick()

    elif case == "dependencies":

        @app.consumer(uri, **options)
        async def dependencies(
            order: Order,
            prices: Annotated[Prices, bmq.Depends(get_prices)],
            ledger: Annotated[Ledger, bmq.Depends(get_ledger)],
        ) -> None:
            clock.tick()

    elif case == "publish":

        @app.consumer(uri, **options)
        @app.publish_to(invoices)
        async def publish(order: Order) -> Invoice:
            clock.tick()
            return Invoice(number=order.number, total=order.quantity)

    async with bmq.connect(address) as session:
        posting = await session.open_queue(uri, write=True)
        await posting.post_many([PAYLOAD] * count)
        await posting.close()
    if case in ("bare", "posting"):

        async def handle(order: Order) -> Invoice:
            clock.tick()
            return Invoice(number=order.number, total=order.quantity)

        async with bmq.connect(address) as session:
            queue = await session.open_queue(uri, read=True)
            output = await session.open_queue(invoices, write=True) if case == "posting" else None
            async with queue.subscribe(None, **options) as consumer:
                async for message_ in consumer:
                    invoice = await handle(Order.model_validate_json(message_.data))
                    if output is not None:
                        await output.post(invoice.model_dump_json().encode())
                    message_.confirm()
                    if clock.done.is_set():
                        break
    else:
        async with app:
            await clock.done.wait()
    return clock.microseconds


async def with_faststream(case: str, count: int, address: str) -> float:
    import aio_pika
    from faststream import AckPolicy, BaseMiddleware, Depends
    from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

    class PassOn(BaseMiddleware[Any, Any]):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            return await call_next(msg)

    clock = Clock(count)
    name = uuid.uuid4().hex
    queue = RabbitQueue(name, durable=False)
    middlewares = [PassOn] if case == "middleware" else []
    broker = RabbitBroker(
        address, middlewares=middlewares, default_channel=Channel(prefetch_count=WINDOW), logger=None
    )
    options: Any = {"ack_policy": AckPolicy.NACK_ON_ERROR}

    if case in ("value", "middleware"):

        @broker.subscriber(queue, **options)
        async def value(order: Order) -> None:
            clock.tick()

    elif case == "message":

        async def undecoded(message: Any) -> bytes:
            body: bytes = message.body
            return body

        @broker.subscriber(queue, decoder=undecoded, **options)
        async def message(body: bytes) -> None:
            Order.model_validate_json(body)
            clock.tick()

    elif case == "dependencies":

        @broker.subscriber(queue, **options)
        async def dependencies(
            order: Order,
            prices: Annotated[Prices, Depends(get_prices)],
            ledger: Annotated[Ledger, Depends(get_ledger)],
        ) -> None:
            clock.tick()

    elif case == "publish":

        @broker.subscriber(queue, **options)
        @broker.publisher(RabbitQueue(f"{name}.invoices", durable=False))
        async def publish(order: Order) -> Invoice:
            clock.tick()
            return Invoice(number=order.number, total=order.quantity)

    connection = await aio_pika.connect(address)
    async with connection:
        channel = await connection.channel()
        declared = await channel.declare_queue(name)
        invoices = await channel.declare_queue(f"{name}.invoices")
        for at in range(0, count, 500):
            await asyncio.gather(
                *(
                    channel.default_exchange.publish(
                        aio_pika.Message(PAYLOAD, content_type="application/json"), name
                    )
                    for _ in range(at, min(count, at + 500))
                )
            )
        if case in ("bare", "posting"):

            async def handle(order: Order) -> Invoice:
                clock.tick()
                return Invoice(number=order.number, total=order.quantity)

            await channel.set_qos(WINDOW)
            async with declared.iterator() as incoming:
                async for each in incoming:
                    invoice = await handle(Order.model_validate_json(each.body))
                    if case == "posting":
                        body = invoice.model_dump_json().encode()
                        await channel.default_exchange.publish(
                            aio_pika.Message(body, content_type="application/json"), invoices.name
                        )
                    await each.ack()
                    if clock.done.is_set():
                        break
        else:
            async with broker:
                await broker.start()
                await clock.done.wait()
        for each_queue in (declared, invoices):
            await each_queue.delete(if_empty=False, if_unused=False)
    return clock.microseconds


if __name__ == "__main__":
    framework, case, number, address = sys.argv[1:]
    run = {"bmq": with_bmq, "faststream": with_faststream}[framework]
    print(asyncio.run(run(case, int(number), address)))
