# SPDX-License-Identifier: Apache-2.0
"""Routers: handlers of modules without an app, included in one or several apps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest

import bmq
from bmq.testing import TestApp
from bmq.workers import CallNext, Middleware
from tests.sweeps import sweep

DOMAIN = "bmq://bmq.test.mem.priority/"
ORDERS = DOMAIN + "orders"


async def handle(message: bmq.Message) -> None:
    """A handler."""


def queues_of(app: bmq.App) -> list[str]:
    """The queues of an app's handlers, in the order of registration; a status has them only in a run."""
    return [str(each.uri) for each in app._registry.handlers]


async def test_handlers_of_a_router_use_the_session_of_the_app() -> None:
    router = bmq.Router(prefix=DOMAIN)
    app = bmq.App()
    seen: list[str] = []

    def note(name: str, message: bmq.Message) -> None:
        assert message.consumer.queue.session is app.session
        seen.append(name)

    @app.consumer(DOMAIN + "own")
    async def own(message: bmq.Message) -> None:
        note("own", message)

    @router.consumer("orders")
    async def ship(message: bmq.Message) -> None:
        note("ship", message)

    @router.batch_consumer("rows", max_messages=2, max_wait=30)
    async def load(messages: list[bmq.Message]) -> None:
        note(f"load {len(messages)}", messages[0])

    @router.responder("asked")
    async def answer(message: bmq.Message) -> bytes:
        note("answer", message)
        return message.data.upper()

    app.include(router)
    async with TestApp(app) as test:
        for name in ("own", "orders", "rows", "rows"):
            await test.post(DOMAIN + name, b"1")
        await test.drained(DOMAIN + "own", ORDERS, DOMAIN + "rows")
        async with bmq.connect(test.broker.uri) as session:
            asked = await session.open_queue(DOMAIN + "asked", write=True)
            assert (await asked.request(b"price", timeout=30)).data == b"PRICE"
        assert sorted(seen) == ["answer", "load 2", "own", "ship"]
        assert [each.handler for each in app.status()][:3] == ["own", "ship", "load"]


async def test_a_router_brings_its_mover_and_its_functions() -> None:
    router, app = bmq.Router(DOMAIN), bmq.App()
    calls: list[str] = []
    app.on_startup(lambda: calls.append("app starts"))
    router.on_startup(lambda: calls.append("router starts"))
    router.on_shutdown(lambda: calls.append("router stops"))
    router.mover("orders.delayed", dead_letters="orders.dead")
    router.consumer("orders")(handle)
    app.include(router)
    app.on_shutdown(lambda: calls.append("app stops"))
    async with TestApp(app) as test:
        async with bmq.connect(test.broker.uri) as session:
            orders = await session.open_queue(ORDERS, write=True)
            await orders.post(b"late", delay=0.01)
        await test.drained(ORDERS + ".delayed", ORDERS)
        assert calls == ["app starts", "router starts"]
    assert calls == ["app starts", "router starts", "app stops", "router stops"]


@sweep(
    "outer, inner, queue, expected",
    [
        (DOMAIN, "", "orders", ORDERS),
        (DOMAIN, "shop.", "orders", DOMAIN + "shop.orders"),
        (DOMAIN + "eu-", "shop.", "orders", DOMAIN + "eu-shop.orders"),
        (DOMAIN, "bmq://bmq.test.mem.fanout/", "orders?id=foo", "bmq://bmq.test.mem.fanout/orders?id=foo"),
        (DOMAIN, "shop.", "bmq://bmq.test.mem.broadcast/orders", "bmq://bmq.test.mem.broadcast/orders"),
        ("", "", ORDERS, ORDERS),
        ("bmq://bmq.test.mem.priority.~tier/", "", "orders", "bmq://bmq.test.mem.priority.~tier/orders"),
    ],
)
def test_prefixes_join(outer: str, inner: str, queue: str, expected: str) -> None:
    app, whole, part = bmq.App(), bmq.Router(outer), bmq.Router(inner)
    part.consumer(queue)(handle)
    whole.include(part)
    app.include(whole)
    assert queues_of(app) == [expected]


