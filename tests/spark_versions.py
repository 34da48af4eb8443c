# SPDX-License-Identifier: Apache-2.0
"""Runs the Spark tests with each supported line of pyspark, in separate environments.

    python tests/spark_versions.py [--only 4.0 4.2]

The environments are created in ``.spark-versions``, from pip's configured index, and kept. Prints a line for
each version with the results; the output is in ``.spark-versions/LINE.log``. ``LACKING`` lists unsupported
features by test name: those tests are not run, and docs/data/spark.md documents them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
WHERE = ROOT / ".spark-versions"

#: The supported lines of pyspark, the oldest first.
LINES = ("4.0", "4.1", "4.2", "4.3")

#: The engine of these lines does not announce availableNow, request the limit, or repeat requests.
NOT_TOLD = (
    "tests/spark/test_streams.py::test_a_slow_sink_is_no_drained_queue",
    "tests/spark/test_streams.py::test_a_run_ends_with_the_messages_of_its_start[availableNow",
    "tests/spark/test_streams.py::test_available_now_ends",
    "tests/spark/test_streams.py::test_a_small_batch_is_held_back",
    "tests/spark/test_streams.py::test_a_small_batch_goes_after_a_delay",
    "tests/spark/test_streams.py::test_a_batch_that_is_full_is_not_held_back",
    "tests/spark/test_streams.py::test_the_time_between_triggers_is_used_for_receiving",
    "tests/spark/test_local.py::test_stream_is_read_and_continues_after_a_restart",
    "tests/spark/test_recipes.py::test_a_repeated_batch_and_a_lost_checkpoint_cost_no_message",
    "tests/spark/test_recipes.py::test_the_recipe_of_event_time_runs",
)
#: Spark 4.0 pushes no filters into sources, and lacks their names.
LACKING = {"4.0": (*NOT_TOLD, "tests/spark/test_pushdown.py"), "4.1": NOT_TOLD}
#: A leak of pyspark, in the sockets for collecting rows.
LEAKS = "ignore:unclosed <socket.socket:ResourceWarning"
LEAKING = ("4.0", "4.1")


def environment(line: str) -> Path:
    """Create the environment of one line of pyspark, if missing, and return its interpreter."""
    folder = WHERE / line
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        print(f"pyspark {line}: downloading some 500 MB", flush=True)
        wanted = ["--editable", f"{ROOT}[spark,cli]", "--group", f"{ROOT}/pyproject.toml:test"]
        wanted += [f"pyspark[connect]=={line}.*", "protobuf", "fastavro", "deltalake"]
        wanted += ["opentelemetry-sdk", "prometheus-client"]
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([str(python), "-m", "pip", "install", *quiet, "--upgrade", "pip"], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", *quiet, *wanted],
            check=True,
        )
        stamp.touch()
    return python


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=LINES, default=LINES, help="these lines of pyspark")
    parser.add_argument("tests", nargs="*", default=["tests/spark"], help="what pytest runs")
    options = parser.parse_args()
    failed = False
    for line in options.only:
        python = environment(line)
        version = subprocess.run(
            [str(python), "-c", "import pyspark; print(pyspark.__version__)"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        # A hanging test fails alone: the project's method would end the whole run.
        left_out = ["-o", "timeout_method=signal"]
        left_out += [f"--{'deselect' if '::' in test else 'ignore'}={test}" for test in LACKING.get(line, ())]
        if line in LEAKING:
            left_out += ["-W", LEAKS]
        log = WHERE / f"{line}.log"
        with log.open("w") as out:
            run = subprocess.run(
                [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, *options.tests],
                cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
        said = log.read_text(errors="replace")
        summary = re.findall(r"^.*\d+ (?:passed|failed|error).*$", said, re.MULTILINE)
        print(f"pyspark {version}: {summary[-1] if summary else 'pytest has ended'}", flush=True)
        for told in re.findall(r"^(?:FAILED|ERROR) .*", said, re.MULTILINE):
            print(f"    {told}", flush=True)
        failed = failed or run.returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
