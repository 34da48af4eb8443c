# SPDX-License-Identifier: Apache-2.0
"""Handlers of values: their arguments, undecodable messages, and refused handlers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

import bmq
from tests.sweeps import sweep
from tests.workers.conftest import FakeClock
from tests.workers.stage import Stage, consuming


@dataclass
class Order:
    number: Annotated[int, bmq.Property]
    address: str = ""


@pytest.fixture
def seen() -> asyncio.Queue[Any]:
    return asyncio.Queue()


def saying(seen: asyncio.Queue[Any]) -> Any:
    """A handler of values."""

    async def handle(order: Order) -> None:
        seen.put_nowait(order)

    return handle


def never() -> None:
    raise AssertionError("no dependency is made")


async def post(stage: Stage, *numbers: int) -> None:
    await stage.queue.typed(Order).post_many(Order(number) for number in numbers)


# ---- what a handler is given


async def test_a_handler_receives_a_value_and_its_message(stage: Stage, seen: asyncio.Queue[Any]) -> None:
    async def handle(order: Order, message: bmq.Message) -> None:
        seen.put_nowait((order, message.properties["number"]))

    await post(stage, 0, 1)
    async with stage.consuming(handle, expression="number > 0"):
        assert await seen.get() == (Order(1), 1)


async def test_a_handler_uses_another_codec(stage: Stage, seen: asyncio.Queue[Any]) -> None:
    data, _ = bmq.codecs.Shape(Order, "application/msgpack").encode(Order(1))
    await stage.queue.post(data)  # says nothing
    async with stage.consuming(saying(seen), codec="application/msgpack"):
        assert await seen.get() == Order(1)


# ---- what has no value


async def test_undecodable_message_becomes_a_dead_letter_without_a_retry(
    stage: Stage, session: bmq.Session, seen: asyncio.Queue[Any], clock: FakeClock
) -> None:
    dead = await session.open_queue(stage.queue.uri + ".dead", read=True, write=True)
    await stage.queue.post(b"no JSON", properties={"x": 1})
    await post(stage, 1)
    policy = bmq.Backoff(every=5, retries=9, then=bmq.DeadLetter(dead))
    async with stage.consuming(saying(seen), retry=policy, clock=clock):
        assert await seen.get() == Order(1)
        letter = await dead.receive(timeout=10)
    assert clock.slept == []
    assert letter.data == b"no JSON"
    assert str(letter.properties["bmq_dead_error"]).startswith(
        "Undecodable: not a value of Order (application/json, by d"
    )
    assert letter.properties["bmq_dead_attempts"] == 1
    assert letter.properties["x"] == 1


@pytest.mark.parametrize(
    ("retry", "outcome", "left"),
    [(None, "skipped", [b"no JSON"]), (bmq.NoRetry("discard"), "discarded", [])],
    ids=["undecided", "discard"],
)
async def test_undecodable_message_without_dead_letters_is_left_and_logged(
    stage: Stage,
    seen: asyncio.Queue[Any],
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    retry: bmq.workers.RetryPolicy | None,
    outcome: str,
    left: list[bytes],
) -> None:
    await stage.post(b"no JSON")
    await post(stage, 1)
    async with consuming(stage.queue, saying(seen), retry=retry, clock=clock):
        assert await seen.get() == Order(1)
    assert clock.slept == []
    assert await stage.left() == left
    (line,) = [line for line in caplog.messages if "cannot use message" in line]
    assert f"attempt 1; {outcome}" in line
    assert "undecodable: not a value of Order (application/json, by default)" in line


@pytest.mark.parametrize("threaded", [False, True])
async def test_undecodable_message_goes_to_its_handler(
    stage: Stage, seen: asyncio.Queue[Any], threaded: bool
) -> None:
    loop = asyncio.get_running_loop()

    async def handle(order: Order, made: Annotated[None, bmq.Depends(never)]) -> None:
        raise AssertionError("never called")

    async def undecodable(message: bmq.Message, error: bmq.Undecodable) -> None:
        seen.put_nowait((message.data, error.content_type))

    def handle_in_thread(order: Order) -> None:
        raise AssertionError("never called")

    def undecodable_in_thread(message: bmq.Message, error: bmq.Undecodable) -> None:
        loop.call_soon_threadsafe(seen.put_nowait, (message.data, error.content_type))

    await stage.queue.post(b"x", properties={"bmq_content_type": "image/png"})
    pair = (handle_in_thread, undecodable_in_thread) if threaded else (handle, undecodable)
    async with stage.consuming(pair[0], undecodable=pair[1]):
        assert await seen.get() == (b"x", "image/png")
    assert await stage.left() == [], "handled, so confirmed"


# ---- an app, and what it refuses before it starts


async def test_a_filter_of_a_consumer_is_checked_against_the_type(stage: Stage) -> None:
    async def handle(order: Order) -> None: ...

    with pytest.raises(bmq.InvalidExpression, match="compares an integer with a string"):
        await bmq.consume(stage.queue.subscribe('number == "1"'), handle)


def in_a_thread(order: Order) -> None: ...
async def of_messages(message: bmq.Message) -> None: ...
async def say(message: bmq.Message, error: bmq.Undecodable) -> None: ...


@sweep(
    "handler, options, why",
    [
        (in_a_thread, {"undecodable": say}, "in_a_thread and say must both run"),
        (of_messages, {"undecodable": say}, "of_messages takes messages"),
        (of_messages, {"codec": "application/msgpack"}, "of_messages takes messages"),
        (7, {}, "a handler must be a function that takes a message, .*, not 7"),
    ],
)
def test_options_that_do_not_fit_the_handler_are_refused(handler: Any, options: Any, why: str) -> None:
    with pytest.raises(bmq.UsageError, match=why):
        bmq.App().consumer("bmq://d.e/q", **options)(handler)
