# SPDX-License-Identifier: Apache-2.0
"""Programs that type checkers must accept, with the types they must infer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, assert_type

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

import bmq
from bmq import events
from bmq.testing import BackgroundBroker, FaultProxy


async def use(received: bmq.Message) -> None:
    modules: list[ModuleType] = [
        bmq.broker,
        bmq.errors,
        bmq.events,
        bmq.subscriptions,
        bmq.testing,
        bmq.workers,
    ]
    assert modules
    async with bmq.broker.Broker(port=0) as broker:
        assert_type(broker, bmq.broker.Broker)
        assert_type(broker.uri, str)
        async with bmq.connect(
            broker.uri,
            credentials=bmq.Credentials.basic("user", "password"),
            compression=bmq.Compression.ZLIB,
            max_unacked_messages=3,
            connect_timeout=1,
            reconnect_timeout=None,
        ) as session:
            assert_type(session, bmq.Session)
            queue = await session.open_queue("bmq://d.e/q", read=True, write=True)
            assert_type(queue, bmq.Queue)
            assert_type(await queue.post(b"x", properties={"a": 1, "b": "c"}), bmq.Ack)
            assert_type(await queue.post_nowait(b"x"), bmq.Ack)
            assert_type(await queue.receive(timeout=1), bmq.Message)
            async for message in queue:
                assert_type(message.data, bytes)
            async with queue.subscribe("x == 1", priority=1) as consumer:
                assert_type(consumer, bmq.Consumer)
            async for event in session.events():
                assert_type(event, events.SessionEvent)
            orders = queue.typed(Order)
            assert_type(orders, bmq.TypedQueue[Order])
            assert_type(await orders.post(Order(1)), bmq.Ack)
            assert_type((await orders.receive()).value, Order)
            async for order in orders:
                assert_type(order, bmq.TypedMessage[Order])
                assert_type(order.value.number, int)
            async with orders.subscribe("number == 1") as first:
                assert_type((await first.receive()).value, Order)
            assert_type(await orders.request(Order(1), reply=Shared), Shared)
            assert_type(await orders.request(Order(1), timeout=1), bmq.Message)
            with contextlib.suppress(NotShipped):
                await orders.request(Order(1), reply=dict[str, int])
            rows = queue.typed(list[Order], codec="application/msgpack")
            assert_type((await rows.receive()).value, list[Order])
            placed = queue.typed(bmq.CloudEvent[Order])
            assert_type((await placed.receive()).value.data, Order)
            reversed_text = queue.typed(str, codec=Reversed())
            assert_type((await reversed_text.receive()).value, str)
            await bmq.consume(queue, take, undecodable=cannot)
            await bmq.consume(orders, take_order)
            await bmq.consume(orders.subscribe(), take_order_and_message)
            await bmq.consume(orders, take_typed_message)
            await bmq.consume(orders, take_message)
            await bmq.consume(queue, take_order_and_message)
            await bmq.consume(orders, take_everything, middlewares=[measure])
        session = await bmq.connect(broker.uri)
        assert_type(session, bmq.Session)
    app = bmq.App(broker.uri, grace=3, process_name="worker", on_event=print)
    assert_type(app, bmq.App)
    app.state.anything = 1
    own = bmq.App(broker.uri, state=Shared())
    assert_type(own.state, Shared)
    app.include(own)
    bmq.testing.TestApp(own)
    assert_type(bmq.Expression("x == 1").matches({"x": 1}), bool)
    async with FaultProxy(broker.uri) as proxy:
        assert_type(proxy.uri, str)
    with BackgroundBroker() as background:
        assert_type(background.uri, str)

    @app.consumer("bmq://d.e/q")
    async def handle(order: Order, message: bmq.Message) -> None:
        assert_type(order.number, int)

    router = bmq.Router(prefix="bmq://d.e/")
    assert_type(router.prefix, str)

    @router.consumer("q", concurrency=2)
    async def ship(order: Order) -> None:
        assert_type(order.number, int)

    await ship(Order(1))
    router.batch_consumer("rows")(load)
    outer = bmq.Router()
    outer.include(router)
    app.include(outer)

    @app.consumer("bmq://d.e/q")
    @app.publish_to("bmq://d.e/out", key=lambda shipped: str(shipped))
    async def billed(order: Order) -> Shared | None:
        return Shared() if order.number else None

    assert_type(await billed(Order(1)), Shared | None)

    @app.responder("bmq://d.e/q")
    async def count(order: Order) -> int:
        return order.number

    assert_type(await count(Order(1)), int)
    await handle(Order(1), received)  # a plain function still, with its own types
    app.consumer("bmq://d.e/q", codec=Reversed(), undecodable=cannot)(take)
    app.consumer("bmq://d.e/q", middlewares=[measure])(take_everything)
    app.middleware(measure)
    app.overrides[get_name] = lambda: "fake"

    @own.batch_consumer("bmq://d.e/q")
    async def load_with_state(
        orders: list[Order], shared: Shared, name: Annotated[str, bmq.Depends(get_name, scope="app")]
    ) -> None:
        assert_type(shared.shipped, int)
        assert_type(name, str)


async def load(rows: list[Order]) -> None: ...


@dataclass
class Order:
    number: Annotated[int, bmq.Property]
    express: Annotated[bool, bmq.Property("Express")] = False


class Shared:
    shipped: int = 0


async def get_name(attempt: bmq.Attempt) -> AsyncIterator[str]:
    assert_type(attempt.number, int)
    yield attempt.handler


async def take_everything(
    order: Order,
    attempt: bmq.Attempt,
    customer: Annotated[int, bmq.Property("CustomerId")],
    *,
    name: Annotated[str, bmq.Depends(get_name)],
) -> None:
    assert_type(customer, int)
    assert_type(name, str)


async def measure(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> object:
    return await call_next()


async def pay(message: bmq.Message, messages: list[bmq.Message], engine: AsyncEngine) -> None:
    inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=60)
    async with inbox, inbox.once(message) as transaction:
        assert_type(transaction, bmq.inbox.Transaction[AsyncConnection] | None)
        if transaction is not None:
            assert_type(transaction.connection, AsyncConnection)
            assert_type(transaction.post("bmq://bmq.test.mem.priority/paid", b"x"), str)
            transaction.post("bmq://bmq.test.mem.priority/paid", [1], key=7, codec="application/json")
    sessions = async_sessionmaker(engine)
    other = bmq.inbox.SqlAlchemyInbox(sessions, keep=60, consumer="billing")
    async with other.batch(messages) as batch:
        assert_type(batch, bmq.inbox.Transaction[AsyncSession] | None)
    assert_type(await other.connection(), AsyncSession)
    app = bmq.App(middlewares=[inbox.middleware])

    @app.consumer("bmq://bmq.test.mem.priority/orders")
    async def charge(
        amount: int, connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection)]
    ) -> None:
        await connection.close()


class NotShipped(bmq.RequestFailed, type="not-shipped", title="Not shipped", retryable=True): ...


async def take_order(order: Order) -> None: ...


async def take_order_and_message(order: Order, message: bmq.Message) -> None: ...


async def take_typed_message(message: bmq.TypedMessage[Order]) -> None: ...


async def take_message(message: bmq.Message) -> None: ...


class Reversed:
    content_type = "text/x-reversed"

    def encode(self, value: str) -> bytes:
        return value[::-1].encode()

    def decode(self, data: bytes) -> str:
        return data.decode()[::-1]


async def take(order: Order) -> None: ...


async def cannot(message: bmq.Message, error: bmq.Undecodable) -> None: ...
