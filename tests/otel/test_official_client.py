# SPDX-License-Identifier: Apache-2.0
"""A trace through the official client, which passes properties on without knowing about traces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import bmq
from tests.integration.official.conftest import TIMEOUT, Client, StillBroker, broker, connect, new_uri
from tests.otel.conftest import Service

__all__ = ["broker", "connect", "new_uri"]

PRIORITY = "bmq.test.mem.priority"


def test_a_trace_survives(
    broker: StillBroker,
    connect: Callable[..., Client],
    new_uri: Callable[[str], str],
    service: Callable[..., Service],
) -> None:
    shop, billing = service("shop"), service("billing")
    first, second, client = new_uri(PRIORITY), new_uri(PRIORITY), connect()
    client.session.open_queue(first, read=True)
    client.session.open_queue(second, write=True)

    async def post() -> None:
        async with bmq.connect(broker.uri, interceptors=[shop.telemetry]) as session:
            queue = await session.open_queue(first, write=True)
            await queue.post(b"order", properties={"n": 7})

    async def receive() -> None:
        async with bmq.connect(broker.uri, interceptors=[billing.telemetry]) as session:
            queue = await session.open_queue(second, read=True)
            async with await queue.receive(timeout=TIMEOUT) as message:
                assert (message.data, message.properties["n"]) == (b"order", 7)

    asyncio.run(post())
    (order,) = client.take(1)
    client.post(second, order.data, properties=order.properties)
    asyncio.run(receive())
    post_span = shop.one("post")
    for span in (billing.one("receive"), billing.one("confirm")):
        assert span.get_span_context().trace_id == post_span.get_span_context().trace_id
        assert [link.context.span_id for link in span.links] == [post_span.get_span_context().span_id]
