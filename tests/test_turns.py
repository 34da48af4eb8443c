# SPDX-License-Identifier: Apache-2.0
"""Each way to receive yields to the event loop, even if the receiving code never waits.

The clock of the turns is a counter: each reading finds the share of the turn used up, as if every message
took long. The tests do not depend on time.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

import bmq
import bmq.delays
import bmq.taskiq
from bmq._turn import SHARE, Turn, WaitingLine, turn_of, wait_done
from bmq.protocol.client.events import StateRestored
from tests.sweeps import sweep
from tests.waiting import eventually

MESSAGES = 8


class Scene:
    """A queue with messages, and a record of each handed-out message.

    Attributes:
        turns: turn of the event loop for each handed-out message.
        sent: bytes sent by the session at this time.
    """

    def __init__(self, session: bmq.Session, uri: str, broker: str) -> None:
        self.session = session
        self.broker = broker
        self.uri = uri
        self.turns: list[int] = []
        self.sent: list[int] = []
        self.enough = asyncio.Event()
        self._turn = 0
        self._count()

    def _count(self) -> None:
        self._turn += 1
        if not self.enough.is_set():
            asyncio.get_running_loop().call_soon(self._count)

    def saw(self, messages: int = 1) -> bool:
        """Record handed-out messages; return whether all messages have arrived."""
        self.turns.append(self._turn)
        self.sent.append(self.session.stats().bytes_sent)
        if len(self.turns) * messages >= MESSAGES:
            self.enough.set()
        return self.enough.is_set()

    async def open(self, **options: Any) -> bmq.Queue:
        queue = await self.session.open_queue(self.uri, read=True, write=True, **options)
        if options.get("default_subscription", True):
            await queue._default_consumer().open()
            await eventually(lambda: queue._default_consumer().buffered == MESSAGES)
        return queue

    async def handled_by(self, **how: Any) -> None:
        """Handle the messages without waiting."""

        async def handle(message: bmq.Message) -> None:
            self.saw()

        queue = await self.open()
        working = asyncio.create_task(bmq.consume(queue._default_consumer(), handle, **how))
        await self.ended(working)

    async def ended(self, working: asyncio.Task[None]) -> None:
        await self.enough.wait()
        working.cancel()
        await asyncio.wait([working])


Path = Callable[[Scene], Awaitable[None]]


class Source(NamedTuple):
    """What receives messages of a queue.

    Attributes:
        make: returns it for a queue.
        default: whether it is the default subscription.
        batches: whether it gives batches.
    """

    make: Callable[[bmq.Queue], Any]
    default: bool = False
    batches: bool = True


SOURCES = (
    Source(lambda queue: queue, default=True),
    Source(lambda queue: queue.typed(int), default=True),
    Source(lambda queue: queue.subscribe()),
    Source(lambda queue: queue.typed(int).subscribe()),
    Source(lambda queue: queue.typed(int).group("key", buckets=2), batches=False),
    Source(lambda queue: queue.group("key", buckets=2), batches=False),
)


def receiving(source: Source, receive: Callable[[Any], AsyncIterator[Any]]) -> Path:
    async def receiving(scene: Scene) -> None:
        options = {} if source.default else {"default_subscription": False}
        async for received in receive(source.make(await scene.open(**options))):
            received.confirm()
            if scene.saw():
                break

    return receiving


async def calls(receive: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
    while True:
        yield await receive()


async def batches_that_wait(scene: Scene) -> None:
    async for batch in (await scene.open()).batches(2, max_wait=60):
        batch.confirm()
        if scene.saw(2):
            break


async def iterate_tables(scene: Scene) -> None:
    queue = await scene.open(default_subscription=False)
    async for _ in (tables := queue.tables(max_rows=1)):
        tables.confirm()
        if scene.saw():
            break


async def tables_receive(scene: Scene) -> None:
    tables = (await scene.open(default_subscription=False)).tables()
    while True:
        await tables.receive(max_rows=1)
        tables.confirm()
        if scene.saw():
            break


def consuming(**how: Any) -> Path:
    return lambda scene: scene.handled_by(**how)


async def consume_with_a_handler_that_fails(scene: Scene) -> None:
    def fails(failure: Any) -> None:
        scene.saw()

    async def handle(message: bmq.Message) -> None:
        raise ValueError

    queue = await scene.open()
    retry = bmq.NoRetry(then="discard")
    working = bmq.consume(queue._default_consumer(), handle, retry=retry, on_error=fails)
    await scene.ended(asyncio.create_task(working))


async def app_of(scene: Scene, register: Callable[[bmq.App], object]) -> None:
    app = bmq.App(scene.broker)
    register(app)
    async with app:
        scene.session = app.session
        await scene.enough.wait()


async def app_consumer(scene: Scene) -> None:
    def register(app: bmq.App) -> None:
        @app.consumer(scene.uri)
        async def handle(message: bmq.Message) -> None:
            scene.saw()

    await app_of(scene, register)


async def app_consumer_of_values(scene: Scene) -> None:
    def register(app: bmq.App) -> None:
        @app.consumer(scene.uri)
        async def handle(value: int) -> None:
            scene.saw()

    await app_of(scene, register)


async def app_batch_consumer(scene: Scene) -> None:
    def register(app: bmq.App) -> None:
        @app.batch_consumer(scene.uri, max_messages=1)
        async def handle(messages: list[bmq.Message]) -> None:
            scene.saw()

    await app_of(scene, register)


async def app_responder(scene: Scene) -> None:
    def register(app: bmq.App) -> None:
        @app.responder(scene.uri, concurrency=1)
        async def respond(message: bmq.Message) -> bytes:
            scene.saw()
            return b"done"

    await app_of(scene, register)


async def taskiq_listen(scene: Scene) -> None:
    broker = bmq.taskiq.BmqBroker(scene.broker, scene.uri)
    await broker.startup()
    scene.session = broker.session
    listening = broker.listen()
    async for task in listening:
        assert task.ack is not None
        task.ack()
        if scene.saw():
            break
    await listening.aclose()
    await broker.shutdown()


async def iterate_due_messages(scene: Scene) -> None:
    queue = await scene.open(default_subscription=False)
    async with bmq.delays.DueMessages(queue) as due:
        async for message in due:
            message.confirm()
            if scene.saw():
                break


async def mover(scene: Scene) -> None:
    queue = await scene.open(default_subscription=False)
    await scene.session.open_queue(f"{scene.uri}.output", read=True, write=True)
    moving = bmq.delays.Mover(queue)
    passes_on = moving._pass_on

    def pass_on(message: bmq.Message) -> bool:
        scene.saw()
        return passes_on(message)

    moving._pass_on = pass_on  # type: ignore[method-assign]
    await scene.ended(asyncio.create_task(moving.run()))


PATHS: list[Path] = [
    *(receiving(each, aiter) for each in SOURCES),
    *(receiving(each, lambda made: calls(made.receive)) for each in SOURCES),
    *(receiving(each, lambda made: made.batches(1)) for each in SOURCES if each.batches),
    *(receiving(each, lambda made: calls(partial(made.receive_many, 1))) for each in SOURCES if each.batches),
    receiving(SOURCES[0], lambda made: calls(partial(made.receive, 60))),
    *(batches_that_wait, iterate_tables, tables_receive),
    consuming(),
    consuming(concurrency=4),
    consuming(concurrency=2, key="lane"),
    consuming(timeout=60),
    consuming(ack=bmq.AckPolicy.ON_RECEIPT),
    consuming(rate=1e9),
    consume_with_a_handler_that_fails,
    *(app_consumer, app_consumer_of_values, app_batch_consumer, app_responder),
    *(taskiq_listen, iterate_due_messages, mover),
]


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    uri = "bmq://bmq.test.mem.priority/turns"
    async with bmq.broker.Broker() as broker:
        async with bmq.connect(broker.uri) as posting:
            queue = await posting.open_queue(uri, write=True)
            posts = [
                bmq.PutMessage(b"%d" % n, {"lane": n % 3, "bmq_destination": f"{uri}.output"})
                for n in range(MESSAGES)
            ]
            (await queue.post_many(posts)).raise_for_failures()
        async with bmq.connect(broker.uri) as session:
            scene = Scene(session, uri, broker.uri)
            turn = turn_of(asyncio.get_running_loop())
            clock, turn.clock = turn.clock, itertools.count(turn.until + 1).__next__
            try:
                yield scene
            finally:
                scene.enough.set()
                turn.clock = clock


@pytest.mark.parametrize("path", PATHS)
async def test_the_loop_runs_and_confirmations_leave_between_messages(scene: Scene, path: Path) -> None:
    """A killed process receives its unconfirmed messages again, but not its confirmed ones."""
    await asyncio.wait_for(path(scene), 30)
    assert all(later > earlier for earlier, later in itertools.pairwise(scene.turns))
    if path is not mover:  # confirms once the destination has acknowledged
        assert all(later > earlier for earlier, later in itertools.pairwise(scene.sent[1:]))


async def test_the_event_loop_runs_between_events(scene: Scene) -> None:
    """Events are no messages, but a loop over a thousand events would block the event loop too."""
    events = scene.session.events()
    for _ in range(MESSAGES):
        scene.session._connection.events.publish(StateRestored())
    async for _ in events:
        if scene.saw():
            break
    assert all(later > earlier for earlier, later in itertools.pairwise(scene.turns))


async def test_a_host_health_monitor_that_never_waits_does_not_block_the_loop(scene: Scene) -> None:
    asked = 0

    async def monitor() -> AsyncIterator[bool]:
        nonlocal asked
        while True:
            asked += 1
            yield True

    async with bmq.connect(scene.broker, host_health=monitor()) as session:
        queue = await session.open_queue(f"{scene.uri}.other", write=True)
        await queue.post(b"x")
        assert asked > 1


# the turns themselves


class Handed:
    """A clock that advances only by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@sweep("each", [SHARE / 1000, SHARE / 10, SHARE / 3, SHARE * 2])
