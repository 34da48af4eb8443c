# SPDX-License-Identifier: Apache-2.0
"""Filters share a queue, and a filter disappears with messages: without a sweeper, the others starve.

A broker redelivers returned messages first, and no further message until a consumer has taken these.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import bmq
from bmq.workers import Sweeper
from tests.integration.steps import TIMEOUT, Connect, NewUri, is_quiet, left_in, payloads, take
from tests.waiting import eventually


class Filters:
    """A queue of messages with ``x`` 0 and 1, and a filter for each value."""

    def __init__(self, connect: Connect, uri: str) -> None:
        self.connect = connect
        self.uri = uri

    async def begin(self) -> None:
        self.writer = await (await self.connect()).open_queue(self.uri, write=True)
        self.zero = await self.filter("x == 0")
        self.one = await self.filter("x == 1")

    async def filter(self, text: str, **limits: Any) -> bmq.Consumer:
        session = await self.connect()
        queue = await session.open_queue(
            self.uri, read=True, subscriptions=[bmq.Subscription(text, **limits)], default_subscription=False
        )
        return queue.consumers[0]

    async def post(self, *xs: int) -> None:
        report = await self.writer.post_many([bmq.PutMessage(b"%d" % x, {"x": x}) for x in xs])
        report.raise_for_failures()

    async def lose_zero(self, count: int) -> None:
        """Close the filter of 0 with messages without another match."""
        await self.post(*[0] * count)
        await take(self.zero, count)
        await self.zero.queue.close()


@pytest.fixture
async def filters(bmq_connect: Connect, bmq_queue_uri: str) -> Filters:
    filters = Filters(bmq_connect, bmq_queue_uri)
    await filters.begin()
    return filters


@asynccontextmanager
async def sweeping(sweeper: Sweeper, session: bmq.Session) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(sweeper.run(session))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_unswept_messages_block_other_filters(filters: Filters) -> None:
    await filters.lose_zero(3)
    await filters.post(1, 1)
    assert await is_quiet(filters.one)


async def test_unclaimed_messages_are_held_and_returned(
    filters: Filters, caplog: pytest.LogCaptureFixture
) -> None:
    sweeper = Sweeper(filters.uri, hand_back_every=None)
    async with sweeping(sweeper, await filters.connect()):
        await filters.lose_zero(3)
        await filters.post(1, 0, 1)
        assert await payloads(filters.one, 2) == [b"1", b"1"]
        await eventually(lambda: sweeper.stats().held == 4)
        assert sweeper.stats().held_bytes > 0
    assert f"the sweeper of {filters.uri} ends, and returns 4 messages to the queue" in caplog.text
    assert (sweeper.stats().held, sweeper.stats().handed_back) == (0, 4)
    assert await payloads(await filters.filter("x == 0"), 4) == [b"0"] * 4
    assert await left_in(filters.connect, filters.uri) == []


async def test_returning_filter_receives_the_swept_messages(filters: Filters) -> None:
    """The sweeper still runs, and periodically returns its held messages."""
    sweeper = Sweeper(filters.uri, hand_back_every=0.2)
    async with sweeping(sweeper, await filters.connect()):
        await filters.lose_zero(20)
        await eventually(lambda: sweeper.stats().handed_back >= 40, timeout=TIMEOUT)  # no filter matches yet
        back = await filters.filter("x == 0")
        assert await payloads(back, 20) == [b"0"] * 20
        await filters.post(0, 1)
        assert await payloads(back, 1) == [b"0"]
        assert await payloads(filters.one, 1) == [b"1"]
    assert await left_in(filters.connect, filters.uri) == []


async def test_handing_back_uses_no_delivery_attempt(bmq_connect: Connect, bmq_new_queue_uri: NewUri) -> None:
    """The domain deletes a message after the loss of three consumers."""
    filters = Filters(bmq_connect, bmq_new_queue_uri("bmq.test.rda.priority"))
    await filters.begin()
    sweeper = Sweeper(filters.uri, hand_back_every=0.1)
    async with sweeping(sweeper, await bmq_connect()):
        await filters.lose_zero(2)
        await eventually(lambda: sweeper.stats().handed_back >= 10, timeout=TIMEOUT)
    assert await payloads(await filters.filter("x == 0"), 2) == [b"0"] * 2


async def test_unclaimed_messages_are_put_aside(filters: Filters) -> None:
    aside = f"{filters.uri}.aside"
    sweeper = Sweeper(filters.uri, put_aside=aside)
    async with sweeping(sweeper, await filters.connect()):
        await filters.lose_zero(3)
        await filters.post(1, 7, 1)
        await filters.writer.post(b"nothing")
        assert await payloads(filters.one, 2) == [b"1", b"1"]
        await eventually(lambda: sweeper.stats().put_aside == 5, timeout=TIMEOUT)
        assert sweeper.stats().held == 0
    queue = await (await filters.connect()).open_queue(aside, read=True)
    messages = await take(queue, 5)
    assert sorted(bytes(message.data) for message in messages) == [b"0", b"0", b"0", b"7", b"nothing"]
    for message in messages:
        assert message.properties["bmq_dead_queue"] == filters.uri
        assert "no other subscription" in str(message.properties["bmq_dead_error"])
    assert await left_in(filters.connect, filters.uri) == []


async def test_full_filter_loses_no_message_to_the_sweeper(filters: Filters) -> None:
    """A broker passes messages of a full filter to the sweeper; the sweeper returns the messages."""
    full = await filters.filter("x == 2", max_unconfirmed_messages=1)
    sweeper = Sweeper(filters.uri, hand_back_every=0.2)
    async with sweeping(sweeper, await filters.connect()):
        await filters.post(2, 2, 2, 2)
        held = await full.receive(TIMEOUT)
        await eventually(lambda: sweeper.stats().handed_back > 0, timeout=TIMEOUT)
        held.confirm()
        # The filter has room for one message: the rest is swept and handed back until all have arrived.
        for _ in range(3):
            (await full.receive(TIMEOUT)).confirm()
    assert await left_in(filters.connect, filters.uri) == []


async def test_an_app_sweeps_behind_its_handlers(bmq_broker: Any, filters: Filters) -> None:
    app = bmq.App(bmq_broker.uri)
    handled: list[bytes] = []

    @app.consumer(filters.uri, expression="x == 5")
    async def handle(message: bmq.Message) -> None:
        handled.append(message.data)

    sweeper = app.sweeper(filters.uri, put_aside=f"{filters.uri}.aside")
    running = asyncio.create_task(app.run(signals=False))
    await filters.lose_zero(3)
    await filters.post(5, 6, 1, 5)
    assert await payloads(filters.one, 1) == [b"1"]
    await eventually(lambda: len(handled) == 2 and sweeper.stats().put_aside == 4, timeout=TIMEOUT)
    with pytest.raises(bmq.StateError, match="register its sweepers before"):
        app.sweeper(filters.uri)
    app.stop()
    await running
    assert await left_in(filters.connect, filters.uri) == []


async def test_a_sweeper_that_cannot_work_is_refused(bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
    await bmq_session.open_queue(bmq_queue_uri, read=True)
    with pytest.raises(bmq.StateError, match="another session"):
        await Sweeper(bmq_queue_uri).run(bmq_session)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"put_aside": bmq_queue_uri}, "would return"),
        ({"put_aside": f"{bmq_queue_uri}.other?id=a"}, "not to an application"),
        ({"hand_back_every": 0}, "more than 0"),
    ]
    for options, says in wrong:
        with pytest.raises(bmq.UsageError, match=says):
            Sweeper(bmq_queue_uri, **options)
