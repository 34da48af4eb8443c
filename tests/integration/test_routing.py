# SPDX-License-Identifier: Apache-2.0
"""Fanout, broadcast and subscriptions: the consumers of each message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bmq
from bmq import P, TagFilter
from tests.integration.steps import TIMEOUT, Connect, NewUri, is_quiet, payloads, take

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

    async def test_two_apps_in_one_session_are_two_queues(
        self, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
    ) -> None:
        uri = bmq_new_queue_uri(FANOUT)
        foo = await bmq_session.open_queue(f"{uri}?id=foo", read=True)
        bar = await bmq_session.open_queue(f"{uri}?id=bar", read=True)
        writer = await bmq_session.open_queue(uri, write=True)
        for number in range(5):
            await writer.post(b"%d" % number)
        expected = [b"%d" % number for number in range(5)]
        assert await payloads(foo, 5) == expected
        assert await payloads(bar, 5) == expected

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

    async def test_consumers_of_one_app_share(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
    ) -> None:
        uri = bmq_new_queue_uri(FANOUT)
        one = await bmq_session.open_queue(f"{uri}?id=foo", read=True, default_subscription=True)
        session = await bmq_connect()
        two = await session.open_queue(f"{uri}?id=foo", read=True, default_subscription=True)
        writer = await bmq_session.open_queue(uri, write=True)
        for number in range(10):
            await writer.post(b"%d" % number)
        found = await payloads(one, 5) + await payloads(two, 5)
        assert sorted(map(int, found)) == list(range(10))

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

    async def test_missed_messages_are_not_redelivered(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
    ) -> None:
        uri = bmq_new_queue_uri(BROADCAST)
        writer = await bmq_session.open_queue(uri, write=True)
        session = await bmq_connect()
        reader = await session.open_queue(uri, read=True, default_subscription=True)
        await writer.post(b"x")
        await take(reader, 1)
        await reader.close()
        again = await session.open_queue(uri, read=True, default_subscription=True)
        await writer.post(b"y")
        assert await payloads(again, 1) == [b"y"]


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

    async def test_a_text_that_cannot_be_split_is_refused_with_the_remedy(
        self, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        queue = await bmq_session.open_queue(bmq_queue_uri, read=True)
        with pytest.raises(bmq.InvalidExpression, match="This part cannot be split") as caught:
            queue.subscribe(LONG.replace("||", "&&"))
        assert caught.value.code == "TOO_COMPLEX"
        with pytest.raises(bmq.InvalidExpression, match="expected"):
            queue.subscribe(LONG + " || x = 3")


class TestSubscriptions:
    @pytest.fixture
    async def queue(self, bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
        return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)

    @pytest.mark.statement("1.1")
    async def test_each_consumer_receives_its_matches(self, queue: bmq.Queue) -> None:
        async with queue.subscribe("x == 1") as ones, queue.subscribe("x == 2") as twos:
            for number in range(10):
                await queue.post(b"%d" % number, properties={"x": number % 2 + 1})
            assert await payloads(ones, 5) == [b"0", b"2", b"4", b"6", b"8"]
            assert await payloads(twos, 5) == [b"1", b"3", b"5", b"7", b"9"]

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

    async def test_filters_of_the_builder_select_messages(self, queue: bmq.Queue) -> None:
        wanted = (P("CustomerId") >= 1000) & P("OrderType").exists()
        async with queue.subscribe(wanted) as consumer:
            await queue.post(b"no type", properties={"CustomerId": 2000})
            await queue.post(b"small", properties={"CustomerId": 1, "OrderType": "A"})
            await queue.post(b"both", properties={"CustomerId": 1000, "OrderType": "A"})
            assert await payloads(consumer, 1) == [b"both"]

    async def test_tag_filters_select_messages(self, queue: bmq.Queue) -> None:
        async with queue.subscribe(TagFilter(any_of={"urgent", "eu"})) as consumer:
            await queue.post(b"low", tags={"low"})
            await queue.post(b"urgent", tags={"urgent", "low"})
            await queue.post(b"eu", tags={"eu"})
            messages = await take(consumer, 2)
            assert [message.data for message in messages] == [b"urgent", b"eu"]
            assert messages[0].tags == {"urgent", "low"}

    async def test_an_expression_the_broker_would_ignore_is_refused(self, queue: bmq.Queue) -> None:
        with pytest.raises(bmq.InvalidExpression, match="x >") as caught:
            queue.subscribe("x >")
        assert caught.value.code == "SYNTAX"

    async def test_leaving_hands_messages_to_the_next(self, bmq_connect: Connect, queue: bmq.Queue) -> None:
        other = await (await bmq_connect()).open_queue(queue.uri, read=True)
        async with other.subscribe("x == 1") as waiting:
            async with queue.subscribe("x == 1", priority=9) as first:
                await queue.post(b"x", properties={"x": 1})
                await take(first, 1)
                await first.close()
            await queue.close()
            assert await payloads(waiting, 1) == [b"x"]


@pytest.mark.statement("1.22")
async def test_application_subscriptions_filter_before_storing(
    bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri("bmq.test.appsub.fanout")
    foo = await bmq_session.open_queue(f"{uri}?id=foo", read=True)
    bar = await bmq_session.open_queue(f"{uri}?id=bar", read=True)
    writer = await bmq_session.open_queue(uri, write=True)
    posts = [writer.post_nowait(b"%d" % x, properties={"x": x}) for x in (1, 2, 3, 1, 2)]
    await asyncio.wait_for(asyncio.gather(*posts), TIMEOUT)
    assert await payloads(foo, 2) == [b"1", b"1"]
    assert await payloads(bar, 2) == [b"2", b"2"]


async def test_messages_expire(bmq_connect: Connect, bmq_new_queue_uri: NewUri) -> None:
    """Two seconds in whole seconds, strictly exceeded, looked at now and then: gone within some more."""
    uri = bmq_new_queue_uri("bmq.test.ttl.priority")
    writer = await (await bmq_connect()).open_queue(uri, write=True)
    await writer.post(b"old")
    other = await bmq_connect()
    offered: list[bytes] = []
    async with asyncio.timeout(TIMEOUT):
        # Behind the old one there is always one that is too new to have expired.
        while not offered or offered[-1] == b"old":
            await writer.post(b"new")
            reader = await other.open_queue(uri, read=True)
            (message,) = await take(reader, 1)
            offered.append(message.data)
            await reader.close()
    assert offered[0] == b"old"
    assert offered[-1] == b"new"
