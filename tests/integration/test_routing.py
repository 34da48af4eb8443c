# SPDX-License-Identifier: Apache-2.0
"""Fanout, broadcast and subscriptions: the consumers of each message."""

from __future__ import annotations

from typing import Any

import pytest

import bmq
from bmq import P, TagFilter
from tests.integration.steps import Connect, NewUri, payloads, take

FANOUT = "bmq.test.mem.fanout"
BROADCAST = "bmq.test.mem.broadcast"


class TestFanout:
    @pytest.mark.statement("4.4")
    async def test_every_app_gets_every_message(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
    ) -> None:
        uri = bmq_new_queue_uri(FANOUT)
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


class TestBroadcast:
    @pytest.mark.statement("1.1")
    async def test_a_reader_misses_nothing_posted_after_its_opening(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
    ) -> None:
        uri = bmq_new_queue_uri(BROADCAST)
        reader = await (await bmq_connect()).open_queue(uri, read=True)
        both = await bmq_session.open_queue(uri, read=True, write=True)
        await both.post_many([b"%d" % number for number in range(20)])
        for queue in (reader, both):
            assert await payloads(queue, 20) == [b"%d" % number for number in range(20)]
        await both.post(b"later")
        for queue in (reader, both):
            assert await payloads(queue, 1) == [b"later"]

    async def test_a_first_consumer_of_a_reader_takes_over_what_matches(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
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
        self, options: Any, bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
    ) -> None:
        uri = bmq_new_queue_uri(BROADCAST)
        reader = await (await bmq_connect()).open_queue(uri, read=True, **options)
        assert [str(consumer.expression) for consumer in reader.consumers] == options.get("subscriptions", [])


LONG = " || ".join(f"x == {number}" for number in range(0, 40, 2))  # 20 alternatives, 227 characters


class TestLongTexts:
    """A text beyond the limits of one expression becomes several, as a filter of the same meaning does."""

    @pytest.mark.parametrize("door", ["subscribe", "subscriptions", "configure", "discard"])
    async def test_every_door_for_a_subscription_splits_a_text(
        self, door: str, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
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
            each.text for each in bmq.subscriptions.plan(P.x.one_of(*range(0, 40, 2)))
        ]
        assert consumer.expressions == [
            "||".join(f"x=={number}" for number in range(first, min(first + 6, 40), 2))
            for first in range(0, 40, 6)
        ]
        await queue.post_many([bmq.PutMessage(b"%d" % n, {"x": n}) for n in range(40)])
        received = sorted(await payloads(consumer, 20), key=int)
        assert received == [b"%d" % number for number in range(0, 40, 2)]


class TestSubscriptions:
    @pytest.fixture
    async def queue(self, bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
        return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)

    async def test_tag_filters_select_messages(self, queue: bmq.Queue) -> None:
        async with queue.subscribe(TagFilter(any_of={"urgent", "eu"})) as consumer:
            await queue.post(b"low", tags={"low"})
            await queue.post(b"urgent", tags={"urgent", "low"})
            await queue.post(b"eu", tags={"eu"})
            messages = await take(consumer, 2)
            assert [message.data for message in messages] == [b"urgent", b"eu"]
            assert messages[0].tags == {"urgent", "low"}
