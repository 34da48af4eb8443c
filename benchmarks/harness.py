# SPDX-License-Identifier: Apache-2.0
"""Common parts of all benchmarks: a broker, and measurements in separate processes."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DOMAIN = "bmq.test.mem.priority"
TIMEOUT = 300.0
CALLS = 10_000


@dataclass(frozen=True)
class Job:
    """One measurement.

    Attributes:
        client: program in ``clients/``.
        case: function in the program.
        count: number of messages.
        size: size of a payload, in bytes.
        properties: whether each message has two properties.
        loop: event loop, "uvloop" or "asyncio".
        concurrency: number of concurrent handlers, in cases with handlers.
        timeout: timeout of a handler in seconds; 0 for none.
        unconfirmed: limit of delivered messages without a confirmation.
        seed: source of the GUIDs of pre-encoded messages.
        queue: URI of the queue; by default a new queue for each measurement.
        awake: whether the client polls instead of sleeping (``busy_poll``).
        package: checkout of another version of the client, instead of this one.
    """

    client: str
    case: str
    count: int = 100_000
    size: int = 256
    properties: bool = False
    loop: str = "uvloop"
    concurrency: int = 1
    timeout: float = 0.0
    unconfirmed: int = 1_000_000
    seed: str = ""
    queue: str = ""
    awake: bool = False
    package: str = ""

    def run(self, broker: str) -> dict[str, Any]:
        """Make the measurement in a new process, and return its output."""
        argument = json.dumps({**asdict(self), "broker": broker})
        program = str(HERE / "clients" / f"{self.client}.py")
        done = subprocess.run(
            [sys.executable, program, argument],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env=environment(BMQ_BROKER_URI=broker, **({"PYTHONPATH": self.package} if self.package else {})),
        )
        if done.returncode:
            raise SystemExit(f"{self.client} {self.case} failed:\n{done.stderr or done.stdout}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


def fresh_queue(job: Job) -> Job:
    """Return the same job with an unused queue and unused GUIDs."""
    name = uuid.uuid4().hex
    return replace(job, queue=f"bmq://{DOMAIN}/benchmark-{name}", seed=name)


def wait_until_idle(limit: float) -> None:
    """Wait up to this many seconds until the machine is idle; only with /proc/stat."""
    end = time.monotonic() + limit
    while time.monotonic() < end and Path("/proc/stat").exists():
        before = _ticks()
        time.sleep(0.2)
        after = _ticks()
        if after[1] - before[1] >= 0.9 * (after[0] - before[0]):
            return


def _ticks() -> tuple[int, int]:
    """Return the ticks of all cores so far, and the idle ticks."""
    numbers = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(numbers), numbers[3] + numbers[4]


@dataclass
class Series:
    """The results of one job over all rounds."""

    name: str
    results: list[dict[str, Any]] = field(default_factory=list)

    def values(self, key: str) -> list[float]:
        return [result[key] for result in self.results]

    def median(self, key: str = "rate") -> float:
        return statistics.median(self.values(key))


def reduced(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with percentiles instead of samples."""
    samples = sorted(result.pop("samples_us", []))
    if samples:
        result["p50_us"] = statistics.median(samples)
        result["p99_us"] = samples[int(len(samples) * 0.99)]
    return result


def ratio(ours: Series, theirs: Series, key: str = "rate") -> tuple[float, float, float]:
    """Return median, minimum and maximum of the ratios within a round, which cancel slow variations."""
    ratios = [a / b for a, b in zip(ours.values(key), theirs.values(key), strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


@contextmanager
def broker() -> Iterator[tuple[str, str]]:
    """The broker to measure with: its URI and description.

    ``BMQ_BROKER_URI`` names the broker; otherwise the embedded broker is started in a separate process.
    """
    named = os.environ.get("BMQ_BROKER_URI")
    if named:
        yield named, broker_name("named by BMQ_BROKER_URI")
        return
    with embedded_broker() as uri:
        yield uri, "the embedded broker"


@contextmanager
def embedded_broker() -> Iterator[str]:
    """An embedded broker in a separate process: its URI."""
    with started_broker("-m", "bmq", "broker", "--port", "0") as uri:
        yield uri


@contextmanager
def started_broker(*arguments: str) -> Iterator[str]:
    """A Python program that prints its address like ``bmq broker``: its URI."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if " ready on " not in line:
            raise SystemExit(f"the embedded broker did not start: {line!r}")
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def broker_name(default: str) -> str:
    """Return the description of the broker for the pages: the text of ``BMQ_BROKER_NAME``, or ``default``."""
    return os.environ.get("BMQ_BROKER_NAME") or default


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a measurement.

    Compiled modules are kept, as for installed packages. ``BMQ_BROKER_URI`` is left out unless given: the
    official client prefers the variable to the address in the program.
    """
    without = ("PYTHONDONTWRITEBYTECODE", "BMQ_BROKER_URI")
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return {
        **kept,
        "PYTHONPATH": str(HERE.parent),
        "PYTHONPYCACHEPREFIX": str(HERE.parent / "build" / "pycache"),
        **more,
    }


def write_tables(
    output: Path, tables: Mapping[str, tuple[Sequence[str], list[list[str]]]], *, about: str, **more: Any
) -> None:
    """Print tables, and write them for ``page.py``, with the figures behind them.

    Args:
        output: file without its suffix.
        tables: heads of the columns, and rows, by the name of the table in the page.
        about: broker, rounds and messages, for the line below the table.
        more: figures to keep.
    """
    found = {name: {"columns": list(columns), "rows": rows} for name, (columns, rows) in tables.items()}
    output.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "about": about, "tables": found, **more}
    output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for columns, rows in tables.values():
        for row in (columns, ["---"] * len(columns), *rows):
            print("| " + " | ".join(row) + " |")
        print()
    print(about)


def machine() -> dict[str, Any]:
    """Return a description of the machine."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "call_ns": call_ns(),
        "date": time.strftime("%Y-%m-%d"),
    }


def call_ns() -> float:
    """Return the nanoseconds of a call of an empty function: the interpreter's speed on this machine.

    An interpreter built with profile-guided optimization takes half the time of other builds.
    """

    def nothing() -> None:
        pass

    def calls() -> float:
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            nothing()
        return (time.perf_counter_ns() - begin) / CALLS

    return min(calls() for _ in range(100))
