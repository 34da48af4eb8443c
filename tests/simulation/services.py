# SPDX-License-Identifier: Apache-2.0
"""Services of every kind in a world of faults: no promise is broken, and all messages arrive afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import sqlalchemy

import bmq
import bmq.inbox
from bmq.taskiq import BmqBroker
from bmq.testing import History, Recorder, SimulatedProcess, examine
from bmq.testing._checker import DEFAULT_RULES
from bmq.workers._retry import DEFAULT_RETRY
from examples import outbox
from tests.inbox.driver import Driver
from tests.simulation.world import APP_IDS, BOUND, World, scene


def some(world: World) -> float:
    """Return how long a handler takes, in seconds."""
    return world.random.choice((0.0, 0.001, 0.05, 0.5)) * world.random.random()


async def worked_off(
    world: World,
    uri: str,
    register: Callable[[bmq.App], object],
    *,
    count: int = 40,
    rest: str = "",
    properties: Callable[[int], dict[str, Any] | None] = lambda _: None,
    **rules: Any,
) -> None:
    """Two apps handle a queue under faults; ``rest`` is the queue of what they put aside."""
    world.apps(register)
    if rest:
        world.program("graves", world.read, rest)
    await world.end_of_trouble(world.producer(uri, count, properties=properties))
    await world.settle(**rules)


@scene
async def fanout(world: World) -> None:
    """Three applications of a fanout queue, the first with two processes; each confirms differently."""
    uri = world.uri("news", "fanout")
    world.history.applications(uri, APP_IDS)

    async def each(recorder: Recorder, app_id: str) -> None:
        async with world.connect(recorder) as session:
            queue = await session.open_queue(f"{uri}?id={app_id}", read=True)
            async for message in queue:
                async with message:
                    await asyncio.sleep(some(world) / 10)

    async def batches(recorder: Recorder, app_id: str) -> None:
        async with world.connect(recorder) as session:
            queue = await session.open_queue(f"{uri}?id={app_id}", read=True)
            async for batch in queue.batches(20):
                await asyncio.sleep(some(world))
                batch.confirm()

    for number, (app_id, read) in enumerate((("a", each), ("a", each), ("b", batches), ("c", batches))):
        world.program(f"{app_id}{number}", read, app_id)
    await world.end_of_trouble(world.producer(uri))
    await world.settle()


@scene
async def broadcast(world: World) -> None:
    """No message arrives out of order, or twice unless sent twice; messages posted without faults arrive."""
    uri = world.uri("ticker", "broadcast")
    received: dict[str, list[bytes]] = {}

    async def read(recorder: Recorder) -> None:
        async with world.connect(recorder) as session:
            queue = await session.open_queue(uri, read=True)
            mine = received[recorder.name] = []
            async for message in queue:
                mine.append(message.data)
                message.confirm()

    for name in ("first", "second"):
        world.program(name, read)
    await world.end_of_trouble(world.producer(uri))
    await asyncio.sleep(BOUND)  # all processes are connected again
    for mine in received.values():
        mine.clear()
    async with bmq.connect(world.broker.uri) as session:
        queue = await session.open_queue(uri, write=True)
        for number in range(10):
            await queue.post(b"calm %d" % number)
    calm = [b"calm %d" % number for number in range(10)]
    await world.sim.until(lambda: list(received.values()) == [calm, calm], timeout=60)
    world.check(rules=["outcome", "order"])
    # Brokers do not remember broadcast messages: a resent message is delivered again.
    twice = {each.message for each in examine(world.history, rules=["again"]).problems}
    assert twice <= sent_again(world.history, "producer")


def sent_again(history: History, name: str) -> set[str]:
    """Return the messages without an acknowledgement when a process lost its connection."""
    unacked, found = set[str](), set[str]()
    for event in history.events():
        if event["process"] == name and event["op"] == "post":
            change = unacked.add if event["type"] == "invoke" else unacked.discard
            change(event["message"])
        elif event["process"] == name and event.get("event") == "ConnectionLost":
            found |= unacked
    return found


@scene
async def subscriptions(world: World) -> None:
    """Consumers keep changing their subscriptions; at the end, a consumer matches every message."""
    uri = world.uri("orders")
    peace = everything = False

    async def read(recorder: Recorder, last: bool) -> None:
        nonlocal everything
        async with world.connect(recorder) as session:
            queue = await session.open_queue(uri, read=True, default_subscription=False)
            while last or not peace:
                low = world.random.randrange(10)
                text = f"x >= {low} && x < {low + 5}"
                wanted = None if peace and last else text
                limit = world.random.choice((None, 1, 5))
                until = asyncio.get_running_loop().time() + world.random.uniform(0.1, 5)
                async with queue.subscribe(
                    wanted, priority=world.random.randrange(3), max_unconfirmed_messages=limit
                ) as consumer:
                    everything = everything or wanted is None
                    while wanted is None or asyncio.get_running_loop().time() < until:
                        with contextlib.suppress(TimeoutError):
                            async with await consumer.receive(timeout=world.random.choice((0.0, 0.3, 1.0))):
                                await asyncio.sleep(some(world) / 10)

    readers = [world.program(name, read, name == "last") for name in ("first", "second", "last")]
    await world.end_of_trouble(world.producer(uri, properties=lambda n: {"x": n % 15}))
    peace = True
    await world.until(
        lambda: everything and [each.running for each in readers] == [False, False, True], "the readers go on"
    )
    # A session with small limits leaves messages without a consumer to the broker, until it reconnects.
    for connection in world.sim.network.connections:
        connection.reset()
    # Closing consumers return messages of an earlier consumer: out of order, and marked.
    await world.settle()


@scene
async def lanes(world: World) -> None:
    """Workers with lanes: the messages of a key one by one; failures are retried and put aside."""
    uri, dead = world.uri("work"), world.uri("dead")

    def register(app: bmq.App) -> None:
        retry = bmq.Backoff(world.random.choice((0.1, 3.0)), retries=2, then=bmq.DeadLetter(dead))

        @app.consumer(uri, key="k", concurrency=world.random.choice((1, 3, 10)), retry=retry)
        async def handle(message: bmq.Message) -> None:
            await asyncio.sleep(some(world))
            if int(message.data) % 7 == 0 or world.random.random() < 0.1:
                raise OSError("not now")

    rules = [*DEFAULT_RULES, "key-order", "one-at-a-time"]
    await worked_off(
        world, uri, register, count=35, rest=dead, properties=lambda n: {"k": n % 9}, rules=rules
    )


@scene
async def batches(world: World) -> None:
    """Handlers of batches: a failed batch is retried as a whole."""
    uri, dead = world.uri("rows"), world.uri("dead")

    def register(app: bmq.App) -> None:
        retry = bmq.Backoff(world.random.choice((0.1, 3.0)), retries=2, then=bmq.DeadLetter(dead))

        @app.batch_consumer(
            uri,
            max_messages=world.random.choice((1, 5, 50)),
            max_wait=world.random.choice((0.0, 0.5)),
            retry=retry,
        )
        async def load(messages: list[bmq.Message]) -> None:
            await asyncio.sleep(some(world))
            if any(int(message.data) % 31 == 0 for message in messages) or world.random.random() < 0.1:
                raise OSError("not now")

    await worked_off(world, uri, register, rest=dead)


@scene
async def durable(world: World) -> None:
    """Durable retries, moved by the workers' own movers: each message has one outcome."""
    uri, dead = world.uri("tasks"), world.uri("dead")

    def register(app: bmq.App) -> None:
        retry = bmq.Backoff(2.0, retries=2, durable=True, then=bmq.DeadLetter(dead))

        @app.consumer(uri, concurrency=3, retry=retry)
        async def handle(message: bmq.Message) -> None:
            await asyncio.sleep(some(world))
            if int(message.data) % 7 == 0 or world.random.random() < 0.2:
                raise OSError("not now")

    await worked_off(world, uri, register, count=30, rest=dead)


