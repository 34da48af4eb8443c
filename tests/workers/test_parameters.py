# SPDX-License-Identifier: Apache-2.0
"""Parameters of handlers: values and other sources, the life of dependencies, and refused signatures."""

import asyncio
import enum
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

import bmq
from tests.sweeps import sweep
from tests.workers.conftest import FakeClock
from tests.workers.stage import Stage

if TYPE_CHECKING:
    from bmq import Attempt

QUEUE = "bmq://bmq.test.mem.priority/orders"


@dataclass
class Order:
    number: Annotated[int, bmq.Property]


class Kind(enum.Enum):
    EXPRESS = "EXPRESS"


class Repo:
    def __init__(self, name: str = "repo") -> None:
        self.name = name


class Shared:
    shipped = 0


def get_repo() -> Repo:
    return Repo()


async def get_name(repo: Annotated[Repo, bmq.Depends(get_repo)], attempt: bmq.Attempt) -> str:
    return f"{repo.name} {attempt.number}"


seen: asyncio.Queue[list[Any]] = asyncio.Queue()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    global seen
    seen = asyncio.Queue()


def say(*values: Any) -> None:
    seen.put_nowait(list(values))


@asynccontextmanager
async def given_an_order(
    stage: Stage, handler: Any, *, properties: Any = None, **options: Any
) -> AsyncIterator[Any]:
    """Post an order, and let a handler receive it."""
    await stage.queue.typed(Order).post(Order(1), properties=properties)
    async with stage.consuming(handler, **options) as task:
        yield task


async def one(stage: Stage, handler: Any, **options: Any) -> list[Any]:
    """Let a handler receive an order; return the arguments of its call of ``say``."""
    async with given_an_order(stage, handler, **options):
        return await seen.get()


# ---- sources


async def test_a_handler_receives_each_source_by_its_annotation(stage: Stage) -> None:
    async def ship(
        order: Order,
        message: bmq.Message,
        attempt: bmq.Attempt,
        customer: Annotated[int, bmq.Property("CustomerId")],
        kind: Annotated[Kind | None, bmq.Property("OrderType")],
        missing: Annotated[str | None, bmq.Property("Missing")],
        weight: Annotated[int, bmq.Property] = 7,
        *,
        name: Annotated[str, bmq.Depends(get_name)],
        repo: Annotated[Repo, bmq.Depends(Repo)],
        plain: str = "default",
    ) -> None:
        say(order, message.data, attempt.message is message, customer, kind, missing, weight, name, plain)

    found = await one(stage, ship, properties={"CustomerId": 5, "OrderType": "EXPRESS"})
    assert found == [Order(1), b'{"number":1}', True, 5, Kind.EXPRESS, None, 7, "repo 1", "default"]


async def test_a_handler_uses_another_codec(stage: Stage) -> None:
    async def ship(order: Order) -> None:
        say(order)

    data, _ = bmq.codecs.Shape(Order, "application/msgpack").encode(Order(1))
    await stage.queue.post(data)  # says nothing
    async with stage.consuming(ship, codec="application/msgpack"):
        assert await seen.get() == [Order(1)]


async def test_a_handler_in_a_thread_receives_dependencies_made_in_the_event_loop(stage: Stage) -> None:
    loop = asyncio.get_running_loop()

    def make() -> Iterator[threading.Thread]:
        yield threading.current_thread()
        loop.call_soon(say, "closed", threading.current_thread())

    def ship(order: Order, made: Annotated[threading.Thread, bmq.Depends(make)]) -> None:
        loop.call_soon_threadsafe(say, order, made, threading.current_thread())

    async with given_an_order(stage, ship):
        order, made, ran = await seen.get()
        assert await seen.get() == ["closed", threading.current_thread()]
    assert order == Order(1)
    assert made is threading.current_thread()
    assert ran is not made