async def test_one_router_serves_several_apps() -> None:
    router = bmq.Router(DOMAIN)
    seen: list[bmq.Session] = []

    @router.responder("asked")
    async def answer(message: bmq.Message) -> None:
        seen.append(message.consumer.queue.session)

    one, two = bmq.App(), bmq.App()
    one.include(router)
    two.include(router)
    one.include(two)
    async with TestApp(one) as first:
        brokers = [each.broker.uri for each in (first, first.of(two))]
        for broker in brokers:
            async with bmq.connect(broker) as session:
                await (await session.open_queue(DOMAIN + "asked", write=True)).request(b"1", timeout=30)
        assert seen == [one.session, two.session]


def test_a_router_is_included_once_and_takes_no_further_handlers() -> None:
    app, whole, part, other = (
        bmq.App(),
        bmq.Router(DOMAIN),
        bmq.Router("shop."),
        bmq.Router(DOMAIN + "other."),
    )
    part.consumer("orders")(handle)
    whole.include(part)
    app.include(whole)
    other.include(part)
    again = r"Router\('{}'\) is already included, .* make each router in a function of the prefix"
    wrong: list[tuple[Callable[[], object], type[bmq.Error], str]] = [
        (lambda: app.include(whole), bmq.UsageError, again.format(DOMAIN)),
        (lambda: app.include(part), bmq.UsageError, again.format("shop.")),
        (lambda: app.include(other), bmq.UsageError, again.format("shop.")),
        (lambda: other.include(other), bmq.UsageError, "would be a part of itself"),
        (lambda: part.include(whole), bmq.StateError, "already a part of an app or of another router"),
        (lambda: part.consumer("more")(handle), bmq.StateError, r"register its handlers before app\.include"),
        (lambda: part.on_startup(lambda: None), bmq.StateError, "register its handlers before"),
        (lambda: part.mover("orders.delayed"), bmq.StateError, "register its handlers before"),
        (lambda: app.include(7), bmq.UsageError, r"part must be a bmq\.Router or a bmq\.App"),  # type: ignore[arg-type]
        (lambda: other.include(app), bmq.UsageError, "router must be"),  # type: ignore[arg-type]
    ]
    for make, kind, why in wrong:
        with pytest.raises(kind, match=why):
            make()
    assert queues_of(app) == [DOMAIN + "shop.orders"]


@pytest.mark.parametrize("nested", [False, True])
def test_a_relative_name_needs_a_domain(nested: bool) -> None:
    app, router = bmq.App(), bmq.Router("shop.")
    router.consumer("orders")(handle)
    if nested:
        whole = bmq.Router()
        whole.include(router)
        router = whole
    with pytest.raises(bmq.InvalidURI, match=r"'shop\.orders' of .* is relative, .*'bmq://DOMAIN/'"):
        app.include(router)
    assert queues_of(app) == []
    with pytest.raises(bmq.InvalidURI, match='must start with "bmq://"'):
        app.consumer("orders")


async def test_a_failed_inclusion_changes_nothing() -> None:
    app, router = bmq.App(), bmq.Router(DOMAIN)
    app.consumer(ORDERS)(handle)
    router.consumer("first")(handle)
    router.on_startup(lambda: pytest.fail("it is not included"))
    router.mover("late")
    router.consumer("orders")(handle)
    with pytest.raises(bmq.UsageError, match=r"handle is registered for .*/orders already"):
        app.include(router)
    assert queues_of(app) == [ORDERS]
    app.mover(DOMAIN + "late")  # it has none yet
    async with TestApp(app):
        pass
    router.consumer("last", expression="x > 1")(handle)
    other = bmq.App()
    other.include(router)
    assert queues_of(other) == [DOMAIN + name for name in ("first", "orders", "last")]


