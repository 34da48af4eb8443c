# SPDX-License-Identifier: Apache-2.0
"""Several sessions in one service: apps that are parts of an app start and stop together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

import pytest

import bmq
from bmq.broker import Broker
from tests.waiting import eventually
from tests.workers.stage import seen_by
from tests.workers.test_probe import get

ORDERS = "bmq://bmq.test.mem.priority/orders"


@pytest.fixture
async def there() -> AsyncGenerator[Broker]:
    """The broker of a part."""
    async with Broker(port=0) as broker:
        yield broker


@pytest.fixture
def here(broker_uri: str) -> bmq.App:
    return bmq.App(broker_uri)


@pytest.fixture
def part(here: bmq.App, there: Broker) -> bmq.App:
    """A part of the app, with a broker of its own."""
    part = bmq.App(there.uri)
    here.include(part)
    return part


async def test_a_service_uses_two_brokers(here: bmq.App, part: bmq.App, uri: str, there: Broker) -> None:
    back = asyncio.Event()

    @here.consumer(uri)
    async def copy(message: bmq.Message) -> None:
        await (await part.queue(ORDERS)).post(message.data + b" copied")

    @part.consumer(ORDERS)
    async def answer(message: bmq.Message) -> None:
        assert part.session is not here.session
        assert message.data == b"1 copied"
        back.set()

    async with here:
        await (await here.queue(uri)).post(b"1")
        await asyncio.wait_for(back.wait(), 10)
        assert [each.handler for each in here.status()] == ["answer", "copy"], "parts first"
        assert [each.handler for each in part.status()] == ["answer"]
    assert len(there.queues[ORDERS]) == 0, "confirmed there too"
    for app in (here, part):
        with pytest.raises(bmq.StateError, match="only while it runs"):
            _ = app.session


async def test_a_part_without_handlers_is_a_session_to_post_by(
    here: bmq.App, part: bmq.App, uri: str, there: Broker
) -> None:
    @here.consumer(uri)
    async def copy(message: bmq.Message) -> None:
        await (await part.queue(ORDERS)).post(message.data)
        part.stop()  # that of the whole

    @here.on_startup
    async def begin() -> None:
        await (await here.queue(uri)).post(b"1")

    await asyncio.wait_for(here.run(signals=False), 10)
    assert len(there.queues[ORDERS]) == 1
    with pytest.raises(bmq.StateError, match="the app has no handler"):
        await part.run()


async def test_all_have_connected_before_a_startup_function_and_parts_end_last(
    here: bmq.App, part: bmq.App, uri: str, there: Broker
) -> None:
    deeper = bmq.App(there.uri)
    here.consumer(uri)(print)
    part.include(deeper)
    told: list[str] = []
    for name, app in (("here", here), ("part", part), ("deeper", deeper)):

        @app.on_startup
        async def begin(name: str = name) -> None:
            for each in (here, part, deeper):
                assert each.session.state.name == "STARTED"
            told.append(f"begin {name}")

        @app.on_shutdown
        async def end(name: str = name) -> None:
            for each in (here, part, deeper):
                assert each.session.state.name == "STARTED"
            told.append(f"end {name}")

    async with here:
        for app in (part, deeper):
            with pytest.raises(bmq.StateError, match="running already"):
                await app.run()
            with pytest.raises(bmq.StateError, match="the app is running"):
                app.consumer(uri)(print)
    assert told == ["begin deeper", "begin part", "begin here", "end here", "end part", "end deeper"]


async def test_failure_of_a_part_ends_the_whole_app(broker_uri: str, uri: str) -> None:
    broker = Broker(port=0)
    await broker.start()
    here, part = bmq.App(broker_uri), bmq.App(broker.uri, reconnect=False)
    here.include(part)
    for app, name in ((here, uri), (part, ORDERS)):
        app.consumer(name)(print)
    running = asyncio.create_task(here.run(signals=False))
    await eventually(lambda: len(here.status()) == 2 and here.session)
    await broker.stop()
    with pytest.raises(bmq.Error):
        await asyncio.wait_for(running, 30)


async def test_a_part_without_a_broker_delays_the_start_of_all(here: bmq.App, uri: str) -> None:
    here.include(bmq.App("tcp://127.0.0.1:1"))
    here.consumer(uri)(print)
    here.on_startup(lambda: pytest.fail("it has not begun"))
    for _ in range(2):
        with pytest.raises(bmq.ConnectionFailed):
            await here.run(signals=False)


async def test_running_handlers_of_every_part_are_awaited(
    here: bmq.App, part: bmq.App, uri: str, session: bmq.Session, there: Broker
) -> None:
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        begun.release()
        await go_on.wait()

    here.consumer(uri)(handle)
    part.consumer(ORDERS)(handle)
    async with here:
        await (await here.queue(uri)).post(b"1")
        await (await part.queue(ORDERS)).post(b"1")
        for _ in range(2):
            await asyncio.wait_for(begun.acquire(), 10)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
    assert await seen_by(session, uri) == []
    assert len(there.queues[ORDERS]) == 0


async def test_pause_applies_to_one_handler_in_all_its_queues_or_to_all(
    here: bmq.App, part: bmq.App, uri: str
) -> None:
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    @part.consumer(ORDERS)
    async def handle(message: bmq.Message) -> None:
        seen.put_nowait(message.data)

    here.consumer(uri)(handle)
    async with here:
        await here.pause(handle)
        assert all(each.paused for app in (here, part) for each in app.session.queues[0].consumers)
        await (await part.queue(ORDERS)).post(b"1")
        await (await here.queue(uri)).post(b"2")
        assert seen.empty()
        await here.resume()
        assert {await asyncio.wait_for(seen.get(), 10) for _ in range(2)} == {b"1", b"2"}
        with pytest.raises(bmq.StateError, match="not a handler"):
            await here.pause(print)


async def test_app_is_ready_when_all_parts_are(broker_uri: str, uri: str, there: Broker) -> None:
    here, part = bmq.App(broker_uri, health="127.0.0.1:0"), bmq.App(there.uri)
    here.include(part)
    here.consumer(uri)(print)

    async with here:
        assert (await get(here, "/readyz"))[0] == 200
        await there.stop()
        await eventually(lambda: not part.session.health().ready)
        status, _, body = await get(here, "/readyz")
        assert status == 503
        assert "connection was lost" in str(json.loads(body)["troubles"])
        assert here.session.health().ready


def test_an_app_can_be_included_once() -> None:
    one, two = bmq.App(), bmq.App()
    one.include(two)
    for whole, part in ((one, one), (one, two), (two, one)):
        with pytest.raises(bmq.UsageError, match="is already a part"):
            whole.include(part)
