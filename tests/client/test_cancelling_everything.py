# SPDX-License-Identifier: Apache-2.0
"""Every public coroutine, found by inspection, cancelled at every await: the same call works again at once.

Nothing else may be left: no task, and no complaint to the loop (see ``_quiet_loop`` in ``conftest.py``).
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import bmq
from bmq.workers import LoopClock, Sweeper

DOMAIN = "bmq://bmq.test.mem.priority/"
URI = DOMAIN + "q"
MODULES = ["bmq", "bmq.admin", "bmq.arrow", "bmq.delays", "bmq.groups", "bmq.typed", "bmq.workers"]
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


@dataclass
class World:
    """A broker, a session and an admin client, and a queue open for both sides."""

    broker: bmq.broker.Broker
    session: bmq.Session
    queue: bmq.Queue
    admin: bmq.admin.Admin

    def app(self) -> bmq.App:
        app = bmq.App(self.broker.uri)
        app.consumer(DOMAIN + "app")(handle)
        return app


async def handle(message: bmq.Message) -> None:
    await asyncio.sleep(0)


def ignore(future: asyncio.Future[Any]) -> None:
    future.cancelled() or future.exception()


Maker = Callable[[World], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def a_queue(w: World, typed: bool = False) -> AsyncIterator[Any]:
    w.queue.post_nowait(b"1", properties={"bmq_codec": "application/json"}).add_done_callback(ignore)
    yield w.queue.typed(int) if typed else w.queue


@asynccontextmanager
async def subscribed(w: World, subscribe: Callable[[bmq.Queue], Any]) -> AsyncIterator[Any]:
    consumer = subscribe(w.queue)
    try:
        await consumer.open()
        w.queue.post_nowait(b"1").add_done_callback(ignore)
        yield consumer
    finally:
        await consumer.close()


@asynccontextmanager
async def a_group(w: World, typed: bool = False) -> AsyncIterator[Any]:
    queue = await w.session.open_queue(DOMAIN + "group", read=True)
    try:
        group: Any = (queue.typed(int) if typed else queue).group("k", buckets=2)
        try:
            yield group
        finally:
            await group.close()
    finally:
        await queue.close()


@asynccontextmanager
async def due_messages(w: World) -> AsyncIterator[Any]:
    uri = DOMAIN + "due"
    queue = await w.session.open_queue(uri, read=True, write=True, delay_queue_uri=uri)
    try:
        due = bmq.delays.DueMessages(queue, tick=0.001)
        try:
            await queue.post(b"1")
            yield due
        finally:
            await due.close()
    finally:
        await queue.close()


@asynccontextmanager
async def an_admin(w: World, uri: str = "") -> AsyncIterator[Any]:
    with suppress(bmq.errors.AdminError):  # an embedded broker may refuse the command
        yield w.admin.queue(uri) if uri else w.admin


MAKERS: dict[str, Maker] = {
    "Queue": a_queue,
    "TypedQueue": partial(a_queue, typed=True),
    "Consumer": partial(subscribed, subscribe=lambda queue: queue.subscribe(priority=1)),
    "TypedConsumer": partial(subscribed, subscribe=lambda queue: queue.typed(int).subscribe(priority=1)),
    "Tables": partial(subscribed, subscribe=lambda queue: queue.tables(priority=1)),
    "Group": a_group,
    "TypedGroup": partial(a_group, typed=True),
    "DueMessages": due_messages,
    "Admin": an_admin,
    "QueueAdmin": partial(an_admin, uri=URI),
}


async def first(items: Any) -> None:
    iterator = aiter(items)
    await anext(iterator)
    with suppress(AttributeError):
        await iterator.aclose()


async def exhausted(items: Any) -> None:
    async for _ in items:
        pass


async def entered(thing: Any) -> None:
    async with thing:
        await asyncio.sleep(0)


async def awaited(thing: Any) -> None:
    await thing


async def pause_and_resume(consumer: bmq.Consumer) -> None:
    await consumer.pause()
    await consumer.resume()


async def requested(queue: Any, value: object) -> None:
    with pytest.raises(TimeoutError):
        await queue.request(value, timeout=0.005)


async def batch(queue: Any) -> None:
    async for each in queue.batches():
        async with each:
            break


async def message(queue: Any) -> None:
    await entered(await queue.receive(timeout=20))


def table() -> pa.Table:
    return pa.table({"value": [b"1", b"2"]})


#: The calls, by the name of the method; ``value`` can be posted to the queue.
CALLS: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
    "__aenter__": lambda thing, _: entered(thing),
    "__aiter__": lambda thing, _: first(thing),
    "__await__": lambda thing, _: awaited(thing),
    "open": lambda thing, _: thing.open(),
    "post": lambda queue, value: queue.post(value),
    "post_nowait": lambda queue, value: queue.post_nowait(value),
    "post_many": lambda queue, value: queue.post_many([value, value]),
    "post_table": lambda queue, _: queue.post_table(table()),
    "post_encoded": lambda queue, _: queue.post_encoded(queue.encode_table(table())),
    "flush": lambda queue, _: queue.flush(),
    "request": requested,
    "receive": lambda thing, _: thing.receive(timeout=20),
    "receive_many": lambda thing, _: thing.receive_many(timeout=20),
    "batches": lambda thing, _: first(thing.batches()),
    "batch": lambda due, _: due.batch(),
    "configure": lambda thing, _: thing.configure(priority=3),
    "pause": lambda consumer, _: pause_and_resume(consumer),
    "wait": lambda consumer, _: consumer.wait(timeout=1),
    "all_messages": lambda queue, _: exhausted(queue.all_messages()),
    **{
        name: lambda admin, _, name=name, what=what: getattr(admin, name)(*what)  # type: ignore[misc]
        for names, what in {
            "queues domains clusters statistics clear_caches gap": (),
            "standing depth internals messages purge": (),
            "domain purge_domain reconfigure": ("bmq.test.mem.priority",),
            "command query": ("HELP",),
            "topology cluster_status cluster_storage": ("local",),
        }.items()
        for name in names.split()
    },
}
#: What a call of another name has shown.
SHOWN = {
    "close": "open",
    "resume": "pause",
    "__anext__": "__aiter__",
    **dict.fromkeys(("Queue.__aenter__", "Queue.close"), "Session.open_queue"),
    **dict.fromkeys(("Session.__aenter__", "Session.close"), "connect.__aenter__"),
    **dict.fromkeys(("App.pause", "App.resume", "App.queue"), "App.__aenter__"),
    "Admin.close": "Admin.__aenter__",
}

Recipe = Callable[[World], Awaitable[Any]]


async def connect(w: World) -> None:
    await (await bmq.connect(w.broker.uri)).close()


async def connect_as_a_context(w: World) -> None:
    async with bmq.connect(w.broker.uri) as session:
        await session.open_queue(URI, write=True)


async def admin_as_a_context(w: World) -> None:
    async with bmq.admin.connect(w.broker.uri) as admin:
        await admin.domains()


async def open_queue(w: World) -> None:
    await entered(
        await w.session.open_queue(DOMAIN + "other", read=True, default_subscription=True, write=True)
    )


async def output(w: World) -> None:
    await (await w.session.open_output(DOMAIN + "output")).post(b"1")


async def received(w: World, use: Callable[[Any], Awaitable[Any]], typed: bool = False) -> None:
    async with a_queue(w, typed) as queue:
        await use(queue)


async def mover(w: World) -> None:
    async with await w.session.open_queue(DOMAIN + "q.delayed", read=True) as queue:
        await bmq.delays.Mover(queue, grace=0).run()


async def app(w: World) -> None:
    async with w.app() as app:
        await app.pause()
        await app.resume()
        await (await app.queue(URI)).post(b"1")


async def observed(w: World) -> None:
    async with a_queue(w) as queue:
        attempt = bmq.Attempt([await queue.receive()])
        await bmq.Interceptor().handle(attempt, lambda: asyncio.sleep(0))


async def dead_letter(w: World) -> None:
    target = bmq.DeadLetter(DOMAIN + "dead")
    async with a_queue(w) as queue:
        letter = await queue.receive(timeout=20)
        failure = bmq.workers.Failure(letter, ValueError("bad"), 1, None, "handler")
        await target.post(failure, queue, asyncio.sleep)


#: The calls that need more than an object.
RECIPES: dict[str, Recipe] = {
    "connect.__await__": connect,
    "connect.__aenter__": connect_as_a_context,
    "Admin.__aenter__": admin_as_a_context,
    "Session.open_queue": open_queue,
    "Session.open_output": output,
    "Session.events": lambda w: anext(aiter(w.session.events())),
    "Message.__aenter__": partial(received, use=message),
    "TypedMessage.__aenter__": partial(received, use=message, typed=True),
    "MessageBatch.__aenter__": partial(received, use=batch),
    "TypedBatch.__aenter__": partial(received, use=batch, typed=True),
    "Mover.run": mover,
    "check": lambda w: bmq.delays.check(w.admin, URI),
    "longest_delay": lambda w: bmq.delays.longest_delay(w.admin, URI),
    "watch": lambda w: bmq.delays.watch(w.admin, URI),
    "consume": lambda w: bmq.consume(w.queue.subscribe(), handle, grace=0.01),
    "App.run": lambda w: w.app().run(signals=False),
    "App.__aenter__": app,
    "Sweeper.run": lambda w: Sweeper(DOMAIN + "swept").run(w.session),
    "Interceptor.handle": observed,
    "LoopClock.sleep": lambda _: LoopClock().sleep(0.001),
    "DeadLetter.post": dead_letter,
}
#: These go on until they are cancelled.
ENDLESS = {
    *("Session.events", "Mover.run", "watch", "consume", "App.run", "Sweeper.run"),
    *(f"{group}.{member}" for group in ("Group", "TypedGroup") for member in ("receive", "__aiter__")),
}


def recipe(name: str) -> Recipe:
    """Return the call of a public coroutine; a new one needs an entry in one of the tables."""
    if name in RECIPES:
        return RECIPES[name]
    owner, _, member = name.partition(".")
    make, call = MAKERS[owner], CALLS[member]

    async def use(w: World) -> None:
        async with make(w) as thing:
            await call(thing, 1 if owner.startswith("Typed") else b"1")

    return use


NAMES = [name for name in coroutines() if name not in SHOWN and name.partition(".")[2] not in SHOWN]


@pytest.mark.parametrize("name", NAMES)
async def test_a_call_cancelled_at_any_await_can_be_repeated(broker: bmq.broker.Broker, name: str) -> None:
    call = recipe(name)
    async with bmq.connect(broker.uri) as session, bmq.admin.connect(broker.uri) as admin:
        queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
        world = World(broker, session, queue, admin)
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
