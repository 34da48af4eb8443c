# SPDX-License-Identifier: Apache-2.0
"""The time to start: imports, the command line, and the first acknowledgement, each beside a floor.

    python benchmarks/startup.py [--rounds 9] [--broker tcp://localhost:30114]

All programs run in turn in each round, each in a new process, with compiled modules. The table shows medians
of the CPU time, which other programs disturb least, and of the time that passes. Writes
``build/startup.json`` for ``benchmarks/page.py``. Without ``--broker`` an embedded broker runs in its own
process.

The floor of the first acknowledgement is a blocking socket that sends the same bytes: the script records the
client's conversation once, and replays the conversation in a process without asyncio.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness import broker_name, write_table

ROOT = Path(__file__).resolve().parent.parent
QUEUE = "bmq://bmq.test.mem.priority/startup"

FIRST_ACK = """
import sys, time
import bmq
bmq.connect, bmq.PutMessage
async def main():
    begin = time.perf_counter()
    async with bmq.connect(sys.argv[1]) as session:
        queue = await session.open_queue(sys.argv[2], write=True)
        opened = time.perf_counter()
        await queue.post(b"first")
        end = time.perf_counter()
        print(f"[{(end - begin) * 1000}, {(end - opened) * 1000}]")
bmq.run(main())
"""

BARE = """
import base64, json, socket, sys, time
host, port, steps = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
steps = [(base64.b64decode(sent), received) for sent, received in steps]
begin = opened = time.perf_counter()
with socket.create_connection((host, port), timeout=60) as bare:
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for sent, received in steps:
        opened = time.perf_counter()
        bare.sendall(sent)
        while received > 0:
            data = bare.recv(65536)
            if not data:
                raise SystemExit("the broker closed the connection")
            received -= len(data)
    end = time.perf_counter()
print(f"[{(end - begin) * 1000}, {(end - opened) * 1000}]")
"""

TYPER = """
import gc
gc.disable()
import asyncio
import typer
app = typer.Typer()
@app.command()
def post(queue: str, payload: str, broker: str = ""):
    pass
app(["queue", "payload"], standalone_mode=False)
gc.freeze()
"""

CLIENT = "import asyncio, ssl, logging, inspect, dataclasses, orjson, construct, google_crc32c"


@dataclass(frozen=True)
class Program:
    """A program to start.

    Attributes:
        arguments: arguments for the interpreter.
        floor: name of the program whose time no change of this client can undercut.
        goal: goal in milliseconds, on the machine where ``import bmq`` took 42 ms.
    """

    arguments: list[str]
    floor: str = ""
    goal: float | None = None


def programs(uri: str) -> dict[str, Program]:
    return {
        "python -c pass": Program(["-c", "pass"]),
        "import asyncio": Program(["-c", "import asyncio"]),
        "import bmq": Program(["-c", "import bmq"], "python -c pass", 25),
        "the modules that a client needs from elsewhere": Program(["-c", CLIENT]),
        "import bmq; bmq.connect": Program(
            ["-c", "import bmq; bmq.connect"], "the modules that a client needs from elsewhere"
        ),
        "bmq --version": Program(["-m", "bmq", "--version"], "python -c pass", 60),
        "a verb that does nothing, with typer and asyncio": Program(["-c", TYPER]),
        "bmq post": Program(
            ["-m", "bmq", "post", "--quiet", "--broker", uri, QUEUE, "hello"],
            "a verb that does nothing, with typer and asyncio",
            150,
        ),
    }


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(ROOT)}


def timed(arguments: list[str]) -> tuple[float, float, str]:
    """Run a program; return its CPU time and the time that passed, in milliseconds, and its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        env=_environment(),
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    passed = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu * 1000, passed * 1000, done.stdout