@scene
async def policies(world: World) -> None:
    """Every retry policy, and every way to give up; restarted workers handle the rest."""
    uri, dead = world.uri("tasks"), world.uri("dead")
    letter = bmq.DeadLetter(dead)
    policy: bmq.RetryPolicy = world.random.choice(
        (
            bmq.Backoff(0.5, retries=3, factor=2.0, cap=1.5, then=letter),
            bmq.NoRetry(),
            bmq.NoRetry("skip"),
            bmq.NoRetry("discard"),
            bmq.NoRetry(letter),
            bmq.Backoff(0.5, retries=1),
            bmq.Backoff(0.5, retries=5, give_up_after=2.0, then=letter),
            bmq.Backoff(0.5, retries=5, no_retry=OSError, then="skip"),
            bmq.Backoff(1.0, retries=1, durable=True, then="leave"),
            bmq.Backoff(every=1, factor=2, cap=60, retries=None, give_up_after=3.0, then=letter),
            bmq.Backoff(0.1, retries=None, factor=2, cap=0.5, give_up_after=3.0, then="leave"),
            DEFAULT_RETRY,
        )
    )
    concurrency = world.random.choice((1, 3, 20))
    peace = False

    def register(app: bmq.App) -> None:
        @app.consumer(uri, concurrency=concurrency, retry=policy)
        async def handle(message: bmq.Message) -> None:
            await asyncio.sleep(some(world))
            if peace:
                return
            if int(message.data) % 7 == 0 or world.random.random() < 0.2:
                raise world.random.choice((OSError("not now"), ValueError("never")))
            if world.random.random() < 0.1:
                raise world.random.choice((bmq.Reject("not this one"), bmq.RetryAfter(0.3)))

    workers = world.apps(register)
    world.program("graves", world.read, dead)
    await world.end_of_trouble(world.producer(uri, 30))
    peace = True
    for each in workers:
        each.stop()
        await each.wait()
        each.start()
    # A rejected message, or a message discarded by its policy, is confirmed despite its failed handler.
    gone = not isinstance(policy.then, bmq.DeadLetter)
    await world.settle(without=["dead-letters"] if gone else [])


