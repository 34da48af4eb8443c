# SPDX-License-Identifier: Apache-2.0
"""The client never confirms on its own: each way to receive, with each way to give a message up.

After a failure without a configured decision, the broker still has each message, and messages behind it have
reached the handler although the failed ones exceed the limit of unconfirmed messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pytest

import bmq
import bmq.inbox
from bmq.conventions import delay_queue_of, with_post_time
from bmq.workers import Responder
from tests.extras import TABLES
from tests.poison.consumers import Order, beside
from tests.poison.poisons import POISONS, Poisonous, a_message, flood
from tests.waiting import eventually, until_depth
from tests.workers.conftest import FakeClock

LIMIT = 4
# More messages than the limit allows; fewer of those that take time.
MANY, FEW = 2 * LIMIT + 1, 2
TIMEOUT = 0.2
LIFE = 1000.0
GOOD, BUG, OUTAGE, REJECTED, SLOW, CANCELLED = range(6)


# ---- ways to give up


@dataclass(frozen=True)
class Way:
    """Messages that are given up.

    Attributes:
        messages: the messages, as a producer sends them.
        old: whether only a policy with a maximum age gives them up.
    """

    messages: list[Poisonous]
    old: bool = False


def orders(amount: int, count: int = MANY, **properties: Any) -> Way:
    return Way([a_message(b'{"amount": %d}' % amount, customer=f"c{n}", **properties) for n in range(count)])


WAYS: dict[str, Way] = {
    "a permanent error": orders(BUG),
    "an outage that outlasts the retries": orders(OUTAGE),
    "a rejected message": orders(REJECTED),
    "a handler beyond its deadline": orders(SLOW, FEW),
    "a cancelled task": orders(CANCELLED),
    "a message older than its life": replace(orders(GOOD, **with_post_time(at=1.0)), old=True),
    "an undecodable payload": Way([POISONS["no value"]] * MANY),
    "a damaged payload": Way([POISONS["no zlib"]] * MANY),
    "damaged properties": Way([POISONS["properties that cannot be decoded"]] * MANY),
}


async def act(amount: int) -> None:
    """Handle an order in the way that its amount says."""
    if amount == SLOW:
        await asyncio.sleep(60)
    if amount == CANCELLED:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone
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
    """A handler's surroundings.

    Attributes:
        session: session of the test.
        address: address of the broker.
        uri: queue of the handler.
        decision: policy of the handler.
        path: a directory.
        good: an item for each good order.
        given_up: GUIDs of the messages given up.
    """

    session: bmq.Session
    address: str
    uri: str
    decision: bmq.workers.RetryPolicy | None
    path: Path
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


async def failing_dependency(message: bmq.Message) -> AsyncIterator[None]:
    await act(amount_of(message))
    yield


@in_an_app("a dependency that fails")
def _dependency(app: bmq.App[Any], scene: Scene) -> None:
    @app.consumer(scene.uri, **scene.how)
    async def handle(order: Order, resource: Annotated[None, bmq.Depends(failing_dependency)]) -> None:
        scene.good.put_nowait(None)


@in_an_app("a middleware that fails")
def _middleware(app: bmq.App[Any], scene: Scene) -> None:
    async def failing(attempt: bmq.Attempt, call_next: Callable[[], Awaitable[object]]) -> object:
        if (amount := amount_of(attempt.message)) != SLOW:  # a middleware has no deadline
            await act(amount)
        return await call_next()

    @app.consumer(scene.uri, **scene.how, middlewares=[failing])
    async def handle(order: Order) -> None:
        await scene.handle(order.amount)


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


@in_an_app("an inbox")
def _inbox(app: bmq.App[Any], scene: Scene) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(f"sqlite+aiosqlite:///{scene.path / 'inbox.db'}")
    inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=1000)
    app.on_startup(inbox.start)
    app.on_shutdown(engine.dispose)
    app.on_shutdown(inbox.close)

    @app.consumer(scene.uri, **{**scene.how, "timeout": 5 * TIMEOUT}, middlewares=[inbox.middleware])
    async def handle(order: Order) -> None:
        await scene.handle(order.amount)


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
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    path: str,
    decision: str,
) -> None:
    uri, letters = bmq_new_queue_uri(), bmq_new_queue_uri()
    await bmq_session.open_output(letters)
    make, place = DECISIONS[decision]
    policy = make(letters)
    ways = [way for way in WAYS.values() if not way.old or isinstance(policy, bmq.Backoff)]
    scene = Scene(bmq_session, bmq_broker.uri, uri, policy, tmp_path)
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


@pytest.mark.parametrize("name", [name for name in WAYS if not WAYS[name].old])
async def test_in_a_group_the_key_of_an_undecided_message_waits(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_queue_uri: str, tmp_path: Path, name: str
) -> None:
    scene = Scene(bmq_session, bmq_broker.uri, bmq_queue_uri, None, tmp_path)
    app = bmq.App(bmq_broker.uri, grace=1)
    failed = asyncio.Event()

    @app.consumer(
        bmq_queue_uri,
        group=lambda queue: queue.group(key="customer"),
        concurrency=4,
        timeout=TIMEOUT,
        on_error=lambda _: failed.set(),
    )
    async def handle(order: Order) -> None:
        await scene.handle(order.amount)

    queue = await bmq_session.open_queue(bmq_queue_uri, write=True)
    async with app:
        await flood(queue, WAYS[name].messages[:1])
        await asyncio.wait_for(failed.wait(), 30)
        await queue.post(b'{"amount": 0}', properties={"customer": "another"})
        await asyncio.wait_for(scene.good.get(), 30)
        assert app.status()[0].given_up == 0
    await until_depth(bmq_broker.uri, bmq_queue_uri, 1)


# ---- services and loops: messages that they cannot use


UNREADABLE = [POISONS["no zlib"]] * MANY


@asynccontextmanager
async def mover(scene: Scene, letters: str | None, bad: list[Poisonous]) -> AsyncIterator[None]:
    app = bmq.App(scene.address)
    app.mover(delay_queue_of(scene.uri), dead_letters=letters, max_held=LIMIT)
    queue = await scene.session.open_queue(scene.uri, read=True, write=True)
    waiting = await scene.session.open_queue(delay_queue_of(scene.uri), write=True)
    await flood(waiting, bad)
    async with app:
        await queue.post(b"good", delay=0.01)
        (await queue.receive(30)).confirm()
        yield


@asynccontextmanager
async def taskiq(scene: Scene, letters: str | None, bad: list[Poisonous]) -> AsyncIterator[None]:
    from taskiq.api import run_receiver_task

    from bmq.taskiq import BmqBroker

    broker = BmqBroker(scene.address, scene.uri, max_unconfirmed_messages=LIMIT, dead_letters=letters)
    broker.is_worker_process = True

    @broker.task(task_name="good")
    async def good() -> None:
        scene.good.put_nowait(None)

    await flood(await scene.session.open_queue(scene.uri, write=True), bad)
    await broker.startup()
    async with beside(run_receiver_task(broker)):
        await good.kiq()
        await asyncio.wait_for(scene.good.get(), 30)
        yield
    await broker.shutdown()


@asynccontextmanager
async def tables(scene: Scene, letters: str | None, bad: list[Poisonous]) -> AsyncIterator[None]:
    options: dict[str, Any] = {}
    async with bmq.connect(scene.address) as session:
        queue = await session.open_queue(scene.uri, read=True, write=True, default_subscription=False)
        if letters is not None:
            options["dead_letters"] = await session.open_queue(letters, write=True)
        await flood(queue, bad)
        async with queue.tables(max_rows=LIMIT, max_unconfirmed_messages=LIMIT, **options) as made:
            await queue.post(b"good")
            async with asyncio.timeout(30):
                async for batch in made:
                    assert batch.column("value").to_pylist() == [b"good"]
                    made.confirm()
                    break
        yield


@asynccontextmanager
async def source(scene: Scene, letters: str | None, bad: list[Poisonous]) -> AsyncIterator[None]:
    queue = await scene.session.open_queue(scene.uri, write=True)
    await flood(queue, bad)
    await queue.post(b"good")

    def read() -> list[bytes]:
        reader = bmq.arrow.reader(
            scene.address,
            scene.uri,
            max_rows=LIMIT,
            max_unconfirmed_messages=LIMIT,
            max_messages=1,
            dead_letters=letters,
        )
        found: list[bytes] = reader.read_all().column("value").to_pylist()
        return found

    assert await asyncio.to_thread(read) == [b"good"]
    yield


@asynccontextmanager
async def values_of(scene: Scene, letters: str | None, bad: list[Poisonous]) -> AsyncIterator[None]:
    """A loop over values, which leaves what it cannot decode, as a handler does."""
    async with bmq.connect(scene.address) as session:
        queue = await session.open_queue(scene.uri, read=True, write=True)
        await flood(queue, bad)
        await queue.post(b'{"amount": 0}')
        undecodable = 0
        async for message in queue.typed(Order):
            try:
                _ = message.value
            except bmq.Undecodable:
                undecodable += 1
                continue
            message.confirm()
            break
        assert undecodable == len(bad)
        yield


@asynccontextmanager
async def values_in_a_thread(scene: Scene, letters: str | None, bad: list[Poisonous]) -> AsyncIterator[None]:
    await flood(await scene.session.open_queue(scene.uri, write=True), bad)
    undecodable: list[str] = []

    def receive() -> None:
        with bmq.blocking.connect(scene.address) as session:
            queue = session.open_queue(scene.uri, read=True)
            for message in queue.typed(Order):
                try:
                    with message:
                        _ = message.value
                except bmq.Undecodable:
                    undecodable.append(message.guid)
                if len(undecodable) == len(bad):
                    break

    await asyncio.to_thread(receive)
    yield


Service = Callable[[Scene, "str | None", "list[Poisonous]"], AbstractAsyncContextManager[None]]
UNDECODABLE = [POISONS["no value"]] * MANY
TABLES_OF: list[tuple[str, Service, list[Poisonous], bool]] = [
    ("tables", tables, UNREADABLE, True),
    ("a reader of Arrow", source, UNREADABLE, True),
]
#: The services; what they cannot use; and whether they can have a queue for dead letters.
SERVICES: list[tuple[str, Service, list[Poisonous], bool]] = [
    ("a mover", mover, UNREADABLE, True),
    ("a mover, misdirected", mover, [POISONS["a destination elsewhere"]] * MANY, True),
    ("taskiq", taskiq, UNREADABLE, True),
    ("taskiq, no task", taskiq, UNDECODABLE, True),
    ("a loop over values", values_of, UNDECODABLE, False),
    ("a loop over values, unreadable", values_of, UNREADABLE, False),
    ("a loop in a thread", values_in_a_thread, UNDECODABLE, False),
    *(TABLES_OF if TABLES else []),
]


@pytest.mark.parametrize(
    ("service", "bad", "put_aside"),
    [
        pytest.param(service, bad, aside, id=f"{name}, {'put aside' if aside else 'undecided'}")
        for name, service, bad, letters in SERVICES
        for aside in (False, True)[: 1 + letters]
    ],
)
async def test_a_service_without_dead_letters_leaves_what_it_cannot_use(
    bmq_broker: Any,
    bmq_session: bmq.Session,
    bmq_new_queue_uri: Callable[..., str],
    tmp_path: Path,
    service: Service,
    bad: list[Poisonous],
    put_aside: bool,
) -> None:
    uri, letters = bmq_new_queue_uri(), bmq_new_queue_uri()
    await bmq_session.open_output(letters)
    scene = Scene(bmq_session, bmq_broker.uri, uri, None, tmp_path)
    async with service(scene, letters if put_aside else None, bad):
        if put_aside:
            await until_depth(bmq_broker.uri, letters, len(bad))
    source = delay_queue_of(uri) if service is mover else uri
    await until_depth(bmq_broker.uri, source, 0 if put_aside else len(bad))
    await until_depth(bmq_broker.uri, letters, len(bad) if put_aside else 0)
