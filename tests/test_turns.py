# SPDX-License-Identifier: Apache-2.0
"""Each way to receive yields to the event loop, even if the receiving code never waits.

The clock of the turns is a counter: each reading finds the share of the turn used up, as if every message
    took
long. The tests do not depend on time.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio

import bmq
import bmq.arrow
import bmq.delays
import bmq.groups
import bmq.taskiq
import bmq.workers
from bmq._turn import SHARE, Turn, turn_of
from bmq.protocol.client.events import StateRestored
from bmq.workers._registry import Registrar
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


async def iterate_queue(scene: Scene) -> None:
    async for message in await scene.open():
        message.confirm()
        if scene.saw():
            break


async def queue_receive(scene: Scene) -> None:
    queue = await scene.open()
    while True:
        (await queue.receive()).confirm()
        if scene.saw():
            break


async def queue_receive_with_timeout(scene: Scene) -> None:
    queue = await scene.open()
    while True:
        (await queue.receive(60)).confirm()
        if scene.saw():
            break


async def queue_receive_many(scene: Scene) -> None:
    queue = await scene.open()
    while True:
        (await queue.receive_many(1)).confirm()
        if scene.saw():
            break


async def queue_batches(scene: Scene) -> None:
    async for batch in (await scene.open()).batches(1):
        batch.confirm()
        if scene.saw():
            break


async def batches_that_wait(scene: Scene) -> None:
    async for batch in (await scene.open()).batches(2, max_wait=60):
        batch.confirm()
        if scene.saw(2):
            break


async def iterate_consumer(scene: Scene) -> None:
    queue = await scene.open(default_subscription=False)
    async for message in queue.subscribe():
        message.confirm()
        if scene.saw():
            break


async def consumer_receive(scene: Scene) -> None:
    consumer = (await scene.open(default_subscription=False)).subscribe()
    while True:
        (await consumer.receive()).confirm()
        if scene.saw():
            break


async def consumer_receive_many(scene: Scene) -> None:
    consumer = (await scene.open(default_subscription=False)).subscribe()
    while True:
        (await consumer.receive_many(1)).confirm()
        if scene.saw():
            break


async def consumer_batches(scene: Scene) -> None:
    queue = await scene.open(default_subscription=False)
    async for batch in queue.subscribe().batches(1):
        batch.confirm()
        if scene.saw():
            break


async def iterate_typed_queue(scene: Scene) -> None:
    async for message in (await scene.open()).typed(int):
        message.confirm()
        if scene.saw():
            break


async def typed_queue_receive(scene: Scene) -> None:
    queue = (await scene.open()).typed(int)
    while True:
        (await queue.receive()).confirm()
        if scene.saw():
            break


async def iterate_typed_consumer(scene: Scene) -> None:
    queue = await scene.open(default_subscription=False)
    async for message in queue.typed(int).subscribe():
        message.confirm()
        if scene.saw():
            break


async def typed_consumer_receive(scene: Scene) -> None:
    consumer = (await scene.open(default_subscription=False)).typed(int).subscribe()
    while True:
        (await consumer.receive()).confirm()
        if scene.saw():
            break


async def typed_queue_receive_many(scene: Scene) -> None:
    queue = (await scene.open()).typed(int)
    while True:
        (await queue.receive_many(1)).confirm()
        if scene.saw():
            break


async def typed_queue_batches(scene: Scene) -> None:
    async for batch in (await scene.open()).typed(int).batches(1):
        batch.confirm()
        if scene.saw():
            break


async def typed_consumer_receive_many(scene: Scene) -> None:
    consumer = (await scene.open(default_subscription=False)).typed(int).subscribe()
    while True:
        (await consumer.receive_many(1)).confirm()
        if scene.saw():
            break


async def typed_consumer_batches(scene: Scene) -> None:
    queue = await scene.open(default_subscription=False)
    async for batch in queue.typed(int).subscribe().batches(1):
        batch.confirm()
        if scene.saw():
            break


async def iterate_typed_group(scene: Scene) -> None:
    queue = await scene.open(default_subscription=False)
    async for message in queue.typed(int).group("key", buckets=2):
        message.confirm()
        if scene.saw():
            break


async def typed_group_receive(scene: Scene) -> None:
    group = (await scene.open(default_subscription=False)).typed(int).group("key", buckets=2)
    while True:
        (await group.receive()).confirm()
        if scene.saw():
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


async def iterate_group(scene: Scene) -> None:
    async for message in (await scene.open(default_subscription=False)).group("key", buckets=2):
        message.confirm()
        if scene.saw():
            break


async def group_receive(scene: Scene) -> None:
    group = (await scene.open(default_subscription=False)).group("key", buckets=2)
    while True:
        (await group.receive()).confirm()
        if scene.saw():
            break


async def consume(scene: Scene) -> None:
    await scene.handled_by()


async def consume_side_by_side(scene: Scene) -> None:
    await scene.handled_by(concurrency=4)


async def consume_lanes(scene: Scene) -> None:
    await scene.handled_by(concurrency=2, key="lane")


async def consume_with_deadline(scene: Scene) -> None:
    await scene.handled_by(timeout=60)


async def consume_confirming_on_receipt(scene: Scene) -> None:
    await scene.handled_by(ack=bmq.AckPolicy.ON_RECEIPT)


async def consume_with_a_rate(scene: Scene) -> None:
    await scene.handled_by(rate=1e9)


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


PATHS: list[Callable[[Scene], Awaitable[None]]] = [
    iterate_queue,
    queue_receive,
    queue_receive_with_timeout,
    queue_receive_many,
    queue_batches,
    batches_that_wait,
    iterate_consumer,
    consumer_receive,
    consumer_receive_many,
    consumer_batches,
    iterate_typed_queue,
    typed_queue_receive,
    iterate_typed_consumer,
    typed_consumer_receive,
    typed_queue_receive_many,
    typed_queue_batches,
    typed_consumer_receive_many,
    typed_consumer_batches,
    iterate_typed_group,
    typed_group_receive,
    iterate_tables,
    tables_receive,
    iterate_group,
    group_receive,
    consume,
    consume_side_by_side,
    consume_lanes,
    consume_with_deadline,
    consume_confirming_on_receipt,
    consume_with_a_rate,
    consume_with_a_handler_that_fails,
    app_consumer,
    app_consumer_of_values,
    app_batch_consumer,
    app_responder,
    taskiq_listen,
    iterate_due_messages,
    mover,
]

# The public callables that hand messages out in the event loop, with the path above for each.
COVERED = {
    "Queue.__aiter__": iterate_queue,
    "Queue.receive": queue_receive,
    "Queue.receive_many": queue_receive_many,
    "Queue.batches": queue_batches,
    "Queue.tables": iterate_tables,
    "Queue.group": iterate_group,
    "Consumer.__aiter__": iterate_consumer,
    "Consumer.receive": consumer_receive,
    "Consumer.receive_many": consumer_receive_many,
    "Consumer.batches": consumer_batches,
    "TypedQueue.__aiter__": iterate_typed_queue,
    "TypedQueue.receive": typed_queue_receive,
    "TypedConsumer.__aiter__": iterate_typed_consumer,
    "TypedConsumer.receive": typed_consumer_receive,
    "TypedQueue.receive_many": typed_queue_receive_many,
    "TypedQueue.batches": typed_queue_batches,
    "TypedQueue.group": iterate_typed_group,
    "TypedConsumer.receive_many": typed_consumer_receive_many,
    "TypedConsumer.batches": typed_consumer_batches,
    "TypedGroup.__aiter__": iterate_typed_group,
    "TypedGroup.receive": typed_group_receive,
    "Tables.__aiter__": iterate_tables,
    "Tables.__anext__": iterate_tables,
    "Tables.receive": tables_receive,
    "Group.__aiter__": iterate_group,
    "Group.__anext__": iterate_group,
    "Group.receive": group_receive,
    "App.consumer": app_consumer,
    "App.batch_consumer": app_batch_consumer,
    "App.responder": app_responder,
    "App.mover": mover,
    "Router.consumer": app_consumer,
    "Router.batch_consumer": app_batch_consumer,
    "Router.responder": app_responder,
    "Router.mover": mover,
    "App.sweeper": queue_receive_many,
    "Sweeper.run": queue_receive_many,
    "BmqBroker.listen": taskiq_listen,
    "DueMessages.__aiter__": iterate_due_messages,
    "DueMessages.__anext__": iterate_due_messages,
    "DueMessages.batch": mover,
    "Mover.run": mover,
    "App.run": app_consumer,
    "consume": consume,
    "Responder.__call__": app_responder,
}
# Plain calls that cannot wait, and iterators over objects other than messages.
OTHERS = {
    *("Queue.receive_nowait", "Consumer.receive_nowait", "Group.receive_nowait"),
    *("TypedQueue.receive_nowait", "TypedConsumer.receive_nowait", "TypedGroup.receive_nowait"),
    "HostHealth.__aiter__",
    "run",
    "HostHealthMonitor.__aiter__",
}
# Tested separately below: iterators over objects other than messages.
ELSEWHERE = {"Session.events"}
RECEIVING = (
    *("receive", "receive_many", "receive_nowait", "batches", "batch", "tables", "group", "listen"),
    *(
        "consume",
        "consumer",
        "batch_consumer",
        "responder",
        "mover",
        "sweeper",
        "run",
        "__aiter__",
        "__anext__",
        "events",
    ),
)
MODULES: tuple[ModuleType, ...] = (
    bmq,
    bmq.arrow,
    bmq.delays,
    bmq.groups,
    bmq.taskiq,
    bmq.typed,
    bmq.workers,
)


def receiving_callables() -> Iterator[str]:
    for module in MODULES:
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found) and name in RECEIVING:
                yield name
            elif inspect.isclass(found) and found.__module__.startswith("bmq."):
                if name == "Responder":
                    yield "Responder.__call__"
                # With the methods of private base classes.
                for base in found.__mro__:
                    if base is found or base is Registrar or base.__name__.startswith("_"):
                        for method, value in vars(base).items():
                            if method in RECEIVING and callable(value):
                                yield f"{name}.{method}"


def test_each_public_way_to_receive_is_walked() -> None:
    found = set(receiving_callables())
    assert found - OTHERS - ELSEWHERE == set(COVERED)
    assert set(COVERED.values()) <= set(PATHS)


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


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
async def test_the_event_loop_runs_between_messages(
    scene: Scene, path: Callable[[Scene], Awaitable[None]]
) -> None:
    await asyncio.wait_for(path(scene), 30)
    assert all(later > earlier for earlier, later in itertools.pairwise(scene.turns))


# A mover confirms once the destination has acknowledged.
@pytest.mark.parametrize(
    "path", [path for path in PATHS if path is not mover], ids=lambda path: path.__name__
)
async def test_confirmations_have_left_before_the_next_message_but_one(
    scene: Scene, path: Callable[[Scene], Awaitable[None]]
) -> None:
    """A killed process receives its unconfirmed messages again, but not its confirmed ones."""
    await asyncio.wait_for(path(scene), 30)
    assert all(later > earlier for earlier, later in itertools.pairwise(scene.sent[1:]))


async def test_the_event_loop_runs_between_events(scene: Scene) -> None:
    """Events are no messages, but a loop over a thousand events would block the event loop too."""
    events = scene.session.events()
    for _ in range(MESSAGES):
        scene.session._driver.events.publish(StateRestored())
    async for _ in events:
        if scene.saw():
            break
    assert all(later > earlier for earlier, later in itertools.pairwise(scene.turns))


async def test_two_loops_over_the_same_events_share_them(scene: Scene) -> None:
    events = scene.session.events()
    seen: list[int] = []

    async def loop(number: int) -> None:
        async for _ in events:
            seen.append(number)  # noqa: PERF401 - while others run

    loops = [asyncio.create_task(loop(number)) for number in range(2)]
    for _ in range(MESSAGES):
        scene.session._driver.events.publish(StateRestored())
    await eventually(lambda: len(seen) == MESSAGES)
    await scene.session.close()
    await asyncio.gather(*loops)
    assert set(seen) == {0, 1}


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


async def test_one_of_many_woken_tasks_continues_in_a_turn_of_the_loop() -> None:
    clock = Handed()
    turn = Turn(clock)
    turns, order = [0], list[tuple[int, int]]()

    async def handle(number: int) -> None:
        if clock() >= turn.until:
            await turn.wait()
        order.append((number, turns[0]))
        clock.now += 2 * SHARE

    handling = [asyncio.create_task(handle(number)) for number in range(50)]
    while not all(task.done() for task in handling):
        await asyncio.sleep(0)
        turns[0] += 1
    assert [number for number, _ in order] == list(range(50)), "first come, first served"
    assert len({turn for _, turn in order}) == 50


@pytest.mark.parametrize("each", [SHARE / 1000, SHARE / 10, SHARE / 3, SHARE * 2])
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


async def test_within_its_share_a_task_is_not_interrupted() -> None:
    clock = Handed()
    turn = Turn(clock)
    await turn.wait()
    clock.now += SHARE * 0.9
    assert clock() < turn.until


async def test_a_turn_of_the_loop_renews_the_share() -> None:
    """Tasks that wait for other events never wait for a turn."""
    clock = Handed()
    turn = Turn(clock)
    for _ in range(3):
        clock.now += 2 * SHARE
        with pytest.raises(StopIteration):
            turn.wait().send(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_cancelled_task_passes_its_share_on() -> None:
    clock = Handed()
    turn = Turn(clock)
    holder, first, second = (asyncio.create_task(turn.wait()) for _ in range(3))
    await asyncio.sleep(0)
    assert holder.done()
    await asyncio.sleep(0)  # the share has come, and the first task has not run since
    first.cancel()
    await second
    assert first.cancelled()
