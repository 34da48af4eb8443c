# SPDX-License-Identifier: Apache-2.0
"""Fanout, broadcast and subscriptions: the consumers of each message."""

from __future__ import annotations

from typing import Any

import pytest

import bmq
from bmq import TagFilter
from bmq.subscriptions import P
from tests.integration.steps import Connect, NewUri, is_quiet, payloads, take

BROADCAST = "bmq.test.mem.broadcast"
#: 20 alternatives, 227 characters: more than an expression may have, so it becomes several.
LONG = " || ".join(f"x == {number}" for number in range(0, 40, 2))


@pytest.mark.statement("4.4")
async def test_every_app_gets_every_message(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri("bmq.test.mem.fanout")
    readers = {
        app: await (await bmq_connect()).open_queue(f"{uri}?id={app}", read=True)
        for app in ("foo", "bar", "baz")
    }
    writer = await bmq_session.open_queue(uri, write=True)
    for number in range(10):
        await writer.post(b"%d" % number)
    for app, reader in readers.items():
        messages = await take(reader, 10)
        assert [message.data for message in messages] == [b"%d" % number for number in range(10)]
        assert {message.queue_uri for message in messages} == {f"{uri}?id={app}"}


# broadcast


@pytest.mark.statement("1.1")
async def test_a_reader_misses_nothing_posted_after_its_opening(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(BROADCAST)
    reader = await (await bmq_connect()).open_queue(uri, read=True)
    both = await bmq_session.open_queue(uri, read=True, write=True)
    await both.post_many([b"%d" % number for number in range(20)])
    for queue in (reader, both):
        assert await payloads(queue, 20) == [b"%d" % number for number in range(20)]


async def test_a_first_consumer_of_a_reader_takes_over_what_matches(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(BROADCAST)
    writer = await bmq_session.open_queue(uri, write=True)
    reader = await (await bmq_connect()).open_queue(uri, read=True)
    for number in range(4):
        await writer.post(b"%d" % number, properties={"x": number % 2})
    async with reader.subscribe("x == 1") as odd:
        assert await payloads(odd, 2) == [b"1", b"3"]
        assert reader.consumers == [odd]
        await writer.post(b"0 again", properties={"x": 0})
        await writer.post(b"1 again", properties={"x": 1})
        assert await payloads(odd, 1) == [b"1 again"]
        assert reader.stats().buffered_messages == 0


@pytest.mark.parametrize("options", [{"default_subscription": False}, {"subscriptions": ["x == 1"]}])
async def test_a_reader_with_other_wishes_has_no_default_subscription(
    options: Any, bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(BROADCAST)
    reader = await (await bmq_connect()).open_queue(uri, read=True, **options)
    assert [str(consumer.expression) for consumer in reader.consumers] == options.get("subscriptions", [])


# subscriptions


@pytest.mark.parametrize("door", ["subscribe", "subscriptions", "configure", "discard"])
async def test_every_door_for_a_subscription_splits_a_text(
    door: str, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri("bmq.test.mem.priority")
    given = [bmq.Subscription(LONG)] if door == "subscriptions" else []
    queue = await bmq_session.open_queue(uri, read=True, write=True, subscriptions=given)
    if door == "subscriptions":
        (consumer,) = queue.consumers
    else:
        first = "x == 1" if door == "configure" else LONG
        consumer = await queue.subscribe(first, discard_unmatched=door == "discard")
        if door == "configure":
            await consumer.configure(LONG)
    assert consumer.expression == LONG
    assert consumer.expressions == [
        "||".join(f"x=={number}" for number in range(first, min(first + 6, 40), 2))
        for first in range(0, 40, 6)
    ]
    await queue.post_many([bmq.PutMessage(b"%d" % n, {"x": n}) for n in range(40)])
    received = sorted(await payloads(consumer, 20), key=int)
    assert received == [b"%d" % number for number in range(0, 40, 2)]


@pytest.mark.statement("1.28")
async def test_a_queue_opened_with_subscriptions_has_a_consumer_for_each(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    writer = await (await bmq_connect()).open_queue(bmq_queue_uri, write=True)
    posts = [bmq.PutMessage(b"%d" % n, {"x": n}) for n in (3, 1, 2, 1)]
    await writer.post_many([*posts, bmq.PutMessage(b"-", tags=["red", "blue"])])
    queue = await bmq_session.open_queue(
        bmq_queue_uri,
        read=True,
        subscriptions=[
            "x == 1",
            P("x") == 2,
            bmq.Subscription("x == 3", priority=7, max_unconfirmed_messages=5),
            TagFilter(any_of=["red", "green"]),
        ],
    )
    one, two, three, red = queue.consumers
    assert [each.options.priority for each in queue.consumers] == [0, 0, 7, 0]
    assert three.options.max_unconfirmed_messages == 5
    assert await payloads(one, 2) == [b"1", b"1"]
    assert await payloads(two, 1) == [b"2"]
    assert await payloads(three, 1) == [b"3"]
    (tagged,) = await take(red, 1)
    assert (tagged.data, tagged.tags) == (b"-", {"red", "blue"})
    await one.configure("x == 4")
    await two.close()
    assert queue.consumers == [one, three, red]
    await writer.post_many([bmq.PutMessage(b"%d" % n, {"x": n}) for n in (1, 2, 4)])
    assert await payloads(one, 1) == [b"4"]
    assert await is_quiet(one)
