# SPDX-License-Identifier: Apache-2.0
"""Delayed messages: their cost for the broker, their lateness, and a cluster that loses nodes.

usage: python benchmarks/delays.py waiting --broker tcp://127.0.0.1:30114 --pid PID [--count 0 10000 100000]
       [--minutes 5] [--seconds 60]
       python benchmarks/delays.py cluster --broker /usr/local/bin/bmqbrkr [--laps 5]

``waiting`` posts messages that are due in two to four hours, lets a mover watch only them for some minutes,
and then posts up to 200 a second that are due in 1 to 4 seconds. PID is the broker's process, whose CPU time
is read. ``cluster`` kills the primary of three nodes repeatedly while two movers pass messages on, and counts
lost, early, late and duplicate messages, with the reasons. Meanwhile requests are made and answered, and
messages fail and return. Without --broker, one embedded broker replaces the nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from cluster import Cluster, EmbeddedNode, RealCluster

import bmq
from bmq.conventions import DELAY_QUEUE_SUFFIX, delay_queue_of
from bmq.delays import Mover
from bmq.testing import fresh_queue_uri

RATE = 200
#: Maximum time in seconds until all nodes have a confirmation.
CONFIRMING = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


def used(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@dataclass(slots=True)
class Life:
    """The history of one message, in seconds since 1970.

    Attributes:
        posted: times at which movers posted it.
        passed: number of these posts that were acknowledged.
        came: times at which the consumer received it.
    """

    posted: list[float] = field(default_factory=list[float])
    passed: int = 0
    came: list[float] = field(default_factory=list[float])


class Watch(bmq.Interceptor):
    """Records the histories of messages, by their payloads, in the sessions of movers and of the consumer.

    Attributes:
        kills: times at which a primary was killed.
    """

    def __init__(self) -> None:
        self.lives: dict[bytes, Life] = defaultdict(Life)
        self.kills: list[float] = []

    def on_receive(self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]) -> None:
        if not consumer.queue.uri.endswith(DELAY_QUEUE_SUFFIX):
            for message in messages:
                self.lives[message.data].came.append(time.time())

    def on_post(self, queue: bmq.Queue, posts: Sequence[bmq.interceptors.OutgoingMessage]) -> list[bytes]:
        for post in posts:
            self.lives[bytes(post.data)].posted.append(time.time())
        return [bytes(post.data) for post in posts]

    def on_ack(self, context: list[bytes], outcome: bmq.interceptors.PostOutcome) -> None:
        if outcome.acknowledged == len(context):
            for data in context:
                self.lives[data].passed += 1

    def twice(self) -> str:
        """Describe duplicate posts and deliveries, with their reasons."""
        why: Counter[str] = Counter()
        for life in self.lives.values():
            if len(life.came) < 2:
                continue
            first, second = life.came[:2]
            if len(life.posted) < 2 or second < life.posted[1]:
                why["came again before a mover had posted it again"] += 1
            elif any(kill - CONFIRMING < first < kill < second for kill in self.kills):
                why["confirmed by its consumer in the moment of a kill"] += 1
            else:
                why["not recognised"] += 1
        again = sum(life.passed > 1 for life in self.lives.values())
        return f"passed on more than once: {again:,}; of those that came twice: {dict(why)}"


class Run:
    """Posts, movers and a consumer, with the observed messages."""

    def __init__(self, domain: str) -> None:
        self.uri = fresh_queue_uri(domain, "delays")
        self.due: dict[bytes, float] = {}
        self.seen: dict[bytes, list[float]] = {}
        self.redelivered = 0

    async def post(self, queue: bmq.Queue, seconds: float, delayed: bool = True) -> None:
        """Post 200 messages a second that are due in 1 to 4 seconds, or at once."""
        until = time.time() + seconds
        async with asyncio.TaskGroup() as group:
            while (now := time.time()) < until:
                number = len(self.due)
                data = b"%d" % number
                self.due[data] = now + (1 + number % 31 / 10 if delayed else 0)
                group.create_task(queue.post(data, not_before=self.due[data] if delayed else None))
                await asyncio.sleep(1 / RATE)

    async def consume(self, queue: bmq.Queue) -> None:
        """Record the arrival times of messages."""
        async for message in queue:
            times = self.seen.setdefault(message.data, [])
            self.redelivered += bool(times) and message.redelivered
            times.append(time.time())
            message.confirm()

    async def complete(self) -> None:
        """Wait for all messages, for at most a minute."""
        until = time.time() + 60
        while len(self.seen) < len(self.due) and time.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    def told(self) -> str:
        """Return a description of the outcomes."""
        late = sorted(times[0] - self.due[data] for data, times in self.seen.items())
        twice = sum(len(times) - 1 for times in self.seen.values())
        early = sum(each < 0 for each in late)
        p50, p99 = late[len(late) // 2], late[len(late) * 99 // 100]
        return (
            f"{len(self.due):,} posted, {len(self.due) - len(self.seen)} lost, {twice} twice "
            f"(of these delivered again {self.redelivered}), {early} early; "
            f"late p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, "
            f"most {late[-1] * 1000:.0f} ms"
        )


async def mover(stack: AsyncExitStack, broker: str, uri: str, *watch: Watch) -> Mover:
    """Start a mover in a separate session."""
    session = await stack.enter_async_context(bmq.connect(broker, interceptors=watch))
    made = Mover(await session.open_queue(delay_queue_of(uri), read=True, default_subscription=False))
    task = asyncio.create_task(made.run())

    async def end() -> None:
        task.cancel()
        await asyncio.wait([task])

    stack.push_async_callback(end)
    return made


async def waiting(broker: str, pid: int, counts: list[int], minutes: int, seconds: float) -> None:
    """Measure the cost of waiting messages."""
    for count in counts:
        run = Run("bmq.test.mem.priority")
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(bmq.connect(broker))
            queue = await session.open_queue(run.uri, read=True, write=True)
            store = await session.open_output(delay_queue_of(run.uri))
            begin = round(time.time() * 1000) + 7_200_000
            (
                await store.post_many(
                    bmq.PutMessage(
                        bytes(200),
                        {"bmq_due": begin + number * 7_200_000 // count, "bmq_destination": run.uri},
                    )
                    for number in range(count)
                )
            ).raise_for_failures()
            moving = await mover(stack, broker, run.uri)
            consuming = asyncio.create_task(run.consume(queue))
            idle: list[float] = []
            own = time.process_time()
            for _ in range(minutes):
                before, began = used(pid), time.time()
                await asyncio.sleep(60)
                idle.append((used(pid) - before) / (time.time() - began) * 1000)
                print(f"    {count:,} waiting, nothing due: broker {idle[-1]:.1f} ms/s", flush=True)
            own = (time.process_time() - own) / 60 / max(1, minutes) * 1000
            before, began, busy = used(pid), time.time(), time.process_time()
            await run.post(queue, seconds)
            took = time.time() - began
            busy = (time.process_time() - busy) / took * 1000
            broker_busy = (used(pid) - before) / took * 1000
            await run.complete()
            consuming.cancel()
            assert moving.held == 0
        async with bmq.admin.connect(broker) as admin:
            await admin.queue(delay_queue_of(run.uri)).purge()
        print(
            f"{count:>9,} waiting, nothing due: broker {idle[-1] if idle else 0:.1f} ms/s in the last "
            f"minute, this process {own:.1f} ms/s; with {len(run.due) / seconds:.0f} messages/s: broker "
            f"{broker_busy:.1f} ms/s, this process {busy:.0f} ms/s; {run.told()}",
            flush=True,
        )


async def lose_nodes(program: str | None, laps: int, down: float) -> None:
    """Kill the primary repeatedly."""
    run = Run("bmq.test.persistent.priority.sc")
    with tempfile.TemporaryDirectory() as work:
        cluster: Cluster = RealCluster(program, Path(work)) if program else EmbeddedNode(Path(work))
        try:
            await cluster.start()
            nodes = ",".join(cluster.ways["nodes"])
            async with AsyncExitStack() as stack:
                session = await stack.enter_async_context(bmq.connect(nodes, max_unacked_messages=100_000))
                watch, plain = Watch(), Run("bmq.test.persistent.priority.sc")
                consumers = await stack.enter_async_context(bmq.connect(nodes, interceptors=[watch]))
                queue = await session.open_queue(run.uri, write=True)
                movers = [await mover(stack, nodes, run.uri, watch) for _ in range(2)]
                consuming = asyncio.create_task(run.consume(await consumers.open_queue(run.uri, read=True)))
                # The same without a delay, for comparison.
                at_once = await session.open_queue(plain.uri, write=True)
                other = await stack.enter_async_context(bmq.connect(nodes))
                comparing = asyncio.create_task(plain.consume(await other.open_queue(plain.uri, read=True)))
                seconds = laps * (2 * down + 8)
                posting = asyncio.create_task(run.post(queue, seconds))
                posting_at_once = asyncio.create_task(plain.post(at_once, seconds, delayed=False))
                others = asyncio.create_task(answers_and_retries(nodes, posting))
                outages: list[float] = []
                for _ in range(laps):
                    await asyncio.sleep(down)
                    victim = await cluster.primary()
                    await cluster.kill(victim, signal.SIGKILL)
                    watch.kills.append(time.time())
                    began = time.monotonic()
                    await asyncio.sleep(down)
                    await cluster.revive(victim)
                    await cluster.healthy()
                    outages.append(time.monotonic() - began)
                await posting
                await run.complete()
                await posting_at_once
                await plain.complete()
                comparing.cancel()
                consuming.cancel()
                print(f"without a delay: {plain.told()}")
                print(watch.twice())
                shares = " and ".join(str(each.moved) for each in movers)
                print(
                    f"{laps} times the primary killed, back after {statistics.mean(outages):.1f} s; "
                    f"the movers passed on {shares}; {run.told()}"
                )
                print(await others)
        finally:
            await cluster.stop()


async def answers_and_retries(nodes: str, until: asyncio.Task[None]) -> str:
    """Make requests, and let messages fail twice and return, while a task runs."""
    asked, retried = (fresh_queue_uri("bmq.test.persistent.priority.sc", each) for each in ("asked", "again"))
    app = bmq.App(nodes)
    handled: Counter[bytes] = Counter()

    @app.responder(asked, concurrency=5)
    async def double(message: bmq.Message) -> bytes:
        return b"%d" % (2 * int(message.data))

    @app.consumer(retried, concurrency=5, retry=bmq.Backoff(1.0, retries=1000, durable=True))
    async def handle(message: bmq.Message) -> None:
        if "bmq_attempts" not in message.properties:
            raise OSError("not now")
        handled[message.data] += 1

    logging.getLogger("bmq.workers").setLevel(logging.ERROR)
    serving = asyncio.create_task(app.run(signals=False))
    outcomes: Counter[str] = Counter()
    posted = 0
    async with bmq.connect(nodes) as session:
        questions = await session.open_queue(asked, write=True)
        output = await session.open_queue(retried, write=True)

        async def ask(number: int) -> None:
            try:
                reply = await questions.request(b"%d" % number, timeout=60)
            except bmq.Error as error:
                outcomes[type(error).__name__] += 1
            else:
                outcomes["right" if int(reply.data) == 2 * number else "wrong"] += 1

        async with asyncio.TaskGroup() as group:
            while not until.done():
                group.create_task(ask(posted))
                group.create_task(output.post(b"%d" % posted))
                posted += 1
                await asyncio.sleep(0.05)
        patience = time.time() + 60
        while len(handled) < posted and time.time() < patience:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    app.stop()
    await serving
    return (
        f"{posted} requests: {dict(outcomes)}; {posted} messages that failed and came back: "
        f"{posted - len(handled)} lost, {sum(handled.values()) - len(handled)} handled twice"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(required=True, dest="verb")
    cost = verbs.add_parser("waiting")
    cost.add_argument("--broker", default="tcp://localhost:30114")
    cost.add_argument("--pid", type=int, required=True)
    cost.add_argument("--count", type=int, nargs="+", default=[0, 10_000, 100_000])
    cost.add_argument("--minutes", type=int, default=5)
    cost.add_argument("--seconds", type=float, default=60.0)
    nodes = verbs.add_parser("cluster")
    nodes.add_argument("--broker")
    nodes.add_argument("--laps", type=int, default=5)
    nodes.add_argument("--down", type=float, default=5.0)
    given = parser.parse_args()
    if given.verb == "waiting":
        bmq.run(waiting(given.broker, given.pid, given.count, given.minutes, given.seconds))
    else:
        bmq.run(lose_nodes(given.broker, given.laps, given.down))


if __name__ == "__main__":
    main()
