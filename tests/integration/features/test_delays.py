# SPDX-License-Identifier: Apache-2.0
"""Delayed messages: on time, never early, once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

import bmq
import bmq.admin
from bmq.conventions import delay_queue_of, derived_guid
from bmq.delays import DueMessages, Mover, check, longest_delay
from tests.integration.steps import Connect, HasUri, NewUri
from tests.sweeps import sweep
from tests.waiting import eventually

SMALL = "bmq.test.small.priority"


class Clock:
    """The time of day, which a test may let pass faster."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


async def opened(session: bmq.Session, uri: str) -> bmq.Queue:
    return await session.open_queue(delay_queue_of(uri), read=True, default_subscription=False)


@asynccontextmanager
async def moving(session: bmq.Session, uri: str, **options: Any) -> AsyncIterator[Mover]:
    """A mover for what waits for a queue, while the block runs."""
    mover = Mover(await opened(session, uri), **options)
    async with running(mover):
        yield mover


@asynccontextmanager
async def running(mover: Mover) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(mover.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)


async def test_delayed_message_arrives_on_time_and_unchanged(
    bmq_session: bmq.Session, queue: bmq.Queue
) -> None:
    properties = {
        "CustomerId": bmq.PropertyValue(bmq.PropertyType.SHORT, 7),
        "raw": b"\0\xff",
        "OrderType": "EXPRESS",
    }
    async with moving(bmq_session, queue.uri) as mover:
        before = time.time()
        ack = await queue.post(b"later", properties=properties, tags=["eu"], delay=0.7)
        message = await queue.receive(timeout=10)
        late = time.time() - before - 0.7
    assert late >= 0
    assert message.data == b"later"
    assert message.property_types["CustomerId"] is bmq.PropertyType.SHORT
    assert message.tags == {"eu"}
    due = message.properties["bmq_due"]
    assert isinstance(due, int)
    assert set(message.properties) == {"CustomerId", "raw", "OrderType", "t.eu", "bmq_due"}
    assert before + 0.7 <= due / 1000 < before + 0.7 + late + 0.002
    assert ack.queue_uri == delay_queue_of(queue.uri)
    assert message.guid == derived_guid(ack.guid, queue.uri, f"due {due}")
    message.confirm()
    assert mover.moved == 1


