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
from tests.waiting import eventually
from tests.workers.stage import Stage, consuming, numbered, post, seen_by

Way = Callable[[], Awaitable[None]]
Handle = Callable[..., Awaitable[None]]


# ways to react to a cancellation


async def raises() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ConnectionError("rollback failed") from None


async def raises_what_recurs() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise ValueError("no such order")


async def rejects() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise bmq.Reject("half done")


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
    raises_what_recurs,
    rejects,
    raises_a_group,
    raises_a_group_of_all,
    swallows,
    takes_back,
    cleans_up,
]


# kinds of handlers


def single(app: bmq.App[Any], uri: str, work: Way, **options: Any) -> None:
    @app.consumer(uri, **options)
    async def handle(message: bmq.Message) -> None:
        await work()


def second_attempt(app: bmq.App[Any], uri: str, work: Way, retry: bmq.Backoff, **options: Any) -> None:
    """The first attempt fails before the end; the second is cut off."""

    @app.consumer(uri, retry=bmq.Backoff(every=0.001, retries=1, then=retry.then))
    async def handle(message: bmq.Message, attempt: bmq.Attempt) -> None:
        if attempt.number > 1:
            await work()
        raise ConnectionError


def in_time(app: bmq.App[Any], uri: str, work: Way, **options: Any) -> None:
    single(app, uri, work, timeout=60, **options)


def in_lanes(app: bmq.App[Any], uri: str, work: Way, **options: Any) -> None:
    single(app, uri, work, key="key", **options)


def in_a_group(app: bmq.App[Any], uri: str, work: Way, **options: Any) -> None:
    single(app, uri, work, group=lambda queue: queue.group("key", buckets=1), **options)


