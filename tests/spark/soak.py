# SPDX-License-Identifier: Apache-2.0
"""A Spark pipeline from queue to queue, with drivers and executors killed repeatedly.

    make soak                                                   # a few kills, with the other soaks
    python tests/spark/soak.py --kills 100                 # on the embedded broker
    python tests/spark/soak.py --kills 100 --broker tcp://localhost:30114

A producer posts numbered messages to one queue, a driver with two executors copies them to another queue, and
a consumer receives the copies. Each driver has different partitions and batches than the previous one. One of
three kills (``--every``) ends the driver with all its executors, the remaining kills an executor, with
SIGKILL.

The exit status is 0 if each number arrived exactly once and the first queue is empty. The consumer writes a
history of the messages, which the checker of ``bmq.testing`` reads at the end.
"""

from __future__ import annotations

import argparse
import asyncio
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
from typing import Any

import bmq
import bmq.testing
from bmq.broker import Broker, DomainConfig, Limits, Mode

DOMAIN = "bmq.test.mem.priority"
ROOM = Limits(messages=4_000_000, bytes=2**33)
RATE = 200
#: Seconds without a batch, or at the end without a copy, until the run has failed.
PATIENCE = 600.0
#: Maximum number of messages waiting to be copied: limits the backlog on a slow machine.
BACKLOG = 20_000


# the pipeline


