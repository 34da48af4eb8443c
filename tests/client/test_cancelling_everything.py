# SPDX-License-Identifier: Apache-2.0
"""Every public coroutine, found by inspection, cancelled at every await: the same call works again at once.

Nothing else may be left: no task, and no complaint to the loop (see ``_quiet_loop`` in ``conftest.py``).
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import bmq
from bmq.workers import LoopClock, Sweeper

DOMAIN = "bmq://bmq.test.mem.priority/"
URI = DOMAIN + "q"
MODULES = [
    "bmq",
    "bmq.admin",
    "bmq.arrow",
    "bmq.delays",
    "bmq.groups",
    "bmq.typed",
    "bmq.workers",
]
SPECIAL = {"__aenter__", "__aiter__", "__anext__", "__await__"}
#: The most turns of the loop after which a call is cancelled.
TURNS = 60
#: Joining a group takes many turns: tests/groups/test_cancelling.py cancels it in each of them.
STEPS = {"Group": 7, "TypedGroup": 7}


def coroutines() -> Iterator[str]:
    """Return the names of all exported awaitables, context managers and iterators."""
    found = set[str]()
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.isclass(thing):
                if is_awaitable(thing):
                    found.add(name)
            elif thing.__module__.startswith("bmq") and thing is not bmq.workers.Clock:
                for member in dir(thing):
                    if member in SPECIAL or not member.startswith("_"):
                        function = inspect.getattr_static(thing, member)
                        if member in SPECIAL or is_awaitable(function):
                            found.add(f"{thing.__qualname__}.{member}")
    yield from sorted(found)


def is_awaitable(function: Any) -> bool:
    function = getattr(function, "__func__", function)
    returned = str(getattr(function, "__annotations__", {}).get("return", ""))
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
        or returned.startswith(("AsyncIterator", "AsyncGenerator", "Awaitable", "Future", "PostFuture"))
    )


class World:
    """The objects of the recipes: a session with one queue, and further objects on request."""

    def __init__(self, broker: bmq.broker.Broker, session: bmq.Session, queue: bmq.Queue) -> None:
        self.broker = broker
        self.session = session
        self.queue = queue
        self.typed = queue.typed(int)
        self.admin: bmq.admin.Admin

    def app(self) -> bmq.App:
        app = bmq.App(self.broker.uri)

        @app.consumer(DOMAIN + "app")
        async def handle(message: bmq.Message) -> None:
            pass

        return app


Recipe = Callable[[World], Awaitable[Any]]
RECIPES: dict[str, Recipe] = {}
#: The recipes of calls that go on until they are cancelled.
ENDLESS = set[str]()


def recipe(*names: str, endless: bool = False) -> Callable[[Recipe], Recipe]:
    def add(function: Recipe) -> Recipe:
        RECIPES.update(dict.fromkeys(names, function))
        ENDLESS.update(names if endless else ())
        return function

    return add


def simple(name: str, call: Recipe, *, endless: bool = False) -> None:
    recipe(name, endless=endless)(call)


# connections


@recipe("connect.__await__")
async def connect(w: World) -> None:
    await (await bmq.connect(w.broker.uri)).close()


@recipe("connect.__aenter__", "Session.__aenter__", "Session.close")
async def connect_as_a_context(w: World) -> None:
    async with bmq.connect(w.broker.uri) as session:
        await session.open_queue(URI, write=True)


@recipe("Admin.__aenter__", "Admin.close")
async def admin_as_a_context(w: World) -> None:
    async with bmq.admin.connect(w.broker.uri) as admin:
        await admin.domains()


@recipe("Session.open_queue", "Queue.__aenter__", "Queue.close")
async def open_queue(w: World) -> None:
    async with await w.session.open_queue(DOMAIN + "other", read=True, default_subscription=True, write=True):
        pass


@recipe("Session.open_output")
async def output(w: World) -> None:
    await (await w.session.open_output(DOMAIN + "output")).post(b"1")


simple("Session.events", lambda w: anext(aiter(w.session.events())), endless=True)


# posting

simple("Queue.post", lambda w: w.queue.post(b"1"))
simple("Queue.post_nowait", lambda w: w.queue.post_nowait(b"1"))
simple("Queue.post_many", lambda w: w.queue.post_many([b"1", b"2"]))
simple("Queue.post_table", lambda w: w.queue.post_table(pa.table({"value": [b"1", b"2"]})))
simple("Queue.flush", lambda w: w.queue.flush())
simple("TypedQueue.post", lambda w: w.typed.post(1))
simple("TypedQueue.post_nowait", lambda w: w.typed.post_nowait(1))
simple("TypedQueue.post_many", lambda w: w.typed.post_many([1, 2]))


@recipe("Queue.post_encoded")
async def post_encoded(w: World) -> None:
    await w.queue.post_encoded(w.queue.encode_table(pa.table({"value": [b"1", b"2"]})))


async def requested(queue: Any, value: object) -> None:
    with pytest.raises(TimeoutError):
        await queue.request(value, timeout=0.005)


simple("Queue.request", lambda w: requested(w.queue, b"1"))
simple("TypedQueue.request", lambda w: requested(w.typed, 1))


# receiving


def with_a_message(call: Recipe) -> Recipe:
    async def received(w: World) -> None:
        w.queue.post_nowait(b"1", properties={"bmq_codec": "application/json"}).add_done_callback(ignore)
        await call(w)

    return received


def ignore(future: asyncio.Future[Any]) -> None:
    future.cancelled() or future.exception()


async def first(items: Any) -> None:
    iterator = aiter(items)
    await anext(iterator)
    with suppress(AttributeError):
        await iterator.aclose()


async def confirm(message: bmq.Message) -> None:
    async with message:
        await asyncio.sleep(0)


async def confirmed(receiving: Awaitable[Any]) -> None:
    await confirm(await receiving)


simple("Queue.receive", with_a_message(lambda w: w.queue.receive(timeout=20)))
simple("Queue.receive_many", with_a_message(lambda w: w.queue.receive_many(timeout=20)))
simple("Queue.__aiter__", with_a_message(lambda w: first(w.queue)))
simple("Queue.batches", with_a_message(lambda w: first(w.queue.batches())))
simple("Message.__aenter__", with_a_message(lambda w: confirmed(w.queue.receive(timeout=20))))
simple("TypedQueue.receive", with_a_message(lambda w: w.typed.receive(timeout=20)))
simple("TypedQueue.__aiter__", with_a_message(lambda w: first(w.typed)))
simple("TypedQueue.receive_many", with_a_message(lambda w: w.typed.receive_many(timeout=20)))
simple("TypedQueue.batches", with_a_message(lambda w: first(w.typed.batches())))
simple("TypedQueue.configure", lambda w: w.typed.configure(priority=3))
simple("TypedQueue.flush", lambda w: w.typed.flush())
simple("TypedMessage.__aenter__", with_a_message(lambda w: confirmed(w.typed.receive(timeout=20))))
simple("Queue.configure", lambda w: w.queue.configure(priority=3))


async def batch(queue: Any) -> None:
    async for each in queue.batches():
        async with each:
            break


simple("MessageBatch.__aenter__", with_a_message(lambda w: batch(w.queue)))
simple("TypedBatch.__aenter__", with_a_message(lambda w: batch(w.typed)))


def of_consumer(
    call: Callable[[Any], Awaitable[Any]],
    make: Callable[[World], Any] = lambda w: w.queue.subscribe(priority=1),
) -> Recipe:
    """A call of a consumer, or of tables, open and with a message."""

    async def consume(w: World) -> None:
        consumer = make(w)
        try:
            await consumer.open()
            w.queue.post_nowait(b"1").add_done_callback(ignore)
            await call(consumer)
        finally:
            await consumer.close()

    return consume


def of_typed_consumer(call: Callable[[Any], Awaitable[Any]]) -> Recipe:
    return of_consumer(call, lambda w: w.typed.subscribe(priority=1))


def of_tables(call: Callable[[Any], Awaitable[Any]]) -> Recipe:
    return of_consumer(call, lambda w: w.queue.tables(priority=1))


async def entered(thing: Any) -> None:
    async with thing:
        pass


async def pause_and_resume(consumer: bmq.Consumer) -> None:
    await consumer.open()
    await consumer.pause()
    await consumer.resume()


async def opened(thing: Any) -> None:
    await thing


for name, of in (("Consumer", of_consumer), ("TypedConsumer", of_typed_consumer)):
    simple(f"{name}.__aenter__", of(entered))
    simple(f"{name}.__await__", of(opened))
    recipe(f"{name}.open", f"{name}.close")(of(lambda c: c.open()))
    recipe(f"{name}.pause", f"{name}.resume")(of(pause_and_resume))
    simple(f"{name}.receive", of(lambda c: c.receive(timeout=20)))
    simple(f"{name}.receive_many", of(lambda c: c.receive_many(timeout=20)))
    simple(f"{name}.__aiter__", of(first))
    simple(f"{name}.batches", of(lambda c: first(c.batches())))
    simple(f"{name}.configure", of(lambda c: c.configure(priority=2)))
simple("Consumer.wait", of_consumer(lambda c: c.wait(timeout=1)))


def of_group(call: Callable[[Any], Awaitable[Any]], typed: bool = False) -> Recipe:
    async def use(w: World) -> None:
        queue = await w.session.open_queue(DOMAIN + "group", read=True)
        try:
            group: Any = (queue.typed(int) if typed else queue).group("k", buckets=2)
            try:
                await call(group)
            finally:
                await group.close()
        finally:
            await queue.close()

    return use


for typed, prefix in ((False, ""), (True, "Typed")):
    of = partial(of_group, typed=typed)
    name = f"{prefix}Group"
    simple(f"{name}.__aenter__", of(entered))
    simple(f"{name}.__await__", of(opened))
    recipe(f"{name}.open", f"{name}.close")(of(lambda g: g.open()))
    simple(f"{name}.receive", of(lambda g: g.receive()), endless=True)
    simple(f"{name}.__aiter__", of(first), endless=True)
recipe("Group.__anext__", endless=True)(RECIPES["Group.__aiter__"])


# delays


def of_due(call: Callable[[Any], Awaitable[Any]]) -> Recipe:
    async def use(w: World) -> None:
        queue = await w.session.open_queue(
            DOMAIN + "due", read=True, write=True, delay_queue_uri=DOMAIN + "due"
        )
        try:
            due = bmq.delays.DueMessages(queue, tick=0.001)
            try:
                await queue.post(b"1")
                await call(due)
            finally:
                await due.close()
        finally:
            await queue.close()

    return use


simple("DueMessages.__aenter__", of_due(entered))
recipe("DueMessages.open", "DueMessages.close")(of_due(lambda d: d.open()))
simple("DueMessages.batch", of_due(lambda d: d.batch()))
recipe("DueMessages.__aiter__", "DueMessages.__anext__")(of_due(first))


@recipe("Mover.run", endless=True)
async def mover(w: World) -> None:
    async with await w.session.open_queue(DOMAIN + "q.delayed", read=True) as queue:
        await bmq.delays.Mover(queue, grace=0).run()


simple("check", lambda w: bmq.delays.check(w.admin, URI))
simple("longest_delay", lambda w: bmq.delays.longest_delay(w.admin, URI))
simple("watch", lambda w: bmq.delays.watch(w.admin, URI), endless=True)


# workers


async def handle(message: bmq.Message) -> None:
    await asyncio.sleep(0)


simple("consume", lambda w: bmq.consume(w.queue.subscribe(), handle, grace=0.01), endless=True)
simple("App.run", lambda w: w.app().run(signals=False), endless=True)


@recipe("App.__aenter__", "App.pause", "App.resume", "App.queue")
async def app(w: World) -> None:
    async with w.app() as app:
        await app.pause()
        await app.resume()
        await (await app.queue(URI)).post(b"1")


@recipe("Sweeper.run", endless=True)
async def sweeper(w: World) -> None:
    await Sweeper(DOMAIN + "swept").run(w.session)


async def nothing() -> None:
    await asyncio.sleep(0)


@recipe("Interceptor.handle")
async def observed(w: World) -> None:
    await w.queue.post(b"1")
    attempt = bmq.Attempt([await w.queue.receive()])
    await bmq.Interceptor().handle(attempt, nothing)


simple("LoopClock.sleep", lambda w: LoopClock().sleep(0.001))


@recipe("DeadLetter.post")
async def dead_letter(w: World) -> None:
    target = bmq.DeadLetter(DOMAIN + "dead")
    await w.queue.post(b"1")
    message = await w.queue.receive(timeout=20)
    failure = bmq.workers.Failure(message, ValueError("bad"), 1, None, "handler")
    await target.post(failure, w.queue, asyncio.sleep)


# administration


def refused(call: Recipe) -> Recipe:
    """Make a call that an embedded broker may refuse."""

    async def ask(w: World) -> None:
        with suppress(bmq.errors.AdminError):
            await call(w)

    return ask


for name in ("queues", "domains", "clusters", "statistics", "clear_caches", "gap"):
    simple(f"Admin.{name}", refused(lambda w, name=name: getattr(w.admin, name)()))
for name, what in {
    "domain": "bmq.test.mem.priority",
    "purge_domain": "bmq.test.mem.priority",
    "reconfigure": "bmq.test.mem.priority",
    **dict.fromkeys(("command", "query"), "HELP"),
    **dict.fromkeys(("topology", "cluster_status", "cluster_storage"), "local"),
}.items():
    simple(f"Admin.{name}", refused(lambda w, name=name, what=what: getattr(w.admin, name)(what)))
for name in ("standing", "depth", "internals", "messages", "purge", "statistics"):
    simple(f"QueueAdmin.{name}", refused(lambda w, name=name: getattr(w.admin.queue(URI), name)()))
simple("QueueAdmin.all_messages", lambda w: exhausted(w.admin.queue(URI).all_messages()))


async def exhausted(items: Any) -> None:
    async for _ in items:
        pass


# tables


simple("Tables.__aenter__", of_tables(entered))
simple("Tables.__await__", of_tables(opened))
recipe("Tables.open", "Tables.close")(of_tables(lambda t: t.open()))
simple("Tables.receive", of_tables(lambda t: t.receive()))
recipe("Tables.__aiter__", "Tables.__anext__")(of_tables(first))


def test_every_public_coroutine_has_a_recipe() -> None:
    assert sorted(RECIPES) == list(coroutines())


#: Names that share a recipe need it once.
ONCE = list({call: name for name, call in reversed(RECIPES.items())}.values())


@pytest.mark.parametrize("name", ONCE[::-1])
async def test_a_call_cancelled_at_any_await_can_be_made_again_at_once(
    broker: bmq.broker.Broker, name: str
) -> None:
    call = RECIPES[name]
    async with bmq.connect(broker.uri) as session, bmq.admin.connect(broker.uri) as admin:
        queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
        world = World(broker, session, queue)
        world.admin = admin
        async with asyncio.timeout(60):
            for turns in range(0, TURNS, STEPS.get(name.partition(".")[0], 1)):
                if not await cancelled(call(world), turns):
                    break
                await again(call, world, endless=name in ENDLESS)
            for opened in session.queues:
                if opened is not queue:
                    await opened.close()
            await queue.post(b"last")
            while (await queue.receive(timeout=20)).data != b"last":
                pass


async def again(call: Recipe, world: World, *, endless: bool) -> None:
    if endless:
        assert await cancelled(call(world), TURNS), "it should have gone on"
    else:
        async with asyncio.timeout(20):
            await call(world)


async def cancelled(call: Awaitable[Any], turns: int) -> bool:
    """Cancel a call some turns of the loop after it was started; return whether it was cancelled."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False
