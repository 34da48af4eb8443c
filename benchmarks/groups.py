# SPDX-License-Identifier: Apache-2.0
"""The cost of consumer groups for a broker, and the order of messages when members join and leave.

    python benchmarks/groups.py rates --uri tcp://127.0.0.1:30114 [--pid BROKER]
    python benchmarks/groups.py handover --uri tcp://127.0.0.1:30114
    python benchmarks/groups.py cluster --broker /usr/local/bin/bmqbrkr

Members are separate processes, so that they can be killed. ``rates`` counts messages a second by buckets and
members and, given the broker's process id, the broker's CPU time a message. ``handover`` makes members join,
leave, die, stall and fill up under load, and balances the books message by message. ``cluster`` does the same
while the nodes of a cluster of three are killed. Without --uri and --broker, an embedded broker is used.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cluster import Cluster, EmbeddedNode, RealCluster

import bmq
from bmq.broker import Broker
from bmq.testing import fresh_queue_uri
from tests.waiting import eventually

DOMAIN = "bmq.test.mem.priority"
KEYS = 1000
TICK = 0.01
# Messages before a measurement.
_WARM_UP = 5 * KEYS
#: Seconds of silence after which no more messages are expected.
QUIET = 12.0


# a member, as a process


async def be_member(arguments: argparse.Namespace) -> None:
    """Handle messages, and write a line for each: bucket, number, start time and end time."""
    out = sys.stdout.fileno()
    async with bmq.connect(arguments.uri) as session:
        queue = await session.open_queue(arguments.queue, read=True, default_subscription=False)
        if not arguments.buckets:
            # Like a member: with a full window, or without a subscription to nothing, a real broker stops at
            # times, and the messages that wait cost more afterwards.
            wide = {"max_unconfirmed_messages": 2**31 - 1, "max_unconfirmed_bytes": 2**62}
            if arguments.expression:
                await queue.subscribe("exists(none) && none % 1 == 1", priority=1).open()
            consumer = await queue.subscribe(arguments.expression, **wide).open()
            os.write(out, b"ready\n")
            await _count(consumer, out)
        group = queue.group(
            "key",
            buckets=arguments.buckets,
            coordination=arguments.coordination,
            member=arguments.name,
            settle=arguments.settle,
            max_unconfirmed_messages=arguments.window,
        )
        leaving = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
        async with group:
            os.write(out, b"ready\n")
            handling = asyncio.create_task(_handle(group, arguments.work, out, arguments.count))
            await asyncio.wait(
                (handling, asyncio.create_task(leaving.wait())), return_when=asyncio.FIRST_COMPLETED
            )
        if handling.done():
            await handling


async def _count(group: bmq.groups.Group | bmq.Consumer, out: int) -> None:
    """Confirm at once, and print the count from time to time."""
    count = 0

    async def say() -> None:
        said = 0
        while True:
            await asyncio.sleep(0.02)
            if count != said:
                said = count
                os.write(out, b"count %d\n" % count)

    saying = asyncio.create_task(say())
    try:
        async for message in group:
            message.confirm()
            count += 1
            if not count % 200:
                await asyncio.sleep(0)
    finally:
        saying.cancel()


async def _handle(group: bmq.groups.Group, work: float, out: int, count_only: bool) -> None:
    if count_only:
        await _count(group, out)
    async for message in group:
        begun = time.monotonic_ns()
        async with message:
            if work:
                await asyncio.sleep(work)
            number = int(message.data)
        line = (group.bucket_of(message), number, begun, time.monotonic_ns())
        os.write(out, b"%d %d %d %d\n" % line)


@dataclass
class Handled:
    """One message in the hands of one member."""

    bucket: int
    number: int
    begun: int
    done: int


class Member:
    """The process of a member.

    Attributes:
        handled: messages reported so far.
        count: number of messages, if the member only counts.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.handled: list[Handled] = []
        self.count = 0
        self.heard = time.monotonic()

    async def start(
        self,
        uri: str,
        queue: str,
        *,
        buckets: int = 16,
        work: float = 0.0,
        window: int = 100_000,
        settle: float = 0.0,
        count: bool = False,
        coordination: str = "none",
        expression: str = "",
    ) -> Member:
        arguments = ["member", "--uri", uri, "--queue", queue, "--name", self.name]
        arguments += ["--buckets", str(buckets), "--work", str(work), "--window", str(window)]
        arguments += ["--settle", str(settle), *(["--count"] if count else [])]
        arguments += ["--coordination", coordination, "--expression", expression]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, *arguments, stdout=asyncio.subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert await self.process.stdout.readline() == b"ready\n"
        self._reading = asyncio.create_task(self._read(self.process.stdout))
        return self

    async def _read(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            self.heard = time.monotonic()
            if line.startswith(b"count"):
                self.count = int(line.split()[1])
            elif line.endswith(b"\n"):
                self.handled.append(Handled(*map(int, line.split())))

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)
            await self.process.wait()
        await self._reading


