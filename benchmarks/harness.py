# SPDX-License-Identifier: Apache-2.0
"""What all programs share: a broker, jobs in processes, rounds in turns, rows of the table, the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
DOMAIN = "bmq.test.mem.priority"
TIMEOUT = 300.0
CALLS = 10_000


@dataclass(frozen=True)
class Bench:
    """Where a step of a round measures.

    Attributes:
        broker: address of the broker.
        package: checkout of an earlier version of this client, instead of this one.
        scale: part of the messages and seconds of a full run.
    """

    broker: str
    package: str = ""
    scale: float = 1.0

    def count(self, messages: int) -> int:
        return max(200, int(messages * self.scale))

    def command(self, client: str, case: str, count: int = 0, **options: Any) -> dict[str, Any]:
        """Return the arguments of a process that runs a case of a program of ``clients/``.

        Args:
            client: name of the program.
            case: name of a function of the program.
            count: number of messages.
            options: what else the case knows. Without ``queue``, the queue is new.
        """
        job = {
            "broker": self.broker,
            "case": case,
            "count": count,
            "size": 256,
            "properties": False,
            "loop": "uvloop",
            "seed": uuid.uuid4().hex,
            "queue": fresh_queue(),
            **options,
        }
        program = str(HERE / "clients" / f"{client}.py")
        return {"args": [sys.executable, program, json.dumps(job)], "env": environment(self.package)}

    def job(self, client: str, case: str, count: int = 0, **options: Any) -> dict[str, Any]:
        """Run such a process, and return its figures."""
        command = self.command(client, case, count, **options)
        done = subprocess.run(**command, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode:
            raise SystemExit(f"{client} {case} failed:\n{done.stderr or done.stdout}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    def chain(self, *jobs: tuple[str, str, str], count: int, **options: Any) -> dict[str, dict[str, float]]:
        """Run jobs with one queue, each with the messages of the job before: names, clients and cases.

        A job without a name is not measured.
        """
        options = {"queue": fresh_queue(), "seed": uuid.uuid4().hex, **options}
        found = {name: self.job(client, case, count, **options) for name, client, case in jobs}
        found.pop("", None)
        return found


#: Measures something, and returns the figures by the names that rows know.
Step = Callable[[Bench], dict[str, dict[str, float]]]


@dataclass(frozen=True)
class Row:
    """A row of the table: one figure of this client, and the measurements that it is compared with.

    Attributes:
        path: what is measured, for readers.
        ours: name of the measurement.
        figure: name of the figure in the measurement.
        official: name of the official client's measurement.
        floor: name of the floor's measurement.
        goal: what is compared, how, and the ratio: "official >= 3.5".
    """

    path: str
    ours: str
    figure: str = "rate"
    official: str = ""
    floor: str = ""
    goal: str = ""


#: What a figure is, in the table.
UNITS = {"rate": "a second", "cpu_us": "CPU us", "p50_us": "p50 us", "p99_us": "p99 us"}

Figures = dict[str, dict[str, list[float]]]


def measure(
    program: ModuleType, bench: Bench, before: str, rounds: int, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Make each step of a program once in each round, and return the rows with the figures of all rounds."""
    earlier = replace(bench, package=before)
    steps = [(step, where) for step in program.OURS for where in (bench, earlier)[: 2 if before else 1]]
    steps += [(step, bench) for step in program.OTHERS]
    now: Figures = defaultdict(lambda: defaultdict(list))
    then: Figures = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        shift = number * 3 % len(steps)
        for at, (step, where) in enumerate(steps[shift:] + steps[:shift], 1):
            tell(f"{program.__name__}: round {number + 1} of {rounds}, step {at} of {len(steps)}")
            for name, figures in step(where).items():
                for figure, value in figures.items():
                    (then if where.package else now)[name][figure].append(value)
    return [
        {
            "path": row.path,
            "unit": UNITS.get(row.figure, row.figure),
            "goal": row.goal,
            "ours": _rounded(now[row.ours][row.figure]),
            "official": _rounded(now[row.official][row.figure]),
            "floor": _rounded(now[row.floor][row.figure]),
            "before": _rounded(then[row.ours][row.figure]),
        }
        for row in program.ROWS
        if row.ours in now
    ]


def _rounded(values: list[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def fresh_queue() -> str:
    """Return the URI of an unused queue."""
    return f"bmq://{DOMAIN}/benchmark-{uuid.uuid4().hex}"


@contextmanager
def broker() -> Iterator[str]:
    """The broker of ``BMQ_BROKER_URI``, or an embedded broker in a separate process: its address."""
    named = os.environ.get("BMQ_BROKER_URI")
    if named:
        yield named
        return
    command = [sys.executable, "-m", "bmq", "broker", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if " ready on " not in line:
                raise SystemExit(f"the embedded broker did not start: {line!r}")
            yield line.split()[-1]
        finally:
            process.terminate()


def broker_name() -> str:
    """Return the description of the broker: the text of ``BMQ_BROKER_NAME``, or where it comes from."""
    default = "named by BMQ_BROKER_URI" if os.environ.get("BMQ_BROKER_URI") else "the embedded broker"
    return os.environ.get("BMQ_BROKER_NAME") or default


def environment(package: str = "") -> dict[str, str]:
    """Return the environment of a job.

    Compiled modules are kept, as for installed packages. ``BMQ_BROKER_URI`` is left out: the official client
    prefers the variable to the address in the program.
    """
    without = ("PYTHONDONTWRITEBYTECODE", "BMQ_BROKER_URI")
    kept = {name: value for name, value in os.environ.items() if name not in without}
    caches = {"PYTHONPYCACHEPREFIX": str(HERE.parent / "build" / "pycache")}
    return kept | caches | {"PYTHONPATH": package or str(HERE.parent)}


def machine() -> dict[str, Any]:
    """Return a description of the machine."""
    model = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    for line in cpus.read_text().splitlines() if cpus.exists() else ():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "call_ns": round(call_ns()),
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
