# SPDX-License-Identifier: Apache-2.0
"""Programs of the client, its groups and its delays in a world of faults."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import bmq
import bmq.groups
from bmq.delays import Mover
from bmq.testing import Recorder
from tests.simulation.transactions import Desk
from tests.simulation.world import BOUND, World, scene

#: Silent heartbeat intervals of the first three minutes do not end a connection, as with a real broker.
GRACE = 180.0


def silence(world: World) -> float:
    """Return after how many seconds the broker has noticed a silent connection."""
    drawn = world.sim.drawn
    return GRACE + (drawn["max_missed_heartbeats"] + 2) * float(drawn["heartbeat_interval_ms"]) / 1000


@scene
async def posting(world: World) -> None:
    """Two producers, two competing consumers, a fanout queue: everything arrives, in order where promised."""
    sim = world.sim
    orders_uri, news_uri = world.uri("orders"), world.uri("news", "fanout")
    count = sim.draw("count", 12, 3, 40)
    filler = "." * sim.draw("size", 20, 0, 3000, 50_000)
    wanted = {f"{name}/{number}" for name in ("one", "two") for number in range(count)}
    arrived: dict[str, set[str]] = {"orders": set(), "a": set(), "b": set()}

    async def produce(name: str) -> None:
        async with world.connect(sim.recorder) as session:
            orders = await session.open_queue(orders_uri, write=True)
            news = await session.open_queue(news_uri, write=True)
            for number in range(count):
                data = f"{name}/{number}/{filler}".encode()
                if number % 3:
                    await orders.post(data)
                else:
                    await orders.post_many([data])
                await news.post(data)
                await asyncio.sleep(sim.random.expovariate(count / 4))

    async def consume(recorder: Recorder, uri: str, app: str) -> None:
        async with world.connect(recorder) as session:
            async for message in await session.open_queue(uri, read=True, **world.limits):
                if sim.random.random() < 0.1:
                    await asyncio.sleep(sim.random.uniform(0, 0.1))
                arrived[app].add(message.data.decode().rpartition("/")[0])
                message.confirm()

    producers = [sim.process(f"producer-{name}", produce, name) for name in ("one", "two")]
    for number in range(2):
        world.program(f"consumer-{number}", consume, orders_uri, "orders")
    for app in ("a", "b"):
        world.program(app, consume, f"{news_uri}?id={app}", app)
    await world.end_of_trouble(*producers, clocks=True)
    await world.until(
        lambda: all(each >= wanted for each in arrived.values()),
        lambda: {app: sorted(wanted - each)[:5] for app, each in arrived.items()},
    )
    await world.settle()


@scene
async def transactions(world: World) -> None:
    """Handlers with dependencies and middlewares: no confirmation without the commit of the effect."""
    sim = world.sim
    uri, dead_uri = world.uri("work"), world.uri("dead")
    count = sim.draw("count", 20, 3, 50)
    every = sim.draw("retry every", 1.0, 0.0, 30.0)
    retries = sim.draw("retries", 2, 0, 5)
    concurrency = sim.draw("concurrency", 5, 1, 50)
    timeout = sim.draw("timeout", 5.0, 0.15, None)
    kinds = sim.draw("middlewares", "", "p", "rp", "ptr", "psr")
    committed: set[int] = set()
    letters: list[bytes] = []

    async def produce() -> None:
        async with world.connect(sim.recorder) as session:
            queue = await session.open_queue(uri, write=True)
            for number in range(count):
                await queue.post(b"%d" % number)
                await asyncio.sleep(sim.random.expovariate(count / 4))

    async def work(recorder: Recorder) -> None:
        desk = Desk(sim, committed)
        async with world.connect(recorder) as session:
            queue = await session.open_queue(uri, read=True, **world.limits)
            retry = bmq.Backoff(
                every, retries=retries, then=bmq.DeadLetter(await session.open_queue(dead_uri, write=True))
            )
            options: Any = {"concurrency": concurrency, "retry": retry, "timeout": timeout}
            try:
                await bmq.consume(queue, desk.handler(), middlewares=desk.middlewares(kinds), **options)
            finally:
                assert not desk.open, f"{desk.open} transactions are open behind the worker"
                assert not desk.connected

    async def bury() -> None:
        await world.read(sim.recorder, dead_uri, into=letters)

    def left() -> list[str]:
        queues = world.broker.broker.queues
        sizes = {each: len(queues[each]) for each in (uri, dead_uri) if each in queues}
        return [f"{size} messages are left in {each}" for each, size in sizes.items() if size]

    async def emptied() -> None:
        """Wait: a worker may have a message at hand that another worker has confirmed."""
        await world.until(lambda: not left() and not world.history.pending(), left)

    producer = sim.process("producer", produce)
    workers = world.workers(work)
    undertaker = sim.process("undertaker", bury)
    await world.end_of_trouble(producer, clocks=True)
    wanted = set(range(count))
    # With a window of one message a worker waits for all retries of a message before it takes the next one.
    bound = BOUND + count * retries * (every + 1)
    await world.until(
        lambda: committed | set(map(int, letters)) >= wanted,
        lambda: sorted(wanted - committed - set(map(int, letters)))[:5],
        bound,
    )
    await emptied()
    for each in workers:
        each.stop()
        await each.wait()
    # A worker that had no turn for a while may have posted its own dead letter of a committed message.
    await emptied()
    undertaker.stop()
    dead, hopeless = set(map(int, letters)), set(range(0, count, 7))
    assert committed | dead == wanted
    assert dead >= hopeless
    assert not committed & hopeless
    await world.settle(bound)


@scene
async def exclusive_groups(world: World) -> None:
    """An exclusive group, in a loop or in workers: a key is handled in order over all members.

    Members are frozen for several leases. With ``take_over_after``, the messages that a frozen member has may
    come late: nothing is lost, and the fences grow.
    """
    sim, uri = world.sim, world.uri("jobs")
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

    def connected(recorder: Recorder) -> bmq.connect:
        # The history knows nothing of the control queue, whose crown stays unconfirmed.
        return world.connect(recorder, interceptors=[])

    async def produce() -> None:
        async with connected(sim.recorder) as session:
            queue = await session.open_queue(uri, write=True)
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

    def finish(message: bmq.Message) -> None:
        key, number = map(int, message.data.split())
        done.setdefault(key, set()).add(number)

    async def take(recorder: Recorder, name: str) -> None:
        async with connected(recorder) as session:
            queue = await session.open_queue(uri, read=True)
            chosen: Any = {"member": name, "lease": lease}
            if takes_over:
                chosen["take_over_after"] = 3 * lease
            group = joined[name] = queue.group(None if text else "k", buckets=buckets, **chosen)

            async def ship(message: bmq.Message) -> None:
                await handle(group, name, message)
                if sim.random.random() < 0.1:
                    raise ConnectionError("the store is away")
                finish(message)

            if workers:
                retry = bmq.Backoff(every=0.05, factor=2.0, cap=1.0, retries=None)
                await bmq.consume(group, ship, concurrency=workers, retry=retry, grace=5.0)
                return
            async with group:
                async for message in group:
                    await handle(group, name, message)
                    message.confirm()
                    finish(message)

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
    members = [world.program(f"member-{number}", take, f"m{number}") for number in range(3)]
    leaving, freezing = asyncio.create_task(come_and_go()), asyncio.create_task(freeze())
    await world.end_of_trouble(producer, clocks=True)
    await freezing
    troubled = False
    await leaving
    for each in members:
        if not each.running:
            each.start()

    def shares() -> list[int]:
        return sorted(len(group.owned) for group in joined.values() if not group.closed)

    await world.until(
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
        each.stop()
        await each.wait()
    await world.settle()


@scene
async def delays(world: World) -> None:
    """Two movers: every delayed message arrives, none early, and none much too late."""
    sim, clock = world.sim, world.sim._true_time
    uri = world.uri("later")
    count = sim.draw("count", 15, 3, 40)
    due: dict[int, float] = {}
    arrived: dict[int, float] = {}
    tick = sim.draw("tick", 0.5, 0.1, 5.0)
    lookahead = max(tick, sim.draw("lookahead", 3600.0, 1.0, 20.0))
    max_held = sim.draw("max_held", 10_000, 2, 20)

    async def produce() -> None:
        async with world.connect(sim.recorder) as session:
            queue = await session.open_queue(uri, write=True)
            for number in range(count):
                delay = sim.random.choice((0.0, sim.random.uniform(0, 5), sim.random.uniform(0, 20)))
                due[number] = clock() + delay
                await queue.post(b"%d" % number, delay=delay)
                await asyncio.sleep(sim.random.expovariate(count / 4))

    async def move(recorder: Recorder) -> None:
        async with world.connect(recorder) as session:
            queue = await session.open_queue(f"{uri}.delayed", read=True)
            await Mover(queue, tick=tick, lookahead=lookahead, max_held=max_held, clock=clock).run()

    async def receive() -> None:
        async with world.connect(sim.recorder) as session:
            async for message in await session.open_queue(uri, read=True):
                number, now = int(message.data), clock()
                # Rounded to milliseconds by the property, and never early.
                assert now >= due[number] - 0.001, (number, now - due[number])
                arrived.setdefault(number, now)
                message.confirm()

    producer = sim.process("producer", produce)
    movers = world.workers(move)
    receiver = sim.process("receiver", receive)
    await world.end_of_trouble(clocks=True)
    healed = clock()
    await producer.wait()
    await world.until(
        lambda: len(arrived) == count and not world.history.pending(),
        lambda: f"not arrived: {sorted(due.keys() - arrived.keys())[:5]}",
    )
    late = {number: at - max(due[number], healed) for number, at in arrived.items()}
    # A broker keeps the messages of a machine without power until it has missed the heartbeats.
    silent = any("its machine too" in fault.get("kind", "") for fault in world.history.events(op="fault"))
    bound = 60 + 2 * tick + 1.5 * world.options["liveness"] + silent * silence(world)
    assert max(late.values()) < bound, sorted(late.values())[-3:]
    for each in (*movers, receiver):
        assert each.running, await each.wait()
    await world.settle(without=["order"])


@scene
async def quiet(world: World) -> None:
    """Quiet minutes: sessions stay connected, and posts arrive at once."""
    sim, uri = world.sim, world.uri("quiet")
    sim.network.set()
    waited: list[float] = []
    sent: dict[bytes, float] = {}

    async def consume() -> None:
        async with world.connect(sim.recorder) as session:
            async for message in await session.open_queue(uri, read=True):
                waited.append(sim.now - sent[message.data])
                message.confirm()
                assert session.stats().reconnects == 0

    sim.process("consumer", consume)
    minutes = 5  # brokers notice silence after three minutes at the earliest
    async with world.connect(sim.recorder) as session:
        queue = await session.open_queue(uri, write=True)
        while sim.now < minutes * 60:
            data = b"%d" % len(sent)
            sent[data] = sim.now
            await queue.post(data)
            assert session.health().ready
            await asyncio.sleep(sim.random.expovariate(1 / 45))
        assert session.stats().reconnects == 0
    await sim.until(lambda: len(waited) == len(sent))
    assert max(waited) < 1.0
    await world.settle()
