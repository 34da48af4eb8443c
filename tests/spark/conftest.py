# SPDX-License-Identifier: Apache-2.0
"""A broker and a Spark session for every module."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bmq.spark import check_java
from bmq.spark._portal import shutdown
from tests.spark.brokers import DOMAIN, BrokerThread

ROOT = str(Path(__file__).parents[2])

# Workers start python3 from PATH, whatever interpreter the driver runs in, unless they are told.
os.environ["PYSPARK_PYTHON"] = sys.executable
# They import bmq and this package from here.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))


def start_spark(master: str, **more: str) -> SparkSession:
    """Start Spark as all these tests want it; there is one at a time."""
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
        # Short runs: a compiler that is quick, not thorough.
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


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Two cores in one process, three tries a task."""
    spark = start_spark("local[2,3]")
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkSession]:
    """Two executors, so that a repeated task runs elsewhere and sees its rows in another order."""
    spark = start_spark("local-cluster[2,1,1024]")
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as broker:
        yield broker
        shutdown()  # else idle sessions would try to come back to it, beside the tests that follow


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of this test's own."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"bmq://{DOMAIN}/{name[:40]}-{next(_numbers)}"


_numbers = itertools.count(1)
