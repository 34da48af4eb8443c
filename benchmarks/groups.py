# SPDX-License-Identifier: Apache-2.0
"""The longest pause of a key in a group while a member fails, and the rate of a group.

Three members in separate processes take 4 ms for each of 120 messages a second, in 16 buckets with a lease of
a second; a producer awaits the acknowledgement of a message before the next one of its bucket. The program
ends if a message is lost, if a message begins while an earlier one of its bucket is unfinished or another
member is at work in the bucket, or if a fence decreases. The floor of a pause is the lease, or the time for
which the member is away; the floor of the rate is as many consumers without a group. With
``BMQ_CLUSTER_PROGRAM``, three real nodes run on loopback, and the primary is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from harness import HERE, Bench, Row

sys.path.insert(0, str(HERE.parent))

import bmq
from bmq.testing import FaultProxy, fresh_queue_uri
from tests.integration.cluster import RealCluster

MEMBERS, BUCKETS, LEASE, WORK, RATE, AWAY = 3, 16, 1.0, 0.004, 120, 3.0
MESSAGES = 10_000
#: A run with fewer messages proves nothing.
FEWEST = 200
#: Seconds of silence after which no more messages are expected.
QUIET = 120.0
PROGRAM = os.environ.get("BMQ_CLUSTER_PROGRAM")
DOMAIN, STRONG = "bmq.test.mem.priority", "bmq.test.persistent.priority.sc"
PAUSE = "s of pause"


@dataclass
class Record:
    """One message in the hands of one member; ``end`` is None if the member did not finish it."""

    member: int
    begin: int
    end: int | None
    bucket: int
    number: int
    fence: int


class Member:
    """The process of a member, and what it wrote down."""

    def __init__(self, index: int, path: Path) -> None:
        self.index, self.path = index, path
        self.killed = sys.maxsize

    async def start(self, bench: Bench, queue: str) -> None:
        self.path.touch()
        options = {"queue": queue, "path": str(self.path), "member": f"m{self.index}", "work": WORK}
        command = bench.command("member", "", buckets=BUCKETS, lease=LEASE, **options)
        log = self.path.with_suffix(".log")
        with log.open("wb") as stderr:
            self.process = await asyncio.create_subprocess_exec(
                *command["args"], env=command["env"], stderr=stderr
            )
        while not self.path.stat().st_size:
            if self.process.returncode is not None:
                raise RuntimeError(f"member {self.index} failed:\n{log.read_text()}")
            await asyncio.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number is signal.SIGKILL:
            self.killed = time.monotonic_ns()

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        await self.process.wait()

    def records(self) -> list[Record]:
        found: list[Record] = []
        for line in self.path.read_bytes().splitlines(keepends=True):
            parts = line.split()
            if len(parts) == 5 and line.endswith(b"\n"):
                at, bucket, number, fence = map(int, parts[1:])
                if parts[0] == b"B":
                    found.append(Record(self.index, at, None, bucket, number, fence))
                else:
                    found[-1].end = at
        return found


def pause(acknowledged: set[int], members: list[Member]) -> float:
    """Check the records of the members, and return the longest pause of a bucket."""
    records = sorted((each for member in members for each in member.records()), key=lambda each: each.begin)
    wrong: Counter[str] = Counter()
    wrong["lost"] = len(acknowledged - {each.number for each in records if each.end is not None})
    killed = {member.index: member.killed for member in members}
    longest = 0
    by_bucket: dict[int, list[Record]] = defaultdict(list)
    for each in records:
        by_bucket[each.bucket].append(each)
    for bucket in by_bucket.values():
        _check(bucket, killed, wrong)
        longest = max(longest, *(b.begin - a.begin for a, b in itertools.pairwise(bucket)))
    if +wrong or len(acknowledged) < FEWEST:
        raise RuntimeError(f"of {len(acknowledged)} messages: {dict(wrong)}")
    return longest / 1e9


def _check(records: list[Record], killed: dict[int, int], wrong: Counter[str]) -> None:
    """Count what breaks the order of a bucket."""
    expected = sorted({each.number for each in records})
    first_end = {each.number: each.end for each in reversed(records) if each.end is not None}
    at = fence = 0  # numbers below expected[at] were finished before the present record
    under_way: list[Record] = []
    for each in records:
        while at < len(expected) and first_end.get(expected[at], sys.maxsize) <= each.begin:
            at += 1
        wrong["overtaken"] += at < len(expected) and expected[at] < each.number
        wrong["older fence"] += each.fence < fence
        fence = max(fence, each.fence)
        under_way = [other for other in under_way if (other.end or killed[other.member]) > each.begin]
        wrong["overlap"] += any(other.member != each.member for other in under_way)
        under_way.append(each)


class Run:
    """A new queue with members and a producer.

    Attributes:
        members: the members, the first of which is the leader.
        proxy: in front of the last member.
    """

    def __init__(self, bench: Bench, folder: Path, cluster: RealCluster | None) -> None:
        self._bench, self._folder, self.cluster = bench, folder, cluster
        self.queue = fresh_queue_uri(STRONG if cluster else DOMAIN, "groups")
        self.members: list[Member] = []

    async def measure(self, line: Callable[[Run], Awaitable[None]]) -> float:
        async with AsyncExitStack() as stack:
            first = self._bench.broker.split(",")[0]
            self.proxy = await stack.enter_async_context(FaultProxy(first))
            for index in range(MEMBERS):
                member = Member(index, self._folder / f"{self.queue.rpartition('/')[2]}-{index}")
                behind = index == MEMBERS - 1 and not self.cluster
                await member.start(
                    replace(self._bench, broker=self.proxy.uri) if behind else self._bench, self.queue
                )
                self.members.append(member)
            session = await stack.enter_async_context(bmq.connect(self._bench.broker))
            queue = await session.open_queue(self.queue, write=True)
            acknowledged: set[int] = set()
            posting = [asyncio.create_task(_post(queue, bucket, acknowledged)) for bucket in range(BUCKETS)]
            await asyncio.sleep(1)
            await line(self)
            await asyncio.sleep(1)
            for task in posting:
                task.cancel()
            await asyncio.wait(posting)
            await self._finished(acknowledged)
            await asyncio.gather(*(member.end() for member in self.members))
            return pause(acknowledged, self.members)

    async def _finished(self, acknowledged: set[int]) -> None:
        size, since = 0, time.monotonic()
        while time.monotonic() - since < QUIET:
            done = {each.number for member in self.members for each in member.records() if each.end}
            if acknowledged <= done:
                return
            if len(done) != size:
                size, since = len(done), time.monotonic()
            await asyncio.sleep(0.25)


async def _post(queue: bmq.Queue, number: int, acknowledged: set[int]) -> None:
    """Post the next message of a bucket after the acknowledgement of the one before.

    A node that is not the primary may change the order of messages on the way: see
    ``conformance/upstream/broker-repeated-posts.md``.
    """
    next_at = time.monotonic()
    while True:
        with suppress(bmq.PostError):
            await queue.post(b"%d" % number, properties={"k": number})
            acknowledged.add(number)
        number += BUCKETS
        next_at += BUCKETS / RATE
        await asyncio.sleep(max(0.0, next_at - time.monotonic()))


async def _leaves(run: Run) -> None:
    run.members[0].send(signal.SIGTERM)
    await asyncio.sleep(AWAY)


async def _killed(run: Run) -> None:
    run.members[0].send(signal.SIGKILL)
    await asyncio.sleep(AWAY)


async def _paused(run: Run) -> None:
    run.members[1].send(signal.SIGSTOP)
    await asyncio.sleep(AWAY)
    run.members[1].send(signal.SIGCONT)


async def _silent(run: Run) -> None:
    run.proxy.stall()
    await asyncio.sleep(AWAY)
    run.proxy.resume()
    run.proxy.cut()


async def _primary(run: Run) -> None:
    assert run.cluster is not None
    victim = await run.cluster.primary()
    await run.cluster.kill(victim, signal.SIGKILL)
    await asyncio.sleep(AWAY)
    await run.cluster.revive(victim)


LINES = {
    "a member leaves": _leaves,
    "the leader killed": _killed,
    "a member stopped for 3 s": _paused,
    "a network silent for 3 s, then cut": _silent,
}
ROWS = [
    Row("a member leaves", "a member leaves", PAUSE),
    Row("the leader killed", "the leader killed", PAUSE, floor="lease"),
    Row("a member stopped for 3 s", "a member stopped for 3 s", PAUSE, floor="away"),
    Row("a network silent for 3 s, then cut", "a network silent for 3 s, then cut", PAUSE, floor="away"),
    Row("the primary killed", "the primary killed", PAUSE),
    Row("a group of three members", "group", floor="any"),
]


async def _lines(bench: Bench) -> dict[str, dict[str, float]]:
    """Run two lines at a time; they take little of the processor."""
    turns = asyncio.Semaphore(2)

    async def run(line: Callable[[Run], Awaitable[None]]) -> float:
        async with turns:
            return await Run(bench, Path(folder), None).measure(line)

    with tempfile.TemporaryDirectory() as folder:
        pauses = dict(zip(LINES, await asyncio.gather(*map(run, LINES.values())), strict=True))
        if PROGRAM:
            cluster = RealCluster(PROGRAM, Path(folder), heartbeats=20)
            await cluster.start()
            try:
                nodes = replace(bench, broker=",".join(cluster.ways["nodes"]))
                pauses["the primary killed"] = await Run(nodes, Path(folder), cluster).measure(_primary)
            finally:
                await cluster.stop()
    return {name: {PAUSE: seconds} for name, seconds in pauses.items()}


def _shared(bench: Bench, kind: str) -> dict[str, dict[str, float]]:
    options = {"consumers": MEMBERS, "kind": kind, "window": 1_000}
    return {kind: bench.job("ours", "share", bench.count(MESSAGES), **options)}


OURS = [lambda bench: asyncio.run(_lines(bench)), lambda bench: _shared(bench, "group")]
OTHERS = [
    lambda bench: _shared(bench, "any"),
    lambda bench: {"lease": {PAUSE: LEASE}, "away": {PAUSE: AWAY}},
]