def pipeline(broker: str, source: str, target: str, folder: str, seed: int) -> None:
    """Copy a queue to another one, until killed; the seed determines partitions and batches."""
    import warnings

    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's own processes would start python3 from PATH
    chance = random.Random(seed)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.task.maxFailures", "20")
        .config("spark.deploy.maxExecutorRetries", "-1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        .config("spark.executorEnv.PYSPARK_PYTHON", sys.executable)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
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
    query = (
        frame.writeStream.format("bmq")
        .options(broker=broker, queue=target, guidColumn="guid", checkpointLocation=f"{folder}/checkpoint")
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    query.awaitTermination()


# around the pipeline


class Pipeline:
    """The pipeline in a separate process group.

    Attributes:
        ended: number of drivers that ended without a kill.
        half_done: number of kills in the middle of a batch.
    """

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command = command
        self._log = folder / "driver.log"
        self._checkpoint = folder / "checkpoint"
        self._process: asyncio.subprocess.Process | None = None
        self._seed = 0
        self.ended = 0
        self.half_done = 0

    async def start(self) -> None:
        """Start a driver, with its own seed."""
        self._seed += 1
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, str(self._seed), stdout=log, stderr=log, start_new_session=True
            )

    async def stop(self) -> None:
        """Kill the driver and its executors."""
        process, self._process = self._process, None
        if process is not None:
            for pid in [process.pid, *_members(process.pid)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            self.half_done += bool(self._noted("offsets") - self._noted("commits"))

    def kill_executor(self, chance: random.Random) -> bool:
        """Kill an executor; return whether there was one."""
        assert self._process is not None
        executors = [pid for pid in _members(self._process.pid) if self._is_executor(pid)]
        if not executors:
            return False
        with suppress(ProcessLookupError):
            os.kill(chance.choice(executors), signal.SIGKILL)
        return True

    async def commits(self, more: int = 1) -> None:
        """Wait for more batches; restart a driver that ends without a kill."""
        wanted = self._last() + more
        deadline = time.monotonic() + PATIENCE
        while self._last() < wanted:
            assert self._process is not None
            if self._process.returncode is not None:
                self.ended += 1
                await self.start()
            if time.monotonic() > deadline:
                raise RuntimeError(f"no batch for {PATIENCE:g} s: {self._log.read_text()[-3000:]}")
            await asyncio.sleep(0.05)

    def _last(self) -> int:
        return max(self._noted("commits"), default=-1)

    def _noted(self, kind: str) -> set[int]:
        return {int(each.name) for each in (self._checkpoint / kind).glob("[0-9]*")}

    @staticmethod
    def _is_executor(pid: int) -> bool:
        with suppress(OSError):
            return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False


def _members(session: int) -> list[int]:
    """Return the processes of a driver's session."""
    found: list[int] = []
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(each.name)) == session:
                found.append(int(each.name))
    return found


async def produce(
    queue: bmq.Queue, rate: float, enough: asyncio.Event, posted: list[int], found: Counter[int]
) -> None:
    """Post numbered messages until told to stop. Some messages differ only in the number."""
    pause = 0.1
    while not enough.is_set():
        first = len(posted)
        if first - len(found) >= BACKLOG:
            await asyncio.sleep(pause)
            continue
        numbers = range(first, first + max(1, round(rate * pause)))
        report = await queue.post_many(
            bmq.PutMessage(b"tick %d" % (n % 7), properties={"n": n}) for n in numbers
        )
        report.raise_for_failures()
        posted.extend(numbers)
        await asyncio.sleep(pause)


async def consume(queue: bmq.Queue, recorder: Any, found: Counter[int]) -> None:
    async for message in queue:
        async with message:
            number = int(message.properties["n"])
            with recorder.effect(f"message {number}"):
                found[number] += 1


async def run(
    kills: int,
    every: int,
    seconds: float,
    broker: str | None,
    rate: float,
    say: Callable[[str], object],
) -> bool:
    """Kill processes; return whether each message arrived once.

    Args:
        kills: number of kills.
        every: every n-th kill is of a driver.
        seconds: time after which no more kills follow.
        broker: address of a broker; None for an embedded broker.
        rate: messages a second.
        say: called with lines for people.
    """
    chance = random.Random(1)
    found: Counter[int] = Counter()
    posted: list[int] = []
    killed: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bmq-spark-soak-")))
        history = stack.enter_context(bmq.testing.History(folder / "history.jsonl"))
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
        command = [sys.executable, __file__, "--pipeline", broker, source, target, str(folder)]
        spark = Pipeline(command, folder)
        stack.push_async_callback(spark.stop)
        enough = asyncio.Event()
        recorder = history.process("consumer")
        tasks = [
            asyncio.create_task(produce(out, rate, enough, posted, found)),
            asyncio.create_task(consume(copies, recorder, found)),
        ]
        began = time.monotonic()
        await spark.start()
        await spark.commits(2)
        for number in range(1, kills + 1):
            if time.monotonic() - began > seconds:
                break
            await asyncio.sleep(chance.random())
            if number % every == 0:
                await spark.stop()
                killed["drivers"] += 1
                await spark.start()
            elif spark.kill_executor(chance):
                killed["executors"] += 1
            await spark.commits(2)
            say(
                f"{time.monotonic() - began:5.0f} s  {killed['drivers']} drivers and {killed['executors']} "
                f"executors killed, {len(posted):,} posted, {len(found):,} came"
            )
            for task in tasks:
                if task.done():
                    task.result()
        enough.set()
        await tasks[0]
        came, since = -1, 0.0
        while len(found) < len(posted) and (len(found) > came or time.monotonic() < since + PATIENCE):
            if len(found) > came:
                came, since = len(found), time.monotonic()
            await spark.commits(0)
            await asyncio.sleep(0.5)
        await asyncio.sleep(5)  # duplicate copies would arrive now
        await spark.stop()
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        rest = await left(broker, source)
        verdict = bmq.testing.check(history, rules=["once"])
    lost = set(posted) - found.keys()
    doubled = sum(count > 1 for count in found.values())
    unconfirmed = len(rest - found.keys())
    say(
        f"killed: {killed['drivers']} drivers ({spark.half_done} in the middle of a batch), "
        f"{killed['executors']} executors; drivers that ended by themselves: {spark.ended}\n"
        f"posted {len(posted):,}, came {sum(found.values()):,}, lost {len(lost):,}, doubled {doubled:,}, "
        f"left in the first queue and never copied {unconfirmed:,}\n"
        f"the checker of histories: {verdict}"
    )
    return not lost and not doubled and not unconfirmed and verdict.ok


async def left(broker: str, source: str) -> set[int]:
    """Return the numbers in the first queue: the last batch, to be confirmed by the next batch."""
    numbers: set[int] = set()
    async with bmq.connect(broker) as session:
        queue = await session.open_queue(source, read=True, max_unconfirmed_messages=1_000_000)
        with suppress(TimeoutError):
            while True:
                batch = await queue.receive_many(10_000, timeout=2)
                numbers.update(int(message.properties["n"]) for message in batch)
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a Spark pipeline again and again, and count.")
    parser.add_argument("--kills", type=int, default=int(os.environ.get("BMQ_SPARK_KILLS", "6")))
    parser.add_argument(
        "--every", type=int, default=3, help="each so many kills is of a driver (default: %(default)s)"
    )
    parser.add_argument("--broker", help="a running broker; an embedded one if left out")
    parser.add_argument(
        "--seconds", type=float, default=7200.0, help="no more kills after that (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, default=RATE, help="messages a second (default: %(default)s)")
    parser.add_argument("--pipeline", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pipeline:
        *places, seed = options.pipeline
        pipeline(*places, int(seed))
        return 0
    work = run(options.kills, options.every, options.seconds, options.broker, options.rate, print_now)
    return 0 if bmq.run(work) else 1


def print_now(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
