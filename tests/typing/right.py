"""What type checkers must accept, and the types they must see."""

from __future__ import annotations

from types import ModuleType
from typing import assert_type

import bmq
from bmq import events
from bmq.testing import BackgroundBroker, FaultProxy


async def use() -> None:
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
        session = await bmq.connect(broker.uri)
        assert_type(session, bmq.Session)
    app = bmq.App(broker.uri, grace=3, process_name="worker", on_event=print)
    assert_type(app, bmq.App)
    assert_type(bmq.Expression("x == 1").matches({"x": 1}), bool)
    async with FaultProxy(broker.uri) as proxy:
        assert_type(proxy.uri, str)
    with BackgroundBroker() as background:
        assert_type(background.uri, str)
