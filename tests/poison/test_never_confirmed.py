# SPDX-License-Identifier: Apache-2.0
"""The client never confirms on its own: each way to receive, with each way to give a message up.

After a failure without a configured decision, the broker still has each message, and messages behind it have
reached the handler although the failed ones exceed the limit of unconfirmed messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import bmq
from bmq.conventions import with_post_time
from bmq.workers import Responder
from tests.poison.poisons import POISONS, Order, Poisonous, a_message, flood
from tests.waiting import eventually, until_depth
from tests.workers.conftest import FakeClock

LIMIT = 4
# More messages than the limit allows; fewer of those that take time.
MANY, FEW = 2 * LIMIT + 1, 2
TIMEOUT = 0.2
LIFE = 1000.0
GOOD, BUG, OUTAGE, REJECTED, SLOW, CANCELLED, UNPRINTABLE = range(7)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


# ---- ways to give up


@dataclass(frozen=True)
class Way:
    """Messages that are given up; old ones only by a policy with a maximum age."""

    messages: list[Poisonous]
    old: bool = False


def orders(amount: int, count: int = MANY, **properties: Any) -> Way:
    return Way([a_message(b'{"amount": %d}' % amount, customer=f"c{n}", **properties) for n in range(count)])


WAYS: dict[str, Way] = {
    "a permanent error": orders(BUG),
    "an error without a text": orders(UNPRINTABLE, FEW),
    "an outage that outlasts the retries": orders(OUTAGE),
    "a rejected message": orders(REJECTED),
    "a handler beyond its deadline": orders(SLOW, FEW),
    "a cancelled task": orders(CANCELLED),
    "a message older than its life": replace(orders(GOOD, **with_post_time(at=1.0)), old=True),
    "each poison": Way([*POISONS.values()]),
}


async def act(amount: int) -> None:
    """Handle an order in the way that its amount says."""
    if amount == SLOW:
        await asyncio.sleep(60)
    if amount == CANCELLED:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone
    if amount == UNPRINTABLE:
        raise Unprintable
    if amount != GOOD:
        raise {BUG: ValueError("a bug"), OUTAGE: ConnectionError("down"), REJECTED: bmq.Reject("no")}[amount]


def amount_of(message: bmq.Message) -> int:
    """The amount, as a program without a typed queue reads it."""
    return int(message.data.removeprefix(b'{"amount": ').removesuffix(b"}"))


# ---- decisions


#: The policies, and where the messages are afterwards: in the queue, among the dead letters, or nowhere.
DECISIONS: dict[str, tuple[Callable[[str], bmq.workers.RetryPolicy | None], str]] = {
    "none": (lambda letters: None, "queue"),
    "NoRetry()": (lambda letters: bmq.NoRetry(), "queue"),
    "Backoff(...)": (lambda letters: bmq.Backoff(0.001, retries=1, give_up_after=LIFE), "queue"),
    "discard": (lambda letters: bmq.Backoff(0.001, retries=1, give_up_after=LIFE, then="discard"), "nowhere"),
    "dead letter": (
        lambda letters: bmq.Backoff(0.001, retries=1, give_up_after=LIFE, then=bmq.DeadLetter(letters)),
        "letters",
    ),
}


# ---- ways to receive


@dataclass
class Scene:
    """A handler's surroundings: its queue and policy, an item for each good order, and the GUIDs given up."""

    address: str
    uri: str
    decision: bmq.workers.RetryPolicy | None
    good: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    given_up: set[str] = field(default_factory=set)

    @property
    def how(self) -> dict[str, Any]:
        """The options of the handler."""
        return {
            "retry": self.decision,
            "timeout": TIMEOUT,
            "max_unconfirmed_messages": LIMIT,
            "on_error": self.note,
        }

    def note(self, failure: bmq.workers.Failure) -> None:
        if failure.retry_in is None:
            self.given_up.add(failure.message.guid)

    async def handle(self, amount: int) -> None:
        await act(amount)
        self.good.put_nowait(None)


PATHS: dict[str, Callable[[Scene], AbstractAsyncContextManager[object]]] = {}


def in_an_app(name: str) -> Callable[[Callable[[bmq.App[Any], Scene], object]], None]:
    """Register a handler of an app."""

    def take(register: Callable[[bmq.App[Any], Scene], object]) -> None:
        @asynccontextmanager
        async def running(scene: Scene) -> AsyncIterator[None]:
            app = bmq.App(scene.address, grace=1, clock=FakeClock())
            register(app, scene)
            async with app:
                yield

        PATHS[name] = running

    return take


def of_values(name: str, **options: Any) -> None:
    @in_an_app(name)
    def _register(app: bmq.App[Any], scene: Scene) -> None:
        @app.consumer(scene.uri, **scene.how, **options)
        async def handle(order: Order) -> None:
            await scene.handle(order.amount)


