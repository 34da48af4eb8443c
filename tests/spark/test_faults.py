# SPDX-License-Identifier: Apache-2.0
"""Failing tasks and repeatedly killed drivers: each row arrives once.

    export BMQ_BROKER_URI=tcp://127.0.0.1:30114 BMQ_SPARK_ROWS=1000000 BMQ_SPARK_KILLS=5
    make test ARGS="-n 0 -s tests/spark/test_faults.py"

These commands run the test at scale on another broker. Its domain ``bmq.test.mem.priority`` must hold all
messages, with a deduplication window longer than the test, for example an hour.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import bmq
from bmq.testing import History, check
from tests.spark.brokers import DOMAIN, BrokerThread

ROWS = int(os.environ.get("BMQ_SPARK_ROWS", "3000"))
KILLS = int(os.environ.get("BMQ_SPARK_KILLS", "1"))
BATCHES = 2 * KILLS + 2
SCRIPT = Path(__file__).with_name("faulty_query.py")
PATIENCE = 240.0 + ROWS / 1000  # including the start of the next driver: Spark, its workers, a batch

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.timeout((KILLS + 2) * PATIENCE),
]


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    """The broker from the environment, or an embedded broker."""
    named = os.environ.get("BMQ_BROKER_URI")
    if named:
        yield named
        return
    with BrokerThread() as broker:
        yield broker.uri


@pytest.fixture
def queue() -> str:
    return f"bmq://{DOMAIN}/faults-{uuid.uuid4().hex}"


class Driver:
    """A query in a separate process.

    Attributes:
        kills: number of kills in the middle of a batch, and between batches.
        ended: number of ends without a kill.
    """

    def __init__(self, way: str, uri: str, queue: str, folder: Path) -> None:
        self._command = [sys.executable, str(SCRIPT), way, uri, queue, str(folder), str(-(-ROWS // BATCHES))]
        self._checkpoint = folder / "checkpoint"
        self._process: subprocess.Popen[bytes] | None = None
        self.kills = {"in a batch": 0, "between": 0}
        self.ended = 0

    def start(self) -> None:
        """Start the driver."""
        self._process = subprocess.Popen(self._command, start_new_session=True)

    def kill(self) -> None:
        """Kill the driver with all its child processes."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait(self, done: Callable[[], bool], pause: float = 0.01) -> None:
        """Wait for an effect of the driver, with a check at this interval in seconds.

        A driver that ends without a kill is restarted: Spark gives its Python workers ten seconds to start,
            too
        short on a busy machine.
        """
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert self._process is not None
            if self._process.poll() is not None:
                self.ended += 1
                assert self.ended < 10, "it ends by itself"
                self.start()
            assert time.monotonic() < deadline, "nothing happens"
            time.sleep(pause)

    def batches(self, kind: str) -> set[int]:
        """The planned (``offsets``) or finished (``commits``) batches."""
        return {int(each.name) for each in (self._checkpoint / kind).glob("[0-9]*")}

    def half_done(self) -> bool:
        """Whether a batch is under way."""
        return bool(self.batches("offsets") - self.batches("commits"))

    def kill_again_and_again(self) -> None:
        """Start and kill the driver: alternately in the middle of a batch, and right after a batch."""
        for number in range(KILLS):
            before = len(self.batches("commits"))
            self.start()
            self.wait(lambda before=before: len(self.batches("commits")) > before)
            if number % 2 == 0:
                self.wait(self.half_done)
            self.kill()
            self.kills["in a batch" if self.half_done() else "between"] += 1

    def finish(self, done: Callable[[], bool]) -> None:
        """Let the driver run until a condition holds."""
        self.start()
        self.wait(done, 0.5)
        self.kill()


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    """The drivers of a test, ended with the test."""
    made: list[Driver] = []
    yield made
    for each in made:
        each.kill()


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """The rows in flight, for the checker."""
    with History(tmp_path / "history.jsonl") as history:
        yield history


def posted(uri: str, queue: str, history: History) -> None:
    async def post() -> None:
        recorder = history.process("producer")
        async with bmq.connect(uri, interceptors=[recorder]) as session:
            opened = await session.open_queue(queue, write=True)
            messages = (bmq.PutMessage(b"row %d" % n, properties={"n": n}) for n in range(ROWS))
            (await opened.post_many(messages)).raise_for_failures()
        recorder.close()

    asyncio.run(post())


def drained(uri: str, queue: str, history: History) -> set[int]:
    """The numbers of the messages in a queue; each message is an effect in the history."""
    found: set[int] = set()
    recorder = history.process("queue")

    async def drain() -> None:
        async with bmq.connect(uri) as session:
            opened = await session.open_queue(queue, read=True, max_unconfirmed_messages=100_000)
            while True:
                try:
                    batch = await opened.receive_many(10_000, timeout=30 if len(found) < ROWS else 2)
                except TimeoutError:
                    return
                for message in batch:
                    with recorder.effect(message.data.decode()):
                        found.add(int(message.data.split()[1]))
                batch.confirm()

    asyncio.run(drain())
    recorder.close()
    return found


def test_killed_drivers_write_every_row_once(
    uri: str, queue: str, drivers: list[Driver], history: History, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for number, part in enumerate(np.array_split(np.arange(ROWS), BATCHES)):
        numbers = pa.array(part)
        table = pa.table({"value": pa.array([f"row {n}" for n in part.tolist()]), "n": numbers})
        pq.write_table(table, tmp_path / "in" / f"{number:03}.parquet")
    driver = Driver("out", uri, queue, tmp_path)
    drivers.append(driver)
    began = time.monotonic()
    driver.kill_again_and_again()
    driver.finish(lambda: len(driver.batches("commits")) == BATCHES)
    took = time.monotonic() - began
    assert driver.kills["in a batch"] > 0
    assert drained(uri, queue, history) == set(range(ROWS))
    check(history, rules=["once"])
    print(f"\nout: {ROWS:,} rows in {BATCHES} batches, killed {driver.kills}, {took:.0f} s in all")


def test_killed_drivers_read_every_message_once(
    spark: SparkSession, uri: str, queue: str, drivers: list[Driver], history: History, tmp_path: Path
) -> None:
    posted(uri, queue, history)
    driver = Driver("into", uri, queue, tmp_path)
    drivers.append(driver)
    began = time.monotonic()
    driver.kill_again_and_again()

    def stored() -> int:
        """Messages in committed batches, from the log of the sink."""
        return spark.read.parquet(str(tmp_path / "out")).count()

    driver.finish(lambda: not driver.half_done() and stored() == ROWS)
    took = time.monotonic() - began
    assert driver.kills["in a batch"] > 0
    files = history.process("files")
    for n, guid in spark.read.parquet(str(tmp_path / "out")).select("n", "guid").toLocalIterator():
        history.record("files", "deliver", "ok", queue=queue, message=guid)
        with files.effect(f"row {n}"):
            pass
    files.close()
    check(history, rules=["lost", "content", "once"])
    print(f"\ninto: {ROWS:,} messages, killed {driver.kills}, {took:.0f} s in all")
