# SPDX-License-Identifier: Apache-2.0
"""Worlds: programs that run under faults of any seed, and must keep every promise.

A world has two phases. Under faults nothing wrong happens; after the faults everything arrives within a bound
of virtual time. The history is checked at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import bmq
import bmq.groups
from bmq.broker import DomainConfig, Mode
from bmq.delays import Mover
from bmq.testing import SimulatedBroker, SimulatedProcess, Simulation, Verdict, check
from tests.simulation.books import unsettled
from tests.simulation.transactions import Desk

__all__ = ["WORLDS", "World"]

World = Callable[[Simulation], Coroutine[Any, Any, Verdict]]
WORLDS: dict[str, World] = {}

DOMAIN = "sim"
FANOUT = "sim.fanout"
#: Silent heartbeat intervals of the first three minutes do not end a connection, as with a real broker.
GRACE = 180.0
#: Virtual seconds after the last fault in which everything arrives: brokers and clients notice a silent
#: connection, a request is given up, and the longest pause of a drawn policy passes.
BOUND = 600.0


def world(function: World) -> World:
    WORLDS[function.__name__.replace("_", " ")] = function
    return function


# what all worlds have


def uri(name: str) -> str:
    return f"bmq://{DOMAIN}/{name}"


def start_broker(sim: Simulation, *hosts: str) -> SimulatedBroker:
    """A broker with queues that keep everything for a month, GUIDs for a day, and drawn limits."""
    month = 30 * 86400
    kept: Any = {"message_ttl": month, "max_delivery_attempts": 0, "deduplication_time_ms": 86_400_000}
    domains = [
        DomainConfig(DOMAIN, Mode.PRIORITY, **kept),
        DomainConfig(FANOUT, Mode.FANOUT, app_ids=("foo", "bar"), **kept),
    ]
    # Without heartbeats a broker keeps the messages of a silent connection until TCP gives up, in a quarter
    # of an hour: longer than the bound of a world.
    return sim.broker(
        *hosts,
        domains=domains,
        heartbeat_interval_ms=sim.draw("heartbeat_interval_ms", 3000, 200, 20_000),
        max_missed_heartbeats=sim.draw("max_missed_heartbeats", 2, 1, 5),
        high_water=sim.draw("high_water", 16 * 1024 * 1024, 1000, 100_000),
    )


def silence(sim: Simulation) -> float:
    """Return after how many seconds the broker has noticed a silent connection."""
    intervals: int = sim.drawn["max_missed_heartbeats"] + 2
    return GRACE + intervals * float(sim.drawn["heartbeat_interval_ms"]) / 1000


def connect(sim: Simulation, broker: SimulatedBroker, **options: Any) -> Any:
    """Return a session whose process is recorded, with the options of this seed."""
    recorder = sim.recorder
    given: dict[str, Any] = {
        "interceptors": [recorder],
        "on_event": recorder.on_event,
        "retry_first_connect": True,
        "open_timeout": BOUND,
        "configure_timeout": BOUND,
        "busy_poll": sim.drawn["busy_poll"],
        "connect_timeout": sim.drawn["connect_timeout"],
        "liveness": sim.drawn["liveness"],
        "max_unacked_messages": sim.drawn["max_unacked_messages"],
        "max_buffered_messages": sim.drawn["max_buffered_messages"],
    }
    return bmq.connect(broker.uri, **{**given, **options})


def draw_options(sim: Simulation) -> None:
    """Draw what sessions and queues get, absurd values included."""
    sim.draw("connect_timeout", 5.0, 0.5, 60.0)
    sim.draw("liveness", 10.0, 2.0, 1.0)
    sim.draw("max_unacked_messages", 10_000, 1, 3, 50)
    sim.draw("max_buffered_messages", 10_000, 1, 7)
    sim.draw("max_unconfirmed_messages", 1000, 1, 2, 10)
    sim.draw("busy_poll", 0.0, 5e-7)
    sim.draw("size", 20, 0, 3000, 50_000)
    sim.network.set(
        latency=sim.draw("latency", (50e-6, 500e-6), (0.0, 1e-6), (1e-3, 0.2)),
        segment=sim.draw("segment", None, (1, 50), (1, 5000)),
        window=sim.draw("window", 256 * 1024, 500, 10_000),
    )


async def settle(
    sim: Simulation, condition: Callable[[], bool], what: Callable[[], object], within: float = BOUND
) -> None:
    """Wait until everything has arrived."""
    try:
        await sim.until(condition, timeout=within, every=0.5)
    except TimeoutError:
        raise AssertionError(f"not settled {within:g} s after the last fault: {what()}") from None


async def stop(*processes: SimulatedProcess) -> None:
    """Ask processes to end, and wait for it."""
    for process in processes:
        process.stop()
    for process in processes:
        await process.wait()


def judged(sim: Simulation, broker: SimulatedBroker, **rules: Any) -> Verdict:
    """Check the broker's books, and the history."""
    found = unsettled(broker, [])
    assert not found, found
    return check(sim.history, **rules)


