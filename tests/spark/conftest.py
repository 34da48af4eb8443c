# SPDX-License-Identifier: Apache-2.0
"""A broker and a Spark session for every module."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import bmq
from bmq.spark import check_java
from bmq.spark.connection import shutdown
from tests.spark.brokers import DOMAIN, BrokerThread

ROOT = str(Path(__file__).parents[2])

# By default, workers start python3 from PATH, not the interpreter of the driver.
os.environ["PYSPARK_PYTHON"] = sys.executable
# Workers import bmq and this package from here.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))


#: Settings changed by tests.
CHANGED = ("spark.sql.python.filterPushdown.enabled", "spark.sql.execution.arrow.maxRecordsPerBatch")


def start_spark(master: str, **more: str) -> SparkSession:
    """Start Spark with the options of all these tests; only one instance runs at a time."""
    check_java()
    builder = SparkSession.builder.master(master).appName("bmq tests")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": f"{tempfile.gettempdir()}/bmq-tests-warehouse",
        # Short runs: prefer quick compilation.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.executorEnv.PYSPARK_PYTHON": sys.executable,
        **more,
    }.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Sparks:
    """The Spark of this process: only one runs at a time, and modules with equal options share it.

    A new session searches for formats and starts workers, and takes longer than most tests.
    """

    def __init__(self) -> None:
        self._master = ""
        self._spark: SparkSession | None = None

    def session(self, master: str) -> Iterator[SparkSession]:
        """Yield the session; restore its settings afterwards."""
        if master != self._master or self._spark is None:
            self.stop()
            self._master, self._spark = master, start_spark(master)
        conf = self._spark.conf
        before = {name: conf.get(name, None) for name in CHANGED}
        yield self._spark
        for name, value in before.items():
            conf.unset(name)
            if value is not None:
                conf.set(name, value)

    def stop(self) -> None:
        """Stop a running Spark."""
        if self._spark is not None:
            self._spark.stop()
        self._master, self._spark = "", None


@pytest.fixture(autouse=True)
def sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM: a reader of a stream sets one in its process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def sparks() -> Iterator[Sparks]:
    sparks = Sparks()
    yield sparks
    sparks.stop()


@pytest.fixture(scope="module")
def spark(sparks: Sparks) -> Iterator[SparkSession]:
    """Two cores in one process, three tries a task."""
    yield from sparks.session("local[2,3]")


@pytest.fixture(scope="module")
def cluster(sparks: Sparks) -> Iterator[SparkSession]:
    """Two executors: a repeated task runs elsewhere and receives its rows in a different order."""
    yield from sparks.session("local-cluster[2,1,1024]")


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as broker:
        yield broker
        shutdown()  # otherwise idle sessions would try to reconnect during later tests


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not answer questions: only silence ends a run."""

    async def refused(*_: object) -> None:
        raise bmq.ConnectionFailed("no admin commands here")

    monkeypatch.setattr("bmq.arrow.backlog.InitialBacklog._depths", refused)


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue for this test alone."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"bmq://{DOMAIN}/{name[:40]}-{next(_numbers)}"


_numbers = itertools.count(1)