# the books


@dataclass
class Books:
    """The outcomes of the messages of one round."""

    posted: int = 0
    lost: int = 0
    twice: int = 0
    disorder: int = 0
    overtaken: int = 0
    overlap: float = 0.0
    longest: float = 0.0
    shares: list[int] = field(default_factory=list[int])

    def __str__(self) -> str:
        return (
            f"{self.posted:>7,} {self.lost:>5} {self.twice:>6} {self.disorder:>13} {self.overtaken:>10} "
            f"{self.overlap * 1000:>8.0f} ms {self.longest:>7.2f} s   {self.shares}"
        )


HEAD = (
    f"{'':28} {'posted':>7} {'lost':>5} {'twice':>6} {'out of order':>13} {'overtaken':>10} {'overlap':>11} "
    f"{'pause':>9}   handled by each"
)


def balance(acknowledged: set[int], members: list[Member]) -> Books:
    """Compare acknowledged messages with handled messages.

    ``disorder`` counts messages that a member handled after a later message of the bucket, without
    redeliveries. ``overtaken`` counts messages that a member had not finished when another member began a
    later message of their bucket.
    """
    books = Books(posted=len(acknowledged))
    seen: dict[int, int] = {}
    for member in members:
        highest: dict[int, int] = {}
        own: set[int] = set()
        for each in member.handled:
            seen[each.number] = seen.get(each.number, 0) + 1
            if each.number < highest.get(each.bucket, -1) and each.number not in own:
                books.disorder += 1
            own.add(each.number)
            highest[each.bucket] = max(highest.get(each.bucket, -1), each.number)
    books.lost = len(acknowledged - seen.keys())
    books.twice = sum(times - 1 for times in seen.values())
    everything = sorted(
        ((each, member) for member in members for each in member.handled), key=lambda pair: pair[0].begun
    )
    # For each bucket: the latest message that each member has begun, and its time.
    begun: dict[int, dict[Member, list[tuple[int, int]]]] = {}
    for each, member in everything:
        begun.setdefault(each.bucket, {}).setdefault(member, []).append((each.number, each.begun))
    for each, member in everything:
        first = (
            min(
                (
                    start
                    for other, starts in begun[each.bucket].items()
                    if other is not member
                    for number, start in starts
                    if number > each.number and start < each.done
                ),
                default=None,
            )
            if len(begun[each.bucket]) > 1
            else None
        )
        if first is not None:
            books.overtaken += 1
            books.overlap = max(books.overlap, (each.done - first) / 1e9)
    times = [each.begun for each, _ in everything]
    books.longest = max(((b - a) / 1e9 for a, b in itertools.pairwise(times)), default=0.0)
    books.shares = [len(member.handled) for member in members]
    return books


class Producer:
    """Posts at a steady rate; the remainder of each number is its key."""

    def __init__(self, queue: bmq.Queue, rate: int) -> None:
        self._queue = queue
        self._rate = rate
        self.acknowledged: set[int] = set()
        self._going = True
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        futures: list[asyncio.Future[bmq.Ack]] = []
        next_at = time.monotonic()
        while self._going:
            for _ in range(max(1, round(self._rate * TICK))):
                future = self._queue.post_nowait(b"%d" % number, properties={"key": number % KEYS})
                future.add_done_callback(lambda future, number=number: self._settled(future, number))
                futures.append(future)
                number += 1
            next_at += TICK
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        await asyncio.gather(*futures, return_exceptions=True)

    def _settled(self, future: asyncio.Future[bmq.Ack], number: int) -> None:
        if future.exception() is None:
            self.acknowledged.add(number)

    async def stop(self) -> None:
        self._going = False
        assert self._task is not None
        await self._task


async def settle(members: list[Member], expected: set[int]) -> None:
    """Wait until all messages have arrived, or no more arrive."""
    while True:
        seen = {each.number for member in members for each in member.handled}
        if expected <= seen or time.monotonic() - max(member.heard for member in members) > QUIET:
            await asyncio.sleep(0.5)  # for duplicates
            return
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def broker_of(uri: str | None) -> AsyncGenerator[str]:
    if uri is not None:
        yield uri
        return
    async with Broker(port=0) as broker:
        yield broker.uri


# handovers


async def handover(arguments: argparse.Namespace) -> None:
    print(HEAD)
    async with broker_of(arguments.uri) as uri:
        for name in arguments.only or ROUNDS:
            queue = fresh_queue_uri(DOMAIN, "group")
            async with bmq.connect(uri) as session:
                writer = await session.open_queue(queue, write=True)
                producer = Producer(writer, arguments.rate)
                members = await ROUNDS[name](uri, queue, producer)
                await producer.stop()
                await settle(members, producer.acknowledged)
                for member in members:
                    await member.end()
            print(f"{name:28} {balance(producer.acknowledged, members)}", flush=True)


