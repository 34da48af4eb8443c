# SPDX-License-Identifier: Apache-2.0
"""Queues that messages name, of responders and of movers: they never stand in the way of the application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import bmq
from tests.poison.poisons import beside
from tests.waiting import eventually

DOMAIN = "bmq://bmq.test.mem.priority/"
AUDIT = DOMAIN + "audit"
#: Names a queue to the service, and waits until the service has posted there.
Named = Callable[[str], Awaitable[None]]


async def answer(message: bmq.Message) -> bytes:
    return b"answered"


@asynccontextmanager
async def service(kind: str, broker: str) -> AsyncGenerator[tuple[bmq.Session, Named]]:
    """A session with a service that posts where messages want it to, and a way to send such messages."""
    uri, name = (
        (DOMAIN + "in", "bmq_reply_to") if kind == "responder" else (AUDIT + ".delayed", "bmq_destination")
    )
    async with bmq.connect(broker) as session, bmq.connect(broker) as stranger:
        queue = await session.open_queue(uri, read=True, default_subscription=False)
        if kind == "responder":
            work = bmq.consume(queue, bmq.workers.Responder(answer))
        else:
            work = bmq.delays.Mover(queue).run()
        output = await stranger.open_queue(uri, write=True)

        async def named(destination: str) -> None:
            await output.post(b"x", properties={name: destination})
            async with await stranger.open_queue(destination, read=True) as reader:
                (await reader.receive(timeout=30)).confirm()

        async with beside(work):
            yield session, named


KINDS = pytest.mark.parametrize("kind", ["responder", "mover"])


@pytest.fixture(autouse=True)
def _few_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.workers._results._OPEN", 2)
    monkeypatch.setattr("bmq.delays._mover._MOST_OPEN", 2)


@KINDS
@pytest.mark.parametrize("first", ["the application", "a message"])
async def test_a_queue_of_the_application_stays_open(
    bmq_broker: bmq.broker.Broker, kind: str, first: str
) -> None:
    async with service(kind, bmq_broker.uri) as (session, named):
        if first == "the application":
            audit = await session.open_queue(AUDIT, write=True)
            await named(AUDIT)
        else:
            await named(AUDIT)
            audit = await session.open_output(AUDIT)
        for number in range(5):
            await named(f"{DOMAIN}replies.{number}")
        await audit.post(b"still mine")
        await eventually(lambda: len([queue for queue in session.queues if "replies" in queue.uri]) <= 2)


@KINDS
async def test_the_application_opens_a_queue_that_a_message_has_named(
    bmq_broker: bmq.broker.Broker, kind: str
) -> None:
    async with service(kind, bmq_broker.uri) as (session, named):
        await named(AUDIT)
        async with await session.open_queue(AUDIT, read=True, write=True) as audit:
            await audit.post(b"mine")
            (await audit.receive(timeout=30)).confirm()
            await audit.close()
        await named(AUDIT)


async def test_requests_of_two_queues_may_have_the_same_guid(bmq_broker: bmq.broker.Broker) -> None:
    guid = "4000000000001111AAAABBBBCCCCDDDD"
    both = asyncio.Event()
    waiting: list[bmq.Message] = []

    async def together(message: bmq.Message) -> bytes:
        waiting.append(message)
        if len(waiting) == 2:
            both.set()
        await both.wait()
        return message.data

    responder = bmq.workers.Responder(together)
    async with (
        bmq.connect(bmq_broker.uri) as session,
        bmq.connect(bmq_broker.uri) as requester,
        AsyncExitStack() as stack,
    ):
        replies = await requester.open_queue(DOMAIN + "replies.1", read=True)
        for name in "ab":
            queue = await session.open_queue(DOMAIN + name, read=True)
            await stack.enter_async_context(beside(bmq.consume(queue, responder)))
            output = await requester.open_queue(DOMAIN + name, write=True)
            await output.post(name.encode(), guid=guid, properties={"bmq_reply_to": replies.uri})
        got = {(await replies.receive(timeout=30)).data for _ in range(2)}
        assert got == {b"a", b"b"}


async def test_a_property_with_deep_json_is_no_obstacle_to_a_letter(bmq_session: bmq.Session) -> None:
    queue = await bmq_session.open_queue(DOMAIN + "dead", read=True, write=True)
    forged = {"bmq_dead_queue": AUDIT, "bmq_dead_properties": "[" * 30_000}
    await queue.post(b"x", properties=forged)
    uri, original = bmq.workers.original_of(await queue.receive(timeout=30))
    assert (uri, original.data, original.properties) == (AUDIT, b"x", None)
