# SPDX-License-Identifier: Apache-2.0
"""Requests and replies: correlation, errors, deadlines, cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

import bmq
from bmq.workers import Responder
from tests.conformance.conftest import HasUri

Connect = Callable[..., Awaitable[bmq.Session]]
NewUri = Callable[..., str]


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, write=True)


async def test_each_of_many_requests_gets_its_own_reply(bmq_broker: HasUri, queue: bmq.Queue) -> None:
    app = bmq.App(bmq_broker.uri)

    @app.responder(queue.uri, concurrency=20)
    async def double(message: bmq.Message) -> bmq.PutMessage:
        number = int(message.data)
        await asyncio.sleep((number * 7 % 5) / 100)
        return bmq.PutMessage(b"%d" % (2 * number), {"from": number})

    async with app:
        replies = await asyncio.gather(*(queue.request(b"%d" % n, timeout=30) for n in range(100)))
    assert [reply.data for reply in replies] == [b"%d" % (2 * n) for n in range(100)]
    assert [reply.properties["from"] for reply in replies] == list(range(100))


async def test_requesters_may_share_a_reply_queue(
    bmq_broker: HasUri, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    uri, replies = bmq_new_queue_uri(), bmq_new_queue_uri()
    app = bmq.App(bmq_broker.uri)

    @app.responder(uri, expression='kind == "echo"')
    async def echo(message: bmq.Message) -> bytes:
        return message.data

    queues = [await (await bmq_connect()).open_queue(uri, write=True) for _ in range(3)]
    async with app:
        found = await asyncio.gather(
            *(
                queue.request(b"%d" % n, properties={"kind": "echo"}, reply_to=replies, timeout=30)
                for n, queue in enumerate(queues * 5)
            )
        )
    assert [reply.data for reply in found] == [b"%d" % n for n in range(15)]
    assert {reply.queue_uri for reply in found} == {replies}


async def test_an_error_of_the_responder_reaches_the_requester(bmq_broker: HasUri, queue: bmq.Queue) -> None:
    app = bmq.App(bmq_broker.uri)

    @app.responder(queue.uri)
    async def fail(message: bmq.Message) -> None:
        if message.data == b"bad":
            raise ValueError("no: such")

    async with app:
        with pytest.raises(bmq.ResponderError, match="ValueError: no: such") as caught:
            await queue.request(b"bad", timeout=30)
        assert (caught.value.kind, caught.value.reason) == ("ValueError", "no: such")
        assert (await queue.request(b"good", timeout=30)).properties["bmq_request"] != caught.value.guid


async def test_a_request_without_a_responder_times_out(queue: bmq.Queue) -> None:
    before = time.monotonic()
    with pytest.raises(bmq.TimedOut, match="was not answered"):
        await queue.request(b"x", timeout=0.3)
    assert time.monotonic() - before >= 0.3
    with pytest.raises(bmq.UsageError):
        await queue.request(b"x", timeout=0)


async def test_request_after_its_deadline_is_not_handled(bmq_broker: HasUri, queue: bmq.Queue) -> None:
    app = bmq.App(bmq_broker.uri)
    seen: list[bytes] = []

    @app.responder(queue.uri)
    async def handle(message: bmq.Message) -> None:
        seen.append(message.data)

    with pytest.raises(bmq.TimedOut):
        await queue.request(b"late", timeout=0.3)
    async with app:
        await queue.request(b"in time", timeout=30)
    assert seen == [b"in time"]


async def test_deadline_ends_the_responder_and_its_own_requests(
    bmq_broker: HasUri, queue: bmq.Queue, bmq_new_queue_uri: NewUri
) -> None:
    app = bmq.App(bmq_broker.uri)
    inner = bmq_new_queue_uri()
    ended: list[str] = []
    both = asyncio.Event()

    @app.responder(queue.uri)
    async def outer(message: bmq.Message) -> None:
        try:
            await (await app.queue(inner)).request(b"inner", timeout=1000)
        finally:
            ended.append("outer")

    @app.responder(inner)
    async def never(message: bmq.Message) -> None:
        deadline = message.properties["bmq_deadline"]
        assert isinstance(deadline, int)
        assert deadline / 1000 < time.time() + 2
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("inner")
            both.set()

    async with app:
        with pytest.raises(bmq.TimedOut):
            await queue.request(b"x", timeout=1.5)
        await asyncio.wait_for(both.wait(), 20)
    assert sorted(ended) == ["inner", "outer"]


async def test_a_cancellation_reaches_the_running_responder(bmq_broker: HasUri, queue: bmq.Queue) -> None:
    app = bmq.App(bmq_broker.uri)
    began, ended = asyncio.Event(), asyncio.Event()

    @app.responder(queue.uri)
    async def handle(message: bmq.Message) -> None:
        if message.data == b"long":
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    async with app:
        request = asyncio.create_task(queue.request(b"long", timeout=300))
        await asyncio.wait_for(began.wait(), 20)
        request.cancel()
        await asyncio.wait_for(ended.wait(), 20)
        await queue.request(b"next", timeout=30)


async def test_request_cancelled_before_delivery_is_not_handled(
    bmq_broker: HasUri, bmq_session: bmq.Session, queue: bmq.Queue
) -> None:
    seen: list[bytes] = []

    async def handle(message: bmq.Message) -> None:
        seen.append(message.data)

    responder = Responder(handle)
    reader = await bmq_session.open_queue(queue.uri, read=True)
    request = asyncio.create_task(queue.request(b"x", timeout=300))
    taken = await reader.receive(timeout=20)
    request.cancel()
    cancelled = await reader.receive(timeout=20)
    assert cancelled.properties["bmq_cancel"] == taken.guid
    await responder(cancelled)
    await responder(taken)
    assert seen == []


async def test_a_late_and_a_second_reply_are_dropped(
    bmq_broker: HasUri, bmq_connect: Connect, queue: bmq.Queue
) -> None:
    """By hand, as a service in another language would answer."""
    other = await bmq_connect()
    reader = await other.open_queue(queue.uri, read=True)
    with pytest.raises(bmq.TimedOut):
        await queue.request(b"first", timeout=0.3)
    first = await reader.receive(timeout=20)
    request = asyncio.create_task(queue.request(b"second", timeout=30))
    second = await reader.receive(timeout=20)
    to = await other.open_queue(str(second.properties["bmq_reply_to"]), write=True)
    assert to.uri == first.properties["bmq_reply_to"]
    await to.post(b"no reply at all")
    await to.post(b"late", properties={"bmq_request": first.guid})
    await to.post(b"good", properties={"bmq_request": second.guid})
    await to.post(b"double", properties={"bmq_request": second.guid})
    assert (await request).data == b"good"
    third = asyncio.create_task(queue.request(b"third", timeout=30))
    message = await reader.receive(timeout=20)
    await to.post(b"3", properties={"bmq_request": message.guid})
    assert (await third).data == b"3"


async def test_the_end_of_the_session_ends_requests(bmq_connect: Connect, bmq_queue_uri: str) -> None:
    session = await bmq_connect()
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
    request = asyncio.create_task(queue.request(b"x", timeout=300))
    await queue.receive(timeout=20)
    await session.close()
    with pytest.raises(bmq.SessionClosed):
        await asyncio.wait_for(request, 20)


def test_a_responder_must_be_async() -> None:
    with pytest.raises(bmq.UsageError, match="async def"):
        bmq.App().responder("bmq://d/q")(print)  # type: ignore[type-var]
