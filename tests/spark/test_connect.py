# SPDX-License-Identifier: Apache-2.0
"""Spark Connect: the program in docs/data/spark-recipes.md, in a separate process with a separate server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.spark.brokers import BrokerThread
from tests.spark.conftest import ROOT
from tests.spark.test_recipes import program

#: A server that starts as the client does, and listens to nobody else.
SERVER = """SparkSession.builder.remote("local[2]").config(
    map={
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
)"""

#: What is not there says so.
MORE = """
import bmq
from bmq.spark import summary_accumulator

try:
    summary_accumulator(spark)
except bmq.UsageError as error:
    print("refused:", error)
spark.stop()
"""


@pytest.mark.timeout(900)
def test_the_recipe_runs(broker: BrokerThread, tmp_path: Path) -> None:
    code = program("Spark Connect", broker, tmp_path)
    assert code.count('SparkSession.builder.remote("sc://localhost")') == 1
    code = code.replace('SparkSession.builder.remote("sc://localhost")', SERVER) + MORE
    if pyspark.__version__.startswith("4.0."):  # it refuses to register a format that it has found by itself
        code = code.replace("spark.dataSource.register(BmqDataSource)\n", "")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        "PYTHONPATH": ROOT,
        "PYSPARK_PYTHON": sys.executable,
    }
    (tmp_path / "recipe.py").write_text(code)
    run = subprocess.run(
        [sys.executable, str(tmp_path / "recipe.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert "100 rows, 100 acknowledged in " in run.stdout
    # Three times 100 orders, of which each customer had three.
    assert re.search(rf"\| +300\| +{3 * sum(range(100))}\|", run.stdout)
    assert "refused: Spark Connect has no accumulators: bmq.spark.write(df, ...) returns" in run.stdout