async def test_a_dependency_is_made_once_in_an_attempt_and_anew_in_the_next(
    stage: Stage, clock: FakeClock
) -> None:
    made: list[Repo] = []

    def make() -> Repo:
        made.append(Repo())
        return made[-1]

    def other(repo: Annotated[Repo, bmq.Depends(make)]) -> Repo:
        return repo

    async def ship(
        order: Order, one: Annotated[Repo, bmq.Depends(make)], two: Annotated[Repo, bmq.Depends(other)]
    ) -> None:
        say(one is two)
        if len(made) == 1:
            raise OSError("not yet")

    async with given_an_order(stage, ship, retry=bmq.Backoff(every=1), clock=clock):
        assert [await seen.get(), await seen.get()] == [[True], [True]]
    assert len(made) == 2


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({}, "the message has no property CustomerId"),
        ({"CustomerId": "x"}, "the property CustomerId is 'x', and the handler takes int"),
        ({"CustomerId": True}, "the property CustomerId is True"),
        ({"CustomerId": 1, "Level": "low"}, "the property Level is 'low'"),
    ],
)
async def test_a_missing_or_wrong_property_is_given_up_as_undecodable(
    stage: Stage, clock: FakeClock, properties: dict[str, Any], why: str
) -> None:
    async def ship(
        message: bmq.Message,
        customer: Annotated[int, bmq.Property("CustomerId")],
        level: Annotated[Literal["high"], bmq.Property("Level")] = "high",
    ) -> None:
        say("called")

    await stage.queue.post(b"x", properties=properties)
    async with stage.consuming(ship, clock=clock):
        failure = await stage.failures.get()
    assert isinstance(failure.error, bmq.Undecodable)
    assert why in str(failure.error)
    assert failure.retry_in is None


async def test_an_undecodable_message_makes_no_dependency(stage: Stage) -> None:
    made: list[int] = []

    def make() -> Iterator[int]:
        made.append(1)
        yield 1

    async def ship(order: Order, one: Annotated[None, bmq.Depends(lambda: made.append(1))]) -> None: ...
    async def pack(order: Order, one: Annotated[int, bmq.Depends(make)]) -> None: ...

    for handler in (ship, pack):
        await stage.post(b"no JSON")
        async with stage.consuming(handler):
            assert isinstance((await stage.failures.get()).error, bmq.Undecodable)
    assert not made


async def test_expressions_are_checked_against_the_types_of_a_handler(stage: Stage) -> None:
    async def ship(order: Order, customer: Annotated[int, bmq.Property("CustomerId")]) -> None: ...

    bmq.App().consumer(QUEUE, expression="CustomerId > 1 && number > 0")(ship)
    with pytest.raises(bmq.InvalidExpression, match="Order has no property CustomerI"):
        bmq.App().consumer(QUEUE, expression="CustomerI > 1")(ship)
    with pytest.raises(bmq.InvalidExpression, match="compares an integer with a string"):
        await bmq.consume(stage.queue.subscribe('number == "1"'), ship)


# ---- what has no value


