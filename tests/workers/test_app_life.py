# SPDX-License-Identifier: Apache-2.0
"""An app's life cycle: startup, shutdown, state, use in a program, posting to its own queue."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from bmq.broker import Broker
from bmq.workers._app import LifeState
from tests.ports import reserved_port
from tests.waiting import eventually
from tests.workers.stage import seen_by


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

    @app.on_shutdown
    def end() -> None:
        told.append("end")

    @app.consumer(uri)
    async def handle(message: bmq.Message) -> None:
        told.append("handle")

    with pytest.raises(OSError, match="no database"):
        await app.run(signals=False)
    assert told == ["end"]
    with pytest.raises(OSError, match="no database"):
        async with app:
            told.append("body")
    assert told == ["end", "end"]


async def test_app_runs_inside_another_program(broker_uri: str, uri: str, session: bmq.Session) -> None:
    app = bmq.App(broker_uri)
    begun, end = asyncio.Event(), asyncio.Event()

    @app.consumer(uri)
    async def handle(message: bmq.Message) -> None:
        begun.set()
        await end.wait()

    for _ in range(2):  # it can be run again
        begun.clear()
        end.clear()
        async with app as running:
            assert running is app
            with pytest.raises(bmq.StateError, match="running already"):
                await app.run()
            with pytest.raises(bmq.StateError, match="the app is running"):
                app.on_startup(print)
            await (await app.queue(uri)).post(b"1")
            await begun.wait()
            asyncio.get_running_loop().call_later(0.01, end.set)
        assert await seen_by(session, uri) == [], "the handler at work was waited for"


async def test_app_without_a_broker_fails_on_entry(uri: str) -> None:
    app = bmq.App("tcp://127.0.0.1:1")
    app.consumer(uri)(print)
    with pytest.raises(bmq.ConnectionFailed):
        async with app:
            raise AssertionError("not begun")


async def test_failure_inside_the_block_is_raised_at_the_end(uri: str) -> None:
    async with Broker() as broker:
        app = bmq.App(broker.uri, reconnect=False)

        @app.consumer(uri)
        async def handle(message: bmq.Message) -> None: ...

        await app.__aenter__()
        await broker.stop()
        await eventually(lambda: app._life.state is LifeState.STOPPED)
        with pytest.raises(bmq.Error):
            await app.__aexit__(None, None, None)


async def test_first_connection_is_retried_with_the_option(uri: str) -> None:
    attempts = 0

    def delays() -> object:
        nonlocal attempts
        while True:
            attempts += 1
            yield 0.01

    with reserved_port() as port:
        app = bmq.App(f"tcp://127.0.0.1:{port}", retry_first_connect=True, reconnect_delays=delays)  # type: ignore[arg-type]
        app.consumer(uri)(print)
        entering = asyncio.create_task(app.__aenter__())
        await eventually(lambda: attempts >= 3)
        async with Broker(port=port):
            await asyncio.wait_for(entering, 30)
            await app.__aexit__(None, None, None)


async def test_cancelled_entry_ends_the_app(uri: str) -> None:
    app = bmq.App("tcp://127.0.0.1:1", retry_first_connect=True)
    app.consumer(uri)(print)
    entering = asyncio.create_task(app.__aenter__())
    while app._life.state is LifeState.STOPPED:  # noqa: ASYNC110
        await asyncio.sleep(0)
    entering.cancel()
    await asyncio.wait([entering])
    assert entering.cancelled()
    assert app._life.state is LifeState.STOPPED


async def test_a_startup_function_may_stop_the_app(broker_uri: str, uri: str) -> None:
    """A startup function that awaits nothing returns before its cancellation arrives."""
    app = bmq.App(broker_uri)
    told: list[str] = []
    app.on_startup(app.stop)
    app.on_shutdown(lambda: told.append("end"))

    @app.consumer(uri)
    async def handle(message: bmq.Message) -> None:
        told.append("handle")

    await app.run(signals=False)
    assert told == ["end"]
