# SPDX-License-Identifier: Apache-2.0
"""Requests: bad requests, results and replies stop no other request, and cause no timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bmq
from bmq.workers import Responder
from tests.poison.poisons import POISONS, flood

NewUri = Callable[..., str]


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, write=True)


@asynccontextmanager
async def responding(address: str, uri: str, function: Any, **options: Any) -> AsyncIterator[bmq.App]:
    app = bmq.App(address, grace=1)
    app.responder(uri, max_unconfirmed_messages=20, **options)(function)
    async with app:
        yield app


async def echo(message: bmq.Message) -> bytes:
    return message.data


async def cancelled_inside() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


def cancelled() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    future.result()


def problem() -> None:
    raise bmq.RequestFailed("x", properties={"": 1})


async def _generator() -> Any:
    yield b"one"


class NoMapping:
    def __bool__(self) -> bool:
        return True


RESULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: b"", "InvalidPayload"),
    "a message of nothing": (lambda: bmq.PutMessage(b""), "InvalidPayload"),
    "a str": (lambda: "text", "TypeError"),
    "a dict": (lambda: {"a": 1}, "TypeError"),
    "an int": (lambda: 7, "TypeError"),
    "a list": (lambda: [b"a"], "TypeError"),
    "a generator": (lambda: (each for each in ()), "TypeError"),
    "an async generator": (_generator, "TypeError"),
    "a coroutine": (cancelled_inside, "TypeError"),
    "a cancellation": (cancelled, "CancelledError"),
    "a problem with a bad name": (problem, "InvalidProperty"),
    "65 MiB": (lambda: bytes(65 * 2**20), "InvalidPayload"),
    "a message of text": (lambda: bmq.PutMessage("text"), "InvalidPayload"),  # type: ignore[arg-type]
    "a bad property": (lambda: bmq.PutMessage(b"x", {"a": 1.5}), "InvalidProperty"),  # type: ignore[dict-item]
    "a bad name": (lambda: bmq.PutMessage(b"x", {"": 1}), "InvalidProperty"),
    "no mapping": (lambda: bmq.PutMessage(b"x", NoMapping()), "TypeError"),  # type: ignore[arg-type]
    "too many properties": (
        lambda: bmq.PutMessage(b"x", {f"p{n}": n for n in range(255)}),
        "InvalidProperty",
    ),
}


@pytest.mark.parametrize("name", RESULTS)
async def test_a_result_that_cannot_be_posted_is_an_error_of_the_responder(
    bmq_broker: Any, queue: bmq.Queue, name: str
) -> None:
    make, kind = RESULTS[name]

    async def bad(message: bmq.Message) -> Any:
        return make()

    async with responding(bmq_broker.uri, queue.uri, bad):
        with pytest.raises(bmq.RequestFailed) as caught:
            await queue.request(b"x", timeout=60)
    assert caught.value.type == kind


async def test_replies_go_to_queues_that_are_allowed(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri, queue: bmq.Queue
) -> None:
    payments = await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)
    handled: list[bytes] = []

    async def handle(message: bmq.Message) -> bytes:
        handled.append(message.data)
        return message.data

    allow = queue.uri.rpartition("/")[0] + "/replies.*"
    async with responding(bmq_broker.uri, queue.uri, handle, allow=allow):
        await queue.post(b"pay mallory", properties={"bmq_reply_to": payments.uri})
        assert (await queue.request(b"good", timeout=20)).data == b"good"
    await payments.post(b"end")
    assert (await payments.receive(timeout=10)).data == b"end"
    assert handled == [b"good"]


async def test_a_responder_with_dead_letters_puts_bad_requests_there(
    bmq_session: bmq.Session, bmq_new_queue_uri: NewUri, queue: bmq.Queue
) -> None:
    letters = await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)
    reader = await bmq_session.open_queue(
        bmq_new_queue_uri(), read=True, write=True, default_subscription=False
    )
    await flood(reader, [POISONS["a destination that is a number"]])
    retry = bmq.NoRetry(bmq.DeadLetter(letters))
    task = asyncio.create_task(bmq.consume(reader, Responder(echo), retry=retry))
    letter = await letters.receive(timeout=10)
    assert "bmq_reply_to must be a STRING, not 7" in str(letter.properties["bmq_dead_error"])
    task.cancel()
    await asyncio.wait([task])


async def failure_of_a_foreign_responder(
    other: bmq.Session, queue: bmq.Queue, payload: bytes, **properties: str
) -> bmq.RequestFailed:
    reader = await other.open_queue(queue.uri, read=True)
    asking = asyncio.create_task(queue.request(b"x", timeout=30))
    request = await reader.receive(timeout=10)
    replies = await other.open_queue(str(request.properties["bmq_reply_to"]), write=True)
    await replies.post(payload, properties={"bmq_request": request.guid, **properties})
    with pytest.raises(bmq.RequestFailed) as caught:
        await asking
    return caught.value


async def test_an_error_of_a_foreign_responder_is_truncated(bmq_connect: Any, queue: bmq.Queue) -> None:
    text = "E: " + "x" * 100_000
    failure = await failure_of_a_foreign_responder(await bmq_connect(), queue, b"x", bmq_error=text)
    assert failure.type == "E"
    assert len(failure.detail) <= 1000


@pytest.mark.parametrize(
    "payload",
    [b"no JSON", b"[]", b"7", b'{"type": 7, "title": [], "detail": {}, "retryable": "yes"}', b"{" * 10_000],
)
async def test_a_malformed_problem_of_a_foreign_responder_falls_back_to_the_property(
    bmq_connect: Any, queue: bmq.Queue, payload: bytes
) -> None:
    kind = {"bmq_error": "OutOfStock: none left", "bmq_content_type": "application/problem+json"}
    failure = await failure_of_a_foreign_responder(await bmq_connect(), queue, payload, **kind)
    assert (failure.type, failure.title, failure.detail) == ("OutOfStock", "", "none left")
    assert not failure.retryable


async def test_the_members_of_a_huge_problem_are_bounded(bmq_broker: Any, queue: bmq.Queue) -> None:
    async def bad(message: bmq.Message) -> None:
        raise bmq.RequestFailed("\ud800" + "d" * 100_000, title="t" * 100_000)

    async with responding(bmq_broker.uri, queue.uri, bad):
        with pytest.raises(bmq.RequestFailed) as caught:
            await queue.request(b"x", timeout=60)
    assert caught.value.title == "t" * 1000
    assert caught.value.detail == "?" + "d" * 999
    assert len(str(caught.value)) < 2000
