# SPDX-License-Identifier: Apache-2.0
"""The order of a key in groups, while members and brokers fail.

    python benchmarks/exclusive.py --uri tcp://127.0.0.1:30114 --runs 30
    python benchmarks/exclusive.py --broker /usr/local/bin/bmqbrkr --runs 30 --only "primary killed"

Each line of the table is a fault; each run posts numbered messages to a new queue, and reads what members in
separate processes wrote down: the begin and the end of each message, with the fence. With ``--broker``, three
real nodes are started, and killed; a message is then posted after the acknowledgement of the one before it in
its bucket. Without --uri and --broker, an embedded broker is used.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import bmq
from bmq.broker import Broker
from bmq.testing import FaultProxy, fresh_queue_uri
from tests.integration.cluster import RealCluster

DOMAIN = "bmq.test.mem.priority"
CLUSTER_DOMAIN = "bmq.test.persistent.priority.sc"
BUCKETS = 16
#: Seconds of silence after which no more messages are expected.
QUIET = 120.0
_LOG = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s"
_processes = multiprocessing.get_context("forkserver")


# a member, as a process


def be_member(path: str, uri: str, queue: str, options: dict[str, Any], work: float) -> None:
    """Handle messages, and write a line for the begin and the end of each."""
    logging.basicConfig(filename=f"{path}.log", level=logging.INFO, format=_LOG)
    asyncio.run(_be_member(os.open(path, os.O_WRONLY | os.O_APPEND), uri, queue, options, work))


async def _be_member(out: int, uri: str, name: str, options: dict[str, Any], work: float) -> None:
    loop, leaving = asyncio.get_running_loop(), asyncio.Event()
    real, offset, blocked = time.time, [0.0], [0.0]
    real_ns = time.time_ns
    time.time = lambda: real() + offset[0]
    time.time_ns = lambda: real_ns() + int(offset[0] * 1e9)

    def jump() -> None:
        offset[0] = 3600.0 if offset[0] <= 0 else -3600.0

    def block() -> None:
        blocked[0] = 2.5

    loop.add_signal_handler(signal.SIGTERM, leaving.set)
    loop.add_signal_handler(signal.SIGUSR1, jump)
    loop.add_signal_handler(signal.SIGUSR2, block)

    async def handle(group: bmq.groups.Group) -> None:
        async for message in group:
            async with message:
                number, bucket = int(message.data), group.bucket_of(message)
                assert bucket is not None
                fence = group.fence(bucket)
                os.write(out, b"B %d %d %d %d\n" % (time.monotonic_ns(), bucket, number, fence))
                if blocked[0]:
                    pause, blocked[0] = blocked[0], 0.0
                    time.sleep(pause)  # noqa: ASYNC251 - a handler that blocks the event loop
                if work:
                    await asyncio.sleep(work)
                os.write(out, b"E %d %d %d %d\n" % (time.monotonic_ns(), bucket, number, fence))

    async with bmq.connect(uri) as session:
        queue = await session.open_queue(name, read=True)
        async with queue.group("k", **options) as group:
            os.write(out, b"ready\n")
            handling = asyncio.create_task(handle(group))
            leave = asyncio.create_task(leaving.wait())
            await asyncio.wait((handling, leave), return_when=asyncio.FIRST_COMPLETED)
        if handling.done():
            await handling


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
    """The process of a member, and what it wrote."""

    def __init__(self, index: int, folder: str) -> None:
        self.index = index
        self.path = os.path.join(folder, f"member-{index}")
        Path(self.path).touch()
        self.killed: int | None = None
        self.process: Any = None

    async def start(
        self,
        uri: str,
        queue: str,
        options: dict[str, Any],
        work: float,
    ) -> None:
        arguments = (self.path, uri, queue, {"member": f"m{self.index}", **options}, work)
        self.process = _processes.Process(target=be_member, args=arguments, daemon=True)
        self.process.start()
        while not self.wrote:
            assert self.process.is_alive(), f"member {self.index} ended: {self.process.exitcode}"
            await asyncio.sleep(0.01)

    @property
    def wrote(self) -> int:
        """The number of bytes written, above 0 once the member has joined."""
        return os.path.getsize(self.path)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)
        if number is signal.SIGKILL:
            self.killed = time.monotonic_ns()

    async def end(self) -> None:
        if self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
                os.kill(self.process.pid, signal.SIGTERM)
        for _ in range(500):
            if not self.process.is_alive():
                return
            await asyncio.sleep(0.02)
        self.process.kill()

    def records(self) -> list[Record]:
        found: list[Record] = []
        with open(self.path, "rb") as lines:
            for line in lines:
                parts = line.split()
                if len(parts) != 5 or not line.endswith(b"\n"):
                    continue
                at, bucket, number, fence = map(int, parts[1:])
                if parts[0] == b"B":
                    found.append(Record(self.index, at, None, bucket, number, fence))
                else:
                    found[-1].end = at
        return found


# the books


@dataclass
class Books:
    """The result of one run.

    Attributes:
        posted: acknowledged messages.
        lost: of them, never finished.
        twice: finished more than once.
        disorder: messages that a member began after it had begun a later message of the bucket, without
            redelivered messages.
        overtaken: messages begun while an earlier message of the bucket was not finished.
        overlap: messages begun while another member was at work in the bucket.
        older: messages begun under an older fence than an earlier message of the bucket.
        pause: longest pause of a bucket, in seconds.
        others: the same for buckets without a fault at their owner.
    """

    posted: int = 0
    lost: int = 0
    twice: int = 0
    disorder: int = 0
    overtaken: int = 0
    overlap: int = 0
    older: int = 0
    pause: float = 0.0
    others: float = 0.0


def balance(acknowledged: set[int], members: list[Member], fault: int | None, victims: set[int]) -> Books:
    """Compare the posted messages with the records of the members."""
    books = Books(posted=len(acknowledged))
    records = sorted((each for member in members for each in member.records()), key=lambda each: each.begin)
    killed = {member.index: member.killed for member in members}
    ended = Counter(each.number for each in records if each.end is not None)
    books.lost = len(acknowledged - ended.keys())
    books.twice = sum(count - 1 for count in ended.values())
    by_bucket: dict[int, list[Record]] = defaultdict(list)
    for each in records:
        by_bucket[each.bucket].append(each)
    for bucket in by_bucket.values():
        _balance_bucket(books, bucket, killed, fault, victims)
    return books


def _balance_bucket(
    books: Books, records: list[Record], killed: dict[int, int | None], fault: int | None, victims: set[int]
) -> None:
    expected = sorted({each.number for each in records})
    first_end = {each.number: each.end for each in reversed(records) if each.end is not None}
    fence, at = 0, 0
    open_: list[Record] = []
    highest: dict[int, int] = {}
    seen: set[int] = set()
    # Numbers below expected[done] were finished before the present record.
    for each in records:
        while at < len(expected):
            end = first_end.get(expected[at])
            if end is None or end > each.begin:
                break
            at += 1
        if at < len(expected) and expected[at] < each.number:
            books.overtaken += 1
        if each.number < highest.get(each.member, -1) and each.number not in seen:
            books.disorder += 1
        seen.add(each.number)
        highest[each.member] = max(each.number, highest.get(each.member, -1))
        books.older += each.fence < fence
        fence = max(fence, each.fence)
        open_ = [other for other in open_ if (other.end or killed[other.member] or sys.maxsize) > each.begin]
        books.overlap += any(other.member != each.member for other in open_)
        open_.append(each)
    owner = next((each.member for each in reversed(records) if fault and each.begin < fault), -1)
    gaps = [(b.begin - a.begin) / 1e9 for a, b in itertools.pairwise(records)]
    longest = max(gaps, default=0.0)
    books.pause = max(books.pause, longest)
    if owner not in victims:
        books.others = max(books.others, longest)


# runs


@dataclass
class Run:
    """One run: the members of a new queue, and what happens to them."""

    uri: str
    domain: str
    folder: str
    options: dict[str, Any]
    rate: int
    cluster: RealCluster | None = None
    members: list[Member] = field(default_factory=list[Member])
    acknowledged: set[int] = field(default_factory=set[int])
    fault: int | None = None
    victims: set[int] = field(default_factory=set[int])
    proxies: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    def __post_init__(self) -> None:
        self.queue = fresh_queue_uri(self.domain, "exclusive")
        self._posting: asyncio.Task[None] | None = None

    async def join(self, count: int = 1, work: float = 0.0, uri: str | None = None) -> list[Member]:
        first = len(self.members)
        new = [Member(first + index, self.folder) for index in range(count)]
        self.members += new
        await asyncio.gather(*(each.start(uri or self.uri, self.queue, self.options, work) for each in new))
        return new

    async def join_by_proxy(self, work: float = 0.0) -> tuple[Member, FaultProxy]:
        proxy = await self.proxies.enter_async_context(FaultProxy(self.uri))
        (member,) = await self.join(1, work, proxy.uri)
        return member, proxy

    def strike(self, *members: Member) -> None:
        """Note the time of a fault and the members that it concerns."""
        self.fault = self.fault or time.monotonic_ns()
        self.victims |= {member.index for member in members}

    async def post(self, seconds: float) -> None:
        """Post at the rate of the run."""
        if self._posting is None:
            self._session = await self.proxies.enter_async_context(bmq.connect(self.uri))
            self._writer = await self._session.open_queue(self.queue, write=True)
            posting = self._post_all() if self.cluster is None else self._post_in_order()
            self._posting = asyncio.create_task(posting)
        await asyncio.sleep(seconds)

    async def _post_in_order(self) -> None:
        """Post the next message of a bucket after the acknowledgement of the one before.

        A node that is not the primary may change the order of messages on the way: see
        ``conformance/upstream/broker-repeated-posts.md``.
        """

        async def post_bucket(number: int) -> None:
            next_at = time.monotonic()
            while True:
                with contextlib.suppress(bmq.PostError):
                    await self._writer.post(b"%d" % number, properties={"k": number})
                    self.acknowledged.add(number)
                number += BUCKETS
                next_at += BUCKETS / self.rate
                await asyncio.sleep(max(0.0, next_at - time.monotonic()))

        async with asyncio.TaskGroup() as tasks:
            for bucket in range(BUCKETS):
                tasks.create_task(post_bucket(bucket))

    async def _post_all(self) -> None:
        number, next_at = 0, time.monotonic()
        futures: list[asyncio.Future[bmq.Ack]] = []

        def settled(number: int) -> Callable[[asyncio.Future[bmq.Ack]], None]:
            def done(future: asyncio.Future[bmq.Ack]) -> None:
                if not future.cancelled() and future.exception() is None:
                    self.acknowledged.add(number)

            return done

        try:
            while True:
                for _ in range(max(1, round(self.rate * 0.02))):
                    future = self._writer.post_nowait(b"%d" % number, properties={"k": number})
                    future.add_done_callback(settled(number))
                    futures.append(future)
                    number += 1
                next_at += 0.02
                await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        finally:
            await asyncio.gather(*futures, return_exceptions=True)

    async def finish(self) -> Books:
        if self._posting is not None:
            self._posting.cancel()
            await asyncio.wait((self._posting,))
        size, since = 0, time.monotonic()
        while time.monotonic() - since < QUIET:
            done = {each.number for member in self.members for each in member.records() if each.end}
            if self.acknowledged <= done:
                break
            if len(done) != size:
                size, since = len(done), time.monotonic()
            await asyncio.sleep(0.25)
        await asyncio.gather(*(member.end() for member in self.members))
        books = balance(self.acknowledged, self.members, self.fault, self.victims)
        await self.proxies.aclose()
        return books


async def _join_busy(run: Run) -> None:
    await run.join(2, 0.008)
    await run.post(1)
    await run.join(1, 0.008)
    await run.post(0.5)
    await run.join(1, 0.008)
    await run.post(2)


async def _leave(run: Run) -> None:
    members = await run.join(3, 0.004)
    await run.post(1)
    run.strike(members[0])
    members[0].send(signal.SIGTERM)
    await run.post(2)


async def _kill(run: Run) -> None:
    members = await run.join(3, 0.004)
    await run.post(1)
    run.strike(members[1])
    members[1].send(signal.SIGKILL)
    await run.post(3)


async def _kill_leader(run: Run) -> None:
    members = await run.join(1, 0.004)
    await run.post(0.3)
    await run.join(2, 0.004)
    await run.post(1)
    run.strike(members[0])
    members[0].send(signal.SIGKILL)
    await run.post(4)


async def _stop(run: Run) -> None:
    members = await run.join(3, 0.004)
    await run.post(1)
    run.strike(members[1])
    members[1].send(signal.SIGSTOP)
    await run.post(3)
    members[1].send(signal.SIGCONT)
    await run.post(1)


async def _partition(run: Run, after: Callable[[FaultProxy], None]) -> None:
    await run.join(2, 0.004)
    member, proxy = await run.join_by_proxy(0.004)
    await run.post(1)
    run.strike(member)
    proxy.stall()
    await run.post(3)
    after(proxy)
    await run.post(1)


async def _silent(run: Run) -> None:
    await _partition(run, lambda proxy: proxy.resume())


async def _silent_then_cut(run: Run) -> None:
    def cut(proxy: FaultProxy) -> None:
        proxy.resume()
        proxy.cut()

    await _partition(run, cut)


async def _cut(run: Run) -> None:
    await run.join(2, 0.004)
    member, proxy = await run.join_by_proxy(0.004)
    await run.post(1)
    run.strike(member)
    for _ in range(2):
        proxy.cut(reset=True)
        await run.post(1)


async def _cut_half(run: Run) -> None:
    """Cut the connection of the messages, the one of the control queue, or a new one of either."""
    await run.join(2, 0.004)
    member, proxy = await run.join_by_proxy(0.004)
    await run.post(1)
    run.strike(member)
    for which in (0, 1, 1, 0):
        proxy.connections[which].cut(reset=True)
        await run.post(0.7)


async def _clock(run: Run) -> None:
    members = await run.join(3, 0.004)
    await run.post(1)
    for member in (members[0], members[1], members[0]):
        run.strike(member)
        member.send(signal.SIGUSR1)
        await run.post(0.7)
    await run.join(1, 0.004)
    await run.post(1)


async def _block(run: Run) -> None:
    members = await run.join(3, 0.004)
    await run.post(1)
    run.strike(members[1])
    members[1].send(signal.SIGUSR2)
    await run.post(4)


async def _several(run: Run) -> None:
    run.rate = 480
    members = await run.join(2, 0.008)
    await run.post(1)
    members += await run.join(2, 0.008)
    await run.post(1)
    run.strike(members[1], members[2])
    members[1].send(signal.SIGSTOP)
    await run.post(1)
    members[2].send(signal.SIGKILL)
    await run.post(2)
    members[1].send(signal.SIGCONT)
    await run.post(2)


async def _kill_node(run: Run, node: int) -> None:
    cluster = run.cluster
    assert cluster is not None
    await run.post(2)
    run.strike()
    await cluster.kill(node, signal.SIGKILL)
    try:
        await run.post(4)
    finally:
        await cluster.revive(node)
    await run.post(3)


async def _primary(run: Run) -> None:
    assert run.cluster is not None
    await run.join(3, 0.004)
    await _kill_node(run, await run.cluster.primary())


async def _replica(run: Run) -> None:
    assert run.cluster is not None
    await run.join(3, 0.004)
    await _kill_node(run, (await run.cluster.primary() + 1) % 3)


async def _leaders_node(run: Run) -> None:
    assert run.cluster is not None
    nodes, primary = run.cluster.ways["nodes"], await run.cluster.primary()
    leading, other = ((primary + step) % 3 for step in (1, 2))
    await run.join(1, 0.004, ",".join((nodes[leading], nodes[other], nodes[primary])))
    await run.post(0.3)
    await run.join(2, 0.004, ",".join((nodes[other], nodes[primary], nodes[leading])))
    await _kill_node(run, leading)


async def _starve(run: Run, seconds: float) -> None:
    """Stop most nodes and members for a second each time, as on a machine without CPU time."""
    assert run.cluster is not None

    def send(number: signal.Signals, share: float) -> None:
        assert run.cluster is not None
        for process in [*run.cluster.processes(), *(each.process.pid for each in run.members)]:
            if random.random() < share:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)

    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            send(signal.SIGSTOP, 0.85)
            await asyncio.sleep(random.uniform(0.3, 1.5))
            send(signal.SIGCONT, 1.0)
            await asyncio.sleep(0.05)
    finally:
        send(signal.SIGCONT, 1.0)


async def _starved(run: Run) -> None:
    assert run.cluster is not None
    await run.join(3, 0.004)
    await run.post(2)
    run.strike()
    starving = asyncio.create_task(_starve(run, 25))
    await run.post(4)
    primary = await run.cluster.primary()
    await run.cluster.kill(primary, signal.SIGKILL)
    await run.post(4)
    await run.cluster.revive(primary)
    await starving
    await run.post(2)


LINES: dict[str, Callable[[Run], Awaitable[None]]] = {
    "two join two busy ones": _join_busy,
    "one leaves": _leave,
    "one killed (SIGKILL)": _kill,
    "the leader killed": _kill_leader,
    "one paused for 3 s (SIGSTOP)": _stop,
    "silent for 3 s, and back": _silent,
    "silent for 3 s, and cut": _silent_then_cut,
    "cut twice": _cut,
    "one connection cut, four times": _cut_half,
    "clocks jump by an hour": _clock,
    "event loop blocked for 2.5 s": _block,
    "several together": _several,
}
CLUSTER_LINES: dict[str, Callable[[Run], Awaitable[None]]] = {
    "primary killed": _primary,
    "replica killed": _replica,
    "the leader's node killed": _leaders_node,
    "starved, the primary killed": _starved,
}
HEAD = (
    f"{'':32} {'runs':>4} {'posted':>8} {'lost':>5} {'twice':>6} {'disorder':>9} {'overtaken':>10} "
    f"{'overlap':>8} {'older':>6} {'pause':>13} {'others':>13}"
)


def shown(name: str, all_books: list[Books]) -> str:
    """Return a line of the table: sums of the counts, median and maximum of the pauses."""
    names = ("posted", "lost", "twice", "disorder", "overtaken", "overlap", "older")
    sums = [sum(getattr(each, name) for each in all_books) for name in names]
    pauses = [[getattr(each, name) for each in all_books] for name in ("pause", "others")]
    text = "{:>8,} {:>5,} {:>6,} {:>9,} {:>10,} {:>8,} {:>6,}".format(*sums)
    spans = [f"{statistics.median(each):>6.2f} {max(each):>6.2f}" for each in pauses]
    return f"{name:32} {len(all_books):>4} {text} {' '.join(spans)}"


def keep(run: Run, folder: Path) -> None:
    """Copy the records of a run."""
    target = folder / run.queue.rpartition("/")[2]
    target.mkdir(parents=True, exist_ok=True)
    for member in run.members:
        shutil.copy(member.path, target / str(member.index))
        shutil.copy(f"{member.path}.log", target / f"{member.index}.log")


@contextlib.asynccontextmanager
async def broker_of(uri: str | None) -> AsyncGenerator[str]:
    if uri is not None:
        yield uri
        return
    async with Broker(port=0) as broker:
        yield broker.uri


async def table(arguments: argparse.Namespace) -> None:
    print(HEAD, flush=True)
    together = asyncio.Semaphore(1 if arguments.broker else arguments.together)
    lines = CLUSTER_LINES if arguments.broker else LINES
    options = {"buckets": BUCKETS, "lease": arguments.lease}
    async with contextlib.AsyncExitStack() as stack:
        cluster = None
        if arguments.broker:
            if arguments.keep:
                work = Path(arguments.keep) / "nodes"
                work.mkdir(parents=True)
            else:
                work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            cluster = RealCluster(arguments.broker, work, heartbeats=arguments.heartbeats)
            stack.push_async_callback(cluster.stop)
            await cluster.start()
            uri = ",".join(next(iter(cluster.ways.values())))
        else:
            uri = await stack.enter_async_context(broker_of(arguments.uri))
        domain = CLUSTER_DOMAIN if cluster else DOMAIN

        async def one(name: str) -> Books | None:
            async with together:
                with tempfile.TemporaryDirectory() as folder:
                    run = Run(uri, domain, folder, options, arguments.rate, cluster)
                    failed: BaseException | None = None
                    try:
                        await lines[name](run)
                    except (bmq.Error, AssertionError, OSError) as error:
                        failed = error
                    finally:
                        books = await run.finish()
                    wrong = (books.lost, books.disorder, books.overtaken, books.overlap, books.older)
                    broken = any(wrong)
                    if failed is not None or broken:
                        print(f"# {name}: {run.queue} {books} {failed or ''}", flush=True)
                    if arguments.verbose:
                        at, load = time.strftime("%X"), os.getloadavg()[0]
                        print(f"# {at} {run.queue} {books}, load {load:.1f}", flush=True)
                    if arguments.keep and (failed is not None or broken or arguments.verbose):
                        keep(run, Path(arguments.keep))
                    return None if failed else books

        for name in arguments.only or lines:
            books = await asyncio.gather(*(one(name) for _ in range(arguments.runs)))
            print(shown(name, [each for each in books if each is not None]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--uri")
    parser.add_argument("--broker", help="executable of a broker: three nodes are started")
    parser.add_argument(
        "--heartbeats", type=int, default=20, help="missed heartbeats, in half seconds, that end a leader"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--together", type=int, default=3, help="runs at a time")
    parser.add_argument("--rate", type=int, default=240, help="messages a second")
    parser.add_argument("--lease", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", choices=[*LINES, *CLUSTER_LINES])
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--keep", help="folder for the nodes, and for the records and logs of wrong runs")
    arguments = parser.parse_args()
    _processes.set_forkserver_preload(["bmq", "bmq.groups"])
    asyncio.run(table(arguments))


if __name__ == "__main__":
    main()
