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
from tests.poison.poisons import POISONS, beside, flood

NewUri = Callable[..., str]


@asynccontextmanager
async def responding(address: str, uri: str, function: Any, **options: Any) -> AsyncIterator[bmq.App]:
    app = bmq.App(address, grace=1)
    app.responder(uri, max_unconfirmed_messages=20, **options)(function)
    async with app:
        yield app


def gone() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    return future


def problem() -> None:
    raise bmq.RequestFailed("x", properties={"": 1})


async def _generator() -> Any:
    yield b"one"


RESULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: b"", "InvalidPayload"),
    "a message of nothing": (lambda: bmq.PutMessage(b""), "InvalidPayload"),
    "a str": (lambda: "text", "TypeError"),
    "a generator": (lambda: (each for each in ()), "TypeError"),
    "an async generator": (_generator, "TypeError"),
    "a future": (gone, "TypeError"),
    "a cancellation": (lambda: gone().result(), "CancelledError"),
    "a problem with a bad name": (problem, "InvalidProperty"),
    "65 MiB": (lambda: bytes(65 * 2**20), "InvalidPayload"),
    "a message of text": (lambda: bmq.PutMessage("text"), "InvalidPayload"),  # type: ignore[arg-type]
    "a bad property": (lambda: bmq.PutMessage(b"x", {"a": 1.5}), "InvalidProperty"),  # type: ignore[dict-item]
    "no mapping": (lambda: bmq.PutMessage(b"x", object()), "TypeError"),  # type: ignore[arg-type]
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
    letters: bmq.Queue, queue: bmq.Queue
) -> None:
    async def echo(message: bmq.Message) -> bytes:
        return message.data

    await flood(queue, [POISONS["a destination that is a number"]])
    async with beside(bmq.consume(queue, Responder(echo), retry=bmq.NoRetry(bmq.DeadLetter(letters)))):
        letter = await letters.receive(timeout=10)
    assert "bmq_reply_to must be a STRING, not 7" in str(letter.properties["bmq_dead_error"])


PROBLEM = {"bmq_error": "OutOfStock: none left", "bmq_content_type": "application/problem+json"}
MISTYPED = b'{"type": 7, "title": [], "detail": {}, "retryable": "yes"}'


@pytest.mark.parametrize(
    ("payload", "properties", "detail"),
    [
        *((payload, PROBLEM, "none left") for payload in (b"no JSON", b"[]", b"7", MISTYPED, b"{" * 10_000)),
        (b"x", {"bmq_error": "OutOfStock: " + "x" * 100_000}, "x" * 900),
    ],
)
async def test_an_odd_error_of_a_foreign_responder_is_read_as_far_as_possible(
    bmq_connect: Any, queue: bmq.Queue, payload: bytes, properties: dict[str, str], detail: str
) -> None:
    other = await bmq_connect()
    reader = await other.open_queue(queue.uri, read=True)
    asking = asyncio.create_task(queue.request(b"x", timeout=30))
    request = await reader.receive(timeout=10)
    replies = await other.open_queue(str(request.properties["bmq_reply_to"]), write=True)
    await replies.post(payload, properties={"bmq_request": request.guid, **properties})
    with pytest.raises(bmq.RequestFailed) as caught:
        await asking
    failure = caught.value
    assert (failure.type, failure.title, failure.retryable) == ("OutOfStock", "", False)
    assert failure.detail[:900] == detail
    assert len(failure.detail) <= 1000


async def test_the_members_of_a_huge_problem_are_bounded(bmq_broker: Any, queue: bmq.Queue) -> None:
    async def bad(message: bmq.Message) -> None:
        raise bmq.RequestFailed("\ud800" + "d" * 100_000, title="t" * 100_000)

    async with responding(bmq_broker.uri, queue.uri, bad):
        with pytest.raises(bmq.RequestFailed) as caught:
            await queue.request(b"x", timeout=60)
    assert caught.value.title == "t" * 1000
    assert caught.value.detail == "?" + "d" * 999
    assert len(str(caught.value)) < 2000