@scene
async def sweeping(world: World) -> None:
    """A worker takes some messages; the sweeper puts unmatched messages aside."""
    uri, aside = world.uri("mail"), world.uri("aside")

    def register(app: bmq.App) -> None:
        @app.consumer(uri, expression="x < 5", concurrency=2)
        async def handle(message: bmq.Message) -> None:
            await asyncio.sleep(some(world))
            assert message.properties["x"] < 5  # type: ignore[operator]

        app.sweeper(uri, put_aside=aside, hand_back_every=20)

    await worked_off(world, uri, register, rest=aside, properties=lambda n: {"x": n % 10})


@dataclass
class Question:
    """A request."""

    number: int


@dataclass
class Answer:
    """A reply."""

    number: int


class Five(bmq.RequestFailed, type="urn:sim:five", title="Five"):
    """The problem of a responder."""


@scene
async def requests(world: World) -> None:
    """Two responders, two requesters: each request receives exactly its own reply."""
    uri = world.uri("questions")

    def respond(app: bmq.App) -> None:
        @app.responder(uri, concurrency=3)
        async def double(question: Question) -> Answer:
            await asyncio.sleep(some(world))
            if question.number % 5 == 0:
                raise Five(f"{question.number} is a multiple of five")
            return Answer(2 * question.number)

    async def ask(recorder: Recorder) -> None:
        async with world.connect(recorder) as session:
            queue = (await session.open_queue(uri, write=True)).typed(Question)
            for number in range(1, 11):
                try:
                    reply = await queue.request(Question(number), reply=Answer, timeout=1200)
                except Five as error:
                    assert number % 5 == 0
                    assert error.detail == f"{number} is a multiple of five"  # noqa: PT017
                else:
                    assert reply == Answer(2 * number)
                await asyncio.sleep(world.random.expovariate(1))

    world.apps(respond)
    asking = [world.program(name, ask) for name in ("alice", "bob")]
    await world.end_of_trouble(*asking)
    await world.settle()


@dataclass
class Part:
    """An output of a handler: a number, and the GUID of the input."""

    of: Annotated[str, bmq.Property]
    number: int


