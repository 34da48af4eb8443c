# SPDX-License-Identifier: Apache-2.0
"""Fanout, broadcast and subscriptions: the consumers of each message."""

from __future__ import annotations

from typing import Any

import pytest

import bmq
from bmq import P, TagFilter
from tests.integration.steps import Connect, NewUri, is_quiet, payloads, take

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

    async def test_confirming_for_one_app_leaves_the_other(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
    ) -> None:
        uri = bmq_new_queue_uri(FANOUT)
        foo = await bmq_session.open_queue(f"{uri}?id=foo", read=True)
        bar = await bmq_session.open_queue(f"{uri}?id=bar", read=True)
        writer = await bmq_session.open_queue(uri, write=True)
        await writer.post(b"x")
        assert await payloads(foo, 1) == [b"x"]
        await take(bar, 1)
        await foo.close()
        await bar.close()
        session = await bmq_connect()
        assert await is_quiet(await session.open_queue(f"{uri}?id=foo", read=True))
        assert await payloads(await session.open_queue(f"{uri}?id=bar", read=True), 1) == [b"x"]

    async def test_unknown_app_id_opens_and_receives_no_message(
        self, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
    ) -> None:
        uri = bmq_new_queue_uri(FANOUT)
        unknown = await bmq_session.open_queue(f"{uri}?id=unknown", read=True)
        foo = await bmq_session.open_queue(f"{uri}?id=foo", read=True)
        writer = await bmq_session.open_queue(uri, write=True)
        await writer.post(b"x")
        assert await payloads(foo, 1) == [b"x"]
        assert await is_quiet(unknown)


class TestBroadcast:
    async def test_broadcast_reaches_present_consumers_only(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
    ) -> None:
        uri = bmq_new_queue_uri(BROADCAST)
        writer = await bmq_session.open_queue(uri, write=True)
        await writer.post(b"nobody there")
        sessions = [await bmq_connect() for _ in range(4)]
        readers = [
            await session.open_queue(uri, read=True, default_subscription=True) for session in sessions[:3]
        ]
        await writer.post(b"hello")
        for reader in readers:
            assert [message.data for message in await take(reader, 1)] == [b"hello"]
        late = await sessions[3].open_queue(uri, read=True, default_subscription=True)
        await writer.post(b"bye")
        for reader in (*readers, late):
            assert await payloads(reader, 1) == [b"bye"]

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

    async def test_unwanted_messages_wait(self, queue: bmq.Queue) -> None:
        async with queue.subscribe("x == 1") as ones:
            await queue.post(b"two", properties={"x": 2})
            await queue.post(b"none")
            await queue.post(b"one", properties={"x": 1})
            assert await payloads(ones, 1) == [b"one"]
            async with queue.subscribe("x == 2") as twos:
                assert await payloads(twos, 1) == [b"two"]
            async with queue.subscribe() as everything:
                assert await payloads(everything, 1) == [b"none"]

    async def test_the_higher_priority_goes_first(self, queue: bmq.Queue) -> None:
        async with (
            queue.subscribe("CustomerId >= 0", priority=5) as anyone,
            queue.subscribe("CustomerId == 0", priority=10) as important,
        ):
            for number in (0, 1, 0):
                await queue.post(b"%d" % number, properties={"CustomerId": number})
            assert await payloads(important, 2) == [b"0", b"0"]
            assert await payloads(anyone, 1) == [b"1"]

    async def test_a_full_high_priority_consumer_does_not_spill_over(self, queue: bmq.Queue) -> None:
        async with (
            queue.subscribe("x >= 0", priority=2, max_unconfirmed_messages=1) as high,
            queue.subscribe("x >= 0", priority=1) as low,
        ):
            for number in range(3):
                await queue.post(b"%d" % number, properties={"x": number})
            assert await payloads(high, 3) == [b"0", b"1", b"2"]
            assert low.receive_nowait() is None

    async def test_reconfiguring_changes_the_delivered_messages(self, queue: bmq.Queue) -> None:
        async with queue.subscribe("x == 1") as consumer:
            await queue.post(b"one", properties={"x": 1})
            assert await payloads(consumer, 1) == [b"one"]
            await consumer.configure("x == 2")
            await queue.post(b"one more", properties={"x": 1})
            await queue.post(b"two", properties={"x": 2})
            assert await payloads(consumer, 1) == [b"two"]
            await consumer.configure("x == 1")
            assert await payloads(consumer, 1) == [b"one more"]

    async def test_tag_filters_select_messages(self, queue: bmq.Queue) -> None:
        async with queue.subscribe(TagFilter(any_of={"urgent", "eu"})) as consumer:
            await queue.post(b"low", tags={"low"})
            await queue.post(b"urgent", tags={"urgent", "low"})
            await queue.post(b"eu", tags={"eu"})
            messages = await take(consumer, 2)
            assert [message.data for message in messages] == [b"urgent", b"eu"]
            assert messages[0].tags == {"urgent", "low"}
