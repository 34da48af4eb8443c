# SPDX-License-Identifier: Apache-2.0
"""A handler that blocks the event loop is logged, and stops neither the shutdown nor other handlers.

The handlers advance the clock, a number, so the tests take no time.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

import bmq
from bmq._turn import turn_of
from tests.waiting import eventually
from tests.workers.stage import Stage, consuming, numbered, post


class Handed:
    """A clock that advances only by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest_asyncio.fixture
async def elapsed() -> AsyncIterator[Handed]:
    """The clock of the event loop's turns."""
    turn, handed = turn_of(asyncio.get_running_loop()), Handed()
    clock, until = turn.clock, turn.until
    turn.clock, turn.until = handed, handed.now
    yield handed
    turn.clock, turn.until = clock, until


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "blocked the event loop" in each.getMessage()]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="plain"),
        pytest.param({"concurrency": 3}, id="side by side"),
        pytest.param({"timeout": 60}, id="deadline"),
        pytest.param({"concurrency": 2, "key": "key"}, id="lanes"),
        pytest.param({"ack": bmq.AckPolicy.ON_RECEIPT}, id="on receipt"),
    ],
)
async def test_a_blocking_handler_is_logged_once_by_name(
    stage: Stage, elapsed: Handed, how: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    async def crunch(message: bmq.Message) -> None:
        elapsed.now += 0.25
        seen.append(message.data)

    await post(stage.queue, *numbered(6))
    async with consuming(stage.queue, crunch, **how):
        await eventually(lambda: len(seen) == 6)
    [line] = lines(caplog)
    assert line.startswith("crunch blocked the event loop for 250 ms")
    assert "plain 'def'" in line


async def test_a_blocking_step_of_a_handler_is_logged(
    stage: Stage, elapsed: Handed, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    async def crunch(message: bmq.Message) -> None:
        await asyncio.sleep(0)
        elapsed.now += 0.5
        await asyncio.sleep(0)
        seen.append(message.data)

    await post(stage.queue, *numbered(4))
    async with consuming(stage.queue, crunch):
        await eventually(lambda: len(seen) == 4)
    [line] = lines(caplog)
    assert "crunch blocked the event loop for 500 ms" in line


@pytest.mark.parametrize("how", [{}, {"concurrency": 2, "key": "key"}, {"timeout": 60}])
async def test_a_handler_that_waits_is_not_logged(
    stage: Stage, elapsed: Handed, how: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    async def patient(message: bmq.Message) -> None:
        waiter = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(advance, waiter)
        await waiter
        seen.append(message.data)

    def advance(waiter: asyncio.Future[None]) -> None:
        elapsed.now += 5
        waiter.set_result(None)

    await post(stage.queue, *numbered(4))
    async with consuming(stage.queue, patient, **how):
        await eventually(lambda: len(seen) == 4)
    assert not lines(caplog)


async def test_a_blocking_batch_handler_and_responder_are_named(
    broker_uri: str, stage: Stage, elapsed: Handed, caplog: pytest.LogCaptureFixture
) -> None:
    app, seen = bmq.App(broker_uri), list[int]()

    @app.batch_consumer(stage.queue.uri)
    async def crunch_many(messages: list[bmq.Message]) -> None:
        elapsed.now += 0.2
        seen.append(len(messages))

    @app.responder(stage.queue.uri + ".requests")
    async def answer(message: bmq.Message) -> bytes:
        elapsed.now += 0.2
        return b"done"

    await post(stage.queue, *numbered(2))
    requests = await stage.queue.session.open_queue(stage.queue.uri + ".requests", write=True)
    async with app:
        assert (await requests.request(b"?")).data == b"done"
        await eventually(lambda: sum(seen) == 2)
    assert sorted(line.split()[0] for line in lines(caplog)) == ["answer", "crunch_many"]


# every shape of a handler, in every kind of worker


class Shapes:
    """Handlers that count their calls, and raise, wait or return, as named."""

    def __init__(self, elapsed: Handed) -> None:
        self.elapsed = elapsed
        self.calls = 0
        self.hold = asyncio.Event()
        self.begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def _count(self) -> None:
        self.calls += 1
        self._loop.call_soon_threadsafe(self.begun.set)

    async def waits(self, _: Any) -> None:
        self._count()
        await asyncio.sleep(0)

    async def does_not_wait(self, _: Any) -> None:
        self._count()
        self.elapsed.now += 0.01

    def thread(self, _: Any) -> None:
        self._count()

    async def raises(self, _: Any) -> None:
        self._count()
        self.elapsed.now += 0.01
        raise ValueError("no")

    async def swallows_cancellation(self, _: Any) -> None:
        self._count()
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            pass


SHAPES = ["waits", "does_not_wait", "thread", "raises", "swallows_cancellation"]


def annotated(handler: Callable[[Any], Any], kind: Any, name: str) -> Callable[..., Any]:
    """Return the handler as a function of one annotated parameter."""
    if inspect.iscoroutinefunction(handler):

        async def function(value: Any) -> None:
            await handler(value)

    else:

        def function(value: Any) -> None:  # type: ignore[misc]
            handler(value)

    function.__annotations__ = {"value": kind, "return": None}
    function.__qualname__ = name
    return function


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("worker", ["plain", "side by side", "lanes", "batch", "typed", "responder"])
async def test_an_app_ends_between_two_calls_whatever_the_handler_does(
    broker_uri: str, stage: Stage, elapsed: Handed, shape: str, worker: str
) -> None:
    """Stopped with waiting messages, the app handles at most one more message per worker."""
    shapes = Shapes(elapsed)
    app = bmq.App(broker_uri, grace=0.05)
    handler = getattr(shapes, shape)
    retry = bmq.NoRetry(then="discard")
    uri = stage.queue.uri
    if worker == "responder":
        if shape == "thread":
            with pytest.raises(bmq.UsageError):
                app.responder(uri)(annotated(handler, bmq.Message, shape))
            return
        app.responder(uri, concurrency=1)(annotated(handler, bmq.Message, shape))
    elif worker == "batch":
        app.batch_consumer(uri, max_messages=1, retry=retry)(annotated(handler, list[bmq.Message], shape))
    else:
        options: dict[str, Any] = {
            "plain": {},
            "side by side": {"concurrency": 4},
            "lanes": {"concurrency": 4, "key": "key"},
            "typed": {},
        }[worker]
        kind = int if worker == "typed" else bmq.Message
        app.consumer(uri, retry=retry, **options)(annotated(handler, kind, shape))
    count = 500
    await post(stage.queue, *numbered(count))
    async with app:
        await shapes.begun.wait()
        before = shapes.calls
    assert shapes.calls - before <= 4 + 4, "no more than the calls that had begun"
    assert shapes.calls < count