def in_a_middleware(app: bmq.App[Any], uri: str, work: Way, **options: Any) -> None:
    async def around(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> Any:
        try:
            return await call_next()
        finally:
            await asyncio.sleep(0)

    single(app, uri, work, middlewares=[around], **options)


def of_batches(app: bmq.App[Any], uri: str, work: Way, **options: Any) -> None:
    @app.batch_consumer(uri, max_messages=10, max_wait=0, **options)
    async def handle(messages: list[bmq.Message]) -> None:
        try:
            await work()
        except ConnectionError as error:
            raise bmq.PartlyFailed({0: error}) from None


def of_results(app: bmq.App[Any], uri: str, work: Way, **options: Any) -> None:
    @app.consumer(uri, **options)
    @app.publish_to(f"{uri}.results")
    async def handle(message: bmq.Message) -> bytes:
        await work()
        return b"result"


def of_batches_of_results(app: bmq.App[Any], uri: str, work: Way, **options: Any) -> None:
    @app.batch_consumer(uri, max_messages=10, max_wait=0, **options)
    @app.publish_to(f"{uri}.results")
    async def handle(messages: list[bmq.Message]) -> list[bytes]:
        await work()
        return [b"result"] * len(messages)


def of_requests(app: bmq.App[Any], uri: str, work: Way, retry: bmq.RetryPolicy, **options: Any) -> None:
    """A responder makes one attempt, and has no policy for retries."""

    @app.responder(uri, allow=lambda to: True, **options)
    async def answer(message: bmq.Message) -> bytes:
        await work()
        return b"result"


def durable(app: bmq.App[Any], uri: str, work: Way, retry: bmq.Backoff, **options: Any) -> None:
    single(app, uri, work, retry=bmq.Backoff(every=60, retries=5, durable=True), **options)


def in_a_thread(app: bmq.App[Any], uri: str, work: Way, **options: Any) -> None:
    loop = asyncio.get_running_loop()

    @app.consumer(uri, **options)
    def handle(message: bmq.Message) -> None:
        asyncio.run_coroutine_threadsafe(begins(work), loop)
        threading.Event().wait(0.05)
        raise ConnectionError


async def begins(work: Way) -> None:
    """Begin work without an end."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            await work()


KINDS = [
    single,
    second_attempt,
    in_time,
    in_lanes,
    in_a_group,
    in_a_middleware,
    of_batches,
    of_results,
    of_batches_of_results,
    of_requests,
    durable,
    in_a_thread,
]


@pytest.mark.parametrize("work", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_work_cut_off_has_no_outcome(
    broker_uri: str,
    session: bmq.Session,
    stage: Stage,
    kind: Callable[..., None],
    work: Way,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The message stays in the queue, and nothing is posted, counted or reported anywhere."""
    uri, begun, failures = stage.queue.uri, asyncio.Event(), list[Failure]()
    dead = f"{uri}.dead"

    async def begin() -> None:
        begun.set()
        await work()

    app = bmq.App(broker_uri, grace=0)
    retry = bmq.Backoff(every=60, retries=0, then=bmq.DeadLetter(dead))
    kind(app, uri, begin, retry=retry, on_error=failures.append)
    await stage.queue.post(b"work", properties={"key": "one", "bmq_reply_to": f"{uri}.results"})
    async with app:
        await begun.wait()
        early = kind is second_attempt
        assert app.status()[0].attempts_failed == early
    status = app.status()[0]
    assert (status.handled, status.attempts_failed, status.given_up) == (0, early, 0)
    assert not failures
    assert not [each for each in caplog.records if "failed on" in each.getMessage()][early:]
    for queue in (dead, f"{uri}.results", f"{uri}.delayed"):
        assert not await seen_by(session, queue)
    await stage.queue.close()
    assert await seen_by(session, uri) == [b"work"]


@pytest.mark.parametrize("work", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("end", ["cancelled", "cancelled twice", "with the event loop"])
async def test_consume_gives_up_nothing_when_it_is_cancelled(
    session: bmq.Session, stage: Stage, work: Way, end: str
) -> None:
    begun = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        begun.set()
        await work()

    await post(stage.queue, b"work")
    retry = bmq.Backoff(every=1, retries=0, then="discard")
    grace = 30 if end == "cancelled twice" else 0
    before = asyncio.all_tasks()
    task = asyncio.create_task(bmq.consume(stage.queue, handle, grace=grace, retry=retry))
    await begun.wait()
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
    await stage.queue.close()
    assert await seen_by(session, stage.queue.uri) == [b"work"]


async def test_a_hook_that_is_cut_off_gives_up_nothing(session: bmq.Session, stage: Stage) -> None:
    begun = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        raise ConnectionError

    async def hook(failure: Failure) -> None:
        begun.set()
        await swallows()

    await post(stage.queue, b"work")
    retry = bmq.NoRetry(then="discard")
    async with consuming(stage.queue, handle, grace=0, retry=retry, on_error=hook):
        await begun.wait()
    await stage.queue.close()
    assert await seen_by(session, stage.queue.uri) == [b"work"]


async def test_an_attempt_beyond_its_deadline_has_failed(stage: Stage) -> None:
    """The deadline of a handler is its own, unlike the end of its worker."""
    failures = asyncio.Queue[Failure]()

    async def handle(message: bmq.Message) -> None:
        await raises()

    await post(stage.queue, b"work")
    retry = bmq.NoRetry(then="discard")
    async with consuming(stage.queue, handle, timeout=0.01, retry=retry, on_error=failures.put_nowait):
        failure = await failures.get()
        assert isinstance(failure.error, ConnectionError)
        await eventually(lambda: failure.message.confirmed)


# a signal while a handler blocks the event loop


@pytest.mark.parametrize("kind", ["single", "concurrent", "lanes", "batch", "paced", "quarantine", "retry"])
@pytest.mark.parametrize("by", ["a signal", "a signal for consume", "stop", "another thread"])
async def test_no_handler_starts_after_a_request_to_stop(
    broker_uri: str, session: bmq.Session, stage: Stage, kind: str, by: str
) -> None:
    """A request that arrives while a handler blocks the event loop takes effect before the next handler."""
    if by == "a signal for consume" and kind == "batch":
        return  # consume has no batches
    uri, started, loop = stage.queue.uri, list[bytes](), asyncio.get_running_loop()

    def begin(message: bmq.Message) -> None:
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
            time.sleep(0.15)

    asked = list[int]()

    async def handle(message: bmq.Message) -> None:
        begin(message)

    async def handle_batch(messages: list[bmq.Message]) -> None:
        begin(messages[0])

    options: dict[str, Any] = {
        "single": {},
        "concurrent": {"concurrency": 4},
        "lanes": {"key": "key", "concurrency": 4},
        "batch": {},
        "paced": {"rate": 10_000.0, "concurrency": 4},
        "quarantine": {"quarantine": bmq.DeadLetter(f"{uri}.dead"), "concurrency": 4},
        "retry": {"retry": bmq.Backoff(every=0.001, retries=9, then="skip"), "concurrency": 4},
    }[kind]
    items = [bmq.PutMessage(each, {"key": each.decode()}) for each in numbered(50)]
    (await stage.queue.post_many(items)).raise_for_failures()
    app = bmq.App(broker_uri)
    if by == "a signal for consume":
        if kind == "quarantine":
            dead = await session.open_queue(f"{uri}.dead", write=True)
            options = {"quarantine": bmq.DeadLetter(dead), "concurrency": 4}
        await bmq.consume(stage.queue, handle, signals=True, **options)
    else:
        if kind == "batch":
            app.batch_consumer(uri, max_messages=5, max_wait=0)(handle_batch)
        else:
            app.consumer(uri, **options)(handle)
        await app.run()
    assert len(started) == asked[0]
