# SPDX-License-Identifier: Apache-2.0
"""Statements of the documents about a broker and its clients, one by one: see docs/protocol/seeds.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest

import bmq
from bmq.admin import Admin
from bmq.testing import Direction
from tests.integration.steps import TIMEOUT, Connect, NewUri, left_in, take

FANOUT = "bmq.test.mem.fanout"


class HasUri(Protocol):
    uri: str


@pytest.fixture
async def admin(bmq_broker: HasUri) -> AsyncIterator[Admin]:
    async with bmq.admin.connect(bmq_broker.uri) as admin:
        yield admin


def texts(messages: list[bmq.Message]) -> list[bytes]:
    return [message.data for message in messages]


async def depth(admin: Admin, uri: str) -> int:
    return (await admin.queue(uri).depth()).messages


async def reaches(admin: Admin, uri: str, wanted: int) -> None:
    """Poll until a queue holds the given number of messages: clients receive no notice of changes."""
    async with asyncio.timeout(TIMEOUT):
        while await depth(admin, uri) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.statement("1.23", "6.5")
async def test_the_last_application_to_confirm_deletes_a_message(
    admin: Admin, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(FANOUT)
    writer = await bmq_session.open_queue(uri, write=True)
    apps = ("foo", "bar", "baz")
    readers = [await bmq_session.open_queue(f"{uri}?id={app}", read=True) for app in apps]
    await writer.post(b"m")
    left: list[int] = []
    for reader in readers:
        (message,) = await take(reader, 1)
        message.confirm()
        await reader.close()  # the answer comes behind the confirmation
        left.append(await depth(admin, uri))
    assert left == [1, 1, 0]


@pytest.mark.statement("1.21", "1.22", "1.23")
async def test_an_application_subscription_confirms_like_a_consumer(
    admin: Admin, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    """foo takes `x == 1`, bar takes `x == 2`, baz takes all messages: only baz must confirm x = 3."""
    uri = bmq_new_queue_uri("bmq.test.appsub.fanout")
    writer = await bmq_session.open_queue(uri, write=True)
    reader = await bmq_session.open_queue(f"{uri}?id=baz", read=True)
    await writer.post(b"3", properties={"x": 3})
    assert await depth(admin, uri) == 1
    async with (await take(reader, 1))[0]:
        pass
    await reader.close()
    assert await depth(admin, uri) == 0


@pytest.mark.statement("1.24")
async def test_an_application_subscription_of_a_priority_queue_is_for_all_consumers(
    admin: Admin, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri("bmq.test.appsub.priority")
    readers = [
        await (await bmq_connect()).open_queue(uri, read=True, default_subscription=True) for _ in range(2)
    ]
    writer = await (await bmq_connect()).open_queue(uri, write=True)
    posts = [writer.post_nowait(b"%d" % x, properties={"x": x}) for x in (-1, 1, -2, 2, -3, 3, -4, 4)]
    await asyncio.gather(*posts)
    got = [texts(await take(reader, 2)) for reader in readers]
    assert sorted(got[0] + got[1]) == [b"1", b"2", b"3", b"4"]
    assert await depth(admin, uri) == 4


@pytest.mark.statement("1.26")
async def test_application_subscriptions_are_evaluated_before_consumer_subscriptions(
    admin: Admin, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    """`x > 0` for the application; `x < 3` and `x < 5` for consumers of higher and lower priority."""
    uri = bmq_new_queue_uri("bmq.test.appsub.priority")
    queue = await bmq_session.open_queue(uri, read=True, write=True, default_subscription=False)
    async with queue.subscribe("x < 3", priority=2) as first, queue.subscribe("x < 5", priority=1) as second:
        posts = [queue.post_nowait(b"%d" % x, properties={"x": x}) for x in (-1, 1, 4, 7, -2, 2)]
        await asyncio.gather(*posts)
        assert texts(await take(first, 2)) == [b"1", b"2"]
        assert texts(await take(second, 1)) == [b"4"]
        # Confirmed for the application: -1 and -2. Remaining: three delivered messages, and 7 without a
        # match.
        assert await depth(admin, uri) == 4


@pytest.mark.statement("1.15")
async def test_of_equal_expressions_only_the_higher_priority_receives(
    bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    subscriptions: list[bmq.Consumer] = []
    for priority in (1, 2):
        queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True, default_subscription=False)
        subscriptions.append(await queue.subscribe("x == 1", priority=priority))
    writer = await (await bmq_connect()).open_queue(bmq_queue_uri, write=True)
    await asyncio.gather(*[writer.post_nowait(b"%d" % n, properties={"x": 1}) for n in range(10)])
    assert texts(await take(subscriptions[1], 10)) == [b"%d" % n for n in range(10)]
    assert subscriptions[0].receive_nowait() is None


@pytest.mark.statement("1.5")
async def test_unmatched_message_expires(
    admin: Admin, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    """The domain keeps messages for two seconds, and a broker checks from time to time."""
    uri = bmq_new_queue_uri("bmq.test.ttl.priority")
    queue = await bmq_session.open_queue(uri, read=True, write=True, default_subscription=False)
    async with queue.subscribe("x == 1") as consumer:
        await queue.post(b"unmatched", properties={"x": 2})
        assert await depth(admin, uri) == 1
        await reaches(admin, uri, 0)
        assert consumer.receive_nowait() is None


@pytest.mark.statement("1.14")
async def test_messages_of_a_lost_consumer_are_redelivered_in_order_and_marked(
    bmq_proxy: Any, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    lost = await (await bmq_connect(reconnect=False)).open_queue(bmq_queue_uri, read=True, write=True)
    await asyncio.gather(*[lost.post_nowait(b"%d" % n) for n in range(10)])
    await take(lost, 10)
    bmq_proxy.cut()
    again = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    messages = await take(again, 10)
    assert texts(messages) == [b"%d" % n for n in range(10)]
    assert all(message.redelivered for message in messages)


@pytest.mark.statement("4.11")
async def test_resent_posts_are_stored_once(
    admin: Admin, bmq_proxy: Any, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    session = await bmq_connect()
    queue = await session.open_queue(bmq_queue_uri, write=True)
    bmq_proxy.stall(Direction.TO_CLIENT)
    posts = [queue.post_nowait(b"%d" % n) for n in range(10)]
    await reaches(admin, bmq_queue_uri, 10)
    assert not any(post.done() for post in posts)  # only an answer on the next connection ends these posts
    bmq_proxy.cut()
    bmq_proxy.resume()
    acks = await asyncio.wait_for(asyncio.gather(*posts), TIMEOUT)
    assert [ack.status for ack in acks] == [bmq.AckStatus.SUCCESS] * 10
    await queue.close()
    assert await left_in(bmq_connect, bmq_queue_uri) == [b"%d" % n for n in range(10)]
