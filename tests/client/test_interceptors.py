# SPDX-License-Identifier: Apache-2.0
"""Interceptors: their calls, their permitted changes, and their harmless failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bmq
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer
from tests.waiting import eventually


class Noting(bmq.Interceptor):
    def __init__(self, name: str = "", log: list[Any] | None = None) -> None:
        self.name = name
        self.log: list[Any] = [] if log is None else log

    def on_post(self, queue: bmq.Queue, posts: Sequence[bmq.interceptors.OutgoingMessage]) -> Any:
        self.log.append(("post", self.name, queue.uri, [post.data for post in posts]))
        return self.name, [post.guid for post in posts]

    def on_ack(self, context: Any, outcome: bmq.interceptors.PostOutcome) -> None:
        assert context[0] == self.name
        self.log.append(("ack", self.name, outcome))

    def on_receive(self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]) -> None:
        for message in messages:
            message.context[self] = message.data
        self.log.append(("receive", self.name, [message.data for message in messages]))

    def on_confirm(self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]) -> None:
        self.log.append(("confirm", self.name, [message.context[self] for message in messages]))

    def seen(self, what: str) -> list[Any]:
        return [entry[-1] for entry in self.log if entry[0] == what]


@asynccontextmanager
async def observed(
    peer: Peer, *interceptors: bmq.Interceptor, read: bool = False
) -> AsyncIterator[bmq.Queue]:
    async with bmq.connect(peer.uri, interceptors=interceptors) as session:
        yield await session.open_queue(URI, write=True, read=read, default_subscription=read)


async def test_interceptors_see_post_many_in_batches_and_failed_posts_in_outcomes(peer: Peer) -> None:
    noting = Noting()
    async with observed(peer, noting) as queue:
        assert (await queue.post_many([b"%d" % n for n in range(1200)])).acknowledged == 1200
        posts = noting.seen("post")
        assert [data for each in posts for data in each] == [b"%d" % n for n in range(1200)]
        assert len(posts) < 10
        assert [(each.posted, each.acknowledged) for each in noting.seen("ack")] == [
            (len(some), len(some)) for some in posts
        ]
        noting.log.clear()
        peer.hold.add("PUT")
        posting = asyncio.ensure_future(queue.post_many([b"1", b"2", b"3"]))
        puts = (await eventually(lambda: peer.connection.script.puts and peer.connection)).script.puts
        peer.connection.send(peer.connection.script.ack([puts.pop(1)], bmq.AckStatus.LIMIT_BYTES))
        await eventually(lambda: queue.unacked == 2)
        assert noting.seen("ack") == []  # it waits for all of them
        peer.answer("PUT")
        report = await posting
        (outcome,) = noting.seen("ack")
        assert (outcome.posted, outcome.acknowledged, outcome.error) == (3, 2, None)
        (failure,) = outcome.failures
        assert (failure.index, failure.error.status) == (1, bmq.AckStatus.LIMIT_BYTES)
        assert [each.index for each in report.failures] == [1]
        peer.status = bmq.AckStatus.NOT_READY
        with pytest.raises(bmq.PostError):
            await queue.post(b"4")
        outcome = noting.seen("ack")[-1]
        assert (outcome.posted, outcome.acknowledged) == (1, 0)
        assert outcome.failures[0].error.status is bmq.AckStatus.NOT_READY


async def test_interceptors_see_the_outcome_of_a_cancelled_post(peer: Peer) -> None:
    noting = Noting()
    async with observed(peer, noting) as queue:
        peer.hold.add("PUT")
        posting = asyncio.ensure_future(queue.post(b"1"))
        await eventually(lambda: peer.connection.script.puts)
        posting.cancel()
        await asyncio.wait([posting])
        assert not noting.seen("ack")
        peer.answer("PUT")
        await queue.flush()
        assert noting.seen("ack") == [bmq.interceptors.PostOutcome(queue, 1, 1)]


async def test_failed_posts_have_an_outcome(peer: Peer) -> None:
    noting = Noting()
    async with observed(peer, noting) as queue:
        for posting, posted, error in (
            (queue.post(b""), 0, bmq.InvalidPayload),
            (queue.post_many([b"1", b"2", b"", b"4"]), 2, bmq.InvalidPayload),
            (queue.post_many([b"3", "4"]), 1, type(None)),  # type: ignore[list-item]
        ):
            with pytest.raises(bmq.InvalidPayload):
                await posting
            await queue.flush()
            outcome = noting.seen("ack")[-1]
            assert (outcome.posted, outcome.acknowledged) == (posted, posted)
            assert type(outcome.error) is error
        assert peer.posted == [1, 2, 3]
        assert len(noting.seen("post")) == len(noting.seen("ack")) == 3
        await queue.close()
        with pytest.raises(bmq.QueueClosed):
            await queue.post(b"5")
        assert len(noting.seen("post")) == len(noting.seen("ack"))


async def test_an_interceptor_adds_properties(broker: bmq.broker.Broker) -> None:
    class Adding(bmq.Interceptor):
        def on_post(self, queue: bmq.Queue, posts: Sequence[bmq.interceptors.OutgoingMessage]) -> None:
            for post in posts:
                post.properties["trace"] = f"of {post.data.decode()}"

    mine: dict[str, Any] = {"a": 1}
    async with opened(broker, read=True, write=True, interceptors=[Adding()]) as (_, queue):
        await queue.post(b"1", properties=mine, tags=["new"])
        await queue.post(b"2")
        await queue.post_many([bmq.PutMessage(b"3", mine), b"4"])
        messages = [await queue.receive(timeout=30) for _ in range(4)]
        assert [message.properties["trace"] for message in messages] == ["of 1", "of 2", "of 3", "of 4"]
        assert messages[0].properties["a"] == messages[2].properties["a"] == 1
        assert messages[0].tags == {"new"}
        assert mine == {"a": 1}


async def test_interceptors_see_messages_when_taken_and_confirmed(peer: Peer) -> None:
    noting = Noting()
    async with observed(peer, noting, read=True) as queue:
        peer.connection.push(1, 2, 3, 4, 5)
        await eventually(lambda: queue.stats().buffered_messages == 5)
        assert not noting.log
        first = await queue.receive()
        assert noting.log == [("receive", "", [b"1"])]
        first.confirm()
        first.confirm()
        assert noting.seen("confirm") == [[b"1"]]
        batch = await queue.receive_many(3)
        assert noting.seen("receive") == [[b"1"], [b"2", b"3", b"4"]]
        batch[1].confirm()
        batch.confirm()
        batch.confirm()
        async for message in queue:
            async with message:
                break
        queue.confirm(message, first)
        assert noting.seen("receive")[2:] == [[b"5"]]
        assert noting.seen("confirm")[1:] == [[b"3"], [b"2", b"4"], [b"5"]]


class Broken(bmq.Interceptor):
    def on_post(self, queue: bmq.Queue, posts: Sequence[bmq.interceptors.OutgoingMessage]) -> Any:
        raise RuntimeError("on_post")

    def on_ack(self, context: Any, outcome: bmq.interceptors.PostOutcome) -> None:
        raise AssertionError("there is no context to call this with")

    def on_receive(self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]) -> None:
        raise asyncio.CancelledError

    def on_confirm(self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]) -> None:
        raise RuntimeError("on_confirm")


class BrokenAtTheEnd(bmq.Interceptor):
    def on_ack(self, context: Any, outcome: bmq.interceptors.PostOutcome) -> None:
        raise RuntimeError("on_ack")


async def test_a_failing_interceptor_is_logged_once(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    noting = Noting()
    async with observed(peer, Broken(), noting, BrokenAtTheEnd(), read=True) as queue:
        for number in (1, 3):
            await queue.post(b"1")
            assert (await queue.post_many([b"2"])).acknowledged == 1
            peer.connection.push(number, number + 1)
            (await queue.receive()).confirm()
            (await queue.receive_many()).confirm()
        assert queue.stats().confirmed == 4
    assert [entry[0] for entry in noting.log] == [
        *("post", "ack", "post", "ack"),
        *("receive", "confirm", "receive", "confirm"),
    ] * 2
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage().split(" failed in ")[1].split(";")[0] for record in errors] == [
        *("on_post", "on_ack", "on_receive", "on_confirm")
    ]
    assert all(record.name == "bmq.interceptors" and record.exc_info for record in errors)


async def test_installed_interceptors_are_in_every_later_session(peer: Peer) -> None:
    """The calls are in order before an operation, and in reverse order behind it."""
    log: list[Any] = []
    installed = Noting("installed", log)
    installed.install()
    installed.install()
    try:
        async with observed(peer, Noting("given", log), read=True) as queue:
            installed.uninstall()
            installed.uninstall()
            await queue.post(b"1")
            peer.connection.push(1)
            (await queue.receive()).confirm()
    finally:
        installed.uninstall()
    assert [entry[:2] for entry in log] == [
        (what, name)
        for what, reverse in (("post", False), ("ack", True), ("receive", False), ("confirm", True))
        for name in (("given", "installed") if reverse else ("installed", "given"))
    ]
    async with bmq.connect(peer.uri) as session:
        assert session.interceptors == ()


async def test_invalid_interceptors_are_refused(peer: Peer) -> None:
    class Async(bmq.Interceptor):
        async def on_receive(  # type: ignore[override]
            self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]
        ) -> None: ...

    with pytest.raises(bmq.UsageError, match=r"Async\.on_receive is async"):
        await bmq.connect(peer.uri, interceptors=[Async()])
    with pytest.raises(bmq.UsageError, match=r"subclass of bmq\.Interceptor, not <class"):
        await bmq.connect(peer.uri, interceptors=[Noting])  # type: ignore[list-item]
    assert not peer.connections