async def _start(uri: str, queue: str, *names: str, work: float = 0.0, **options: Any) -> list[Member]:
    starting = (Member(name).start(uri, queue, work=work, **options) for name in names)
    return list(await asyncio.gather(*starting))


async def _nothing(uri: str, queue: str, producer: Producer) -> list[Member]:
    members = await _start(uri, queue, "a", "b", "c")
    producer.start()
    await asyncio.sleep(3)
    return members


async def _join(uri: str, queue: str, producer: Producer, **options: Any) -> list[Member]:
    members = await _start(uri, queue, "a", "b", **options)
    producer.start()
    await asyncio.sleep(1)
    for name in ("c", "d"):
        members += await _start(uri, queue, name, **options)
        await asyncio.sleep(1)
    return members


async def _join_busy(uri: str, queue: str, producer: Producer) -> list[Member]:
    return await _join(uri, queue, producer, work=0.0005)


async def _join_settling(uri: str, queue: str, producer: Producer) -> list[Member]:
    return await _join(uri, queue, producer, work=0.0005, settle=3.0)


async def _end(uri: str, queue: str, producer: Producer, number: signal.Signals, work: float) -> list[Member]:
    members = await _start(uri, queue, "a", "b", "c", "d", work=work)
    producer.start()
    for member in members[:2]:
        await asyncio.sleep(1)
        await member.end(number)
    await asyncio.sleep(1)
    return members


async def _leave(uri: str, queue: str, producer: Producer) -> list[Member]:
    return await _end(uri, queue, producer, signal.SIGTERM, 0.0)


async def _leave_busy(uri: str, queue: str, producer: Producer) -> list[Member]:
    return await _end(uri, queue, producer, signal.SIGTERM, 0.0005)


async def _kill(uri: str, queue: str, producer: Producer) -> list[Member]:
    return await _end(uri, queue, producer, signal.SIGKILL, 0.0)


async def _kill_busy(uri: str, queue: str, producer: Producer) -> list[Member]:
    return await _end(uri, queue, producer, signal.SIGKILL, 0.0005)


async def _slow(uri: str, queue: str, producer: Producer) -> list[Member]:
    members = await _start(uri, queue, "a", "b")
    members += await _start(uri, queue, "c", work=0.002)
    producer.start()
    await asyncio.sleep(3)
    return members


async def _full(uri: str, queue: str, producer: Producer) -> list[Member]:
    members = await _start(uri, queue, "a", "b")
    members += await _start(uri, queue, "c", work=0.002, window=20)
    producer.start()
    await asyncio.sleep(3)
    return members


async def _return(uri: str, queue: str, producer: Producer) -> list[Member]:
    members = await _start(uri, queue, "a", "b")
    producer.start()
    await asyncio.sleep(1)
    await members[0].end(signal.SIGKILL)
    await asyncio.sleep(1)
    members += await _start(uri, queue, "a")
    await asyncio.sleep(1)
    return members


ROUNDS = {
    "nothing happens": _nothing,
    "two join": _join,
    "two join busy ones": _join_busy,
    "two join, settle=3": _join_settling,
    "two leave": _leave,
    "two busy ones leave": _leave_busy,
    "two killed": _kill,
    "two busy ones killed": _kill_busy,
    "killed, back by its name": _return,
    "one is slow": _slow,
    "one is full (window 20)": _full,
}


# rates


