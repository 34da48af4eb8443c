"""The embedded broker under load: every test suite of a user runs on it.

    python benchmarks/broker.py [--messages 1000000] [--output NAME]

Two measurements, each on a broker in a process of its own:

* end to end on one core: a producer of pre-encoded events and a consumer at the same time, one queue; the
  broker's CPU time a message is what one core can do, whatever else the machine is busy with;
* 200 connections, 500 queues, a million messages: stored first, then consumed and confirmed. Every message is
  checked to arrive once. The memory of the broker's process is read with the queues open, full, empty with
  the GUIDs of the messages still remembered, and empty when the time for that is over; each time also what
  of it is the C library's heap, which keeps most of what it once had in use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import DOMAIN, HERE, Job, embedded_broker, environment, fresh_queue, machine
from rich.console import Console
from rich.table import Table

import bmq

CONNECTIONS, QUEUES = 200, 500
PAYLOAD = 256
#: Seconds that GUIDs are remembered; the first ones have to be when the last message is confirmed.
WINDOW = 60
_LIMITS = {"messages": 10_000_000, "bytes": 2**34}
_DOMAIN = {
    "name": DOMAIN,
    "mode": {"priority": {}},
    "storage": {"domainLimits": _LIMITS, "queueLimits": _LIMITS, "config": {"inMemory": {}}},
    "messageTtl": 3600,
    "deduplicationTimeMs": WINDOW * 1000,
}


def resident(pid: int) -> int:
    """Bytes of memory a process has."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise SystemExit("no VmRSS in /proc")


def heap(pid: int) -> int:
    """Bytes of it that are the C library's heap: in use, or free and kept."""
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        inside = line.endswith("[heap]") or (inside and line[0].isupper())
        if inside and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    return 0


def cpu(pid: int) -> float:
    """Seconds of CPU time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def end_to_end(count: int) -> dict[str, float]:
    """Produce and consume at the same time; the broker keeps to one core where that can be arranged."""
    with embedded_broker() as (uri, pid):
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
        job = fresh_queue(Job("raw", "post", count, PAYLOAD))
        begin, used = time.perf_counter(), cpu(pid)
        workers = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(HERE / "clients" / "raw.py"),
                    json.dumps({**asdict(job), "case": case, "broker": uri}),
                ],
                stdout=subprocess.PIPE,
                text=True,
                env=environment(),
            )
            for case in ("drain", "post")
        ]
        printed = [worker.communicate(timeout=600)[0] for worker in workers]
        if any(worker.returncode for worker in workers):
            raise SystemExit("a client of the end-to-end measurement failed")
        used = cpu(pid) - used
        return {
            "rate": json.loads(printed[1])["rate"],
            "wall": count / (time.perf_counter() - begin),
            "cpu_us": used / count * 1e6,
            "one_core": count / used,
        }


async def everywhere(make: Callable[[int], Coroutine[Any, Any, Any]], count: int) -> list[Any]:
    return await asyncio.gather(*(make(number) for number in range(count)))


async def many(uri: str, pid: int, messages: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Store everything, read everything, check everything."""
    half, each = CONNECTIONS // 2, messages // QUEUES
    result: dict[str, Any] = {}

    def measure(when: str) -> None:
        result[f"memory_{when}"], result[f"heap_{when}"] = resident(pid), heap(pid)

    measure("start")
    report("connecting")
    sessions = await everywhere(lambda _: bmq.connect(uri).__aenter__(), CONNECTIONS)
    writers = await everywhere(
        lambda n: sessions[n % half].open_queue(f"bmq://{DOMAIN}/many-{n}", write=True), QUEUES
    )
    measure("queues")

    report("posting")
    begin = time.perf_counter()

    async def post(number: int) -> int:
        head = number.to_bytes(4, "big")
        filler = bytes(PAYLOAD - 8)
        sent = await writers[number].post_many(head + i.to_bytes(4, "big") + filler for i in range(each))
        return sent.acknowledged

    accepted = sum(await everywhere(post, QUEUES))
    result["post_rate"] = accepted / (time.perf_counter() - begin)
    measure("full")
    posted = time.perf_counter()

    report("consuming")
    begin = time.perf_counter()

    async def consume(number: int) -> tuple[int, int]:
        queue = await sessions[half + number % half].open_queue(f"bmq://{DOMAIN}/many-{number}", read=True)
        seen: set[bytes] = set()
        received = 0
        async for batch in queue.batches():
            for message in batch:
                assert message.data[:4] == number.to_bytes(4, "big")
                seen.add(message.data[4:8])
            received += len(batch)
            batch.confirm()
            if len(seen) == each:
                break
        return received, len(seen)

    outcomes = await everywhere(consume, QUEUES)
    received, distinct = (sum(column) for column in zip(*outcomes, strict=True))
    result["consume_rate"] = received / (time.perf_counter() - begin)
    result |= {"posted": accepted, "lost": accepted - distinct, "duplicated": received - distinct}
    await everywhere(lambda n: sessions[n].close(), CONNECTIONS)
    await asyncio.sleep(4)
    measure("remembered")
    report("waiting until GUIDs are forgotten")
    await asyncio.sleep(max(0.0, posted + WINDOW + 4 - time.perf_counter()))
    measure("end")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, default=Path("build/broker"), metavar="NAME")
    options = parser.parse_args()
    console = Console()
    with console.status("end to end on one core"):
        one = end_to_end(max(10_000, options.messages // 5))
    with tempfile.TemporaryDirectory() as configuration:
        file = Path(configuration, "domains", f"{DOMAIN}.json")
        file.parent.mkdir()
        file.write_text(json.dumps({"definition": {"location": "local", "parameters": _DOMAIN}}))
        with (
            embedded_broker("--config", configuration) as (uri, pid),
            console.status("many queues") as status,
        ):
            load = bmq.run(many(uri, pid, options.messages, status.update))
    table = Table(title="The embedded broker", show_header=False)
    for name, value in (
        ("end to end, one core, messages a second", f"{one['rate']:,.0f}"),
        ("its CPU time a message", f"{one['cpu_us']:.1f} us: {one['one_core']:,.0f} a second of one core"),
        (f"{CONNECTIONS} connections, {QUEUES} queues, messages", f"{load['posted']:,}"),
        ("posted a second", f"{load['post_rate']:,.0f}"),
        ("consumed a second", f"{load['consume_rate']:,.0f}"),
        ("lost, duplicated", f"{load['lost']:,}, {load['duplicated']:,}"),
        (
            "memory a stored message, above its payload",
            f"{(load['memory_full'] - load['memory_queues']) / load['posted'] - PAYLOAD:,.0f} bytes",
        ),
        (
            "memory a queue and 0.4 connections",
            f"{(load['memory_queues'] - load['memory_start']) / QUEUES / 1000:,.1f} kB",
        ),
        *(
            (
                f"memory {text}, of it the C library's heap",
                f"{load[f'memory_{when}'] / 1e6:,.0f} MB, {load[f'heap_{when}'] / 1e6:,.0f} MB",
            )
            for when, text in (
                ("start", "at the start"),
                ("queues", "with the queues open"),
                ("full", "full"),
                ("remembered", "empty, GUIDs remembered"),
                ("end", f"empty, {WINDOW} seconds later"),
            )
        ),
    ):
        table.add_row(name, value)
    console.print(table)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "end_to_end": one, "many": load}
    options.output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    if load["lost"] or load["duplicated"]:
        raise SystemExit("messages were lost or duplicated")


if __name__ == "__main__":
    main()
