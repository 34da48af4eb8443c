# SPDX-License-Identifier: Apache-2.0
"""The scenarios of CMQ's description, with an application for each subscriber."""

from __future__ import annotations

from typing import Protocol

import pytest

import bmq
from tests.integration.steps import Connect, NewUri, is_quiet, take


class HasUri(Protocol):
    uri: str


def numbers(messages: list[bmq.Message]) -> list[int]:
    return [int(message.data) for message in messages]


@pytest.mark.statement("6.10", "6.11")
async def test_each_subscriber_keeps_only_its_failed_messages(
    bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    """The first scenario: of 200 messages A fails on 100, B on 30, C on none; then 100 more are published."""
    uri = bmq_new_queue_uri("bmq.test.mem.fanout")
    session = await bmq_connect()
    writer = await session.open_queue(uri, write=True)
    consumed = {"foo": 100, "bar": 170, "baz": 200}
    readers = {
        app: await session.open_queue(f"{uri}?id={app}", read=True, default_subscription=True)
        for app in consumed
    }
    (await writer.post_many([b"%d" % n for n in range(200)])).raise_for_failures()
    for app, count in consumed.items():
        for message in (await take(readers[app], 200))[:count]:
            message.confirm()
    (await writer.post_many([b"%d" % n for n in range(200, 300)])).raise_for_failures()
    for app, queue in readers.items():
        # Nobody is sent again what it has, or has had.
        assert numbers(await take(queue, 100)) == list(range(200, 300))
        assert await is_quiet(queue), app
    for app, queue in readers.items():
        await queue.close()
        again = await session.open_queue(f"{uri}?id={app}", read=True, default_subscription=True)
        assert numbers(await take(again, 300 - consumed[app])) == list(range(consumed[app], 300))


@pytest.mark.statement("6.12")
async def test_tags_equal_the_published_tags(bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
    await queue.post(b"a", tags=["apple"])
    [message] = await take(queue, 1)
    assert message.tags == {"apple"}
    assert not hasattr(message.tags, "add")
    assert not hasattr(message.properties, "__setitem__")


@pytest.mark.statement("6.13", "6.15")
async def test_queue_keeps_messages_until_every_subscriber_has_consumed_them(
    bmq_broker: HasUri, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    """Of 200 messages A fails on the last 100, and B on 30, with 20 in common: 110 stay."""
    uri = bmq_new_queue_uri("bmq.test.mem.fanout")
    session = await bmq_connect()
    writer = await session.open_queue(uri, write=True)
    (await writer.post_many([b"%d" % n for n in range(200)])).raise_for_failures()
    failing = {"foo": range(100, 200), "bar": range(90, 120), "baz": range(0)}
    for app, numbers_left in failing.items():
        reader = await session.open_queue(f"{uri}?id={app}", read=True)
        for message in await take(reader, 200):
            if int(message.data) not in numbers_left:
                message.confirm()
        await reader.close()
    async with bmq.admin.connect(bmq_broker.uri) as admin:
        depth = await admin.queue(uri).depth()
    assert depth.messages == 110
    assert {app.app_id: app.messages for app in depth.apps} == {"foo": 100, "bar": 30, "baz": 0}