def cpu(pid: int | None) -> float:
    """Return the CPU seconds of a process."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def rates(arguments: argparse.Namespace) -> None:
    """Print a line for each number of buckets and members.

    The lines with 0 buckets are without a group: consumers that compete for all messages; and the floor of a
    group, consumers of which each has one expression.
    """
    print(f"{'buckets':>8} {'members':>8} {'messages/s':>11} {'us of the broker a message':>28}")
    shapes = arguments.shapes or [(128, count) for count in (1, 3, 8, 20)]
    async with broker_of(arguments.uri) as uri:
        for buckets, count in shapes * arguments.rounds:
            for kind in ("no group", "floor", str(buckets)):
                took, used = await _rate(arguments, uri, kind, count)
                each = f"{used / arguments.messages * 1e6:>28.1f}" if arguments.pid else f"{'':>28}"
                print(f"{kind:>8} {count:>8} {arguments.messages / took:>11,.0f} {each}", flush=True)


async def _rate(arguments: argparse.Namespace, uri: str, kind: str, count: int) -> tuple[float, float]:
    """Return the seconds for all messages, and the CPU seconds of the broker beyond those of an idle one."""
    queue = fresh_queue_uri(DOMAIN, "group")
    buckets = int(kind) if kind.isdecimal() else 0
    options = {"buckets": buckets, "count": True, "coordination": arguments.coordination}
    async with bmq.connect(uri) as session:
        writer = await session.open_queue(queue, write=True)
        members = await asyncio.gather(
            *(
                Member(f"member-{index}").start(
                    uri,
                    queue,
                    **options,
                    expression=f"(key - {index}) % {count} == 0" if kind == "floor" else "",
                )
                for index in range(count)
            )
        )
        # The buckets of an exclusive group move at first, and join bundles after their first messages.
        for start in range(0, _WARM_UP, KEYS):
            await writer.post_many(_numbered(start, start + KEYS))
            await have(members, start + KEYS)
            await asyncio.sleep(0.7)
        # An idle broker uses CPU time too, and a slow run contains more of it.
        began, used = time.monotonic(), cpu(arguments.pid)
        await asyncio.sleep(1.5)
        idle = (cpu(arguments.pid) - used) / (time.monotonic() - began)
        began, used = time.monotonic(), cpu(arguments.pid)
        last = _WARM_UP + arguments.messages
        for start in range(_WARM_UP, last, 5000):
            await writer.post_many(_numbered(start, min(start + 5000, last)))
            await have(members, start - 15_000)
        await have(members, last)
        took, used = time.monotonic() - began, cpu(arguments.pid) - used
        for member in members:
            await member.end()
    return took, used - idle * took


async def have(members: list[Member], count: int) -> None:
    """Wait until the members have received this many messages."""
    await eventually(lambda: sum(member.count for member in members) >= count, 300)


def _numbered(first: int, last: int) -> Iterator[bmq.PutMessage]:
    for number in range(first, last):
        yield bmq.PutMessage(b"%d" % number, {"key": number % KEYS})


# a cluster that loses nodes


async def lose_nodes(arguments: argparse.Namespace) -> None:
    print(HEAD)
    domain = "bmq.test.persistent.priority.sc" if arguments.broker else DOMAIN
    with tempfile.TemporaryDirectory() as work:
        cluster: Cluster = (
            RealCluster(arguments.broker, Path(work)) if arguments.broker else EmbeddedNode(Path(work))
        )
        try:
            await cluster.start()
            uris = ",".join(next(iter(cluster.ways.values())))
            queue = fresh_queue_uri(domain, "group")
            async with bmq.connect(uris) as session:
                producer = Producer(await session.open_queue(queue, write=True), arguments.rate)
                members = await _start(uris, queue, "a", "b", "c")
                producer.start()
                for round_ in range(arguments.rounds):
                    await asyncio.sleep(5)
                    node = await cluster.primary() if round_ % 2 == 0 else (await cluster.primary() + 1) % 3
                    node %= cluster.nodes
                    await cluster.kill(node, signal.SIGKILL)
                    await asyncio.sleep(3)
                    await cluster.revive(node)
                await asyncio.sleep(5)
                await producer.stop()
                await settle(members, producer.acknowledged)
                for member in members:
                    await member.end()
            print(
                f"{f'{arguments.rounds} nodes killed':28} {balance(producer.acknowledged, members)}",
                flush=True,
            )
        finally:
            await cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    member = verbs.add_parser("member")
    member.add_argument("--queue", required=True)
    member.add_argument("--name", required=True)
    member.add_argument("--buckets", type=int, default=16)
    member.add_argument("--work", type=float, default=0.0)
    member.add_argument("--settle", type=float, default=0.0)
    member.add_argument("--window", type=int, default=100_000)
    member.add_argument("--count", action="store_true")
    member.add_argument("--coordination", default="none")
    member.add_argument("--expression", default="")
    member.set_defaults(run=be_member)
    handovers = verbs.add_parser("handover")
    handovers.add_argument("--rate", type=int, default=1500)
    handovers.add_argument("--only", nargs="*", choices=list(ROUNDS))
    handovers.set_defaults(run=handover)
    rate = verbs.add_parser("rates")
    rate.add_argument("--messages", type=int, default=100_000)
    rate.add_argument("--pid", type=int)
    rate.add_argument("--coordination", choices=["none", "exclusive"], default="exclusive")
    rate.add_argument("--rounds", type=int, default=1)
    rate.add_argument("--shapes", nargs="*", type=lambda text: tuple(map(int, text.split("x"))))
    rate.set_defaults(run=rates)
    nodes = verbs.add_parser("cluster")
    nodes.add_argument("--broker")
    nodes.add_argument("--rounds", type=int, default=6)
    nodes.add_argument("--rate", type=int, default=1000)
    nodes.set_defaults(run=lose_nodes)
    for verb in (member, handovers, rate):
        verb.add_argument("--uri")
    arguments = parser.parse_args()
    asyncio.run(arguments.run(arguments))


if __name__ == "__main__":
    main()