async def post_numbers(sim: Simulation, broker: SimulatedBroker, where: str, count: int) -> None:
    async with connect(sim, broker) as session:
        queue = await session.open_queue(where, write=True)
        for number in range(count):
            await queue.post(b"%d" % number)
            await asyncio.sleep(sim.random.expovariate(count / 4))


async def read_numbers(sim: Simulation, broker: SimulatedBroker, where: str, found: set[int]) -> None:
    async with connect(sim, broker) as session:
        async for message in await session.open_queue(where, read=True):
            found.add(int(message.data))
            message.confirm()


async def emptied(sim: Simulation, broker: SimulatedBroker) -> None:
    """Wait until workers and undertaker have finished.

    A worker may have a message at hand that another worker has confirmed.
    """

    def left() -> list[Any]:
        queues = broker.broker.queues
        return [queues[each] for each in (uri("work"), uri("dead")) if each in queues and len(queues[each])]

    await settle(
        sim,
        lambda: not left() and not sim.history.pending(),
        lambda: "; ".join(f"{len(queue)} messages are left in {queue.uri}" for queue in left()),
    )


# worlds


@world
async def posting(sim: Simulation) -> Verdict:
    """Two producers, two competing consumers, a fanout queue: everything arrives, in order where promised."""
    draw_options(sim)
    broker = start_broker(sim, *sim.draw("hosts", ("broker",), ("node1", "node2", "node3")))
    count = sim.draw("count", 12, 3, 40)
    wanted = {f"{name}/{number}" for name in ("one", "two") for number in range(count)}
    arrived: dict[str, set[str]] = {"orders": set(), "foo": set(), "bar": set()}
    posted: set[str] = set()
    filler = "." * sim.drawn["size"]

    async def produce(name: str) -> None:
        async with connect(sim, broker) as session:
            orders = await session.open_queue(uri("orders"), write=True)
            news = await session.open_queue(f"bmq://{FANOUT}/news", write=True)
            for number in range(count):
                data = f"{name}/{number}/{filler}".encode()
                if number % 3:
                    await orders.post(data)
                else:
                    await orders.post_many([data])
                await news.post(data)
                posted.add(f"{name}/{number}")
                await asyncio.sleep(sim.random.expovariate(count / 4))

    async def consume(where: str, app: str) -> None:
        async with connect(sim, broker) as session:
            queue = await session.open_queue(
                where,
                read=True,
                max_unconfirmed_messages=sim.drawn["max_unconfirmed_messages"],
            )
            async for message in queue:
                if sim.random.random() < 0.1:
                    await asyncio.sleep(sim.random.uniform(0, 0.1))
                arrived[app].add(message.data.decode().rpartition("/")[0])
                message.confirm()

    producers = [sim.process(f"producer-{name}", produce, name) for name in ("one", "two")]
    consumers = [sim.process(f"consumer-{number}", consume, uri("orders"), "orders") for number in range(2)]
    consumers += [sim.process(app, consume, f"bmq://{FANOUT}/news?id={app}", app) for app in ("foo", "bar")]
    await sim.faults(6.0, victims=consumers)
    await settle(sim, lambda: all(not each.running for each in producers), sim.waiting)
    for each in producers:
        await each.wait()
    await settle(
        sim,
        lambda: all(each >= wanted for each in arrived.values()) and not sim.history.pending(),
        lambda: {app: sorted(wanted - each)[:5] for app, each in arrived.items()},
    )
    await stop(*consumers)
    return judged(sim, broker)


