# SPDX-License-Identifier: Apache-2.0
"""Several sessions in one service: apps that are parts of an app start and stop together."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator

import pytest

import bmq
from bmq.broker import Broker
from bmq.testing import TestApp
from tests.waiting import eventually
from tests.workers.stage import seen_by

ORDERS = "bmq://bmq.test.mem.priority/orders"


@pytest.fixture
async def there() -> AsyncGenerator[Broker]:
    """The broker of a part."""
    async with Broker(port=0) as broker:
        yield broker


async def test_a_service_uses_two_brokers(broker_uri: str, uri: str, there: Broker) -> None:
    here, part = bmq.App(broker_uri), bmq.App(there.uri)
    here.include(part)
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
    broker_uri: str, uri: str, there: Broker
) -> None:
    here, part = bmq.App(broker_uri), bmq.App(there.uri)
    here.include(part)

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
    broker_uri: str, uri: str, there: Broker
) -> None:
    here, part, deeper = bmq.App(broker_uri), bmq.App(there.uri), bmq.App(there.uri)
    here.consumer(uri)(print)
    part.include(deeper)
    here.include(part)
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


async def test_a_part_without_a_broker_delays_the_start_of_all(broker_uri: str, uri: str) -> None:
    here, part = bmq.App(broker_uri), bmq.App("tcp://127.0.0.1:1")
    here.include(part)
    here.consumer(uri)(print)
    here.on_startup(lambda: pytest.fail("it has not begun"))
    for _ in range(2):
        with pytest.raises(bmq.ConnectionFailed):
            await here.run(signals=False)


async def test_running_handlers_of_every_part_are_awaited(
    broker_uri: str, uri: str, session: bmq.Session, there: Broker
) -> None:
    here, part = bmq.App(broker_uri), bmq.App(there.uri)
    here.include(part)
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


async def test_pause_applies_to_all_handlers_or_to_one(broker_uri: str, uri: str, there: Broker) -> None:
    here, part = bmq.App(broker_uri), bmq.App(there.uri)
    here.include(part)
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    @part.consumer(ORDERS)
    async def handle(message: bmq.Message) -> None:
        seen.put_nowait(message.data)

    here.consumer(uri)(handle)
    async with here:
        assert len(here._consumers_of(handle)) == 2, "one function for two queues"
        await here.pause(handle)
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

    def ready() -> dict[str, object]:
        try:
            with urllib.request.urlopen(f"{here.health_uri}/readyz", timeout=10) as answer:
                found = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                found = json.loads(error.read())
        assert isinstance(found, dict)
        return found

    async with here:
        assert (await asyncio.to_thread(ready))["ready"] is True
        await there.stop()
        await eventually(lambda: not part.session.health().ready)
        found = await asyncio.to_thread(ready)
        assert found["ready"] is False
        assert "connection was lost" in str(found["troubles"])
        assert here.session.health().ready


def test_an_app_can_be_included_once() -> None:
    one, two = bmq.App(), bmq.App()
    one.include(two)
    for whole, part in ((one, one), (one, two), (two, one)):
        with pytest.raises(bmq.UsageError, match="is already a part"):
            whole.include(part)


async def test_each_part_has_a_broker_of_its_own_in_a_test() -> None:
    """Copying to the same queue of another broker would go round and round otherwise."""
    here, part = bmq.App("tcp://here:30114"), bmq.App("tcp://there:30114")
    here.include(part)

    @here.consumer(ORDERS, retry=bmq.Backoff(every=60, retries=1))
    async def copy(message: bmq.Message) -> None:
        await (await part.queue(ORDERS)).post(message.data)

    @part.consumer(ORDERS, retry=bmq.Backoff(every=60, retries=1, then="discard"))
    async def refuse(message: bmq.Message) -> None:
        raise ConnectionError("away")

    async with TestApp(here) as test:
        await test.post(ORDERS, b"1")
        await test.drained(ORDERS)
        await test.of(part).drained(ORDERS)
        test.broker.assert_posted(ORDERS, count=1)
        test.of(part).broker.assert_posted(ORDERS, count=1, payload=b"1")
        assert test.failures == []
        assert [each.attempt for each in test.of(part).failures] == [1, 2]
        assert test.of(here) is test
        with pytest.raises(bmq.UsageError, match="not part"):
            test.of(bmq.App())
    assert [app._broker for app in (here, part)] == ["tcp://here:30114", "tcp://there:30114"]