@pytest.mark.parametrize("kind", ["dead letter", "skip", "discard", "hook", "hook in a thread", "hook fails"])
async def test_an_undecodable_message_is_given_up_at_once_or_goes_to_its_hook(
    stage: Stage, session: bmq.Session, clock: FakeClock, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    dead = await session.open_queue(f"{stage.uri}.dead", read=True, write=True)
    loop = asyncio.get_running_loop()
    then: Any = bmq.DeadLetter(dead) if kind == "dead letter" else "discard" if kind == "discard" else "skip"
    options: dict[str, Any] = {"retry": bmq.Backoff(every=5, retries=9, then=then), "clock": clock}

    async def take(message: bmq.Message, error: bmq.Undecodable) -> None:
        say(message.data, str(error)[:20])
        if kind == "hook fails":
            raise bmq.Reject("not that either")

    def take_in_thread(message: bmq.Message, error: bmq.Undecodable) -> None:
        loop.call_soon_threadsafe(say, message.data, str(error)[:20])

    async def ship(order: Order) -> None:
        say(order)

    def ship_in_thread(order: Order) -> None:
        loop.call_soon_threadsafe(say, order)

    in_thread = kind == "hook in a thread"
    if "hook" in kind:
        options["undecodable"] = take_in_thread if in_thread else take
    await stage.post(b"no JSON", b'{"number": 1}')
    async with stage.consuming(ship_in_thread if in_thread else ship, **options):
        if "hook" in kind:
            assert await seen.get() == [b"no JSON", "not a value of Order"]
        assert await seen.get() == [Order(1)]
        if kind == "dead letter":
            letter = await dead.receive(timeout=10)
            assert (letter.data, letter.properties["bmq_dead_attempts"]) == (b"no JSON", 1)
            assert str(letter.properties["bmq_dead_error"]).startswith("Undecodable: not a value of Order (")
            letter.confirm()
    assert clock.slept == []
    assert stage.failures.qsize() == (kind not in ("hook", "hook in a thread"))
    assert ("cannot use message" in caplog.text) is ("hook" not in kind)
    assert await stage.left() == ([b"no JSON"] if kind in ("skip", "hook fails") else [])


# ---- an app


async def test_app_state_batches_and_app_scope(stage: Stage) -> None:
    log: list[str] = []
    app = bmq.App(stage.broker_uri, state=Shared())

    async def connect(shared: Shared) -> AsyncIterator[Repo]:
        log.append(f"connect {shared.shipped}")
        yield Repo("database")
        log.append("close")

    def table(repo: Annotated[Repo, bmq.Depends(connect, scope="app")]) -> str:
        return f"{repo.name}.orders"

    @app.on_startup
    def start() -> None:
        app.state.shipped = 7

    @app.on_shutdown
    def stop() -> None:
        log.append("shutdown")

    @app.batch_consumer(stage.uri, max_messages=2)
    async def load(
        orders: list[Order],
        shared: Shared,
        messages: list[bmq.Message],
        attempt: bmq.Attempt,
        name: Annotated[str, bmq.Depends(table)],
        repo: Annotated[Repo, bmq.Depends(connect, scope="app")],
    ) -> None:
        say(orders, shared.shipped, len(messages), len(attempt.messages), attempt.value is orders, name, repo)

    async with app:
        await stage.queue.typed(Order).post_many([Order(1), Order(2)])
        first = await seen.get()
        await stage.queue.typed(Order).post_many([Order(3), Order(4)])
        second = await seen.get()
    assert first[:-1] == [[Order(1), Order(2)], 7, 2, 2, True, "database.orders"]
    assert first[-1] is second[-1]
    assert log == ["connect 7", "close", "shutdown"]


async def test_handlers_of_an_app_share_its_dependencies(broker_uri: str, fresh: Callable[..., str]) -> None:
    app, made = bmq.App(broker_uri), list[int]()

    def connect() -> int:
        made.append(1)
        return 1

    def ship(message: bmq.Message, value: Annotated[int, bmq.Depends(connect, scope="app")]) -> None: ...
    def bill(message: bmq.Message, value: Annotated[int, bmq.Depends(connect, scope="app")]) -> None: ...

    for handler in (ship, bill):
        app.consumer(fresh())(handler)
    for runs in (1, 2):
        async with app:
            assert len(made) == runs


async def test_overrides_replace_a_dependency_from_the_next_start_on(stage: Stage) -> None:
    app = bmq.App(stage.broker_uri)

    @app.consumer(stage.uri)
    async def ship(message: bmq.Message, name: Annotated[str, bmq.Depends(get_name)]) -> None:
        say(name)

    async def fake() -> AsyncIterator[Repo]:
        yield Repo("fake")

    for overrides, expected in (({get_repo: fake}, "fake 1"), ({}, "repo 1")):
        app.overrides = dict(overrides)
        await stage.post(b"x")
        async with app:
            assert await seen.get() == [expected]


async def test_a_failing_app_dependency_ends_the_start_and_closes_earlier_ones(
    broker_uri: str, uri: str
) -> None:
    log: list[str] = []
    app = bmq.App(broker_uri)

    def opened() -> Iterator[str]:
        yield "first"
        log.append("closed")

    async def broken(first: Annotated[str, bmq.Depends(opened, scope="app")]) -> int:
        raise OSError(f"no database after {first}")

    async def ship(message: bmq.Message, n: Annotated[int, bmq.Depends(broken, scope="app")]) -> None: ...

    app.consumer(uri)(ship)
    with pytest.raises(OSError, match="no database after first"):
        await app.run(signals=False)
    assert log == ["closed"]


# ---- the life of a dependency


def watching(log: list[Any], name: str, at_end: Callable[[], None] = lambda: None) -> Any:
    """A dependency that notes its life."""

    async def watched() -> AsyncIterator[str]:
        try:
            yield name
        except BaseException as error:
            log.append((name, type(error).__name__))
            at_end()
            raise
        log.append((name, "end"))
        at_end()

    return watched


def swallowing(log: list[Any]) -> Any:
    def swallows() -> Iterator[int]:
        try:
            yield 1
        except BaseException as error:
            log.append(("swallowed", type(error).__name__))

    return swallows


async def test_generators_end_in_reverse_order_and_cannot_swallow_an_exception(
    stage: Stage, clock: FakeClock
) -> None:
    log: list[Any] = []
    outer, inner, swallows = watching(log, "outer"), watching(log, "inner"), swallowing(log)

    async def ship(
        order: Order,
        one: Annotated[str, bmq.Depends(outer)],
        two: Annotated[int, bmq.Depends(swallows)],
        three: Annotated[str, bmq.Depends(inner)],
        attempt: bmq.Attempt,
    ) -> None:
        if attempt.number == 1:
            raise OSError("not yet")
        say("done")

    async with given_an_order(stage, ship, retry=bmq.Backoff(every=1), clock=clock) as task:
        await seen.get()
        task.cancel()
        await asyncio.wait([task])
    failed = [("inner", "OSError"), ("swallowed", "OSError"), ("outer", "OSError")]
    assert log == [*failed, ("inner", "end"), ("outer", "end")]


@pytest.mark.parametrize("fails", ["when made", "after the handler", "instead of the handler's error"])
async def test_a_failing_dependency_fails_the_attempt(stage: Stage, clock: FakeClock, fails: str) -> None:
    log: list[Any] = []
    times = iter([1])

    def once() -> None:
        for _ in times:
            raise ConnectionError(fails)

    outer = watching(log, "outer")
    ending = watching(log, "ending", once if fails != "when made" else lambda: None)

    async def made(outer: Annotated[str, bmq.Depends(outer)]) -> str:
        if fails == "when made":
            once()
        return outer

    async def ship(
        order: Order,
        value: Annotated[str, bmq.Depends(made)],
        last: Annotated[str, bmq.Depends(ending)],
        attempt: bmq.Attempt,
    ) -> None:
        if fails.startswith("instead") and attempt.number == 1:
            raise ValueError("replaced")
        say("handled", attempt.number)

    async with given_an_order(stage, ship, retry=bmq.Backoff(every=1), clock=clock):
        while (await seen.get())[1] == 1:
            pass
    failure = stage.failures.get_nowait()
    assert stage.failures.empty()
    assert isinstance(failure.error, ConnectionError)
    assert failure.retry_in == 1
    assert ("outer", "ConnectionError") in log
    assert stage.queue.stats().confirmed == 1


async def test_a_deadline_covers_dependencies_and_closes_them(stage: Stage) -> None:
    log: list[Any] = []
    outer = watching(log, "outer")

    async def hangs(outer: Annotated[str, bmq.Depends(outer)]) -> str:
        await asyncio.Event().wait()
        return outer

    async def ship(order: Order, value: Annotated[str, bmq.Depends(hangs)]) -> None: ...
    def in_a_thread(order: Order, value: Annotated[str, bmq.Depends(hangs)]) -> None: ...

    for handler, seen_error in ((ship, "CancelledError"), (in_a_thread, "TimeoutError")):
        async with given_an_order(stage, handler, timeout=0.05, retry=bmq.NoRetry("discard")):
            failure = await stage.failures.get()
        assert isinstance(failure.error, TimeoutError)
        assert "not done within its deadline of 0.05 s" in str(failure.error)
        assert log.pop() == ("outer", seen_error)


async def test_a_dependency_cancelled_elsewhere_fails_the_attempt_alone(
    stage: Stage, clock: FakeClock
) -> None:
    log: list[Any] = []
    outer = watching(log, "outer")

    async def pending(attempt: bmq.Attempt, outer: Annotated[str, bmq.Depends(outer)]) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if attempt.number == 1:
            future.cancel()
        else:
            future.set_result("made")
        return await future

    async def ship(order: Order, value: Annotated[str, bmq.Depends(pending)]) -> None:
        say(value)

    assert await one(stage, ship, retry=bmq.Backoff(every=1), clock=clock) == ["made"]
    assert isinstance(stage.failures.get_nowait().error, asyncio.CancelledError)
    assert stage.failures.empty()
    assert log == [("outer", "CancelledError"), ("outer", "end")]


async def test_a_cancelled_handler_closes_its_dependencies(stage: Stage) -> None:
    log: list[Any] = []
    watched = watching(log, "watched")

    async def ship(order: Order, value: Annotated[str, bmq.Depends(watched)]) -> None:
        say("begun")
        await asyncio.Event().wait()

    assert await one(stage, ship, grace=0) == ["begun"]
    assert log == [("watched", "CancelledError")]
    assert stage.queue.stats().confirmed == 0


async def test_dependencies_of_a_late_thread_stay_open_until_the_thread_ends(stage: Stage) -> None:
    log: list[Any] = []
    watched = watching(log, "watched", lambda: say("closed"))
    go, loop = threading.Event(), asyncio.get_running_loop()

    def ship(order: Order, value: Annotated[str, bmq.Depends(watched)]) -> None:
        go.wait()
        loop.call_soon_threadsafe(log.append, "thread ended")

    async with given_an_order(stage, ship, timeout=0.05, retry=bmq.NoRetry("discard")):
        assert isinstance((await stage.failures.get()).error, TimeoutError)
        assert log == []
        go.set()
        assert await seen.get() == ["closed"]
    assert log == ["thread ended", ("watched", "TimeoutError")]


async def test_generators_that_do_not_yield_once_are_reported(stage: Stage) -> None:
    def never() -> Iterator[int]:
        yield from ()

    async def twice() -> AsyncIterator[int]:
        yield 1
        yield 2

    for function, why in (
        (never, "never did not yield: a generator yields its result once"),
        (twice, "twice yielded twice: a generator yields its result once"),
    ):

        async def ship(order: Order, value: Annotated[Any, bmq.Depends(function)]) -> None: ...

        async with given_an_order(stage, ship, retry=bmq.NoRetry("discard")):
            failure = await stage.failures.get()
        assert isinstance(failure.error, bmq.UsageError)
        assert why in str(failure.error)


# ---- shapes of functions


class Made:
    async def __call__(self, attempt: bmq.Attempt) -> str:
        return f"made in attempt {attempt.number}"


@dataclass
class Built:
    repo: Annotated[Repo, bmq.Depends(get_repo)]
    size: int = 3


class Service:
    async def ship(self, order: Order, repo: Annotated[Repo, bmq.Depends(get_repo)]) -> Any:
        return order, repo.name

    __call__ = ship

    async def session(self) -> AsyncIterator[str]:
        yield "session"


SERVICE = Service()


async def anything(*args: Any, **kwargs: Any) -> Any:
    return [type(each) for each in args], kwargs


async def markers_only(repo: Annotated[Repo, bmq.Depends(get_repo)], message: bmq.Message) -> Any:
    return repo.name, message.data


async def imported_for_type_checkers(order: Order, attempt: "Attempt") -> Any:
    return order, attempt.number


async def typed(message: bmq.TypedMessage[Order], attempt: bmq.Attempt) -> Any:
    return message.value, message.guid == attempt.message.guid


async def of_a_method(
    name: str, order: Order, session: Annotated[str, bmq.Depends(SERVICE.session)], *, more: int
) -> Any:
    return name, order, session, more


async def a_value_and_anything(order: Order, *args: Any, **kwargs: Any) -> Any:
    return order, args, kwargs


async def positional_only(
    order: Order, attempt: bmq.Attempt, /, repo: Annotated[Repo, bmq.Depends(Repo)]
) -> Any:
    return order, attempt.number, repo.name


async def between_defaults(
    order: Order,
    size: int = 3,
    repo: Annotated[Repo | None, bmq.Depends(get_repo)] = None,
    unknown: "Nowhere | None" = None,  # type: ignore[name-defined]  # noqa: F821
) -> Any:
    return order, size, repo and repo.name, unknown


async def an_object_and_a_class(
    order: Order, made: Annotated[str, bmq.Depends(Made())], built: Annotated[Built, bmq.Depends(Built)]
) -> Any:
    return made, built.repo.name, built.size


async def five(
    order: Order,
    message: bmq.Message,
    attempt: bmq.Attempt,
    one: Annotated[str, bmq.Depends(get_name)],
    two: Annotated[str, bmq.Depends(functools.partial(str, "two"))],
) -> Any:
    return order, attempt.message is message, one, two


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (SERVICE.ship, (Order(1), "repo")),
        (SERVICE, (Order(1), "repo")),
        (markers_only, ("repo", b'{"number":1}')),
        (imported_for_type_checkers, (Order(1), 1)),
        (typed, (Order(1), True)),
        (functools.partial(of_a_method, "n", more=3), ("n", Order(1), "session", 3)),
        (anything, ([bmq.Message], {})),
        (a_value_and_anything, (Order(1), (), {})),
        (positional_only, (Order(1), 1, "repo")),
        (between_defaults, (Order(1), 3, "repo", None)),
        (an_object_and_a_class, ("made in attempt 1", "repo", 3)),
        (functools.partial(five, two="bound"), (Order(1), True, "repo 1", "bound")),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_functions_of_many_shapes_are_called(stage: Stage, handler: Any, expected: Any) -> None:
    async def result(attempt: bmq.Attempt, call_next: Callable[[], Any]) -> Any:
        say(await call_next())

    assert await one(stage, handler, middlewares=[result]) == [expected]


# ---- refused signatures


def text() -> str:
    return ""


def needs_more(url) -> str:  # type: ignore[no-untyped-def]
    return str(url)


def of_message(message: bmq.Message) -> str:
    return ""


@contextmanager
def managed() -> Iterator[str]:
    yield ""


def circle(value: Annotated[str, bmq.Depends(lambda: "")]) -> str:
    return value


def first_of_two(value: Annotated[str, bmq.Depends(circle)]) -> str:
    return value


circle.__annotations__["value"] = Annotated[str, bmq.Depends(first_of_two)]


async def of_bytes(data: bytes) -> None: ...
async def second_type(order: Order, repo: Repo) -> None: ...
async def no_annotation(order: Order, message: bmq.Message, more) -> None: ...  # type: ignore[no-untyped-def]
async def two_markers(order: Order, x: Annotated[str, bmq.Depends(text), bmq.Property("x")]) -> None: ...
async def no_function(order: Order, x: Annotated[str, bmq.Depends]) -> None: ...
async def as_default(order: Order, x: Repo = bmq.Depends(get_repo)) -> None: ...  # type: ignore[assignment]  # noqa: B008
async def needy(order: Order, url: Annotated[str, bmq.Depends(needs_more)]) -> None: ...
async def context(order: Order, x: Annotated[str, bmq.Depends(managed)]) -> None: ...
async def circular(order: Order, x: Annotated[str, bmq.Depends(circle)]) -> None: ...
async def short_lived(order: Order, x: Annotated[str, bmq.Depends(of_message, scope="app")]) -> None: ...
async def no_property(order: Order, x: Annotated[float, bmq.Property("x")]) -> None: ...
async def reserved(order: Order, x: Annotated[str, bmq.Property("bmq_x")]) -> None: ...
async def unknown(order: Order, x: "Annotated[Nowhere, bmq.Depends(text)]") -> None: ...  # type: ignore[name-defined]  # noqa: F821
async def no_such(order: "bmq.Nowhere") -> None: ...  # type: ignore[name-defined]
async def too_late(
    order: Order, size: int = 3, repo: Annotated[Repo | None, bmq.Depends(Repo)] = None, /
) -> None: ...
async def both_scopes(
    order: Order, a: Annotated[str, bmq.Depends(text)], b: Annotated[str, bmq.Depends(text, scope="app")]
) -> None: ...


REFUSED: list[tuple[Any, str]] = [
    (of_bytes, "bytes are posted and received unchanged"),
    (
        second_type,
        "second_type: parameter repo is annotated with Repo, which has no source: a handler takes a message, "
        "a value, or a value and .*bmq.Depends",
    ),
    (no_annotation, r"parameter more has no annotation.*bmq.Attempt.*Annotated\[..., bmq.Property"),
    (functools.partial(second_type, repo=Repo()), ""),
    (two_markers, "two_markers: parameter x has 2 markers of bmq: keep a single marker"),
    (no_function, "parameter x has bmq.Depends without a function: .*bmq.Depends.get_x"),
    (as_default, r"parameter x has bmq.Depends as its default: .*x: Annotated\[..., bmq.Depends"),
    (needy, "needy: dependency needs_more: parameter url has no annotation, which has no source"),
    (context, "dependency managed is a context manager: remove @contextmanager"),
    (circular, "depends on itself: circle -> first_of_two -> circle. Move the shared part"),
    (
        short_lived,
        r"of_message has the scope 'app', and its parameter message \(Message\) belongs to a single",
    ),
    (no_property, "no_property: parameter x cannot be a property: .* not <class 'float'>"),
    (reserved, "reserved: parameter x: names that begin with bmq_ are reserved"),
    (unknown, "unknown: the annotation of parameter x cannot be read: name 'Nowhere' is not defined"),
    (no_such, "no_such: the annotation of parameter order cannot be read"),
    (too_late, "parameter repo is positional-only behind a parameter that keeps its default: move repo"),
    (both_scopes, "text is a dependency with scope='message' and with scope='app'"),
]


@sweep("handler, why", REFUSED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_signature_that_cannot_work_is_refused(handler: Any, why: str) -> None:
    app = bmq.App(state=Shared())
    if not why:
        app.consumer(QUEUE)(handler)
        return
    with pytest.raises(bmq.UsageError, match=why):
        app.consumer(QUEUE)(handler)
    assert app._registry.handlers == []


async def batch_message(orders: list[Order], message: bmq.Message) -> None: ...
async def batch_property(orders: list[Order], x: Annotated[str, bmq.Property("x")]) -> None: ...
async def batch_dependency(orders: list[Order], x: Annotated[str, bmq.Depends(of_message)]) -> None: ...


@sweep(
    "handler, why",
    [
        (batch_message, r"batch_message handles batches: annotate message with list\[bmq.Message\]"),
        (batch_property, "batch_property: parameter x is a property, and a batch has many messages"),
        (batch_dependency, "dependency of_message handles batches: annotate message with list"),
    ],
)
def test_a_batch_has_no_single_message(handler: Any, why: str) -> None:
    with pytest.raises(bmq.UsageError, match=why):
        bmq.App().batch_consumer(QUEUE)(handler)


def of_orders_in_a_thread(order: Order) -> None: ...
def of_messages_in_a_thread(message: bmq.Message) -> None: ...
async def take(message: bmq.Message, error: bmq.Undecodable) -> None: ...


@sweep(
    "handler, options, why",
    [
        (of_orders_in_a_thread, {"undecodable": take}, "of_orders_in_a_thread and take must both run"),
        (of_messages_in_a_thread, {"undecodable": take}, "of_messages_in_a_thread takes messages"),
        (of_messages_in_a_thread, {"codec": "application/msgpack"}, "of_messages_in_a_thread takes messages"),
    ],
)
def test_options_that_do_not_fit_the_handler_are_refused(handler: Any, options: Any, why: str) -> None:
    with pytest.raises(bmq.UsageError, match=why):
        bmq.App().consumer(QUEUE, **options)(handler)


@sweep("given", [7, None, bmq.Depends(text)])
def test_depends_needs_a_function(given: Any) -> None:
    with pytest.raises(bmq.UsageError, match=r"the function of bmq.Depends must be a function"):
        bmq.Depends(given)
    with pytest.raises(bmq.UsageError, match="scope must be one of 'message', 'app', not 'session'"):
        bmq.Depends(text, scope="session")  # type: ignore[arg-type]