@world
async def workers(sim: Simulation) -> Verdict:
    """Workers that fail now and then: every message is handled or becomes a dead letter."""
    draw_options(sim)
    broker = start_broker(sim)
    count = sim.draw("count", 20, 3, 50)
    done: set[int] = set()
    dead: set[int] = set()
    every = sim.draw("retry every", 1.0, 0.0, 30.0)
    retries = sim.draw("retries", 2, 0, 5)
    concurrency = sim.draw("concurrency", 5, 1, 50)

    async def work() -> None:
        async with connect(sim, broker) as session:
            queue = await session.open_queue(
                uri("work"),
                read=True,
                max_unconfirmed_messages=sim.drawn["max_unconfirmed_messages"],
            )
            letters = await session.open_queue(uri("dead"), write=True)

            async def handle(message: bmq.Message) -> None:
                number = int(message.data)
                await asyncio.sleep(sim.random.uniform(0, 0.2))
                if number % 7 == 0 or sim.random.random() < 0.2:
                    raise RuntimeError("a drawn failure")
                done.add(number)

            retry = bmq.Backoff(every=every, retries=retries, then=bmq.DeadLetter(letters))
            await bmq.consume(queue, handle, concurrency=concurrency, retry=retry)

    producer = sim.process("producer", post_numbers, sim, broker, uri("work"), count)
    victims = [sim.process(f"worker-{number}", work) for number in range(2)]
    undertaker = sim.process("undertaker", read_numbers, sim, broker, uri("dead"), dead)
    await sim.faults(6.0, victims=victims)
    await producer.wait()
    wanted = set(range(count))
    # With a window of one message a worker waits for all retries of a message before it takes the next one.
    bound = BOUND + count * retries * (every + 1)
    await settle(sim, lambda: done | dead >= wanted, lambda: sorted(wanted - done - dead)[:5], bound)
    # A message may be handled by one worker, and become a dead letter of another one that had it before.
    await emptied(sim, broker)
    assert {number for number in wanted if number % 7 == 0} <= dead
    await stop(*victims)
    # A worker that had no turn for a while may have posted its own dead letter of such a message.
    await emptied(sim, broker)
    await stop(undertaker)
    return judged(sim, broker)


@world
async def transactions(sim: Simulation) -> Verdict:
    """Handlers with dependencies and middlewares: no confirmation without the commit of the effect."""
    draw_options(sim)
    broker = start_broker(sim)
    count = sim.draw("count", 20, 3, 50)
    every = sim.draw("retry every", 1.0, 0.0, 30.0)
    retries = sim.draw("retries", 2, 0, 5)
    concurrency = sim.draw("concurrency", 5, 1, 50)
    timeout = sim.draw("timeout", 5.0, 0.15, None)
    kinds = sim.draw("middlewares", "", "p", "rp", "ptr", "psr")
    committed: set[int] = set()
    dead: set[int] = set()
    desks: list[Desk] = []

    async def work() -> None:
        desk = Desk(sim, committed)
        desks.append(desk)
        async with connect(sim, broker) as session:
            queue = await session.open_queue(
                uri("work"), read=True, max_unconfirmed_messages=sim.drawn["max_unconfirmed_messages"]
            )
            letters = await session.open_queue(uri("dead"), write=True)
            retry = bmq.Backoff(every=every, retries=retries, then=bmq.DeadLetter(letters))
            try:
                await bmq.consume(
                    queue,
                    desk.handler(),
                    concurrency=concurrency,
                    retry=retry,
                    timeout=timeout,
                    middlewares=desk.middlewares(kinds),
                )
            finally:
                assert not desk.open, f"{desk.open} transactions are open behind the worker"
                assert not desk.connected

    producer = sim.process("producer", post_numbers, sim, broker, uri("work"), count)
    victims = [sim.process(f"worker-{number}", work) for number in range(2)]
    undertaker = sim.process("undertaker", read_numbers, sim, broker, uri("dead"), dead)
    await sim.faults(6.0, victims=victims)
    await producer.wait()
    wanted = set(range(count))
    bound = BOUND + count * retries * (every + 1)

    await settle(
        sim, lambda: committed | dead >= wanted, lambda: sorted(wanted - committed - dead)[:5], bound
    )
    await emptied(sim, broker)
    await stop(*victims)
    await emptied(sim, broker)
    await stop(undertaker)
    assert wanted == committed | dead
    return judged(sim, broker)


