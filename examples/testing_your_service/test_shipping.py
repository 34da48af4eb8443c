# SPDX-License-Identifier: Apache-2.0
"""Tests of the service in this folder: copy both files as a starting point.

The tests need pytest and pytest-asyncio; the fixtures come with bmq. Each test starts its own broker. With
BMQ_BROKER_URI set, the same tests run against the given broker.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from shipping import ship_orders

import bmq
from bmq.testing import Direction, FaultProxy

pytestmark = pytest.mark.asyncio


@pytest.fixture
def uris(bmq_new_queue_uri: Callable[[], str]) -> tuple[str, str]:
    """Queues for orders and for reports, used by no other test."""
    return bmq_new_queue_uri(), bmq_new_queue_uri()


@pytest_asyncio.fixture
async def service(bmq_proxy: FaultProxy, uris: tuple[str, str]) -> AsyncIterator[None]:
    """The service, running behind a proxy that can disturb its connection."""
    task = asyncio.create_task(ship_orders(bmq_proxy.uri, *uris))
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest_asyncio.fixture
async def orders(bmq_session: bmq.Session, uris: tuple[str, str]) -> bmq.Queue:
    return await bmq_session.open_queue(uris[0], write=True)


@pytest_asyncio.fixture
async def reports(bmq_session: bmq.Session, uris: tuple[str, str]) -> bmq.Queue:
    return await bmq_session.open_queue(uris[1], read=True)


async def shipped(reports: bmq.Queue) -> int:
    """The number of the next order reported as shipped."""
    message = await reports.receive(timeout=10)
    message.confirm()
    number: int = json.loads(message.data)["shipped"]
    return number


async def test_an_order_is_shipped(service: None, orders: bmq.Queue, reports: bmq.Queue) -> None:
    await orders.post(b'{"number": 1}', properties={"OrderType": "EXPRESS"})
    assert await shipped(reports) == 1


async def test_an_order_without_a_type_is_shipped(
    service: None, orders: bmq.Queue, reports: bmq.Queue
) -> None:
    await orders.post(b'{"number": 2}')
    assert await shipped(reports) == 2


async def test_a_lost_connection_loses_no_order(
    service: None, bmq_proxy: FaultProxy, orders: bmq.Queue, reports: bmq.Queue
) -> None:
    await orders.post(b'{"number": 1}')
    assert await shipped(reports) == 1
    bmq_proxy.cut()
    for number in (2, 3):
        await orders.post(json.dumps({"number": number}).encode())
    # A report may arrive twice: the order was shipped, and the connection lost before the confirmation.
    numbers: set[int] = set()
    while numbers < {2, 3}:
        numbers.add(await shipped(reports))


async def test_orders_are_shipped_when_bytes_arrive_one_by_one(
    service: None, bmq_proxy: FaultProxy, orders: bmq.Queue, reports: bmq.Queue
) -> None:
    bmq_proxy.split(1, Direction.TO_CLIENT)
    await orders.post(b'{"number": 4}')
    assert await shipped(reports) == 4