@contextmanager
def embedded_broker() -> Iterator[str]:
    """Run an embedded broker in a process of its own; yield its URI."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bmq", "broker", "--port", "0"],
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if " on tcp://" in line:
                    yield line.split(" on ")[1].split()[0]
                    return
            log.seek(0)
            raise SystemExit(f"the embedded broker did not start: {log.read()}")
        finally:
            process.terminate()
            process.wait(10)


class Recorder:
    """Relays one connection to the broker, and remembers who sent what."""

    def __init__(self, broker: tuple[str, int]) -> None:
        self._broker = broker
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.uri = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self.pieces: list[tuple[bool, bytes]] = []
        self._thread = threading.Thread(target=self._relay)
        self._thread.start()

    def _relay(self) -> None:
        client, _ = self._listening.accept()
        broker = socket.create_connection(self._broker)
        other = {client: broker, broker: client}
        with client, broker, selectors.DefaultSelector() as selector:
            for each in other:
                selector.register(each, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    came: Any = key.fileobj
                    data = came.recv(65536)
                    if not data:
                        return
                    self.pieces.append((came is client, data))
                    other[came].sendall(data)

    def steps(self) -> list[tuple[bytes, int]]:
        """Return what the client sent, with the number of bytes received before it sent more.

        The conversation ends with the answer to the post: the client then only says goodbye.
        """
        self._thread.join(10)
        self._listening.close()
        steps: list[tuple[bytes, int]] = []
        for sent, data in self.pieces:
            if sent and (not steps or steps[-1][1]):
                steps.append((data, 0))
            elif sent:
                steps[-1] = (steps[-1][0] + data, 0)
            else:
                steps[-1] = (steps[-1][0], steps[-1][1] + len(data))
        last = max(place for place, (sent, _) in enumerate(steps) if b"first" in sent)
        return steps[: last + 1]


def first_ack(uri: str, rounds: int) -> dict[str, list[list[float]]]:
    """Return the milliseconds from the connecting to the first acknowledgement, and those of the post."""
    address = urlsplit(uri)
    host, port = address.hostname or "localhost", address.port or 30114
    recorder = Recorder((host, port))
    timed(["-c", FIRST_ACK, recorder.uri, QUEUE])
    steps = recorder.steps()
    encoded = json.dumps([(base64.b64encode(sent).decode(), received) for sent, received in steps])
    measured: dict[str, list[list[float]]] = {"bmq": [], "bare": []}
    for _ in range(rounds):
        measured["bmq"].append(json.loads(timed(["-c", FIRST_ACK, uri, QUEUE])[2]))
        measured["bare"].append(json.loads(timed(["-c", BARE, host, str(port), encoded])[2]))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--broker", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "startup", metavar="NAME")
    arguments = parser.parse_args()
    if arguments.broker:
        measure(arguments.broker, broker_name(arguments.broker), arguments.rounds, arguments.output)
    else:
        with embedded_broker() as uri:
            measure(uri, "embedded", arguments.rounds, arguments.output)


def measure(uri: str, broker: str, rounds: int, output: Path) -> None:
    chosen = programs(uri)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    for number in range(rounds + 1):
        for name, program in chosen.items():
            cpu, passed, _ = timed(program.arguments)
            if number:  # the first round compiles
                times[name].append((cpu, passed))
    acks = first_ack(uri, rounds)
    table: list[list[str]] = []
    middle = {
        name: [statistics.median(each) for each in zip(*pairs, strict=True)] for name, pairs in times.items()
    }
    for name, program in chosen.items():
        cpu, passed = middle[name]
        floor = middle[program.floor][0] if program.floor else None
        table.append(
            [
                name,
                f"{cpu:.0f}",
                f"{passed:.0f}",
                f"{program.goal:.0f}" if program.goal else "",
                f"{floor:.0f}: {program.floor}" if floor else "",
                f"{cpu / floor:.2f}" if floor else "",
            ]
        )
    for place, what in enumerate(("connect to first ack, in the process", "of this, the post")):
        ours, bare = (statistics.median(each[place] for each in acks[who]) for who in ("bmq", "bare"))
        goal = "1.5 times" if not place else ""
        table.append(
            [what, "", f"{ours:.1f}", goal, f"{bare:.1f}: a socket, the same bytes", f"{ours / bare:.2f}"]
        )
    columns = ["program", "CPU ms", "ms", "goal, ms", "floor in the same run", "times"]
    write_table(output, columns, table, about=f"broker: {broker}; median of {rounds} rounds", acks=acks)


if __name__ == "__main__":
    main()
