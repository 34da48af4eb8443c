# SPDX-License-Identifier: Apache-2.0
"""The same service with bmq and with FastStream on RabbitMQ, measured the same way.

    python -m pip install --group compare
    bmq broker --port 30114 &
    python benchmarks/beside_faststream/run.py --bmq tcp://127.0.0.1:30114 --rabbit amqp://guest:guest@127.0.0.1

prints the tables of docs/faststream.md: lines of code, planted mistakes, duration of the tests, and CPU time
of the client process for each message. Both brokers run before the program, in separate processes.
"""

from __future__ import annotations

import argparse
import io
import statistics
import subprocess
import sys
import tempfile
import time
import tokenize
from pathlib import Path
from xml.etree import ElementTree

import planted

HERE = Path(__file__).parent
FRAMEWORKS = {"bmq": "orders_bmq.py", "faststream": "orders_faststream.py"}
CASES = {
    "bare": "bare loop of the client library",
    "message": "handler of the payload",
    "value": "handler of a value",
    "middleware": "handler of a value, one middleware",
    "dependencies": "handler of a value, two dependencies",
    "posting": "bare loop that posts a result",
    "publish": "handler of a value, `publish_to`",
}
#: The loop that a case is compared with, if not "bare".
BASES = {"bare": None, "posting": None, "publish": "posting"}


def lines(file: str) -> int:
    """The number of lines with code: without comments, docstrings and empty lines."""
    code = (HERE / file).read_text(encoding="utf-8")
    counted: set[int] = set()
    layout = (
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.COMMENT,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in layout:
            begins = begins or token.type == tokenize.NEWLINE
            continue
        if not (begins and token.type == tokenize.STRING):
            counted.update(range(token.start[0], token.end[0] + 1))
        begins = False
    return len(counted)


def tests(framework: str) -> tuple[float, float]:
    """Seconds of the service's tests: the tests alone, and the whole process with all imports."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        began = time.perf_counter()
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(HERE / "pytest.ini"),
             f"--junitxml={report}", f"test_{FRAMEWORKS[framework]}"],
            cwd=HERE, capture_output=True, text=True, check=False,
        )  # fmt: skip
        took = time.perf_counter() - began
        assert run.returncode == 0, run.stdout
        cases = [float(each.attrib["time"]) for each in ElementTree.parse(report).iter("testcase")]
    assert len(cases) == 7
    return sum(cases), took


def cpu(framework: str, case: str, count: int, address: str) -> float:
    """CPU time for each message in microseconds."""
    run = subprocess.run(
        [sys.executable, "overhead.py", framework, case, str(count), address],
        cwd=HERE, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(run.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bmq", required=True)
    parser.add_argument("--rabbit", required=True)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-only", action="store_true", help="only the CPU time of the client process")
    arguments = parser.parse_args()
    if not arguments.cpu_only:
        print_service(arguments.rounds)
        planted.main()
    print_cpu(arguments)


def print_service(rounds: int) -> None:
    """Print the size of the service, and the duration of its tests."""
    print("| | bmq | FastStream |\n| --- | ---: | ---: |")
    for what, prefix in (("service", ""), ("its seven tests", "test_")):
        print(
            f"| lines of code, {what} | "
            + " | ".join(str(lines(prefix + each)) for each in FRAMEWORKS.values())
            + " |"
        )
    took: dict[str, list[tuple[float, float]]] = {framework: [] for framework in FRAMEWORKS}
    for _ in range(rounds):
        for framework in FRAMEWORKS:
            took[framework].append(tests(framework))
    for at, what in ((0, "the seven tests"), (1, "the whole run of pytest")):
        medians = [statistics.median(each[at] for each in took[framework]) for framework in FRAMEWORKS]
        print(f"| seconds, {what} | " + " | ".join(f"{each:.3f}" for each in medians) + " |")


def print_cpu(arguments: argparse.Namespace) -> None:
    """Print the CPU time of the client process for each message."""
    used: dict[tuple[str, str], list[float]] = {(each, case): [] for case in CASES for each in FRAMEWORKS}
    for _ in range(arguments.rounds):
        for (framework, case), measured in used.items():
            address = arguments.bmq if framework == "bmq" else arguments.rabbit
            measured.append(cpu(framework, case, arguments.count, address))
    print("\n| microseconds of CPU a message | bmq | added | FastStream | added |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for case, what in CASES.items():
        cells = [what]
        for framework in FRAMEWORKS:
            median = statistics.median(used[framework, case])
            base = BASES.get(case, "bare")
            added = median - statistics.median(used[framework, base]) if base is not None else None
            cells += [f"{median:.1f}", "" if added is None else f"{added:.1f}"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
