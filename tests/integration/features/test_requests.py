# SPDX-License-Identifier: Apache-2.0
"""Requests and replies: correlation, errors, deadlines, cancellation."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from dataclasses import dataclass
from typing import Annotated

import pytest

import bmq
from bmq.workers import Responder
from tests.integration.steps import Connect, HasUri, NewUri


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


class OutOfStock(bmq.RequestFailed, type="urn:shop:out-of-stock", title="Out of stock", retryable=True):
    """A problem of these tests, with a constructor of its own."""

    def __init__(self, article: str) -> None:
        super().__init__(f"no {article} left", properties={"Article": article})


async def test_a_responder_chooses_the_problem(bmq_broker: HasUri, queue: bmq.Queue) -> None:
    app = bmq.App(bmq_broker.uri)

    @app.responder(queue.uri)
    async def sell(message: bmq.Message) -> bytes:
        if message.data == b"tea":
            raise OutOfStock("tea")
        raise bmq.RequestFailed("closed", type="https://shop.example/closed", title="Closed", retryable=True)

    async with app:
        with pytest.raises(OutOfStock) as out:
            await queue.request(b"tea", timeout=30)
        with pytest.raises(bmq.RequestFailed) as closed:
            await queue.request(b"cup", timeout=30)
    error: bmq.RequestFailed = out.value
    assert (error.type, error.title) == ("urn:shop:out-of-stock", "Out of stock")
    assert error.detail == "no tea left"
    assert (error.retryable, error.properties, error.queue_uri) == (True, {"Article": "tea"}, queue.uri)
    assert str(error) == f"request {error.guid} to {queue.uri} has failed: {error.type}: no tea left"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.properties) == (OutOfStock, str(error), error.properties)
    error = closed.value
    assert type(error) is bmq.RequestFailed
    assert (error.type, error.title, error.detail) == ("https://shop.example/closed", "Closed", "closed")
    assert error.retryable


async def test_a_failure_is_a_problem_that_other_languages_can_read(
    bmq_broker: HasUri, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri, queue: bmq.Queue
) -> None:
    app = bmq.App(bmq_broker.uri)
    replies = await bmq_session.open_queue(bmq_new_queue_uri(), read=True)

    @app.responder(queue.uri)
    async def fail(message: bmq.Message) -> None:
        if message.data == b"full":
            raise bmq.BufferFull("later")
        raise OutOfStock("tea")

    async with app:
        for payload in (b"tea", b"full"):
            await queue.post(payload, properties={"bmq_reply_to": replies.uri})
        problem, full = [await replies.receive(timeout=30) for _ in range(2)]
    assert json.loads(problem.data) == {
        "type": "urn:shop:out-of-stock",
        "title": "Out of stock",
        "detail": "no tea left",
        "retryable": True,
    }
    assert problem.properties["bmq_content_type"] == "application/problem+json"
    assert problem.properties["bmq_error"] == "urn:shop:out-of-stock: no tea left"
    assert problem.properties["Article"] == "tea"
    assert json.loads(full.data) == {"type": "BufferFull", "detail": "later", "retryable": True}


@dataclass
class Article:
    number: Annotated[str, bmq.Property("Article")]


@dataclass
class Price:
    cents: int


async def test_a_typed_request_returns_the_value_of_the_reply(
    bmq_broker: HasUri, bmq_session: bmq.Session, queue: bmq.Queue
) -> None:
    app = bmq.App(bmq_broker.uri)

    @app.responder(queue.uri, expression='Article == "A1"')
    async def price(message: bmq.Message) -> bytes:
        article = json.loads(message.data)
        return b'{"cents": 999}' if article == {"number": "A1"} else b"no"

    @app.responder(queue.uri, expression='Article == "A2"')
    async def nonsense(message: bmq.Message) -> bytes:
        return b"{}"

    articles = queue.typed(Article)
    async with app:
        assert await articles.request(Article("A1"), reply=Price, timeout=30) == Price(999)
        assert (await articles.request(Article("A1"), timeout=30)).data == b'{"cents": 999}'
        assert await articles.request(Article("A1"), reply=dict, timeout=30) == {"cents": 999}
        with pytest.raises(bmq.Undecodable, match="not a value of Price"):
            await articles.request(Article("A2"), reply=Price, timeout=30)
    for reply in (bytes, object(), []):
        with pytest.raises(bmq.UsageError):
            await articles.request(Article("A1"), reply=reply)  # type: ignore[call-overload]
    with pytest.raises(bmq.InvalidPayload):
        await articles.request("A1", reply=Price)  # type: ignore[call-overload]


async def shelf() -> dict[str, int]:
    return {"A1": 999, "A2": 0}


async def test_a_responder_of_values_decodes_requests_and_encodes_replies(
    bmq_broker: HasUri, queue: bmq.Queue
) -> None:
    app = bmq.App(bmq_broker.uri)

    @app.responder(queue.uri, codec="application/msgpack")
    async def price(
        article: Article, prices: Annotated[dict[str, int], bmq.Depends(shelf)], message: bmq.Message
    ) -> Price | None:
        assert message.properties["Article"] == article.number
        return Price(prices[article.number]) if prices[article.number] else None

    articles = queue.typed(Article)
    async with app:
        assert await articles.request(Article("A1"), reply=Price, timeout=30) == Price(999)
        reply = await articles.request(Article("A1"), timeout=30)
        assert reply.properties["bmq_content_type"] == "application/msgpack"
        assert (await articles.request(Article("A2"), timeout=30)).data == b"\0"
        with pytest.raises(bmq.Undecodable):
            await articles.request(Article("A2"), reply=Price, timeout=30)
        with pytest.raises(bmq.RequestFailed) as unknown:
            await articles.request(Article("A3"), reply=Price, timeout=30)
        with pytest.raises(bmq.RequestFailed) as undecodable:
            await queue.request(b"no value", timeout=30)
    assert (unknown.value.type, unknown.value.detail) == ("KeyError", "'A3'")
    assert undecodable.value.type == "Undecodable"
    assert undecodable.value.detail.startswith("not a value of Article (application/msgpack, by default)")


async def test_middlewares_surround_a_responder_without_its_cancellations(
    bmq_broker: HasUri, queue: bmq.Queue
) -> None:
    seen: list[object] = []

    async def note(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> object:
        seen.append(attempt.value)
        return await call_next()

    app = bmq.App(bmq_broker.uri, middlewares=[note])
    running = Endless()

    @app.responder(queue.uri, middlewares=[note])
    async def price(article: Article) -> None:
        await running.run()

    async with app:
        request = asyncio.create_task(queue.typed(Article).request(Article("A1"), timeout=300))
        await asyncio.wait_for(running.began.wait(), 20)
        request.cancel()
        await asyncio.wait_for(running.ended.wait(), 20)
    assert seen == [Article("A1"), Article("A1")]


async def test_a_responder_of_values_works_without_an_app(
    bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    async def price(article: Article) -> Price:
        return Price(len(article.number))

    reader = await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)
    working = asyncio.create_task(bmq.consume(reader, Responder(price)))
    assert await reader.typed(Article).request(Article("A1"), reply=Price, timeout=30) == Price(2)
    working.cancel()
    await asyncio.wait([working])
    with pytest.raises(bmq.UsageError, match="a responder has a codec of its own"):
        await bmq.consume(reader, Responder(price), codec="application/json")


class Endless:
    """Work without an end, and what has become of it."""

    def __init__(self) -> None:
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


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
    running, outer_ended = Endless(), asyncio.Event()

    @app.responder(queue.uri)
    async def outer(message: bmq.Message) -> None:
        try:
            await (await app.queue(inner)).request(b"inner", timeout=1000)
        finally:
            outer_ended.set()

    @app.responder(inner)
    async def never(message: bmq.Message) -> None:
        deadline = message.properties["bmq_deadline"]
        assert isinstance(deadline, int)
        assert deadline / 1000 < time.time() + 2
        await running.run()

    async with app:
        with pytest.raises(bmq.TimedOut):
            await queue.request(b"x", timeout=1.5)
        await asyncio.wait_for(running.ended.wait(), 20)
        await asyncio.wait_for(outer_ended.wait(), 20)


async def test_a_cancellation_reaches_the_running_responder(bmq_broker: HasUri, queue: bmq.Queue) -> None:
    app = bmq.App(bmq_broker.uri)
    running = Endless()

    @app.responder(queue.uri)
    async def handle(message: bmq.Message) -> None:
        if message.data == b"long":
            await running.run()

    async with app:
        request = asyncio.create_task(queue.request(b"long", timeout=300))
        await asyncio.wait_for(running.began.wait(), 20)
        request.cancel()
        await asyncio.wait_for(running.ended.wait(), 20)
        await queue.request(b"next", timeout=30)


async def test_request_cancelled_before_delivery_is_not_handled(
    bmq_broker: HasUri, bmq_session: bmq.Session, queue: bmq.Queue
) -> None:
    async def handle(message: bmq.Message) -> None: ...

    responder = Responder(handle)
    reader = await bmq_session.open_queue(queue.uri, read=True)
    request = asyncio.create_task(queue.request(b"x", timeout=300))
    taken = await reader.receive(timeout=20)
    request.cancel()
    cancelled = await reader.receive(timeout=20)
    assert cancelled.properties["bmq_cancel"] == taken.guid
    called: list[bmq.Message] = []
    for message in (cancelled, taken):

        async def call(message: bmq.Message = message) -> None:
            called.append(message)

        await responder._handle(bmq.Attempt([message]), call)
    assert called == []


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


def test_two_classes_cannot_have_the_same_type_of_problem() -> None:
    with pytest.raises(bmq.UsageError, match=r"SoldOut and .*\.OutOfStock both have the type urn:shop"):
        type("SoldOut", (bmq.RequestFailed,), {}, type="urn:shop:out-of-stock")
    for text in ("", "out of stock", "a\n"):
        with pytest.raises(bmq.UsageError, match="type must be a URI reference"):
            bmq.RequestFailed("x", type=text)


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
