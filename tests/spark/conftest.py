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
from tests.spark.bench import DOMAIN, BrokerThread, Stage

PANDAS = "PySpark does not yet fully support pandas"
ROOT = str(Path(__file__).parents[2])

# By default, workers start python3 from PATH, not the interpreter of the driver.
os.environ["PYSPARK_PYTHON"] = sys.executable
# Workers import bmq and this package from here.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))


def start_spark(master: str, **more: str) -> SparkSession:
    """Start Spark with the options of all these tests, or reset a running one with the same master.

    A new session searches for formats and starts workers, and takes longer than most tests.
    """
    check_java()
    stop_spark(unless=master)
    builder = SparkSession.builder.master(master).appName("bmq tests")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.python.filterPushdown.enabled": "false",
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
        warnings.filterwarnings("ignore", PANDAS, FutureWarning)
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def stop_spark(*, unless: str = "") -> None:
    """Stop a running Spark: only one instance runs at a time."""
    running = SparkSession.getActiveSession()
    if running is not None and running.sparkContext.master != unless:
        running.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Prepare the tests with a JVM, which starts Pythons: that takes a minute on a busy machine."""
    for item in items:
        if {"spark", "cluster"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.filterwarnings(f"ignore:{PANDAS}:FutureWarning"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(autouse=True)
def sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM: a reader of a stream sets one in its process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def no_spark_stays() -> Iterator[None]:
    yield
    stop_spark()


@pytest.fixture(scope="module")
def spark(no_spark_stays: None) -> SparkSession:
    """Two cores in one process, three tries a task."""
    return start_spark("local[2,3]")


@pytest.fixture(scope="module")
def cluster(no_spark_stays: None) -> SparkSession:
    """Two executors: a repeated task runs elsewhere and receives its rows in a different order."""
    return start_spark("local-cluster[2,1,1024]")


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


@pytest.fixture
def stage(broker: BrokerThread, queue: str, tmp_path: Path) -> Stage:
    return Stage(broker, queue, tmp_path)