of_values("values")
of_values("four workers", concurrency=4)
of_values("lanes", concurrency=4, key="customer")
of_values("a limited rate", rate=10_000)


@in_an_app("messages")
def _messages(app: bmq.App[Any], scene: Scene) -> None:
    @app.consumer(scene.uri, **scene.how)
    async def handle(message: bmq.Message) -> None:
        await scene.handle(amount_of(message))


@in_an_app("threads")
def _threads(app: bmq.App[Any], scene: Scene) -> None:
    call = asyncio.get_running_loop().call_soon_threadsafe

    @app.consumer(scene.uri, **scene.how)
    def handle(order: Order) -> None:
        if order.amount == SLOW:
            time.sleep(1.5 * TIMEOUT)
            return
        asyncio.run(act(order.amount))
        call(scene.good.put_nowait, None)


@in_an_app("batches")
def _batches(app: bmq.App[Any], scene: Scene) -> None:
    @app.batch_consumer(scene.uri, **scene.how, max_messages=2, max_wait=0.001)
    async def handle(orders: list[Order]) -> None:
        failed: dict[int, BaseException] = {}
        for index, order in enumerate(orders):
            if order.amount == SLOW:
                await act(SLOW)
            try:
                await scene.handle(order.amount)
            except (Exception, asyncio.CancelledError) as error:
                failed[index] = error
        if failed:
            raise bmq.PartlyFailed(failed)


@in_an_app("results that are posted")
def _publishing(app: bmq.App[Any], scene: Scene) -> None:
    @app.consumer(scene.uri, **scene.how)
    @app.publish_to(f"{scene.uri}.out")
    async def handle(order: Order) -> bytes:
        await scene.handle(order.amount)
        return b"done"


@in_an_app("durable retries")
def _durable(app: bmq.App[Any], scene: Scene) -> None:
    assert isinstance(scene.decision, bmq.Backoff)

    @app.consumer(scene.uri, **{**scene.how, "retry": replace(scene.decision, durable=True)})
    async def handle(order: Order) -> None:
        await scene.handle(order.amount)


def consumed(name: str, make: Callable[[Scene], Any]) -> None:
    """Register a handler of :func:`bmq.consume`."""

    @asynccontextmanager
    async def running(scene: Scene) -> AsyncIterator[None]:
        async with bmq.connect(scene.address) as session:
            queue = await session.open_queue(scene.uri, read=True, default_subscription=False)
            work = bmq.consume(queue, make(scene), **scene.how, clock=FakeClock(), grace=1)
            task = asyncio.create_task(work)
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait([task])

    PATHS[name] = running


def _plain(scene: Scene) -> Any:
    async def handle(order: Order) -> None:
        await scene.handle(order.amount)

    return handle


def _responder(scene: Scene) -> Any:
    async def respond(order: Order) -> bytes:
        await scene.handle(order.amount)
        return b"done"

    return Responder(respond)


consumed("consume", _plain)
consumed("a responder, without a reply address", _responder)


def cases() -> list[tuple[str, str]]:
    durable = "Backoff(...)", "discard", "dead letter"
    return [(path, each) for path in PATHS for each in (durable if path == "durable retries" else DECISIONS)]


@pytest.mark.parametrize(("path", "decision"), cases())
async def test_a_message_given_up_is_where_its_decision_says(
    bmq_broker: Any,
    bmq_session: bmq.Session,
    bmq_new_queue_uri: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    path: str,
    decision: str,
) -> None:
    uri, letters = bmq_new_queue_uri(), bmq_new_queue_uri()
    await bmq_session.open_output(letters)
    make, place = DECISIONS[decision]
    policy = make(letters)
    ways = [way for way in WAYS.values() if not way.old or isinstance(policy, bmq.Backoff)]
    scene = Scene(bmq_broker.uri, uri, policy)
    queue = await bmq_session.open_queue(uri, write=True)
    async with PATHS[path](scene):
        count = 0
        for way in ways:
            await flood(queue, way.messages)
            count += len(way.messages)
            await eventually(lambda count=count: len(scene.given_up) == count)  # type: ignore[misc]
        assert scene.good.empty()
        await queue.post(b'{"amount": 0}')
        await asyncio.wait_for(scene.good.get(), 30)
    await until_depth(bmq_broker.uri, uri, count if place == "queue" else 0)
    await until_depth(bmq_broker.uri, letters, count if place == "letters" else 0)
    told = [line for line in caplog.messages if "in the queue, unconfirmed:" in line]
    assert bool(told) is (place == "queue")
    if told:
        assert uri in told[0]
        assert "1 so far, the first is " in told[0]
        assert f"{count} so far" in told[-1]
