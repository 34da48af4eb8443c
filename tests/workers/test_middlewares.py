# SPDX-License-Identifier: Apache-2.0
"""Middlewares and interceptors around the attempts of handlers."""

import asyncio
import contextvars
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

import bmq
from bmq.workers import CallNext
from tests.sweeps import sweep
from tests.workers.conftest import FakeClock
from tests.workers.stage import Stage, consuming


@dataclass
class Order:
    number: Annotated[int, bmq.Property]


async def test_middlewares_run_in_order_from_the_app_to_the_handler(stage: Stage) -> None:
    log: list[str] = []

    def noting(name: str) -> Any:
        async def note(attempt: bmq.Attempt, call_next: CallNext) -> Any:
            log.append(name)
            result = await call_next()
            log.append(f"{name}: {result}")
            return f"{name} {result}"

        return note

    class Seen(bmq.Interceptor):
        async def handle(self, attempt: bmq.Attempt, call_next: CallNext) -> Any:
            return await noting("interceptor")(attempt, call_next)

    app = bmq.App(stage.broker_uri, middlewares=[noting("app")], interceptors=[Seen()])
    app.middleware(noting("decorated"))

    @app.consumer(stage.uri, middlewares=[noting("handler")])
    async def ship(message: bmq.Message) -> str:
        app.stop()
        return "result"

    await stage.post(b"1")
    await app.run(signals=False)
    assert log == [
        *("interceptor", "app", "decorated", "handler", "handler: result"),
        *("decorated: handler result", "app: decorated handler result"),
        "interceptor: app decorated handler result",
    ]


@pytest.mark.parametrize("threads", [False, True])
async def test_a_middleware_replaces_the_value(stage: Stage, threads: bool) -> None:
    loop, seen = asyncio.get_running_loop(), asyncio.Queue[Any]()

    async def double(attempt: bmq.Attempt, call_next: CallNext) -> Any:
        attempt.value = Order(attempt.value.number * 2)
        attempt.context["by"] = "double"
        return await call_next()

    async def ship(order: Order, attempt: bmq.Attempt) -> None:
        seen.put_nowait((order.number, attempt.context["by"]))

    def in_thread(order: Order, attempt: bmq.Attempt) -> None:
        loop.call_soon_threadsafe(seen.put_nowait, (order.number, attempt.context["by"]))

    await stage.queue.typed(Order).post(Order(2))
    async with stage.consuming(in_thread if threads else ship, middlewares=[double]):
        assert await seen.get() == (4, "double")


async def test_a_middleware_ends_translates_and_repeats_attempts(stage: Stage) -> None:
    calls, last = list[bytes](), asyncio.Event()

    async def decide(attempt: bmq.Attempt, call_next: CallNext) -> Any:
        kind = attempt.message.data
        if kind == b"skip":
            return None
        if kind == b"reject":
            raise bmq.Reject("not for us")
        try:
            return await call_next()
        except OSError:
            if kind == b"swallow":
                return None
            if kind == b"again":
                return await call_next()
            raise bmq.Reject("translated") from None

    async def ship(message: bmq.Message) -> None:
        calls.append(message.data)
        if message.data == b"last":
            last.set()
        elif calls.count(message.data) == 1:
            raise OSError("no")

    await stage.post(b"skip", b"reject", b"swallow", b"translate", b"again", b"last")
    async with stage.consuming(ship, middlewares=[decide], retry=bmq.NoRetry("discard")):
        await last.wait()
    found = [stage.failures.get_nowait() for _ in range(2)]
    assert [str(each.error) for each in found] == ["not for us", "translated"]
    assert calls == [b"swallow", b"translate", b"again", b"again", b"last"]
    assert stage.queue.stats().confirmed == 6


async def returns_the_coroutine(attempt: bmq.Attempt, call_next: CallNext) -> Any:
    return call_next()


async def drops_the_coroutine(attempt: bmq.Attempt, call_next: CallNext) -> Any:
    call_next()


async def leaves_it_running(attempt: bmq.Attempt, call_next: CallNext) -> Any:
    running.append(asyncio.ensure_future(call_next()))
    await asyncio.sleep(0)


running: list[asyncio.Future[Any]] = []
NOT_AWAITED = "called call_next() without awaiting it, so the handler has not run"


@pytest.mark.parametrize(
    ("forgetful", "why"),
    [
        (returns_the_coroutine, NOT_AWAITED),
        (drops_the_coroutine, NOT_AWAITED),
        (leaves_it_running, "returned while the handler was running"),
    ],
)
async def test_a_middleware_that_awaits_nothing_fails_the_attempt(
    stage: Stage, forgetful: Any, why: str
) -> None:
    await stage.post(b"1")
    async with stage.consuming(stage.hold, middlewares=[forgetful]):
        error = (await stage.failures.get()).error
    assert isinstance(error, bmq.UsageError)
    assert str(error) == f"the middleware {forgetful.__name__} {why}: write 'result = await call_next()'"
    assert stage.queue.stats().confirmed == 0
    stage.go.set()
    await asyncio.gather(*running)
    assert stage.seen.qsize() == len(running)
    running.clear()


