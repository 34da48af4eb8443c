# SPDX-License-Identifier: Apache-2.0
"""An app's life cycle: startup, shutdown, state, and use in a program."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import bmq
from bmq.broker import Broker
from bmq.workers import SubscriberState
from tests.ports import reserved_port
from tests.waiting import eventually
from tests.workers.stage import Stage


async def test_hooks_run_around_the_handlers_with_a_session(broker_uri: str, uri: str) -> None:
    app = bmq.App(broker_uri)
    told: list[str] = []

    @app.on_startup
    async def open_database() -> None:
        told.append("open")
        app.state.database = {"rows": 0}
        await (await app.queue(uri)).post(b"x")

    @app.on_startup
    def second() -> None:
        told.append("second")

    @app.on_shutdown
    async def close_database() -> None:
        told.append(f"close {app.state.database} {app.session.state.name}")

    @app.on_shutdown
    def before_that() -> None:
        told.append("before that")

    @app.consumer(uri)
    async def handle(message: bmq.Message) -> None:
        app.state.database["rows"] += 1
        told.append("handle")
        app.stop()

    await app.run(signals=False)
    assert told == ["open", "second", "handle", "before that", "close {'rows': 1} STARTED"]


async def test_failed_startup_ends_the_app_and_started_functions(broker_uri: str, uri: str) -> None:
    app = bmq.App(broker_uri)
    told: list[str] = []

    @app.on_startup
    def fail() -> None:
        raise OSError("no database")

    app.on_shutdown(lambda: told.append("end"))
    app.consumer(uri)(print)
    with pytest.raises(OSError, match="no database"):
        await app.run(signals=False)
    assert told == ["end"]
    with pytest.raises(OSError, match="no database"):
        async with app:
            told.append("body")
    assert told == ["end", "end"]


@pytest.mark.parametrize("by", ["a startup function", "an event of the session"])
async def test_an_app_stopped_during_its_start_handles_no_message(stage: Stage, by: str) -> None:
    told: list[str] = []
    if by == "a startup function":  # returns before its cancellation arrives
        app = bmq.App(stage.broker_uri)
        app.on_startup(app.stop)
        app.on_shutdown(lambda: told.append("end"))
    else:
        app = bmq.App(stage.broker_uri, on_event=lambda event: app.stop())
    app.consumer(stage.uri)(stage.handle)
    await stage.post(b"x")
    await app.run(signals=False)
    assert told == (["end"] if by == "a startup function" else [])
    assert stage.seen.empty()
    assert await stage.left() == [b"x"]


@pytest.mark.parametrize(
    ("broker", "queue", "error"),
    [
        ("tcp://127.0.0.1:1", "bmq://bmq.test.mem.priority/q", bmq.ConnectionFailed),
        (None, "bmq://no.such.domain/q", bmq.OpenQueueError),
    ],
    ids=["no broker", "refused queue"],
)
async def test_app_that_cannot_start_fails_on_entry(
    broker_uri: str, broker: str | None, queue: str, error: type[bmq.Error]
) -> None:
    app = bmq.App(broker or broker_uri)
    app.consumer(queue)(print)
    with pytest.raises(error):
        async with app:
            raise AssertionError("not begun")


async def test_app_runs_inside_another_program(broker_uri: str, stage: Stage) -> None:
    app = bmq.App(broker_uri)
    app.consumer(stage.uri)(stage.hold)
    async with app as running:
        assert running is app
        with pytest.raises(bmq.StateError, match="running already"):
            async with app:
                pass
        for register in (
            lambda: app.on_startup(print),
            lambda: app.consumer(stage.uri)(print),
            lambda: app.include(bmq.Router()),
            lambda: app.include(bmq.App()),
        ):
            with pytest.raises(bmq.StateError, match="the app is running"):
                register()
        await stage.post(b"1")
        await stage.begun.wait()
        asyncio.get_running_loop().call_later(0.01, stage.go.set)
    assert await stage.left() == [], "the handler at work was waited for"


async def test_failure_inside_the_block_is_raised_at_the_end(uri: str) -> None:
    async with Broker() as broker:
        app = bmq.App(broker.uri, reconnect=False)
        app.consumer(uri)(print)
        await app.__aenter__()
        await broker.stop()
        await eventually(lambda: app.status()[0].state is SubscriberState.CLOSED)
        with pytest.raises(bmq.Error):
            await app.__aexit__(None, None, None)


class Delays:
    """Pauses between attempts to connect, with their number."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Iterator[float]:
        while True:
            self.count += 1
            yield 0.01


async def test_first_connection_is_retried_with_the_option(uri: str) -> None:
    delays = Delays()
    with reserved_port() as port:
        app = bmq.App(f"tcp://127.0.0.1:{port}", retry_first_connect=True, reconnect_delays=delays)
        app.consumer(uri)(print)
        entering = asyncio.create_task(app.__aenter__())
        await eventually(lambda: delays.count >= 3)
        async with Broker(port=port):
            await asyncio.wait_for(entering, 30)
            await app.__aexit__(None, None, None)


async def test_cancelled_entry_ends_the_app(uri: str) -> None:
    delays = Delays()
    app = bmq.App("tcp://127.0.0.1:1", retry_first_connect=True, reconnect_delays=delays)
    app.consumer(uri)(print)
    entering = asyncio.create_task(app.__aenter__())
    await eventually(lambda: delays.count)
    entering.cancel()
    await asyncio.wait([entering])
    assert entering.cancelled()
    app.on_startup(print)  # refused while the app runs
