# SPDX-License-Identifier: Apache-2.0
"""Work that was cut off has not failed, whatever its handler does about it, and the end comes in time."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import bmq
from bmq.workers import Failure
from tests.workers.kinds import OPTIONS, keyed, register
from tests.workers.stage import Stage, consuming, numbered, seen_by

Way = Callable[[], Awaitable[None]]


# ways to react to a cancellation


async def raises() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ConnectionError("rollback failed") from None


async def raises_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raises())
        await asyncio.sleep(0)


async def raises_a_group_of_all() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        raise BaseExceptionGroup("cut off", [error, OSError()]) from None


async def swallows() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def takes_back() -> None:
    """Act as if there had been no cancellation."""
    try:
        await swallows()
    finally:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        raise ConnectionError


async def cleans_up() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.01)
        raise ConnectionError


WAYS = [
    raises,
    raises_a_group,
    raises_a_group_of_all,
    swallows,
    takes_back,
    cleans_up,
]


# kinds of handlers without a place in kinds.py


def second_attempt(app: bmq.App[Any], uri: str, work: Way, retry: bmq.Backoff, **options: Any) -> None:
    """The first attempt fails before the end; the second is cut off."""

    @app.consumer(uri, retry=bmq.Backoff(every=0.001, retries=1, then=retry.then))
    async def handle(message: bmq.Message, attempt: bmq.Attempt) -> None:
        if attempt.number > 1:
            await work()
        raise ConnectionError


def in_a_slow_middleware(app: bmq.App[Any], uri: str, work: Way, **options: Any) -> None:
    async def around(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> Any:
        try:
            return await call_next()
        finally:
            await asyncio.sleep(0)

    @app.consumer(uri, middlewares=[around], **options)
    async def handle(message: bmq.Message) -> None:
        await work()


def failing_in_part(app: bmq.App[Any], uri: str, work: Way, **options: Any) -> None:
    @app.batch_consumer(uri, max_messages=10, max_wait=0, **options)
    async def handle(messages: list[bmq.Message]) -> None:
        try:
            await work()
        except ConnectionError as error:
            raise bmq.PartlyFailed({0: error}) from None


def in_a_thread(app: bmq.App[Any], uri: str, work: Way, **options: Any) -> None:
    loop = asyncio.get_running_loop()

    async def begins() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await work()

    @app.consumer(uri, **options)
    def handle(message: bmq.Message) -> None:
        asyncio.run_coroutine_threadsafe(begins(), loop)
        threading.Event().wait(0.05)
        raise ConnectionError


OF_ITS_OWN = [second_attempt, in_a_slow_middleware, failing_in_part, in_a_thread]
KINDS = ["single", "deadline", "lanes", "group", "results", "batches of results", "requests", "durable"]


@pytest.mark.parametrize("work", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", [*KINDS, *OF_ITS_OWN], ids=lambda kind: getattr(kind, "__name__", kind))
async def test_work_cut_off_has_no_outcome(
    session: bmq.Session, stage: Stage, kind: Any, work: Way, caplog: pytest.LogCaptureFixture
) -> None:
    """The message stays in the queue, and nothing is posted, counted or reported anywhere."""
    uri, begun = stage.uri, asyncio.Event()
    dead = f"{uri}.dead"

    async def begin(*messages: bmq.Message) -> None:
        begun.set()
        await work()

    app = bmq.App(stage.broker_uri, grace=0)
    options: dict[str, Any] = {"on_error": stage.failures.put_nowait}
    if kind != "durable":
        options["retry"] = bmq.Backoff(every=60, retries=0, then=bmq.DeadLetter(dead))
    if kind in KINDS:
        register(app, uri, kind, begin, **options)
    else:
        kind(app, uri, begin, **options)
    await stage.post(*keyed(b"work", bmq_reply_to=f"{uri}.results"))
    async with app:
        await begun.wait()
        early = kind is second_attempt
        assert app.status()[0].attempts_failed == early
    status = app.status()[0]
    assert (status.handled, status.attempts_failed, status.given_up) == (0, early, 0)
    assert stage.failures.empty()
    assert not [each for each in caplog.records if "failed on" in each.getMessage()][early:]
    for queue in (dead, f"{uri}.results", f"{uri}.delayed"):
        assert not await seen_by(session, queue)
    assert await stage.left() == [b"work"]


@pytest.mark.parametrize("work", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("end", ["cancelled", "cancelled twice", "with the event loop"])
async def test_consume_gives_up_nothing_when_it_is_cancelled(stage: Stage, work: Way, end: str) -> None:
    async def handle(message: bmq.Message) -> None:
        stage.begun.set()
        await work()

    await stage.post(b"work")
    retry = bmq.Backoff(every=1, retries=0, then="discard")
    grace = 30 if end == "cancelled twice" else 0
    before = asyncio.all_tasks()
    task = asyncio.create_task(bmq.consume(stage.queue, handle, grace=grace, retry=retry))
    await stage.begun.wait()
    if end == "with the event loop":  # asyncio.run cancels all tasks at once
        if work is takes_back:
            return  # a handler that takes back the cancellation of others ends by itself
        for each in asyncio.all_tasks() - before:
            each.cancel()
    else:
        task.cancel()
    if end == "cancelled twice":
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await stage.left() == [b"work"]


async def test_a_hook_that_is_cut_off_gives_up_nothing(stage: Stage) -> None:
    async def hook(failure: Failure) -> None:
        stage.begun.set()
        await swallows()

    await stage.post(b"work")
    retry = bmq.NoRetry(then="discard")
    async with consuming(stage.queue, stage.failing(), grace=0, retry=retry, on_error=hook):
        await stage.begun.wait()
    assert await stage.left() == [b"work"]


# a signal while a handler blocks the event loop


@pytest.mark.parametrize("kind", ["single", "concurrent", "lanes", "batches", "rate", "quarantine", "retry"])
@pytest.mark.parametrize("by", ["a signal", "a signal for consume", "stop", "another thread"])
async def test_no_handler_starts_after_a_request_to_stop(
    session: bmq.Session, stage: Stage, kind: str, by: str
) -> None:
    """A request that arrives while a handler blocks the event loop takes effect before the next handler."""
    if by == "a signal for consume" and kind == "batches":
        return  # consume has no batches
    started, asked, loop = list[bytes](), list[int](), asyncio.get_running_loop()

    async def handle(message: bmq.Message, *others: bmq.Message) -> None:
        started.append(message.data)
        if kind == "retry" and message.data != b"0":
            raise ConnectionError
        if message.data == b"0":
            if kind == "retry" and started.count(b"0") < 2:
                raise ConnectionError
            if by == "stop":
                loop.call_soon(app.stop)
            elif by == "another thread":
                stopping = threading.Thread(target=loop.call_soon_threadsafe, args=(app.stop,))
                stopping.start()
                stopping.join()
            else:
                signal.raise_signal(signal.SIGTERM)
            asked.append(len(started))
            time.sleep(0.15)  # noqa: ASYNC251 - that is the point

    options = {**OPTIONS.get(kind, {}), "concurrency": 1 if kind in ("single", "batches") else 4}
    if kind == "retry":
        options["retry"] = bmq.Backoff(every=0.001, retries=9, then="skip")
    if kind == "quarantine":
        dead = await session.open_queue(f"{stage.uri}.dead", write=True)
        options["quarantine"] = bmq.DeadLetter(dead if by == "a signal for consume" else dead.uri)
    await stage.post(*(bmq.PutMessage(each, {"key": each.decode()}) for each in numbered(50)))
    app = bmq.App(stage.broker_uri)
    if by == "a signal for consume":

        async def handle_one(message: bmq.Message) -> None:
            await handle(message)

        await bmq.consume(stage.queue, handle_one, signals=True, **options)
    else:
        if kind == "batches":
            options["max_messages"] = 5
        register(app, stage.uri, kind if kind == "batches" else "single", handle, **options)
        await app.run()
    assert len(started) == asked[0]