@scene
async def publishing(world: World) -> None:
    """Workers post the results of each input: each result is stored once, and a dead letter has none."""
    uri, out, dead = world.uri("orders"), world.uri("parts"), world.uri("dead")
    retry = bmq.Backoff(world.random.choice((0.1, 3.0)), retries=30, then=bmq.DeadLetter(dead))
    batches = world.random.random() < 0.3
    timeout = world.random.choice((None, None, 5.0))
    stored: dict[str, Part] = {}
    refused: set[str] = set()

    async def fail_now_and_then(message: bmq.Message) -> None:
        await asyncio.sleep(some(world))
        if int(message.data) % 7 == 0:
            refused.add(message.guid)
            raise bmq.Reject("a multiple of seven")
        if world.random.random() < 0.1:
            raise OSError("not now")

    def register(app: bmq.App) -> None:
        if batches:

            @app.batch_consumer(uri, max_messages=5, max_wait=0.5, retry=retry, timeout=timeout)
            @app.publish_to(out)
            async def split_all(messages: list[bmq.Message]) -> list[Part | Exception]:
                found: list[Part | Exception] = []
                for message in messages:
                    try:
                        await fail_now_and_then(message)
                        found.append(Part(message.guid, 0))
                    except (OSError, bmq.Reject) as error:
                        found.append(error)
                return found

        else:

            @app.consumer(uri, concurrency=world.random.choice((1, 3, 10)), retry=retry, timeout=timeout)
            @app.publish_to(out)
            async def split(message: bmq.Message) -> AsyncIterator[Part]:
                for number in range(2):
                    yield Part(message.guid, number)
                    await fail_now_and_then(message)

    async def read(recorder: Recorder) -> None:
        async with world.connect(recorder) as session:
            async for part in (await session.open_queue(out, read=True)).typed(Part):
                assert stored.setdefault(part.guid, part.value) == part.value
                part.confirm()

    world.apps(register)
    world.program("graves", world.read, dead)
    world.program("reader", read)
    await world.end_of_trouble(world.producer(uri))
    await world.settle(without=["order"])
    posts = [event for event in world.history.events(op="post", type="ok") if event["queue"] == uri]
    parts = sorted((part.of, part.number) for part in stored.values())
    inputs = sorted({each for each, _ in parts})
    assert parts == [(each, number) for each in inputs for number in range(1 if batches else 2)]
    assert {each["message"] for each in posts} <= {*inputs, *refused}
    assert not refused & {*inputs}


@scene
async def shop(world: World) -> None:
    """An outbox on SQLite: committed rows are posted once, by two dying relays."""
    uri = world.uri("outbox")
    database = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.StaticPool)
    committed: list[bytes] = []
    received: list[bytes] = []

    async def sell() -> None:
        while len(committed) < 20:
            data = b"order %d" % len(committed)
            with database.begin() as connection:
                outbox.record(connection, data)
            committed.append(data)
            await asyncio.sleep(world.random.expovariate(2))

    async def relay(recorder: Recorder) -> None:
        async with world.connect(recorder) as session:
            await outbox.relay(database, "shop", await session.open_queue(uri, write=True))

    outbox.metadata.create_all(database)
    for name in ("relay1", "relay2"):
        world.program(name, relay)
    world.program("reader", world.read, uri, into=received)
    await world.end_of_trouble(world.sim.process("shop", sell))
    await world.sim.until(lambda: set(received) == set(committed), timeout=BOUND)
    await world.settle(without=["order"])
    stored = {event["message"] for event in world.history.events(op="deliver")}
    assert len(stored) == len(committed)
    database.dispose()