@world
async def exclusive_groups(sim: Simulation) -> Verdict:
    """An exclusive group, in a loop or in workers: a key is handled in order over all members.

    Members are frozen for several leases. With ``take_over_after``, the messages that a frozen member has may
    come late: nothing is lost, and the fences grow.
    """
    draw_options(sim)
    broker = start_broker(sim)
    count, keys = sim.draw("count", 200, 5, 400), sim.draw("keys", 8, 1, 40)
    buckets, text = sim.draw("buckets", 8, 1, 16), sim.draw("text", False, True)
    lease = sim.draw("lease", 3.0, 1.0, 20.0)
    workers = sim.draw("workers", 0, 0, 8)  # 0 for a loop
    freezes, takes_over = sim.draw("freezes", 1, 0, 3), sim.draw("takes over", False, True)
    posted: dict[int, int] = {}
    done: dict[int, set[int]] = {}
    fences: dict[int, int] = {}
    joined: dict[str, bmq.groups.Group] = {}
    troubled = True

    def connected() -> Any:
        # The history knows nothing of the control queue, whose crown stays unconfirmed.
        return connect(sim, broker, interceptors=[])

    async def produce() -> None:
        async with connected() as session:
            queue = await session.open_queue(uri("jobs"), write=True)
            for _ in range(count):
                key = sim.random.randrange(keys)
                number = posted.get(key, 0)
                given: Any = {"key": f"order-{key}"} if text else {"properties": {"k": key}}
                await queue.post(b"%d %d" % (key, number), **given)
                posted[key] = number + 1
                await asyncio.sleep(sim.random.expovariate(count / 6))

    async def handle(group: bmq.groups.Group, name: str, message: bmq.Message) -> None:
        key, number = map(int, message.data.split())
        bucket = group.bucket_of(message)
        assert bucket is not None
        if not message.stale and bucket in group.owned:
            fence = group.fence(bucket)
            assert fence >= fences.get(bucket, 0), (name, bucket, fence, fences[bucket])
            fences[bucket] = fence
            finished = done.setdefault(key, set())
            assert takes_over or finished >= set(range(number)), (name, key, number, finished)
        if sim.random.random() < 0.2:
            await asyncio.sleep(sim.random.uniform(0, 0.05))

    async def take(name: str) -> None:
        async with connected() as session:
            queue = await session.open_queue(uri("jobs"), read=True)
            chosen: Any = {"member": name, "lease": lease}
            if takes_over:
                chosen["take_over_after"] = 3 * lease
            group = joined[name] = queue.group(None if text else "k", buckets=buckets, **chosen)

            async def ship(message: bmq.Message) -> None:
                await handle(group, name, message)
                if sim.random.random() < 0.1:
                    raise ConnectionError("the store is away")
                key, number = map(int, message.data.split())
                done.setdefault(key, set()).add(number)

            if workers:
                retry = bmq.Backoff(every=0.05, factor=2.0, cap=1.0, retries=None)
                await bmq.consume(group, ship, concurrency=workers, retry=retry, grace=5.0)
                return
            async with group:
                async for message in group:
                    await handle(group, name, message)
                    message.confirm()
                    key, number = map(int, message.data.split())
                    done.setdefault(key, set()).add(number)

    async def come_and_go() -> None:
        while troubled:
            await asyncio.sleep(sim.random.uniform(0.3, 3.0))
            one = sim.random.choice(members)
            if one.state == "running":
                one.stop()
                with contextlib.suppress(bmq.RequestTimeout):  # frozen while it left
                    await one.wait()
                await asyncio.sleep(sim.random.uniform(0.0, 1.0))
                if not one.running:
                    one.start()

    async def freeze() -> None:
        for _ in range(freezes):
            await asyncio.sleep(sim.random.uniform(0.0, 4.0))
            one = sim.random.choice(members)
            if one.state == "running":
                one.pause()
                await asyncio.sleep(sim.random.uniform(1.0, 6.0) * lease)
                one.resume()

    producer = sim.process("producer", produce)
    members = [sim.process(f"member-{number}", take, f"m{number}") for number in range(3)]
    leaving, freezing = asyncio.create_task(come_and_go()), asyncio.create_task(freeze())
    await sim.faults(6.0, victims=members)
    await producer.wait()
    await freezing
    troubled = False
    await leaving
    for each in members:
        if not each.running:
            each.start()

    def shares() -> list[int]:
        return sorted(len(group.owned) for group in joined.values() if not group.closed)

    await settle(
        sim,
        lambda: (
            {key: len(seen) for key, seen in done.items()} == posted
            and len(shares()) == 3
            and sum(shares()) == buckets
            and shares()[-1] - shares()[0] <= 1
        ),
        lambda: (shares(), {key: (count, len(done.get(key, ()))) for key, count in posted.items()}),
    )
    for each in members:
        assert each.running, await each.wait()
    await stop(*members)
    return judged(sim, broker)


