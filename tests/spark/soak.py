# SPDX-License-Identifier: Apache-2.0
"""A Spark pipeline from queue to queue, with drivers and executors killed repeatedly.

    make soak                                             # a few kills, with the other soaks
    PYTHONPATH=. python tests/spark/soak.py --kills 100    # on the embedded broker
    PYTHONPATH=. python tests/spark/soak.py --kills 100 --broker tcp://localhost:30114

A producer posts numbered messages to one queue, a driver with two executors copies them to another queue, and
a consumer receives the copies. Each driver has different partitions and batches than the previous one. One of
three kills (``--every``) ends the driver with all its executors, the remaining kills an executor, with
SIGKILL.

The exit status is 0 if each number arrived exactly once and the first queue is empty.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import bmq
from bmq.broker import Broker, DomainConfig, Limits, Mode
from tests.spark.bench import DOMAIN
from tests.spark.conftest import start_spark

ROOM = Limits(messages=4_000_000, bytes=2**33)
RATE = 200
#: Seconds without a batch, or at the end without a copy, until the run has failed.
PATIENCE = 600.0
#: Maximum number of messages waiting to be copied: limits the backlog on a slow machine.
BACKLOG = 20_000
#: Seconds between two posts.
PAUSE = 0.1


def pipeline(broker: str, source: str, target: str, folder: str, seed: int) -> None:
    """Copy a queue to another one, until killed; the seed determines partitions and batches."""
    chance = random.Random(seed)
    spark = start_spark(
        "local-cluster[2,1,1024]",
        **{"spark.task.maxFailures": "20", "spark.deploy.maxExecutorRetries": "-1"},
    )
    options = {
        "broker": broker,
        "queue": source,
        "propertiesSchema": "n BIGINT",
        "checkpointLocation": f"{folder}/checkpoint",
        "numPartitions": str(chance.randint(1, 4)),
        "maxMessagesPerTrigger": str(chance.choice([300, 1000, 3000])),
    }
    frame = spark.readStream.format("bmq").options(**options).load().select("guid", "value", "properties")
    if chance.random() < 0.5:
        frame = frame.repartition(chance.randint(1, 4))
    writer = frame.writeStream.format("bmq").options(broker=broker, queue=target, guidColumn="guid")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(processingTime="500 milliseconds").start().awaitTermination()


class Pipeline:
    """The pipeline in a session of processes of its own.

    Attributes:
        ended: number of drivers that ended without a kill.
        half_done: number of kills in the middle of a batch.
    """

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._seed = 0
        self.ended = 0
        self.half_done = 0

    async def start(self) -> None:
        self._seed += 1
        with (self._folder / "driver.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, str(self._seed), stdout=log, stderr=log, start_new_session=True
            )

    async def stop(self) -> None:
        for pid in self._members():
            kill(pid)
        if self._process is not None:
            await self._process.wait()
            self.half_done += bool(self._noted("offsets") - self._noted("commits"))
        self._process = None

    def kill_executor(self, chance: random.Random) -> bool:
        """Kill an executor; return whether there was one."""
        executors = self._members(b"CoarseGrainedExecutorBackend")
        if executors:
            kill(chance.choice(executors))
        return bool(executors)

    async def commits(self, more: int = 1) -> None:
        """Wait for more batches; restart a driver that ends without a kill."""
        wanted = max(self._noted("commits"), default=-1) + more
        deadline = time.monotonic() + PATIENCE
        while max(self._noted("commits"), default=-1) < wanted:
            assert self._process is not None
            if self._process.returncode is not None:
                self.ended += 1
                await self.start()
            if time.monotonic() > deadline:
                log = (self._folder / "driver.log").read_text()
                raise RuntimeError(f"no batch for {PATIENCE:g} s: {log[-3000:]}")
            await asyncio.sleep(0.05)

    def _noted(self, kind: str) -> set[int]:
        return {int(each.name) for each in (self._folder / "checkpoint" / kind).glob("[0-9]*")}

    def _members(self, command: bytes = b"") -> list[int]:
        """Return the processes of the driver's session, with this text in their command."""
        found: list[int] = []
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                ours = self._process is not None and os.getsid(int(each.name)) == self._process.pid
                if ours and command in (each / "cmdline").read_bytes():
                    found.append(int(each.name))
        return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def post(
    queue: bmq.Queue, rate: float, posted: list[int], found: Counter[int], enough: asyncio.Event
) -> None:
    """Post numbered messages until told to stop. Some messages differ only in the number."""
    while not enough.is_set():
        first = len(posted)
        if first - len(found) < BACKLOG:
            numbers = range(first, first + max(1, round(rate * PAUSE)))
            report = await queue.post_many(
                bmq.PutMessage(b"tick %d" % (n % 7), properties={"n": n}) for n in numbers
            )
            report.raise_for_failures()
            posted.extend(numbers)
        await asyncio.sleep(PAUSE)


