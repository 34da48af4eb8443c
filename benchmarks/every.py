# SPDX-License-Identifier: Apache-2.0
"""All measurements of docs/performance.md, one after another.

    make bench ARGS="--all --broker tcp://localhost:30114 --broker-name 'upstream main of 2026-08-21'"
    python benchmarks/every.py --broker tcp://localhost:30114 [--only NAME ...] [--skip NAME ...] [--quick]
    python benchmarks/every.py --list

The measurements need a real broker on this machine, the official client (the package ``blazingmq``) and an
otherwise idle machine, for two to three hours. Each program runs with the options of the page, and writes its
results into ``build``. A failure does not stop the others: the program is named at the end, and ``--only``
repeats it. Afterwards ``python benchmarks/page.py`` writes the page.

``threads`` needs a free-threaded interpreter in addition: run this program with ``--only threads`` there.
``interpreters`` needs the names of the interpreters in the variable ``BMQ_PYTHONS``. ``interpreters`` and
``hour``, which takes an hour, run only if named with ``--only``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: Stands for the address of the broker in the arguments of a step.
BROKER = "{broker}"
#: Stands for the folder of the results.
OUTPUT = "{output}"


@dataclass(frozen=True)
class Step:
    """A program to run.

    Attributes:
        program: file and arguments.
        quick: further arguments for a short look.
        minutes: approximate time on two cores.
        named: whether ``BMQ_BROKER_URI`` has the address of the broker.
        alone: whether the step runs only if it is named.
    """

    program: str
    quick: str
    minutes: float
    named: bool = False
    alone: bool = False

    def command(self, broker: str, output: Path, quick: bool) -> list[str]:
        words = [*self.program.split(), *(self.quick.split() if quick else ())]
        given = {BROKER: broker, OUTPUT: str(output)}
        for placeholder, text in given.items():
            words = [word.replace(placeholder, text) for word in words]
        return [sys.executable, str(HERE / words[0]), *words[1:]]


STEPS = {
    "paths": Step(
        "run.py --only paths latency large --rounds 5 --output {output}/benchmark",
        "--rounds 1 --count 20000 --patience 0",
        25,
        named=True,
    ),
    "curves": Step(
        "run.py --only curves --rounds 5 --output {output}/benchmark",
        "--rounds 1 --count 20000 --patience 0",
        10,
        named=True,
    ),
    "tails": Step("tails.py {broker} --seconds 60 --output {output}/tails", "--seconds 2", 18),
    "limits": Step(
        "limits.py --rounds 5 --output {output}/limits", "--rounds 1 --count 20000", 10, named=True
    ),
    "properties": Step(
        "properties.py {broker} --rounds 5 --output {output}/properties", "--rounds 1 --count 20000", 3
    ),
    "payloads": Step("payloads.py --rounds 7 --output {output}/payloads", "--rounds 1 --megabytes 32", 8),
    "scale": Step("scale.py --rounds 5 --output {output}/scale.json", "--rounds 1", 20),
    "stages": Step("stages.py --output {output}/stages", "", 1),
    "broker": Step("broker.py --output {output}/broker", "--messages 100000 --count 20000 --window 3", 6),
    "startup": Step("startup.py --broker {broker} --rounds 9 --output {output}/startup", "--rounds 1", 1),
    "idle": Step("idle.py --broker {broker} --output {output}/idle", "--sessions 50 --seconds 5", 4),
    "memory": Step("memory.py --broker {broker} --output {output}/memory", "--messages 5000 --rounds 1", 8),
    "waiting": Step("waiting.py --output {output}/waiting", "--rounds 1 --counts 10 1000", 6, named=True),
    "programs": Step("programs.py --output {output}", "--messages 1000 --rounds 1", 3),
    "observed": Step("observed.py --rounds 5 --count 20000 --output {output}/observed", "--rounds 1", 6),
    "blocking": Step("blocking.py --output {output}/blocking", "--rounds 1 --count 2000", 5, named=True),
    "threads": Step("threads.py --output {output}/threads", "--rounds 1 --count 10000", 3),
    "interpreters": Step(
        "interpreters.py {broker} --output {output}/interpreters", "--rounds 1 --count 10000", 4, alone=True
    ),
    "cores": Step("cores.py {broker} --output {output}/cores", "--rounds 1 --count 200", 3),
    "hour": Step(
        "memory_hour.py --broker {broker} --samples {output}/hour.jsonl", "--seconds 20", 62, alone=True
    ),
}


def run(name: str, options: argparse.Namespace) -> tuple[bool, float]:
    """Run a step; return whether it succeeded, and its seconds. Its output goes into a file."""
    step = STEPS[name]
    environment = {name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"}
    if step.named:
        environment["BMQ_BROKER_URI"] = options.broker
    if options.broker_name:
        environment["BMQ_BROKER_NAME"] = options.broker_name
    log = options.output / "every" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with log.open("w") as file:
        command = step.command(options.broker, options.output, options.quick)
        done = subprocess.run(command, stdout=file, stderr=file, env=environment, check=False)
    seconds = time.monotonic() - begin
    if done.returncode:
        print(f"{name} failed after {seconds:,.0f} s: see {log}", flush=True)
    else:
        print(f"{name}: {seconds:,.0f} s", flush=True)
    return not done.returncode, seconds


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", default=os.environ.get("BMQ_BROKER_URI", ""), help="its address")
    parser.add_argument("--broker-name", default="", help="what the broker is, for the page")
    parser.add_argument("--only", nargs="+", choices=STEPS, metavar="NAME", help="run only these")
    parser.add_argument(
        "--skip", nargs="+", choices=STEPS, default=[], metavar="NAME", help="leave these out"
    )
    parser.add_argument("--quick", action="store_true", help="a short look, in some five minutes")
    parser.add_argument("--output", type=Path, default=Path("build"), metavar="FOLDER")
    parser.add_argument("--list", action="store_true", help="print the programs and their times only")
    options = parser.parse_args(arguments)
    names = options.only or [name for name, step in STEPS.items() if not step.alone]
    names = [name for name in names if name not in options.skip]
    record = options.output / "every.json"
    times: dict[str, float] = json.loads(record.read_text()) if record.exists() else {}
    if options.list:
        minutes = {name: times[name] / 60 if name in times else STEPS[name].minutes for name in names}
        for name in names:
            kind = "measured" if name in times else "estimate"
            print(f"{name:<10}  {minutes[name]:>5.1f} min, {kind}  {STEPS[name].program}")
        print(f"{'in all':<10}  {sum(minutes.values()):>5.1f} min")
        return 0
    if not options.broker:
        parser.error("give the address of a real broker on this machine: --broker tcp://localhost:30114")
    options.output.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for number, name in enumerate(names, 1):
        if not options.quick:
            print(f"{number} of {len(names)}: {name}, some {STEPS[name].minutes:g} minutes", flush=True)
        succeeded, times[name] = run(name, options)
        if not succeeded:
            failed.append(name)
        if not options.quick:
            record.write_text(json.dumps(times, indent=1) + "\n")
    print(f"in all: {sum(times[name] for name in names) / 60:.0f} minutes; now: python benchmarks/page.py")
    if failed:
        print(f"failed, repeat with --only {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