@sweep(
    "prefix, reason",
    [
        ("bmq://bmq.test.mem.priority", "prefix must be a domain such as bmq://bmq.test.mem.priority/"),
        ("bmq://", "prefix must be a domain such as"),
        ("bmq:///", "the domain is missing"),
        ("bmq://d/q?id=a", "must not contain an application"),
        ("bmq://d/q?", "must not contain an application"),
        ("bmq://d/a/", "the queue name 'a/q'"),
        ("bmq://d d/", "the domain 'd d'"),
        ("tcp://localhost:30114/", "prefix must be a domain such as bmq://"),
        ("shop/", "prefix must be a domain such as bmq://.*not 'shop/'"),
        (7, "prefix must be a str"),
        (None, "prefix must be a str"),
    ],
)
def test_a_prefix_begins_the_name_of_a_queue(prefix: Any, reason: str) -> None:
    with pytest.raises(bmq.UsageError, match=reason):
        bmq.Router(prefix)


@sweep("prefix", [DOMAIN, "", "shop."])
def test_mistakes_are_found_where_the_handler_is_registered(prefix: str) -> None:
    router = bmq.Router(prefix)
    router.consumer("orders")(handle)
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: router.consumer("bad name"), r"the queue name '.*bad name'"),
        (lambda: router.responder(7), "queue must be a str"),  # type: ignore[arg-type]
        (lambda: router.consumer("orders", expression="x >"), "x >"),
        (lambda: router.consumer("more")(nothing), "takes no parameter"),  # type: ignore[type-var]
        (lambda: router.consumer("orders")(handle), r"handle is registered for .*orders already"),
        (lambda: router.mover("late", dead_letters="late"), "would return to it"),
    ]
    for make, why in wrong:
        with pytest.raises(bmq.UsageError, match=why):
            make()


async def nothing() -> None:
    """Takes no message."""


async def test_middlewares_surround_in_the_order_of_inclusion() -> None:
    calls: list[str] = []

    def named(name: str) -> Middleware:
        async def middleware(attempt: bmq.Attempt, call_next: CallNext) -> object:
            calls.append(name)
            return await call_next()

        return middleware

    app = bmq.App(middlewares=[named("app")])
    outer, inner = bmq.Router(DOMAIN, middlewares=[named("outer")]), bmq.Router(middlewares=[named("inner")])
    inner.consumer("orders", middlewares=[named("own")])(handle)
    app.consumer(DOMAIN + "others")(handle)
    inner.middleware(named("inner, later"))
    outer.include(inner)
    app.include(outer)
    async with TestApp(app) as test:
        for uri, expected in (
            (ORDERS, ["app", "outer", "inner", "inner, later", "own"]),
            (DOMAIN + "others", ["app"]),
        ):
            await test.post(uri, b"1")
            await test.drained(uri)
            assert calls == expected
            calls.clear()


class Shared:
    """The state of an app."""

    shipped = 0


def count_of(shared: Shared) -> int:
    return shared.shipped


async def test_the_state_is_checked_when_a_router_is_included() -> None:
    router, dependent = bmq.Router(DOMAIN), bmq.Router(DOMAIN)

    @router.consumer("orders")
    async def ship(message: bmq.Message, shared: Shared) -> None:
        shared.shipped += 1

    @dependent.consumer("others")
    async def count(message: bmq.Message, shipped: Annotated[int, bmq.Depends(count_of)]) -> None: ...

    for refused, state, why in (
        (router, None, r"ship.*shared is annotated with Shared, which has no source"),
        (router, object(), r"ship.*shared is annotated with Shared, which has no source"),
        (dependent, None, r"dependency count_of: parameter shared .* no source"),
    ):
        with pytest.raises(bmq.UsageError, match=why):
            bmq.App(state=state).include(refused)
    app = bmq.App(state=Shared())
    app.include(router)
    async with TestApp(app) as test:
        await test.post(ORDERS, b"1")
        await test.drained(ORDERS)
        assert app.state.shipped == 1