async def test_a_middleware_sees_the_deadline_of_the_handler(stage: Stage) -> None:
    seen: list[str] = []

    async def watch(attempt: bmq.Attempt, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except TimeoutError as error:
            seen.append(str(error))
            raise bmq.Reject("too slow") from error

    await stage.post(b"x")
    async with stage.consuming(stage.hold, middlewares=[watch], timeout=0.05):
        assert isinstance((await stage.failures.get()).error, bmq.Reject)
    assert seen == ["the handler was not done within its deadline of 0.05 s"]


async def test_a_middleware_sees_a_batch_with_its_values(stage: Stage) -> None:
    app, seen = bmq.App(stage.broker_uri), asyncio.Queue[Any]()

    @app.middleware
    async def first_only(attempt: bmq.Attempt, call_next: CallNext) -> Any:
        with pytest.raises(bmq.UsageError, match=r"a batch of 2: use attempt.messages"):
            _ = attempt.message
        attempt.value = attempt.value[:1]
        return await call_next()

    @app.batch_consumer(stage.uri, max_messages=2)
    async def load(orders: list[Order], messages: list[bmq.Message]) -> None:
        seen.put_nowait((orders, len(messages)))

    await stage.queue.typed(Order).post_many([Order(1), Order(2)])
    async with app:
        assert await seen.get() == ([Order(1)], 2)


async def test_an_attempt_has_the_key_the_number_and_the_state(stage: Stage, clock: FakeClock) -> None:
    state, seen = object(), asyncio.Queue[Any]()
    app = bmq.App(stage.broker_uri, state=state, clock=clock)

    @app.consumer(stage.uri, key="number", retry=bmq.Backoff(every=1))
    async def ship(message: bmq.Message, attempt: bmq.Attempt) -> None:
        seen.put_nowait((attempt.key, attempt.number, attempt.state, attempt.handler, attempt.queue_uri))
        if attempt.number < 3:
            raise OSError("not yet")

    await stage.queue.post(b"x", properties={"number": 7})
    async with app:
        assert [await seen.get() for _ in range(3)] == [(7, n, state, "ship", stage.uri) for n in (1, 2, 3)]


def plain(attempt: bmq.Attempt, call_next: CallNext) -> Any: ...
async def short(attempt: bmq.Attempt) -> Any: ...


class Whole:
    async def __call__(self, attempt: bmq.Attempt, call_next: CallNext) -> Any:
        return await call_next()


@sweep(
    "middleware, why",
    [
        (plain, "the middleware plain must be async: async def middleware"),
        (short, "a middleware is called with 2 arguments, and .*short.* does not accept the call"),
        (Whole, "a middleware must be an async function, not the class Whole"),
        (7, "a middleware must be a function that takes 2 arguments, not 7"),
    ],
)
def test_a_middleware_that_cannot_be_called_is_refused(middleware: Any, why: str) -> None:
    for register in (
        lambda: bmq.App(middlewares=[middleware]),
        lambda: bmq.App().middleware(middleware),
        lambda: bmq.App().consumer("bmq://d.e/q", middlewares=[middleware]),
        lambda: bmq.App().batch_consumer("bmq://d.e/q", middlewares=[middleware]),
    ):
        with pytest.raises(bmq.UsageError, match=why):
            register()
    bmq.App(middlewares=[Whole()])


async def test_an_attempt_for_a_test_of_a_middleware(stage: Stage) -> None:
    await stage.queue.post(b"x")
    message = await stage.queue.subscribe().receive(timeout=10)
    attempt = bmq.Attempt([message], 2, handler="ship", value=3, state="state")
    assert (attempt.number, attempt.handler, attempt.value, attempt.state) == (2, "ship", 3, "state")
    assert (bmq.Attempt([message]).value, attempt.context) == (message, {})


# ---- interceptors

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


class Failing(bmq.Interceptor):
    """Swallows the exception of the handler, and fails itself."""

    async def handle(self, attempt: bmq.Attempt, call_next: CallNext) -> Any:
        try:
            await call_next()
        except OSError:
            raise RuntimeError("broken") from None


@pytest.mark.parametrize("thread", [False, True], ids=["async", "in a thread"])
async def test_an_interceptor_surrounds_every_attempt_and_affects_none(
    broker_uri: str, uri: str, clock: FakeClock, caplog: pytest.LogCaptureFixture, thread: bool
) -> None:
    around, seen, loop = Around(), asyncio.Queue[str](), asyncio.get_running_loop()

    def ship_in_thread(message: bmq.Message) -> None:
        loop.call_soon_threadsafe(seen.put_nowait, current.get())
        if current.get() == "attempt 1":
            raise OSError("not yet")

    async def ship(message: bmq.Message) -> None:
        ship_in_thread(message)

    handler = ship_in_thread if thread else ship
    async with bmq.connect(broker_uri, interceptors=[Failing(), around]) as session:
        queue = await session.open_queue(uri, read=True, write=True)
        await queue.post(b"1")
        async with consuming(queue, handler, retry=bmq.Backoff(every=1), clock=clock):
            assert [await seen.get() for _ in range(2)] == ["attempt 1", "attempt 2"]
            assert current.get() == "nothing"
        name = handler.__name__
        assert around.log == [(b"1", name, 1, OSError), (b"1", name, 2, None)]
        assert queue.stats().confirmed == 1
    (record,) = [record for record in caplog.records if record.name == "bmq.interceptors"]
    assert "failed in handle" in record.getMessage()
