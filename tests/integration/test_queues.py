# SPDX-License-Identifier: Apache-2.0
"""Opening, configuring and closing queues; refusals of the broker; redelivery after a consumer's end."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from tests.integration.steps import Connect, NewUri, is_quiet, left_in, payloads, take

FANOUT = "bmq.test.mem.fanout"


class TestOpen:
    @pytest.mark.statement("4.34")
    async def test_a_queue_is_opened_for_reading_only(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        reading = await bmq_session.open_queue(bmq_queue_uri, read=True)
        writing = await (await bmq_connect()).open_queue(bmq_queue_uri, write=True)
        await writing.post(b"x")
        assert await payloads(reading, 1) == [b"x"]

    async def test_many_queues_at_once(self, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri) -> None:
        uris = [bmq_new_queue_uri() for _ in range(50)]
        queues = await asyncio.gather(*[bmq_session.open_queue(uri, read=True, write=True) for uri in uris])
        await asyncio.gather(*[queue.post(queue.uri.encode()) for queue in queues])
        for queue in queues:
            assert await payloads(queue, 1) == [queue.uri.encode()]
        assert bmq_session.queues == queues

    async def test_an_unknown_domain_is_refused(self, bmq_session: bmq.Session) -> None:
        with pytest.raises(bmq.OpenQueueError, match=r"no\.such\.domain") as caught:
            await bmq_session.open_queue("bmq://no.such.domain/q", read=True)
        assert caught.value.category is bmq.errors.StatusCategory.E_UNKNOWN
        assert caught.value.code == -1
        assert not caught.value.retryable
        assert bmq_session.queues == []

    async def test_a_reader_of_a_fanout_queue_without_an_app_id(
        self, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
    ) -> None:
        with pytest.raises(bmq.OpenQueueError, match="requires an appId"):
            await bmq_session.open_queue(bmq_new_queue_uri(FANOUT), read=True)

    @pytest.mark.parametrize("domain", ["bmq.test.mem.priority", "bmq.test.mem.broadcast"])
    async def test_app_id_outside_of_fanout_is_refused(
        self, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri, domain: str
    ) -> None:
        with pytest.raises(bmq.OpenQueueError, match="AppId should not be specified"):
            await bmq_session.open_queue(f"{bmq_new_queue_uri(domain)}?id=foo", read=True)


class TestConfigure:
    async def test_a_limit_holds_messages_back(self, bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
        queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, max_unconfirmed_messages=2)
        for number in range(5):
            await queue.post(b"%d" % number)
        first, second = await take(queue, 2)
        assert await is_quiet(queue)
        first.confirm()
        second.confirm()
        assert await payloads(queue, 3) == [b"2", b"3", b"4"]

    @pytest.mark.statement("4.34")
    async def test_higher_limit_delivers_more_messages(
        self, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, max_unconfirmed_messages=1)
        for number in range(3):
            await queue.post(b"%d" % number)
        held = await take(queue, 1)
        assert await is_quiet(queue)
        await queue.configure(max_unconfirmed_messages=10)
        held += await take(queue, 2)
        assert [message.data for message in held] == [b"0", b"1", b"2"]

    async def test_higher_priority_receives_all_messages(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        low = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, priority=1)
        high = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True, priority=2)
        for number in range(10):
            await low.post(b"%d" % number)
        assert len(await payloads(high, 10)) == 10
        assert await is_quiet(low)
        await low.configure(priority=3)
        await low.post(b"now")
        assert await payloads(low, 1) == [b"now"]

    async def test_equal_priorities_share(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        one = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=True)
        session = await bmq_connect()
        two = await session.open_queue(bmq_queue_uri, read=True, default_subscription=True)
        for number in range(20):
            await one.post(b"%d" % number)
        found = await payloads(one, 10), await payloads(two, 10)
        assert sorted(map(int, found[0] + found[1])) == list(range(20))


class TestClose:
    @pytest.mark.statement("4.13")
    async def test_unread_messages_are_left_for_others(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
        for number in range(3):
            await queue.post(b"%d" % number)
        (first,) = await take(queue, 1)
        first.confirm()
        await queue.close()
        await queue.close()
        assert await left_in(bmq_connect, bmq_queue_uri) == [b"1", b"2"]

    async def test_posts_under_way_are_waited_for(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        queue = await bmq_session.open_queue(bmq_queue_uri, write=True)
        posts = [queue.post_nowait(b"%d" % number) for number in range(100)]
        await queue.close()
        assert all(post.done() and not post.exception() for post in posts)
        assert len(await left_in(bmq_connect, bmq_queue_uri)) == 100

    async def test_confirms_just_before_closing_count(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
        for number in range(100):
            queue.post_nowait(b"%d" % number)
        messages = await take(queue, 100)
        for message in messages:
            message.confirm()
        await queue.close()
        assert await left_in(bmq_connect, bmq_queue_uri) == []


class TestRedelivery:
    async def test_unconfirmed_messages_go_to_the_remaining_consumer(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        going = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, priority=2)
        staying = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True, priority=1)
        guids = [(await going.post(b"%d" % number)).guid for number in range(3)]
        await take(going, 3)
        await going.close()
        messages = await take(staying, 3)
        assert [message.guid for message in messages] == guids
        assert all(message.redelivered for message in messages)

    async def test_unconfirmed_messages_go_to_the_next_consumer_in_order(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
        for number in range(10):
            await queue.post(b"%d" % number)
        messages = await take(queue, 10)
        for message in messages[::2]:
            message.confirm()
        await queue.close()
        assert await left_in(bmq_connect, bmq_queue_uri) == [b"1", b"3", b"5", b"7", b"9"]
