# SPDX-License-Identifier: Apache-2.0
"""Workers, lanes, batches, sweepers and durable retries: unusable messages do not stop later messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import bmq
from bmq.workers import Sweeper
from bmq.workers._retry import attempts_so_far
from tests.poison.poisons import POISONS, Poisonous, flood
from tests.waiting import eventually

NewUri = Callable[..., str]
CONSUMERS = ["plain", "thread", "four", "lanes", "batches", "durable"]
GOOD = b'{"amount": 1}'


@dataclass
class Order:
    amount: int


@asynccontextmanager
async def consuming(
    address: str, uri: str, kind: str, letters: str | None = None, **options: Any
) -> AsyncIterator[tuple[bmq.App, asyncio.Queue[Order]]]:
    """An app with one handler of orders; with dead letters, or the default policy."""
    app = bmq.App(address, grace=1)
    handled: asyncio.Queue[Order] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    how: dict[str, Any] = {"max_unconfirmed_messages": 20, **options}
    if kind == "four":
        how["concurrency"] = 4
    if kind == "lanes":
        how |= {"key": "customer", "concurrency": 4}
    if letters is not None or kind == "durable":
        then: Any = "skip" if letters is None else bmq.DeadLetter(letters)
        how["retry"] = bmq.Backoff(1000, then=then, durable=kind == "durable", no_retry=())
    if kind == "batches":

        @app.batch_consumer(uri, max_messages=10, max_wait=0.01, **how)
        async def batch(orders: list[Order]) -> None:
            for order in orders:
                handled.put_nowait(order)

    elif kind == "thread":

        @app.consumer(uri, **how)
        def threaded(order: Order) -> None:
            loop.call_soon_threadsafe(handled.put_nowait, order)

    else:

        @app.consumer(uri, **how)
        async def handle(order: Order) -> None:
            handled.put_nowait(order)

    async with app:
        yield app, handled


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", CONSUMERS)
async def test_ten_times_the_window_of_each_poison(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_queue_uri: str, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, write=True)
    async with consuming(bmq_broker.uri, bmq_queue_uri, kind) as (app, handled):
        for name in POISONS:
            await flood(queue, [POISONS[name]] * 200)
            await queue.post(GOOD, properties={"customer": name})
            assert await asyncio.wait_for(handled.get(), 10) == Order(1), name
        count = 200 * len(POISONS)
        await eventually(lambda: app.status()[0].left == count)
        await eventually(lambda: app.status()[0].unconfirmed == count)
    assert len(lines(caplog)) == 4, (
        "what cannot be read, and decoded; the number of those left, and at the end"
    )


@pytest.mark.parametrize("kind", ["plain", "lanes", "batches"])
async def test_ten_thousand_in_front_of_one_good_message(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_queue_uri: str, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, write=True)
    await flood(queue, [POISONS["no zlib"]] * 10_000)
    await queue.post(GOOD)
    async with consuming(bmq_broker.uri, bmq_queue_uri, kind, max_unconfirmed_messages=1000) as (_, handled):
        assert await asyncio.wait_for(handled.get(), 40) == Order(1)
    assert len(lines(caplog)) == 3


@pytest.mark.parametrize("kind", CONSUMERS)
async def test_unusable_messages_become_dead_letters(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_queue_uri: str, bmq_new_queue_uri: NewUri, kind: str
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, write=True)
    letters = await bmq_session.open_queue(bmq_new_queue_uri(), read=True)
    async with consuming(bmq_broker.uri, bmq_queue_uri, kind, letters.uri) as (_, handled):
        await flood(queue, POISONS.values())
        await queue.post(GOOD)
        assert await asyncio.wait_for(handled.get(), 10) == Order(1)
        found = [await letters.receive(timeout=10) for _ in POISONS]
    for letter in found:
        error = str(letter.properties["bmq_dead_error"])
        assert error.startswith(("ProtocolError", "Undecodable"))
        assert len(error) <= 1000


class Bad(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def test_exception_without_a_text_stops_no_worker(bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=False)
    done = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        if message.data == b"bad":
            raise Bad
        done.set()

    await queue.post_many([b"bad", b"good"])
    task = asyncio.create_task(bmq.consume(queue, handle, retry=bmq.Backoff(0, retries=1)))
    await asyncio.wait_for(done.wait(), 10)
    task.cancel()
    await asyncio.wait([task])


async def test_an_error_of_a_handler_is_logged_with_its_place_and_one_traceback(
    bmq_session: bmq.Session, bmq_queue_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=False)
    done = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        if message.data == b"end":
            done.set()
        else:
            raise KeyError(message.data.decode() + "\n" * 5 + "x" * 5000)

    await queue.post_many([b"one", b"two", b"three", b"end"])
    task = asyncio.create_task(bmq.consume(queue, handle, retry=bmq.NoRetry("discard")))
    await asyncio.wait_for(done.wait(), 10)
    task.cancel()
    await asyncio.wait([task])
    assert [bool(each.exc_info) for each in caplog.records] == [True, False, False]
    for each in caplog.records:
        assert "\n" not in each.getMessage()
        assert len(each.getMessage()) < 700
        assert "(test_workers.py:" in each.getMessage()


async def test_the_line_of_a_rejected_value_is_without_the_value(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_queue_uri: str, bmq_new_queue_uri: NewUri
) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Item(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        qty: int = pydantic.Field(ge=0)
        name: str

    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
    await queue.post(b'{"qty": -1, "name": ["a secret"], "more": 1}')
    message = await queue.receive(timeout=10)
    with pytest.raises(bmq.Undecodable) as caught:
        bmq.TypedMessage(message, bmq.codecs.Shape(Item)).value  # noqa: B018
    text = str(caught.value)
    assert "secret" not in text
    assert "-1" not in text
    assert "qty: Input should be greater than or equal to 0; name: Input should be a valid string" in text


@pytest.mark.parametrize("name", ["numbers out of range", "numbers that are texts"])
async def test_attempts_set_by_a_producer_are_ignored(
    bmq_session: bmq.Session, bmq_queue_uri: str, bmq_new_queue_uri: NewUri, name: str
) -> None:
    """The handler has all its attempts."""
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=False)
    letters = await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)
    mover = asyncio.create_task(
        bmq.delays.Mover(
            await bmq_session.open_queue(f"{bmq_queue_uri}.delayed", read=True, default_subscription=False)
        ).run()
    )
    attempts = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal attempts
        attempts += 1
        raise OSError("an outage")

    await flood(queue, [POISONS[name]])
    policy = bmq.Backoff(0, retries=2, durable=True, then=bmq.DeadLetter(letters))
    task = asyncio.create_task(bmq.consume(queue, handle, retry=policy))
    letter = await letters.receive(timeout=10)
    task.cancel()
    mover.cancel()
    await asyncio.wait([task, mover])
    assert attempts == 3
    assert letter.properties["bmq_dead_attempts"] == 3


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, 0),
        ({"bmq_attempts": 2}, 0),
        ({"bmq_attempts": 2, "bmq_error": "E: x"}, 0),
        ({"bmq_attempts": 2, "bmq_error": "E: x", "bmq_origin": "no GUID"}, 0),
        ({"bmq_attempts": 2, "bmq_error": "E: x", "bmq_origin": "A" * 32}, 2),
        ({"bmq_attempts": 2_000_000_000, "bmq_error": "E: x", "bmq_origin": "A" * 32}, 5),
        ({"bmq_attempts": -1, "bmq_error": "E: x", "bmq_origin": "A" * 32}, 0),
    ],
)
async def test_attempts_of_a_message_are_trusted_up_to_the_limit(
    bmq_session: bmq.Session, bmq_queue_uri: str, properties: dict[str, Any], expected: int
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
    await queue.post(b"x", properties=properties)
    message = await queue.receive(timeout=10)
    assert attempts_so_far(message, bmq.Backoff(1, retries=5, durable=True)) == expected


async def test_an_invalid_origin_does_not_prevent_a_dead_letter(
    bmq_session: bmq.Session, bmq_queue_uri: str, bmq_new_queue_uri: NewUri
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=False)
    letters = await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)

    async def handle(message: bmq.Message) -> None:
        raise bmq.Reject("no")

    ack = await queue.post(b"x", properties={"bmq_origin": "\udcff"})
    policy = bmq.NoRetry(bmq.DeadLetter(letters))
    task = asyncio.create_task(bmq.consume(queue, handle, retry=policy))
    letter = await letters.receive(timeout=10)
    assert letter.properties["bmq_dead_guid"] == ack.guid
    task.cancel()
    await asyncio.wait([task])


async def test_full_queue_for_dead_letters_blocks_and_is_named_by_the_status(
    bmq_session: bmq.Session, bmq_queue_uri: str, bmq_new_queue_uri: NewUri
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=False)
    letters = await bmq_session.open_queue(
        bmq_new_queue_uri("bmq.test.small.priority"), read=True, write=True
    )
    full = (await letters.post_many([b"full"] * 20)).acknowledged

    async def handle(message: bmq.Message) -> None:
        raise bmq.Reject("no")

    await queue.post_many([b"x"] * 4)
    consumer = queue.subscribe()
    policy = bmq.NoRetry(bmq.DeadLetter(letters))
    task = asyncio.create_task(bmq.consume(consumer, handle, retry=policy, concurrency=2))

    def state() -> bmq.workers.SubscriberState:
        return bmq.workers.status(consumer)[0].state

    await eventually(lambda: state() is bmq.workers.SubscriberState.BLOCKED)
    for _ in range(full):
        (await letters.receive(timeout=10)).confirm()
    for _ in range(4):
        (await letters.receive(timeout=10)).confirm()
    await eventually(lambda: state() is not bmq.workers.SubscriberState.BLOCKED)
    task.cancel()
    await asyncio.wait([task])


async def test_a_sweeper_puts_each_poison_aside(
    bmq_session: bmq.Session, bmq_connect: Any, bmq_queue_uri: str, bmq_new_queue_uri: NewUri
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, write=True)
    letters = await bmq_session.open_queue(bmq_new_queue_uri(), read=True)
    await flood(queue, [*list(POISONS.values()) * 10, Poisonous(b"good")])
    sweeper = Sweeper(queue.uri, put_aside=letters.uri, max_unconfirmed_messages=20, by="n")
    sweeping = asyncio.create_task(sweeper.run(await bmq_connect()))
    found = [await letters.receive(timeout=10) for _ in range(10 * len(POISONS) + 1)]
    assert found[-1].data == b"good"
    await eventually(lambda: sweeper.stats().put_aside == len(found))
    assert sweeper.stats().failed == 0
    sweeping.cancel()
    await asyncio.wait([sweeping])