async def test_woken_tasks_fill_a_share_in_the_order_of_their_arrival(each: float) -> None:
    clock = Handed()
    turn = Turn(clock)
    turns, order = [0], list[tuple[int, int]]()

    async def handle(number: int) -> None:
        if clock() >= turn.until:
            await turn.wait()
        order.append((number, turns[0]))
        clock.now += each

    clock.now = 1.0
    handling = [asyncio.create_task(handle(number)) for number in range(500)]
    while not all(task.done() for task in handling):
        await asyncio.sleep(0)
        turns[0] += 1
    assert [number for number, _ in order] == list(range(500)), "first come, first served"
    in_a_turn = Counter(turn for _, turn in order)
    assert max(in_a_turn.values()) <= max(1, math.ceil(2 * SHARE / each)), "at most two shares in a turn"
    assert turns[0] <= 40 + 8 * 500 * each / SHARE, "each share is used"


async def test_cancelled_tasks_of_a_share_do_not_stop_the_others() -> None:
    clock = Handed()
    turn = Turn(clock)
    rng = random.Random(7)
    done = list[int]()

    async def handle(number: int) -> None:
        if clock() >= turn.until:
            await turn.wait()
        done.append(number)
        clock.now += SHARE / 7

    handling = [asyncio.create_task(handle(number)) for number in range(300)]
    cancelled = set[int]()
    while not all(task.done() for task in handling):
        number = rng.randrange(300)
        if handling[number].cancel():
            cancelled.add(number)
        await asyncio.sleep(0)
    assert sorted({*done, *cancelled}) == list(range(300))
    assert done == sorted(done)


