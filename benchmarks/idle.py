# SPDX-License-Identifier: Apache-2.0
"""What idle sessions cost: CPU time, memory and wake-ups of one process, beside bare connections.

    python benchmarks/idle.py [--sessions 1000] [--seconds 60] [--broker tcp://localhost:30114]

Two processes run one after the other against the same broker: one with sessions, each with an open queue, and
one with as many bare asyncio protocols that send a heartbeat at the same interval. Without ``--broker`` an
embedded broker runs in its own process. Writes ``build/idle.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import broker_name, write_table
from startup import ROOT, embedded_broker

LIVENESS = 10.0
QUEUE = "bmq://bmq.test.mem.priority/idle"


def resident() -> int:
    """Return the bytes of memory in use by this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Counting(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    """Counts how often the event loop wakes up."""

    returns = 0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(timeout)
        self.returns += 1
        return ready


async def idle(make: Any, count: int, seconds: float, selector: Counting) -> dict[str, float]:
    kept = [await make() for _ in range(10)]  # modules and caches are loaded
    gc.collect()
    before = resident()
    for start in range(0, count, 50):
        kept += await asyncio.gather(*(make() for _ in range(min(50, count - start))))
    await asyncio.sleep(2 * LIVENESS)
    gc.collect()
    memory = resident() - before
    usage, woken, began = resource.getrusage(resource.RUSAGE_SELF), selector.returns, time.perf_counter()
    await asyncio.sleep(seconds)
    passed = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
    return {
        "bytes": memory / count,
        "cpu_ms_per_s": cpu / passed * 1000,
        "wakes_per_s": (selector.returns - woken) / passed,
        "connections": len(kept),
    }


async def sessions(uri: str, count: int, seconds: float, selector: Counting) -> dict[str, float]:
    import bmq

    async def make() -> Any:
        session = await bmq.connect(uri, liveness=LIVENESS)
        return session, await session.open_queue(QUEUE, write=True)

    return await idle(make, count, seconds, selector)


async def bare(uri: str, count: int, seconds: float, selector: Counting) -> dict[str, float]:
    from urllib.parse import urlsplit

    from bmq.wire.control import ClientIdentity, ClientLanguage, ClientType, Codec, GuidInfo, encode_event
    from bmq.wire.event import HEARTBEAT_REQ

    address = urlsplit(uri)
    identity = ClientIdentity(
        protocol_version=1,
        sdk_version=10000,
        client_type=ClientType.E_TCPCLIENT,
        process_name="idle",
        pid=1,
        session_id=1,
        host_name="",
        features="PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX",
        sdk_language=ClientLanguage.E_UNKNOWN,
        guid_info=GuidInfo(client_id="", nano_seconds_from_epoch=0),
    )
    greeting = encode_event(identity, Codec.JSON)
    loop = asyncio.get_running_loop()

    class Bare(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            transport.write(greeting)
            loop.call_later(LIVENESS / 3, self.beat)

        def beat(self) -> None:
            self.transport.write(HEARTBEAT_REQ)
            loop.call_later(LIVENESS / 3, self.beat)

        def data_received(self, data: bytes) -> None:
            pass

    async def make() -> Any:
        return await loop.create_connection(Bare, address.hostname, address.port or 30114)

    return await idle(make, count, seconds, selector)


def child(what: str, uri: str, count: int, seconds: float) -> None:
    selector = Counting()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        result = runner.run({"sessions": sessions, "bare": bare}[what](uri, count, seconds, selector))
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--broker", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "idle", metavar="NAME")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.broker, arguments.sessions, arguments.seconds)
    elif arguments.broker:
        measure(arguments.broker, arguments)
    else:
        with embedded_broker() as uri:
            measure(uri, arguments)


def measure(uri: str, arguments: argparse.Namespace) -> None:
    count, limits = arguments.sessions, resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    results: dict[str, dict[str, float]] = {}
    for what in ("sessions", "bare"):
        command = [sys.executable, __file__, "--child", what, "--broker", uri]
        command += ["--sessions", str(count), "--seconds", str(arguments.seconds)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        results[what] = json.loads(printed)
    ours, floor = results["sessions"], results["bare"]
    columns = [f"{count:,} idle connections", "sessions with a queue", "bare asyncio protocols", "times"]
    rows = [
        [
            name,
            f"{ours[key] / by:,.{digits}f}",
            f"{floor[key] / by:,.{digits}f}",
            f"{ours[key] / floor[key]:.2f}",
        ]
        for name, key, by, digits in (
            ("CPU, ms a second", "cpu_ms_per_s", 1, 1),
            ("wake-ups of the event loop a second", "wakes_per_s", 1, 0),
            ("memory each, kB", "bytes", 1000, 1),
        )
    ]
    what = broker_name(arguments.broker) if arguments.broker else "embedded"
    about = f"broker: {what}; {arguments.seconds:g} s each"
    write_table(arguments.output, columns, rows, about=about, figures=results)


if __name__ == "__main__":
    main()
