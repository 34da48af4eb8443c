# SPDX-License-Identifier: Apache-2.0
"""Each attempt runs in a context of its own: no context variable of a message is seen by another message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Annotated, Any

import pytest

import bmq
from bmq.workers import Failure
from tests.waiting import eventually
from tests.workers.stage import Stage, consuming, post

VALUE = ContextVar("value", default="unset")

NAMES = [b"1", b"2", b"3"]
Register = Callable[[bmq.App[Any], str, Callable[..., Any]], object]
Note = Callable[..., Any]


def at_once(app: bmq.App[Any], uri: str, note: Note, **options: Any) -> None:
    @app.consumer(uri, **options)
    async def handle(message: bmq.Message) -> None:
        note()


def with_a_pause(app: bmq.App[Any], uri: str, note: Note) -> None:
    @app.consumer(uri)
    async def handle(message: bmq.Message) -> None:
        await asyncio.sleep(0)
        note()
        await asyncio.sleep(0)


def concurrently(app: bmq.App[Any], uri: str, note: Note) -> None:
    at_once(app, uri, note, concurrency=2)


def in_time(app: bmq.App[Any], uri: str, note: Note) -> None:
    at_once(app, uri, note, timeout=30)


def in_a_thread(app: bmq.App[Any], uri: str, note: Note) -> None:
    @app.consumer(uri)
    def handle(message: bmq.Message) -> None:
        note()


def in_lanes(app: bmq.App[Any], uri: str, note: Note) -> None:
    at_once(app, uri, note, key="key", concurrency=2)


def in_the_key(app: bmq.App[Any], uri: str, note: Note) -> None:
    @app.consumer(uri, key=lambda message: note())
    async def handle(message: bmq.Message) -> None:
        pass


def in_a_group(app: bmq.App[Any], uri: str, note: Note) -> None:
    at_once(app, uri, note, group=lambda queue: queue.group("key"))


def by_hand(app: bmq.App[Any], uri: str, note: Note) -> None:
    @app.consumer(uri, ack=bmq.AckPolicy.MANUAL)
    async def handle(message: bmq.Message) -> None:
        note()
        message.confirm()


def of_values(app: bmq.App[Any], uri: str, note: Note) -> None:
    @app.consumer(uri)
    async def handle(value: int) -> None:
        note()


def of_batches(app: bmq.App[Any], uri: str, note: Note) -> None:
    @app.batch_consumer(uri, max_messages=1, max_wait=0)
    async def handle(messages: list[bmq.Message]) -> None:
        note()


def of_batches_in_a_thread(app: bmq.App[Any], uri: str, note: Note) -> None:
    @app.batch_consumer(uri, max_messages=1, max_wait=0)
    def handle(messages: list[bmq.Message]) -> None:
        note()


def of_requests(app: bmq.App[Any], uri: str, note: Note) -> None:
    @app.responder(uri)
    async def answer(message: bmq.Message) -> bytes:
        note()
        return b""


def of_results(app: bmq.App[Any], uri: str, note: Note) -> None:
    @app.consumer(uri)
    @app.publish_to(f"{uri}.results")
    async def handle(message: bmq.Message) -> bytes:
        note()
        return b""


def in_a_middleware(app: bmq.App[Any], uri: str, note: Note) -> None:
    async def around(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> Any:
        note()
        return await call_next()

    @app.consumer(uri, middlewares=[around])
    async def handle(message: bmq.Message) -> None:
        pass


def noting() -> None:
    assert VALUE.get() == "started"
    VALUE.set("made")


async def awaited() -> None:
    assert VALUE.get() == "made"


def generated() -> Iterator[None]:
    yield
    VALUE.set("at the end")


async def generated_later() -> AsyncIterator[None]:
    yield
    VALUE.set("at the end")


def in_dependencies(app: bmq.App[Any], uri: str, note: Note) -> None:
    """Each kind of dependency sees what the earlier dependencies of its message have set."""

    @app.consumer(uri)
    async def handle(
        message: bmq.Message,
        one: Annotated[None, bmq.Depends(noting)],
        two: Annotated[None, bmq.Depends(awaited)],
        three: Annotated[None, bmq.Depends(generated)],
        four: Annotated[None, bmq.Depends(generated_later)],
    ) -> None:
        assert VALUE.get() == "made"
        VALUE.set("started")
        note()


def again(app: bmq.App[Any], uri: str, note: Note) -> None:
    """Each attempt begins with what the worker began with."""

    @app.consumer(uri, retry=bmq.Backoff(every=0.001, retries=1, then="skip"))
    async def handle(message: bmq.Message) -> None:
        note()
        raise ConnectionError


def again_in_lanes(app: bmq.App[Any], uri: str, note: Note) -> None:
    @app.consumer(uri, key="key", retry=bmq.Backoff(every=0.001, retries=1, then="skip"))
    async def handle(message: bmq.Message) -> None:
        note()
        raise ConnectionError


def in_the_hook(app: bmq.App[Any], uri: str, note: Note) -> None:
    async def hook(failure: Failure) -> None:
        note()

    @app.consumer(uri, retry=bmq.NoRetry(then="skip"), on_error=hook)
    async def handle(message: bmq.Message) -> None:
        assert VALUE.get() == "started"
        raise ConnectionError


def in_the_policy(app: bmq.App[Any], uri: str, note: Note) -> None:
    class Policy:
        then: bmq.workers.GiveUp = "skip"

        def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
            note()
            return None

    @app.consumer(uri, retry=Policy())
    async def handle(message: bmq.Message) -> None:
        assert VALUE.get() == "started"
        raise ConnectionError


@pytest.mark.parametrize(
    ("register", "calls"),
    [
        *(
            (each, 3)
            for each in (
                at_once,
                with_a_pause,
                concurrently,
                in_time,
                in_a_thread,
                in_lanes,
                in_the_key,
                in_a_group,
                by_hand,
                of_values,
                of_batches,
                of_batches_in_a_thread,
                of_requests,
                of_results,
                in_a_middleware,
                in_dependencies,
                in_the_hook,
                in_the_policy,
            )
        ),
        (again, 6),
        (again_in_lanes, 6),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_nothing_set_for_a_message_is_seen_by_the_next(
    broker_uri: str, stage: Stage, register: Register, calls: int
) -> None:
    seen: list[str] = []

    def note() -> None:
        seen.append(VALUE.get())
        VALUE.set("left behind")

    app = bmq.App(broker_uri, grace=5)

    @app.on_startup
    async def start() -> None:
        VALUE.set("started")

    register(app, stage.queue.uri, note)
    items = [bmq.PutMessage(name, {"key": "one"}) for name in NAMES]
    (await stage.queue.post_many(items)).raise_for_failures()
    async with app:
        await eventually(lambda: len(seen) == calls)
    assert seen == ["started"] * calls


async def test_consume_shows_the_handler_the_context_of_its_caller(stage: Stage) -> None:
    seen: list[str] = []

    async def handle(message: bmq.Message) -> None:
        seen.append(VALUE.get())
        VALUE.set("left behind")

    VALUE.set("of the caller")
    async with consuming(stage.queue, handle):
        await post(stage.queue, *NAMES)
        await eventually(lambda: len(seen) == len(NAMES))
    assert seen == ["of the caller"] * len(NAMES)


async def test_a_handler_keeps_its_task_its_deadlines_and_its_groups(stage: Stage) -> None:
    """The context changes; the task of the handler, and all that depends on the task, does not."""
    done: list[str] = []

    async def child() -> None:
        assert VALUE.get() == "for the child"
        done.append("child")

    async def handle(message: bmq.Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        assert not task.cancelling()
        VALUE.set("for the child")
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
        asyncio.get_running_loop().call_soon(task.cancel)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task.uncancel()
        assert asyncio.current_task() is task
        done.append(VALUE.get())

    async with consuming(stage.queue, handle):
        await post(stage.queue, b"1")
        await eventually(lambda: len(done) == 2)
    assert done == ["child", "for the child"]