@scene
async def payments(world: World) -> None:
    """An inbox on SQLite: two workers killed between any two steps; each message has its effect once."""
    uri, out = world.uri("payments"), world.uri("receipts")
    # The same in each life of the workers: without durable retries, nobody reads the delay queue.
    durable = world.random.random() < 0.5
    folder = tempfile.mkdtemp()
    path = f"{folder}/shop.db"
    drivers: dict[str, Driver] = {}
    receipts: list[bytes] = []

    async def step(name: str) -> None:
        await asyncio.sleep(world.random.choice((0.0, 0.001, 0.02)) * world.random.random())

    async def pay(recorder: Recorder) -> None:
        # The system closes the files of a killed process; here this lasts until the restart.
        if recorder.name in drivers:
            drivers[recorder.name].drop()
        driver = drivers[recorder.name] = Driver(path, step)
        engine = driver.engine()
        inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=86400)
        app = world.app(recorder, grace=5)
        retry = bmq.Backoff(0.5, retries=None, factor=1.5, cap=3.0, durable=durable)

        @app.consumer(uri, concurrency=3, retry=retry, middlewares=[inbox.middleware])
        async def handle(message: bmq.Message) -> None:
            transaction = await inbox.transaction()
            origin = message.properties.get("bmq_origin", message.guid)
            effect = sqlalchemy.text("INSERT INTO effects VALUES (:name)")
            await transaction.connection.execute(effect, {"name": origin})
            if world.random.random() < 0.1:
                raise OSError("not now")
            transaction.post(out, str(origin).encode())

        while True:  # the database may be locked
            try:
                await inbox.start()
                break
            except sqlalchemy.exc.OperationalError:
                await asyncio.sleep(0.5)
        try:
            await app.run(signals=False)
        finally:
            await inbox.close()
            driver.drop()

    async def kill(workers: Sequence[SimulatedProcess]) -> None:
        for _ in range(10):
            await asyncio.sleep(world.random.expovariate(1.0))
            process = world.random.choice(workers)
            if process.running:
                process.kill()
                await asyncio.sleep(world.random.choice((0.01, 2.0)))
                if not process.running:
                    process.start()

    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE effects (name TEXT)")
    workers = world.workers(pay)
    world.program("reader", world.read, out, into=receipts)
    producer = world.producer(uri, 25)
    killing = asyncio.create_task(kill(workers))
    await world.end_of_trouble(producer)
    await killing
    await world.settle(without=["order"])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        effects = [name.encode() for (name,) in connection.execute("SELECT name FROM effects")]
    assert len(set(effects)) == len(effects), "an effect happened twice"
    await world.sim.until(lambda: set(receipts) >= set(effects), timeout=BOUND)
    assert set(receipts) == set(effects)
    taken = {each["message"] for each in world.history.events(op="deliver") if each["queue"] == uri}
    assert taken
    stored = {each["message"] for each in world.history.events(op="deliver") if each["queue"] == out}
    assert len(stored) == len(effects), "a receipt was stored twice"
    for driver in drivers.values():
        driver.drop()
    shutil.rmtree(folder)


@scene
async def taskiq(world: World) -> None:
    """Tasks of taskiq, at once and delayed: each is acknowledged in the end."""
    uri = world.uri("jobs")

    async def add(one: int, two: int) -> int:
        return one + two

    async def work(recorder: Recorder) -> None:
        broker = BmqBroker(world.broker.uri, uri, **world.recorded(recorder))
        broker.is_worker_process = True
        broker.task(task_name="add")(add)
        await broker.startup()
        try:
            async for task in broker.listen():
                await asyncio.sleep(some(world))
                task.ack()
        finally:
            await broker.shutdown()

    async def send(recorder: Recorder) -> None:
        broker = BmqBroker(world.broker.uri, uri, **world.recorded(recorder))
        task = broker.task(task_name="add")(add)
        await broker.startup()
        for number in range(20):
            kicker = task.kicker()
            if number % 3 == 0:
                kicker = kicker.with_labels(delay=world.random.choice((1, 20)))
            with contextlib.suppress(Exception):
                await kicker.kiq(number, 1)
            await asyncio.sleep(world.random.expovariate(1.5))
        await broker.shutdown()

    world.workers(work)
    await world.end_of_trouble(world.program("sender", send))
    await world.settle()


@scene
async def asked(world: World) -> None:
    """Admin sessions query a restarting broker: an answer or an error, and correct answers without faults."""
    uri = world.uri("stock")
    answers = lives = 0

    async def ask(recorder: Recorder) -> None:
        nonlocal answers
        while True:
            with contextlib.suppress(bmq.Error):
                async with asyncio.timeout(300), bmq.admin.connect(world.broker.uri) as admin:
                    for _ in range(5):
                        depth = await admin.queue(uri).depth()
                        assert 0 <= depth.messages <= 40 * lives  # each life of the producer posts 40
                        answers += 1
                        await asyncio.sleep(some(world))
            await asyncio.sleep(0.5)

    async def produce(recorder: Recorder) -> None:
        nonlocal lives
        lives += 1
        await world.post(recorder, uri, 40, over=12)

    world.program("admin", ask)
    world.program("reader", world.read, uri)
    await world.end_of_trouble(world.program("producer", produce))
    await world.settle()
    before = answers
    await world.sim.until(lambda: answers > before + 5, timeout=60)
    # All messages have arrived, but some confirmations may not.
    async with bmq.admin.connect(world.broker.uri) as admin, asyncio.timeout(60):
        while (await admin.queue(uri).depth()).messages:  # noqa: ASYNC110
            await asyncio.sleep(0.5)


