# SPDX-License-Identifier: Apache-2.0
"""Common parts of Spark's benchmarks: the start of Spark, and a command line.

Each number of cores and rows is measured in a separate process, with a separate Spark. With one core, all
processes except the broker are bound to it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness import HERE, broker, environment, machine
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

__all__ = ["PAYLOAD", "PROPERTIES", "Cases", "Measure", "Rounds", "main", "start_spark"]

PAYLOAD = 256
#: The properties of each row.
PROPERTIES = {"CustomerId": 1234, "OrderType": "EXPRESS"}
SIZES = (10_000, 100_000, 1_000_000)
TIMEOUT = 3600

#: The measurements of one case, round by round; and of all cases.
Rounds = list[dict[str, Any]]
Cases = dict[str, Rounds]
#: Takes the broker's address, the number of cores, rows and rounds, and a part of the names to measure.
Measure = Callable[[str, int, int, int, str], Cases]


def start_spark(cores: int, options: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark with this number of cores and further options, or return the running one."""
    if cores == 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(HERE.parent)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "3g")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    for key, value in (options or {}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def show(console: Console, cores: str, sizes: dict[str, Cases]) -> None:
    """Print the medians."""
    table = Table(title=f"rows a second, {cores} core{'s'[: cores != '1']} beside the broker's")
    table.add_column("")
    for count in sizes:
        table.add_column(f"{int(count):,} rows", justify="right")
    for name in dict.fromkeys(name for each in sizes.values() for name in each):

        def row(title: str, value: Callable[[dict[str, Any]], float], name: str = name) -> None:
            cells: list[str] = []
            for each in sizes.values():
                found = [value(one) for one in each.get(name, [])]
                number = statistics.median(found) if found else None
                cells.append("" if number is None else f"{number:,.{0 if number > 100 else 1}f}")
            table.add_row(title, *cells)

        some = next(each[name][0] for each in sizes.values() if name in each)
        row(name, lambda one: one["rate"])
        if "with_start" in some:
            row("  with start", lambda one: one["with_start"])
        for role in some["cpu_us"]:
            row(f"  us of {role} a row", lambda one, role=role: one["cpu_us"].get(role, 0.0))
        for role in some.get("memory", {}):
            row(f"  MiB of {role}", lambda one, role=role: one["memory"].get(role, 0) / 2**20)
    console.print(table)


def main(text: str | None, script: str, measure: Measure, more: Callable[[], dict[str, Any]] = dict) -> None:
    """Make the measurements of the command line.

    Args:
        text: help text.
        script: file of the benchmark.
        measure: measures one number of cores and rows.
        more: further content of the file, measured at the end.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", help="how many rows a job has")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2], help="how many cores Spark has")
    parser.add_argument("--quick", action="store_true", help="no job of a million rows, one round")
    parser.add_argument("--rounds", type=int, default=5, help="each measurement is made so often")
    parser.add_argument("--only", default="", help="only measurements whose names contain this")
    parser.add_argument(
        "--output", help="write the numbers to NAME.json, beside those of other cores and sizes in it"
    )
    parser.add_argument("--add", action="store_true", help="add rounds to those in NAME.json instead")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    if options.here:
        uri, cores, count, name = json.loads(options.here)
        Path(name).write_text(json.dumps(measure(uri, cores, count, rounds, options.only)))
        return
    sizes = options.sizes or (SIZES[:2] if options.quick else SIZES)
    console = Console()
    results: dict[str, dict[str, Cases]] = {}
    with broker() as (uri, what), tempfile.TemporaryDirectory() as folder:
        for cores in options.cores:
            for count in sizes:
                name = f"{folder}/results.json"
                here = ["--here", json.dumps([uri, cores, count, name]), "--rounds", str(rounds)]
                subprocess.run(
                    [sys.executable, script, *here, "--only", options.only],
                    env=environment(BMQ_BROKER_URI=uri),
                    timeout=TIMEOUT,
                    check=True,
                )
                found: Cases = json.loads(Path(name).read_text())
                results.setdefault(str(cores), {})[str(count)] = found
                if options.output:
                    keep(Path(f"{options.output}.json"), what, str(cores), str(count), found, options.add)
            show(console, str(cores), results[str(cores)])
    if options.output:
        file = Path(f"{options.output}.json")
        file.write_text(json.dumps({**json.loads(file.read_text()), **more()}, indent=1))


def keep(file: Path, what: str, cores: str, count: str, found: Cases, add: bool) -> None:
    """Write one (cores, rows) result to a file; replace or append."""
    document = json.loads(file.read_text()) if file.exists() else {"results": {}}
    results: dict[str, dict[str, Cases]] = document["results"]
    sizes = results.setdefault(cores, {})
    cases = dict(sizes.get(count, {})) if add else {}
    for name, rounds in found.items():
        cases[name] = cases.get(name, []) + rounds
    results[cores] = dict(sorted({**sizes, count: cases}.items(), key=lambda item: int(item[0])))
    document |= {"machine": machine(), "broker": what, "results": dict(sorted(results.items()))}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1))
