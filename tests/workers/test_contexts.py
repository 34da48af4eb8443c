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
from tests.workers.kinds import keyed, register, register_in_thread
from tests.workers.stage import Stage, consuming

VALUE = ContextVar("value", default="unset")

NAMES = [b"1", b"2", b"3"]
#: Registers a handler with a place that calls a function for each message.
Register = Callable[[bmq.App[Any], str, Callable[[], None]], object]


def of_kind(kind: str, **options: Any) -> Any:
    def registering(app: bmq.App[Any], uri: str, note: Callable[[], None]) -> None:
        async def work(*messages: bmq.Message) -> None:
            note()
            if kind == "manual":
                messages[0].confirm()

        register(app, uri, kind, work, **options)

    return pytest.param(registering, id=kind)


def in_thread(kind: str, **options: Any) -> Any:
    def registering(app: bmq.App[Any], uri: str, note: Callable[[], None]) -> None:
        register_in_thread(app, uri, kind, lambda *messages: note(), **options)

    return pytest.param(registering, id=f"{kind} in a thread")


def in_the_key(app: bmq.App[Any], uri: str, note: Callable[[], None]) -> None:
    @app.consumer(uri, key=lambda message: note())
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


def in_dependencies(app: bmq.App[Any], uri: str, note: Callable[[], None]) -> None:
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


async def fail(message: bmq.Message) -> None:
    assert VALUE.get() == "started"
    raise ConnectionError


def in_the_hook(app: bmq.App[Any], uri: str, note: Callable[[], None]) -> None:
    async def hook(failure: Failure) -> None:
        note()

    app.consumer(uri, retry=bmq.NoRetry(then="skip"), on_error=hook)(fail)


def in_the_policy(app: bmq.App[Any], uri: str, note: Callable[[], None]) -> None:
    class Policy:
        then: bmq.workers.GiveUp = "skip"

        def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
            note()
            return None

    app.consumer(uri, retry=Policy())(fail)


@pytest.fixture
async def app(broker_uri: str) -> bmq.App[Any]:
    app = bmq.App(broker_uri, grace=5)

    @app.on_startup
    async def start() -> None:
        VALUE.set("started")

    return app


@pytest.mark.parametrize(
    "registering",
    [
        *map(
            of_kind, ["single", "deadline", "group", "manual", "values", "requests", "results", "middleware"]
        ),
        of_kind("concurrent", concurrency=2),
        of_kind("lanes", concurrency=2),
        of_kind("batches", max_messages=1),
        in_thread("single"),
        in_thread("batches", max_messages=1),
        in_the_key,
        in_dependencies,
        in_the_hook,
        in_the_policy,
    ],
)
async def test_nothing_set_for_a_message_is_seen_by_the_next(
    app: bmq.App[Any], stage: Stage, registering: Register
) -> None:
    seen: list[str] = []

    def note() -> None:
        seen.append(VALUE.get())
        VALUE.set("left behind")

    registering(app, stage.uri, note)
    await stage.post(*keyed(*NAMES))
    async with app:
        await eventually(lambda: len(seen) == len(NAMES))
    assert seen == ["started"] * len(NAMES)


@pytest.mark.parametrize("kind", ["single", "lanes"])
async def test_each_attempt_begins_with_what_the_worker_began_with(
    app: bmq.App[Any], stage: Stage, kind: str
) -> None:
    seen: list[str] = []

    async def work(message: bmq.Message) -> None:
        seen.append(VALUE.get())
        VALUE.set("left behind")
        raise ConnectionError

    register(app, stage.uri, kind, work, retry=bmq.Backoff(every=0.001, retries=1, then="skip"))
    await stage.post(*keyed(*NAMES))
    async with app:
        await eventually(lambda: len(seen) == 2 * len(NAMES))
    assert seen == ["started"] * 2 * len(NAMES)


async def test_consume_shows_the_handler_the_context_of_its_caller(stage: Stage) -> None:
    seen: list[str] = []

    async def handle(message: bmq.Message) -> None:
        seen.append(VALUE.get())
        VALUE.set("left behind")

    VALUE.set("of the caller")
    async with consuming(stage.queue, handle):
        await stage.post(*NAMES)
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
        await stage.post(b"1")
        await eventually(lambda: len(done) == 2)
    assert done == ["child", "for the child"]
