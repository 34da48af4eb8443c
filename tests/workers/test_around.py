# SPDX-License-Identifier: Apache-2.0
"""Interceptors around handlers."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from bmq.workers import CallNext
from tests.workers.conftest import FakeClock
from tests.workers.stage import consuming, post

Fresh = Callable[..., str]

current: contextvars.ContextVar[str] = contextvars.ContextVar("current", default="nothing")


class Around(bmq.Interceptor):
    """Notes attempts with the errors they ended with, and sets a context variable for the handler."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    async def handle(self, attempt: bmq.Attempt, call_next: CallNext) -> Any:
        token = current.set(f"attempt {attempt.number}")
        error = None
        try:
            return await call_next()
        except BaseException as caught:
            error = type(caught)
            raise
        finally:
            current.reset(token)
            self.log.append((attempt.message.data, attempt.handler, attempt.number, error))


async def test_an_interceptor_surrounds_every_attempt(
    broker_uri: str, fresh: Fresh, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    around, seen = Around(), asyncio.Queue[tuple[bytes, str]]()

    async def ship(message: bmq.Message) -> None:
        seen.put_nowait((message.data, current.get()))
        if current.get() == "attempt 1":
            raise OSError("not yet")

    async with bmq.connect(broker_uri, interceptors=[around]) as session:
        queue = await session.open_queue(fresh(), read=True, write=True)
        await post(queue, b"1")
        async with consuming(queue, ship, retry=bmq.Backoff(every=1), clock=clock):
            assert [await seen.get() for _ in range(2)] == [(b"1", "attempt 1"), (b"1", "attempt 2")]
            assert current.get() == "nothing"
        assert around.log == [(b"1", "ship", 1, OSError), (b"1", "ship", 2, None)]
        assert queue.stats().confirmed == 1
    # The exception of the handler is not an exception of the interceptor.
    assert not [record for record in caplog.records if record.name == "bmq.interceptors"]


async def test_a_handler_in_a_thread_sees_the_context(broker_uri: str, fresh: Fresh) -> None:
    around, loop = Around(), asyncio.get_running_loop()
    seen = loop.create_future()

    def ship(message: bmq.Message) -> None:
        loop.call_soon_threadsafe(seen.set_result, (current.get(), threading.current_thread()))

    async with bmq.connect(broker_uri, interceptors=[around]) as session:
        queue = await session.open_queue(fresh(), read=True, write=True)
        await post(queue, b"1")
        async with consuming(queue, ship):
            value, thread = await seen
        assert value == "attempt 1"
        assert thread is not threading.current_thread()


class Failing(bmq.Interceptor):
    def __init__(self, when: str) -> None:
        self.when = when

    async def handle(self, attempt: bmq.Attempt, call_next: CallNext) -> Any:
        if self.when == "before":
            raise RuntimeError("broken")
        try:
            await call_next()
        except OSError:
            pass
        if self.when == "after":
            raise RuntimeError("broken")


@pytest.mark.parametrize("when", ["before", "after", "never"])
async def test_a_failing_or_swallowing_interceptor_does_not_affect_the_handler(
    broker_uri: str, fresh: Fresh, clock: FakeClock, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    around, seen = Around(), asyncio.Queue[str]()

    async def ship(message: bmq.Message) -> None:
        seen.put_nowait(current.get())
        if current.get() == "attempt 1":
            raise OSError("not yet")

    async with bmq.connect(broker_uri, interceptors=[Failing(when), around]) as session:
        queue = await session.open_queue(fresh(), read=True, write=True)
        await post(queue, b"1")
        async with consuming(queue, ship, retry=bmq.Backoff(every=1), clock=clock):
            assert [await seen.get() for _ in range(2)] == ["attempt 1", "attempt 2"]
        assert [entry[-1] for entry in around.log] == [OSError, None]
        assert queue.stats().confirmed == 1
    logged = [record for record in caplog.records if record.name == "bmq.interceptors"]
    assert len(logged) == (when != "never")
    assert all("failed in handle" in record.getMessage() for record in logged)