@world
async def delays(sim: Simulation) -> Verdict:
    """Two movers: every delayed message arrives, none early, and none much too late."""
    draw_options(sim)
    broker = start_broker(sim)
    count = sim.draw("count", 15, 3, 40)
    due: dict[int, float] = {}
    arrived: dict[int, float] = {}
    tick = sim.draw("tick", 0.5, 0.1, 5.0)
    lookahead = sim.draw("lookahead", 3600.0, 1.0, 20.0)
    max_held = sim.draw("max_held", 10_000, 2, 20)

    def clock() -> float:
        return sim._true_time()

    async def produce() -> None:
        async with connect(sim, broker) as session:
            queue = await session.open_queue(uri("later"), write=True)
            for number in range(count):
                delay = sim.random.choice((0.0, sim.random.uniform(0, 5), sim.random.uniform(0, 20)))
                due[number] = clock() + delay
                await queue.post(b"%d" % number, delay=delay)
                await asyncio.sleep(sim.random.expovariate(count / 4))

    async def move() -> None:
        async with connect(sim, broker) as session:
            queue = await session.open_queue(uri("later.delayed"), read=True)
            await Mover(
                queue, tick=tick, lookahead=max(lookahead, tick), max_held=max_held, clock=clock
            ).run()

    async def receive() -> None:
        async with connect(sim, broker) as session:
            queue = await session.open_queue(uri("later"), read=True)
            async for message in queue:
                number, now = int(message.data), clock()
                # Rounded to milliseconds by the property, and never early.
                assert now >= due[number] - 0.001, (number, now - due[number])
                arrived.setdefault(number, now)
                message.confirm()

    producer = sim.process("producer", produce)
    movers = [sim.process(f"mover-{number}", move) for number in range(2)]
    receiver = sim.process("receiver", receive)
    await sim.faults(6.0, victims=movers)
    healed = clock()
    await producer.wait()
    wanted = set(range(count))
    await settle(
        sim,
        lambda: arrived.keys() >= wanted and not sim.history.pending(),
        lambda: sorted(wanted - arrived.keys())[:5],
    )
    late = {number: at - max(due[number], healed) for number, at in arrived.items()}
    # A broker keeps the messages of a machine without power until it has missed the heartbeats.
    silent = any("its machine too" in fault.get("kind", "") for fault in sim.history.events(op="fault"))
    assert max(late.values()) < 60 + 2 * tick + silent * silence(sim), sorted(late.values())[-3:]
    for each in (*movers, receiver):
        assert each.running, await each.wait()
    await stop(*movers, receiver)
    return judged(sim, broker, without=["order"])


@world
async def quiet(sim: Simulation) -> Verdict:
    """Quiet minutes: sessions stay connected, and posts arrive at once."""
    draw_options(sim)
    sim.network.set()
    broker = start_broker(sim)
    waited: list[float] = []
    sent: dict[bytes, float] = {}

    async def consume() -> None:
        async with connect(sim, broker) as session:
            queue = await session.open_queue(uri("quiet"), read=True)
            async for message in queue:
                waited.append(sim.now - sent[message.data])
                message.confirm()
            assert session.stats().reconnects == 0

    consumer = sim.process("consumer", consume)
    minutes = 5  # brokers notice silence after three minutes at the earliest
    async with connect(sim, broker) as session:
        queue = await session.open_queue(uri("quiet"), write=True)
        while sim.now < minutes * 60:
            data = b"%d" % len(sent)
            sent[data] = sim.now
            await queue.post(data)
            assert session.health().ready
            await asyncio.sleep(sim.random.expovariate(1 / 45))
        assert session.stats().reconnects == 0
    await sim.until(lambda: len(waited) == len(sent))
    assert max(waited) < 1.0
    await stop(consumer)
    return judged(sim, broker)