class Broken(bmq.Interceptor):
    """Fails in every method, now and then."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _fail(self, *_: Any) -> None:
        if self._world.random.random() < 0.3:
            raise self._world.random.choice((ValueError("no"), asyncio.CancelledError(), OSError("x")))

    on_post = on_ack = on_receive = on_confirm = _fail

    async def handle(self, attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> Any:
        self._fail()
        try:
            return await call_next()
        finally:
            self._fail()


@scene
async def interceptors(world: World) -> None:
    """Failing interceptors have no effect."""
    uri = world.uri("seen")

    def register(app: bmq.App) -> None:
        @app.consumer(uri, concurrency=3)
        async def handle(message: bmq.Message) -> None:
            await asyncio.sleep(some(world))

    world.around = (Broken(world), Broken(world))
    await worked_off(world, uri, register)


@scene
async def quotas(world: World) -> None:
    """A queue with room for a few messages: refused messages never arrive, accepted messages do."""
    uri = world.uri("small", "small")
    world.program("reader", world.read, uri, lambda: 0.2 + some(world))
    await world.end_of_trouble(world.producer(uri))
    # A post whose refusal is lost with its connection is sent again, and accepted behind newer posts.
    verdict = await world.settle(without=["order"])
    assert set(verdict.refused) <= {"LIMIT_MESSAGES", "TIMEOUT", "CANCELED", "UNKNOWN"}


@scene
async def expiry(world: World) -> None:
    """Messages that live for 3 seconds, and a slow reader: some expire, and no further message is missing."""
    uri, world.limits = world.uri("short", "short"), {}  # no message waits at the broker
    world.program("reader", world.read, uri, lambda: 0.3 + some(world))
    await world.end_of_trouble(world.producer(uri))
    await asyncio.sleep(120)  # waiting messages are read, or have expired
    assert not len(world.broker.broker.queues[uri])
    verdict = examine(world.history)
    assert set(verdict.broken) <= {"lost", "unfinished"}, verdict
    last = world.program("last", world.post, uri, 5, over=5)
    await last.wait()
    await asyncio.sleep(60)
    again = examine(world.history)
    assert (again.posted, again.broken) == (verdict.posted + 5, verdict.broken), again


@scene
async def moody(world: World) -> None:
    """A broker that refuses, acknowledges late or never, opens late or not, and delivers twice."""
    uri = world.uri("moody")

    def mood() -> None:
        faults, random = world.broker.broker.faults, world.random
        random.choice(
            (
                lambda: faults.delay_acks(random.choice((0.01, 3.0))),
                lambda: faults.drop_acks(random.randrange(1, 20)),
                lambda: faults.nack(
                    random.choice((bmq.AckStatus.UNKNOWN, bmq.AckStatus.NOT_READY)), random.randrange(1, 20)
                ),
                lambda: faults.duplicate_pushes(random.randrange(1, 20)),
                lambda: faults.refuse_open(count=1, category=bmq.errors.StatusCategory.E_NOT_READY),
                lambda: setattr(faults, "negotiation_delay", random.choice((0.1, 2.0))),
            )
        )()

    async def moods() -> None:
        for _ in range(5):
            await asyncio.sleep(3)
            mood()
        world.broker.broker.faults.clear()

    world.program("reader", world.read, uri)
    producer = world.producer(uri)
    changing = asyncio.create_task(moods())
    await world.end_of_trouble()
    await changing
    for connection in world.sim.network.connections:
        connection.reset()  # posts with dropped acknowledgements are sent again
    await world.sim.until(lambda: not producer.running, timeout=3600)
    # Silently refused posts are sent again, behind newer posts.
    await world.settle(without=["again", "order"])