async def test_cancelled_task_passes_its_share_on() -> None:
    turn = Turn(Handed())
    holder, first, second = (asyncio.create_task(turn.wait()) for _ in range(3))
    await asyncio.sleep(0)
    assert holder.done()
    await asyncio.sleep(0)  # the share has come, and the first task has not run since
    first.cancel()
    await second
    assert first.cancelled()


async def test_a_cancelled_task_is_passed_over_before_it_has_left() -> None:
    line = WaitingLine()
    first, second = line.join(), line.join()
    first.cancel()
    assert line.wake() == 1
    assert second.done()
    assert not line.leave(first), "its turn had not come"
    assert line.leave(second), "its turn had come: the caller passes it on"
    assert len(line) == 0


class SearchedFuture(asyncio.Future[None]):
    """A future that counts the searches through its list of callbacks."""

    searches = 0

    def remove_done_callback(self, fn: object, /) -> int:
        self.searches += 1
        return super().remove_done_callback(fn)  # type: ignore[arg-type]


ENDS: list[Callable[[SearchedFuture], object]] = [
    lambda future: future.set_result(None),
    lambda future: future.set_exception(LookupError()),
    lambda future: future.cancel(),
]


@sweep("end", ENDS)
async def test_tasks_that_wait_for_one_future_leave_without_a_search(
    end: Callable[[SearchedFuture], object],
) -> None:
    future = SearchedFuture()
    tasks = [asyncio.ensure_future(wait_done(future)) for _ in range(1000)]
    await asyncio.sleep(0)
    for task in tasks[:999]:
        task.cancel()
    await asyncio.wait(tasks[:999])
    assert all(task.cancelled() for task in tasks[:999])
    assert not tasks[999].done()
    assert future.searches == 0
    end(future)
    await tasks[999]
    await wait_done(future)
    assert future.cancelled() or future.exception() is None or isinstance(future.exception(), LookupError)
