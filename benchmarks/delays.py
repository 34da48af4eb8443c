"""Delayed messages: what those that wait cost the broker, how late they are, and a cluster that loses nodes.

usage: python benchmarks/delays.py waiting --broker tcp://127.0.0.1:30114 --pid PID [--count 0 10000 100000]
       python benchmarks/delays.py cluster --program /usr/local/bin/bmqbrkr [--laps 5]

``waiting`` posts messages that are due in an hour, and up to 200 a second that are due in 1 to 4 seconds; PID
is the broker's, whose time on the processor is read. ``cluster`` kills the primary of three nodes again and
again while two movers pass messages on, and counts what was lost, early, late or there twice; requests are
made and answered meanwhile, and messages fail and come back.
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
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from cluster import RealCluster

import bmq
from bmq.conventions import waiting_queue
from bmq.delays import Mover
from bmq.testing import fresh_queue_uri

RATE = 200
_TICKS = os.sysconf("SC_CLK_TCK")


def used(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Run:
    """Posts, movers and a consumer, and what was seen of them."""

    def __init__(self, domain: str) -> None:
        self.uri = fresh_queue_uri(domain, "delays")
        self.due: dict[bytes, float] = {}
        self.seen: dict[bytes, list[float]] = {}
        self.redelivered = 0

    async def post(self, queue: bmq.Queue, seconds: float) -> None:
        """Post 200 messages a second that are due in 1 to 4 seconds."""
        until = time.time() + seconds
        async with asyncio.TaskGroup() as group:
            while (now := time.time()) < until:
                number = len(self.due)
                data = b"%d" % number
                self.due[data] = now + 1 + number % 31 / 10
                group.create_task(queue.post(data, not_before=self.due[data]))
                await asyncio.sleep(1 / RATE)

    async def consume(self, queue: bmq.Queue) -> None:
        """Note when messages arrive."""
        async for message in queue:
            times = self.seen.setdefault(message.data, [])
            self.redelivered += bool(times) and message.redelivered
            times.append(time.time())
            message.confirm()

    async def complete(self) -> None:
        """Wait for all of them, and a minute at most."""
        until = time.time() + 60
        while len(self.seen) < len(self.due) and time.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    def told(self) -> str:
        """What became of them."""
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


async def mover(stack: AsyncExitStack, broker: str, uri: str) -> Mover:
    """Start a mover in a session of its own."""
    session = await stack.enter_async_context(bmq.connect(broker))
    made = Mover(await session.open_queue(waiting_queue(uri), read=True, default_subscription=False))
    task = asyncio.create_task(made.run())

    async def end() -> None:
        task.cancel()
        await asyncio.wait([task])

    stack.push_async_callback(end)
    return made


async def waiting(broker: str, pid: int, counts: list[int], seconds: float) -> None:
    """Measure what messages cost that wait."""
    for count in counts:
        run = Run("bmq.test.mem.priority")
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(bmq.connect(broker))
            queue = await session.open_queue(run.uri, read=True, write=True)
            store = await session.output(waiting_queue(run.uri))
            later = {"bmq_due": round(time.time() * 1000) + 3_600_000, "bmq_destination": run.uri}
            (
                await store.post_many(bmq.PutMessage(bytes(200), later) for _ in range(count))
            ).raise_for_failures()
            await mover(stack, broker, run.uri)
            consuming = asyncio.create_task(run.consume(queue))
            await asyncio.sleep(3)
            before, began = used(pid), time.time()
            await asyncio.sleep(seconds)
            idle = (used(pid) - before) / (time.time() - began)
            before, began, own = used(pid), time.time(), time.process_time()
            await run.post(queue, seconds)
            busy = (used(pid) - before) / (time.time() - began)
            own = (time.process_time() - own) / (time.time() - began)
            await run.complete()
            consuming.cancel()
        async with bmq.admin.connect(broker) as admin:
            await admin.queue(waiting_queue(run.uri)).purge()
        print(
            f"{count:>9,} waiting: broker {idle * 1000:.1f} ms/s idle, {busy * 1000:.1f} ms/s with {RATE} "
            f"messages/s, this process {own * 1000:.0f} ms/s; {run.told()}",
            flush=True,
        )


async def lose_nodes(program: str, laps: int, down: float) -> None:
    """Kill the primary again and again."""
    run = Run("bmq.test.persistent.priority.sc")
    with tempfile.TemporaryDirectory() as work:
        cluster = RealCluster(program, Path(work))
        await cluster.start()
        try:
            nodes = ",".join(cluster.ways["nodes"])
            async with AsyncExitStack() as stack:
                session = await stack.enter_async_context(bmq.connect(nodes, max_unacked_messages=100_000))
                queue = await session.open_queue(run.uri, read=True, write=True)
                movers = [await mover(stack, nodes, run.uri) for _ in range(2)]
                consuming = asyncio.create_task(run.consume(queue))
                posting = asyncio.create_task(run.post(queue, laps * (2 * down + 8)))
                others = asyncio.create_task(answers_and_retries(nodes, posting))
                outages: list[float] = []
                for _ in range(laps):
                    await asyncio.sleep(down)
                    victim = await cluster.primary()
                    await cluster.kill(victim, signal.SIGKILL)
                    began = time.monotonic()
                    await asyncio.sleep(down)
                    await cluster.revive(victim)
                    await cluster.healthy()
                    outages.append(time.monotonic() - began)
                await posting
                await run.complete()
                consuming.cancel()
                shares = " and ".join(str(each.moved) for each in movers)
                print(
                    f"{laps} times the primary killed, back after {statistics.mean(outages):.1f} s; "
                    f"the movers passed on {shares}; {run.told()}"
                )
                print(await others)
        finally:
            await cluster.stop()


async def answers_and_retries(nodes: str, until: asyncio.Task[None]) -> str:
    """Make requests, and have messages fail twice and come back, for as long as a task runs."""
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
    cost.add_argument("--seconds", type=float, default=30.0)
    nodes = verbs.add_parser("cluster")
    nodes.add_argument("--program", required=True)
    nodes.add_argument("--laps", type=int, default=5)
    nodes.add_argument("--down", type=float, default=5.0)
    given = parser.parse_args()
    if given.verb == "waiting":
        bmq.run(waiting(given.broker, given.pid, given.count, given.seconds))
    else:
        bmq.run(lose_nodes(given.program, given.laps, given.down))


if __name__ == "__main__":
    main()