@sweep(
    "wrong, why",
    [
        ({"delay": -1}, "at least 0"),
        ({"delay": float("nan")}, "at least 0"),
        ({"delay": 1, "not_before": 1}, "one of the two"),
        ({"not_before": datetime(2030, 1, 1)}, "time zone"),
        ({"not_before": time.time() * 1000}, "seconds since 1970"),
    ],
)
async def test_invalid_times_are_refused(queue: bmq.Queue, wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(bmq.UsageError, match=why):
        await queue.post(b"x", **wrong)


async def test_delay_beyond_the_brokers_ttl_is_refused(
    bmq_connect: Connect, bmq_broker: HasUri, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri("bmq.test.ttl.priority")
    async with bmq.admin.connect(bmq_broker.uri) as admin:
        session = await bmq_connect(longest_delay=await longest_delay(admin, delay_queue_of(uri)))
    queue = await session.open_queue(uri, write=True)
    for wrong in ({"delay": 2.1}, {"not_before": time.time() + 60}):
        with pytest.raises(bmq.UsageError, match=r"longest_delay=2"):
            await queue.post(b"x", **wrong)
    await queue.post(b"x", delay=2)
    with pytest.raises(bmq.UsageError, match="longest_delay"):
        await bmq_connect(longest_delay=-1)


async def test_later_messages_wait_in_the_broker(
    bmq_session: bmq.Session, bmq_connect: Connect, queue: bmq.Queue
) -> None:
    """A mover takes what is due soon; the horizon moves on with time."""
    clock = Clock()
    for hours in range(6):
        await queue.post(b"%d" % hours, delay=3600 * hours + 1800)
    async with moving(await bmq_connect(), queue.uri, clock=clock) as mover:
        clock.ahead = 1790
        await queue.post(b"now", delay=0.1)
        assert (await queue.receive(timeout=10)).data == b"now"
        for hours in range(6):
            clock.ahead = 3600 * hours + 1800
            assert (await queue.receive(timeout=10)).data == b"%d" % hours
            assert mover.held <= 1
    assert queue.receive_nowait() is None


async def test_a_full_destination_delays_its_messages(
    bmq_session: bmq.Session, bmq_new_queue_uri: NewUri, queue: bmq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages for a full destination are kept while others are passed on; they follow once space is free."""
    small = await bmq_session.open_queue(
        bmq_new_queue_uri(SMALL), read=True, write=True, delay_queue_uri=delay_queue_of(queue.uri)
    )
    full = (await small.post_many([b"full"] * 20)).acknowledged
    assert full < 20
    async with moving(bmq_session, queue.uri, allow="*"):
        await small.post(b"kept", delay=0.1)
        await eventually(lambda: "could not be passed on" in caplog.text, 20)
        await queue.post(b"other", delay=0)
        assert (await queue.receive(timeout=10)).data == b"other"
        for _ in range(full):
            (await small.receive(timeout=10)).confirm()
        assert (await small.receive(timeout=10)).data == b"kept"


async def test_a_message_without_a_destination_follows_the_name_of_its_queue(
    bmq_session: bmq.Session, bmq_new_queue_uri: NewUri, queue: bmq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """The name of the delay queue contains the destination; otherwise messages are put aside and logged."""
    due = {"bmq_due": round(time.time() * 1000)}
    async with moving(bmq_session, queue.uri):
        by_hand = await bmq_session.open_output(delay_queue_of(queue.uri))
        await by_hand.post(b"by its name", properties=due)
        await by_hand.post(b"undated")
        assert {(await queue.receive(timeout=10)).data for _ in range(2)} == {b"by its name", b"undated"}
    other = await bmq_session.open_queue(
        bmq_new_queue_uri(), read=True, write=True, default_subscription=False
    )
    letters = await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)
    mover = Mover(other, dead_letters=letters)
    with caplog.at_level(logging.ERROR, "bmq.delays"):
        async with running(mover):
            await other.post(b"x", properties=due)
            await other.post(b"y", properties={**due, "bmq_destination": other.uri})
            await other.post(b"z", properties={**due, "bmq_destination": queue.uri})
            assert (await queue.receive(timeout=10)).data == b"z"
            found = [await letters.receive(timeout=10) for _ in range(2)]
    assert [letter.data for letter in found] == [b"x", b"y"]
    assert "bmq_destination is missing" in str(found[0].properties["bmq_dead_error"])
    assert "is the delay queue itself" in str(found[1].properties["bmq_dead_error"])
    assert "bmq_destination is missing" in caplog.text
    assert mover.put_aside == 2


async def test_due_messages_are_received_without_a_mover(
    bmq_session: bmq.Session, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    """No second queue, no mover: a filter on ``bmq_due``."""
    queue = await bmq_session.open_queue(bmq_queue_uri, write=True, delay_queue_uri=bmq_queue_uri)
    reader = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True, default_subscription=False)
    async with DueMessages(reader) as messages:
        before = time.time()
        await queue.post(b"late", delay=1.0)
        await queue.post(b"soon", delay=0.5)
        await queue.post(b"now")
        found: list[tuple[bytes, float]] = []
        async for message in messages:
            found.append((message.data, time.time() - before))
            message.confirm()
            if len(found) == 3:
                break
    assert [data for data, _ in found] == [b"now", b"soon", b"late"]
    assert found[1][1] >= 0.5
    assert found[2][1] >= 1.0


async def test_slow_reader_receives_no_more(
    bmq_session: bmq.Session, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, write=True, delay_queue_uri=bmq_queue_uri)
    await queue.post_many([b"x"] * 500)
    reader = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True, default_subscription=False)
    async with DueMessages(reader, max_held=20, tick=0.05, lookahead=0.1) as messages:
        for _ in range(20):
            await messages.batch(1)
            await asyncio.sleep(0.05)
            assert messages.held <= 40
        got = 20
        while got < 500:
            for message in await messages.batch():
                message.confirm()
                got += 1


async def test_problems_of_a_queue_are_reported(
    bmq_broker: HasUri, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    async with bmq.admin.connect(bmq_broker.uri) as admin:
        good = bmq_new_queue_uri()
        await bmq_session.open_queue(good, write=True)
        assert await check(admin, good, longest=10) == []
        longest = await longest_delay(admin, good)
        assert longest is not None
        assert await check(admin, good, longest=longest) == []
        (problem,) = await check(admin, good, longest=10_000_000)
        assert "10000000" in problem or "1e+07" in problem
        assert "messageTtl" in problem
        small = await bmq_session.open_queue(bmq_new_queue_uri(SMALL), write=True)
        await small.post_many([b"x"] * 8)
        assert any("8 of 10 messages" in problem for problem in await check(admin, small.uri))
        (problem,) = await check(admin, bmq_new_queue_uri("bmq.test.rda.priority"))
        assert "3 movers" in problem
        (problem,) = await check(admin, bmq_new_queue_uri("bmq.test.mem.fanout"))
        assert "priority domain" in problem
        short = await bmq_session.open_queue(bmq_new_queue_uri("bmq.test.ttl.priority"), write=True)
        await short.post(b"x")
        async with asyncio.timeout(20):
            while not (problems := await check(admin, short.uri)):
                pass
        assert "is deleted after 2 s" in problems[0]


async def test_an_app_runs_a_mover_and_handlers(bmq_broker: HasUri, bmq_queue_uri: str) -> None:
    app = bmq.App(bmq_broker.uri)
    found: list[tuple[bytes, float]] = []

    @app.consumer(bmq_queue_uri)
    async def handle(message: bmq.Message) -> None:
        found.append((message.data, time.time()))
        if message.data == b"first":
            await (await app.queue(bmq_queue_uri)).post(b"second", delay=0.5)
        else:
            app.stop()

    app.mover(delay_queue_of(bmq_queue_uri))
    with pytest.raises(bmq.UsageError, match="already has a mover"):
        app.mover(delay_queue_of(bmq_queue_uri))
    async with asyncio.timeout(30), bmq.connect(bmq_broker.uri) as session:
        await (await session.open_output(bmq_queue_uri)).post(b"first")
        await app.run()
    assert [data for data, _ in found] == [b"first", b"second"]
    assert found[1][1] - found[0][1] >= 0.5


def test_the_guid_is_documented() -> None:
    """As computed by hand: b2sum -l 128, for services in other languages."""
    guid = derived_guid("4000000000003CA4F6B5B4C9F3B06D3F", "bmq://d/orders", "due 1795328751032")
    assert guid == "12964574B8B3BAD3E937B3BD4F2320A3"