async def receive(queue: bmq.Queue, found: Counter[int]) -> None:
    async for message in queue:
        found[int(message.properties["n"])] += 1
        message.confirm()


async def run(
    kills: int, every: int, seconds: float, broker: str | None, rate: float, say: Callable[[str], object]
) -> bool:
    """Kill processes, and say so; return whether each message arrived once. The options are the program's."""
    chance, posted, found = random.Random(1), list[int](), Counter[int]()
    drivers = executors = 0
    enough = asyncio.Event()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bmq-spark-soak-")))
        if broker is None:
            config = DomainConfig(
                name=DOMAIN, mode=Mode.PRIORITY, domain_limits=ROOM, queue_limits=ROOM, message_ttl=86400
            )
            broker = (await stack.enter_async_context(Broker(port=0, domains=[config]))).uri
        name = f"soak-{os.getpid()}-{time.time_ns()}"
        source, target = f"bmq://{DOMAIN}/{name}-in", f"bmq://{DOMAIN}/{name}-out"
        session = await stack.enter_async_context(bmq.connect(broker))
        out = await session.open_queue(source, write=True)
        copies = await session.open_queue(target, read=True)
        spark = Pipeline(
            [sys.executable, __file__, "--pipeline", broker, source, target, str(folder)], folder
        )
        stack.push_async_callback(spark.stop)
        posting = asyncio.create_task(post(out, rate, posted, found, enough))
        receiving = asyncio.create_task(receive(copies, found))
        began = time.monotonic()
        await spark.start()
        await spark.commits(2)
        for number in range(1, kills + 1):
            if time.monotonic() - began > seconds:
                break
            await asyncio.sleep(chance.random())
            if number % every == 0:
                await spark.stop()
                drivers += 1
                await spark.start()
            elif spark.kill_executor(chance):
                executors += 1
            await spark.commits(2)
            say(
                f"{time.monotonic() - began:5.0f} s  {drivers} drivers and {executors} executors killed, "
                f"{len(posted):,} posted, {len(found):,} came"
            )
            for task in (posting, receiving):
                if task.done():
                    task.result()
        enough.set()
        await posting
        came, since = -1, 0.0
        while len(found) < len(posted) and (len(found) > came or time.monotonic() < since + PATIENCE):
            if len(found) > came:
                came, since = len(found), time.monotonic()
            await spark.commits(0)
            await asyncio.sleep(0.5)
        await asyncio.sleep(5)  # duplicate copies would arrive now
        await spark.stop()
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        rest = await left(broker, source)
    lost = len(posted) - len(found)
    doubled = sum(count > 1 for count in found.values())
    unconfirmed = len(rest - found.keys())
    say(
        f"killed: {drivers} drivers ({spark.half_done} in the middle of a batch), {executors} executors; "
        f"drivers that ended by themselves: {spark.ended}\n"
        f"posted {len(posted):,}, came {sum(found.values()):,}, lost {lost:,}, doubled {doubled:,}, "
        f"left in the first queue and never copied {unconfirmed:,}"
    )
    return not lost and not doubled and not unconfirmed


async def left(broker: str, source: str) -> set[int]:
    """Return the numbers in the first queue: the last batch, to be confirmed by the next batch."""
    numbers: set[int] = set()
    async with bmq.connect(broker) as session:
        queue = await session.open_queue(source, read=True, max_unconfirmed_messages=1_000_000)
        with suppress(TimeoutError):
            while True:
                numbers |= {int(m.properties["n"]) for m in await queue.receive_many(10_000, timeout=2)}
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a Spark pipeline again and again, and count.")
    add = parser.add_argument
    add("--kills", type=int, default=int(os.environ.get("BMQ_SPARK_KILLS", "6")))
    add("--every", type=int, default=3, help="each so many kills is of a driver (default: %(default)s)")
    add("--broker", help="a running broker; an embedded one if left out")
    add("--seconds", type=float, default=7200.0, help="no more kills after that (default: %(default)s)")
    add("--rate", type=float, default=RATE, help="messages a second (default: %(default)s)")
    add("--pipeline", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pipeline:
        *places, seed = options.pipeline
        pipeline(*places, int(seed))
        return 0
    say = functools.partial(print, flush=True)
    work = run(options.kills, options.every, options.seconds, options.broker, options.rate, say)
    return 0 if bmq.run(work) else 1


if __name__ == "__main__":
    sys.exit(main())
