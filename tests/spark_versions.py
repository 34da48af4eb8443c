# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of Spark on every supported line of pyspark, each in an environment of its own.

    make spark-versions [ARGS="--only 4.0 4.2"]

The environments are made in ``.spark-versions``, from the index that pip is configured for, and kept. Prints
a line for each version: what ran, and what failed. What a version cannot do is in ``LACKING``: those tests
are not run there, and docs/spark.md says the same.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
WHERE = ROOT / ".spark-versions"

#: The lines of pyspark that are supported, the oldest first.
LINES = ("4.0", "4.1", "4.2", "4.3")

#: Files that are about what a line does not have.
LACKING = {
    "4.0": ("tests/spark/test_datasource.py",),  # no read limits
    "4.1": ("tests/spark/test_datasource.py",),
}


def environment(line: str) -> Path:
    """Make the environment of one line of pyspark, if there is none, and return its interpreter."""
    folder = WHERE / line
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        print(f"pyspark {line}: downloading some 500 MB", flush=True)
        wanted = ["--editable", f"{ROOT}[spark]", "--group", f"{ROOT}/pyproject.toml:test"]
        wanted += [f"pyspark[connect]=={line}.*", "protobuf", "fastavro"]
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
        left_out = [f"--ignore={path}" for path in LACKING.get(line, ())]
        run = subprocess.run(
            [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, *options.tests],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        print(f"pyspark {version}: {run.stdout.strip().splitlines()[-1]}", flush=True)
        for told in re.findall(r"^(?:FAILED|ERROR) .*", run.stdout, re.MULTILINE):
            print(f"    {told}", flush=True)
        failed = failed or run.returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
