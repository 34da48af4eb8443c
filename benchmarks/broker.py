# SPDX-License-Identifier: Apache-2.0
"""The embedded broker under load: users' test suites run on this broker.

    python benchmarks/broker.py [--messages 1000000] [--window 30] [--output NAME]

Always measures the embedded broker, also with ``BMQ_BROKER_URI`` in the environment. Two measurements, each
with a broker in a separate process:

* end to end on one core: a producer of pre-encoded events and a consumer at the same time, with one queue.
  The broker's CPU time a message is the capacity of one core, regardless of other load;
* 200 connections, 500 queues, a million messages: first stored, then consumed and confirmed. The benchmark
  checks that each message arrives once. It reads the memory of the broker's process with the queues open,
  full, empty with the GUIDs still remembered, and empty after the end of the window. Then everything is
  repeated: the remaining memory must not grow.

The floor of the CPU time is decoding and encoding the same messages, without sockets, storage and counters.
The floor of a stored message is its GUID, its data, a tuple of its fields and a place in a dictionary. The
program fails if the process did not grow by the payloads: another process stored the messages then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import DOMAIN, HERE, Job, embedded_broker, environment, fresh_queue, machine, started_broker
from rich.console import Console
from rich.table import Table
from stages import COUNT, least

import bmq
from bmq.broker._routing import compile_first
from bmq.broker._storage import property_values
from bmq.wire.ack import encode_ack, pack_acks
from bmq.wire.confirm import encode_confirm, iter_confirms, pack_confirms
from bmq.wire.constants import PushFlags
from bmq.wire.event import read_event
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.push import encode_push
from bmq.wire.put import PutRun, decode_put_runs

sys.path.append(str(HERE / "clients"))
from raw import expressions, guids, put_events

CONNECTIONS, QUEUES = 200, 500
PAYLOAD = 256
#: Seconds for which GUIDs are remembered by default; must include the first GUID when the last message is
#: confirmed.
WINDOW = 30
#: Seconds after which the broker has freed the objects of closed connections and forgotten GUIDs.
SETTLE = 4.0
_HAS_PROPERTIES = int(PushFlags.MESSAGE_PROPERTIES)
_LIMITS = {"messages": 10_000_000, "bytes": 2**34}
_DOMAIN = {
    "name": DOMAIN,
    "mode": {"priority": {}},
    "storage": {"domainLimits": _LIMITS, "queueLimits": _LIMITS, "config": {"inMemory": {}}},
    "messageTtl": 3600,
}

#: Number of messages for the end-to-end measurement.
END_TO_END = 200_000
#: Number of messages whose parts are built alone.
PARTS = 20_000
#: Points at which the memory is read.
STAGES = {
    "start": "at the start",
    "queues": "with the queues open",
    "full": "full",
    "remembered": "empty, GUIDs remembered",
    "end": "empty, GUIDs forgotten",
    "again": "after all of it once more",
}


def resident(pid: int) -> int:
    """Return the resident bytes of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise SystemExit("no VmRSS in /proc")


def in_use(process: subprocess.Popen[str]) -> int:
    """Return the bytes in use by the program; the allocators keep the rest."""
    process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None
    return int(process.stdout.readline())


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def end_to_end(count: int, subscriptions: int = 0) -> dict[str, float]:
    """Produce and consume at the same time; the broker is bound to one core if possible.

    With subscriptions, each message has two properties, and each subscription tests both.
    """
    with embedded_broker() as (uri, pid):
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
        job = Job("raw", "post", count, PAYLOAD, properties=subscriptions > 0, subscriptions=subscriptions)
        job = fresh_queue(job)
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


def wire_alone(subscriptions: int) -> float:
    """Return the minimum CPU microseconds of a broker in Python for a message, without storage and counters.

    The message is parsed, encoded again and acknowledged, and its confirmation is parsed. With subscriptions,
    its properties are parsed too, and one subscription is selected.
    """
    job = Job("raw", "post", COUNT, PAYLOAD, properties=subscriptions > 0, subscriptions=subscriptions)
    document = asdict(job)
    events = [read_event(event) for event in put_events(document)]
    first = compile_first(tuple(expressions(subscriptions))) if subscriptions else None
    option, queue_id = encode_sub_queue_ids((1,)), 0
    confirms = read_event(pack_confirms([encode_confirm(0, guid, 0) for guid in guids("", COUNT)]))

    def run(_: Any) -> None:
        acks: list[bytes] = []
        pushes: list[bytes] = []
        for event in events:
            runs: list[PutRun] = []
            decode_put_runs(event.data, event.body, runs)
            for _, puts in runs:
                for flags, correlation_id, guid, schema_id, compression, _, _, data in puts:
                    if first is not None:
                        assert first(property_values(data, flags & _HAS_PROPERTIES, schema_id)) >= 0
                    acks.append(encode_ack(0, correlation_id, guid, queue_id))
                    pushes.append(
                        encode_push(
                            queue_id, guid, data, option, flags & _HAS_PROPERTIES, schema_id, compression
                        )
                    )
        pack_acks(acks)
        b"".join(pushes)
        for _, _, _ in iter_confirms(confirms.data, confirms.body):
            pass

    return least(run)


def parts_of_a_message() -> float:
    """Return the bytes of memory that the parts of a stored message take besides its payload."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    stored = {
        guid: (bytes(PAYLOAD + 4), (1,), 0, 0, number)
        for number, guid in enumerate(number.to_bytes(16, "big") for number in range(PARTS))
    }
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return grown / len(stored) - PAYLOAD


async def everywhere(make: Callable[[int], Coroutine[Any, Any, Any]], count: int) -> list[Any]:
    return await asyncio.gather(*(make(number) for number in range(count)))


async def many(
    uri: str, process: subprocess.Popen[str], messages: int, window: float, report: Callable[[str], None]
) -> dict[str, Any]:
    """Store, read and check all messages; then repeat."""
    start = [resident(process.pid), in_use(process)]
    first = await load(uri, process, messages, window, report)
    again = await load(uri, process, messages, window, report)
    return first | {"memory": {"start": start, **first["memory"], "again": again["memory"]["end"]}}


def check(memory: dict[str, list[int]], stored: int) -> None:
    """Raise an error if another process than the measured one stored the messages."""
    grown = memory["full"][1] - memory["queues"][1]
    if grown < stored * PAYLOAD:
        raise SystemExit(
            f"the measured process grew by {grown:,} bytes while {stored:,} messages of {PAYLOAD} bytes were "
            "stored: another process stored them; measure the process that listens at the address in use"
        )


async def load(
    uri: str, process: subprocess.Popen[str], messages: int, window: float, report: Callable[[str], None]
) -> dict[str, Any]:
    half, each = CONNECTIONS // 2, messages // QUEUES
    result: dict[str, Any] = {"memory": {}}

    def measure(when: str) -> None:
        result["memory"][when] = [resident(process.pid), in_use(process)]

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
    check(result["memory"], accepted)
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
    await asyncio.sleep(SETTLE)
    measure("remembered")
    report("waiting until GUIDs are forgotten")
    await asyncio.sleep(max(0.0, posted + window + SETTLE - time.perf_counter()))
    measure("end")
    return result


def stored_message(outcome: dict[str, Any]) -> float:
    """Return the bytes of a stored message besides its payload, in use by the program."""
    memory = outcome["memory"]
    return float((memory["full"][1] - memory["queues"][1]) / outcome["posted"] - PAYLOAD)


def one_queue(outcome: dict[str, Any]) -> float:
    """Return the bytes of a queue, with its share of the connections, in use by the program."""
    memory = outcome["memory"]
    return float((memory["queues"][1] - memory["start"][1]) / QUEUES)


def run(
    console: Console, messages: int, output: Path, *, window: int = WINDOW, count: int = END_TO_END
) -> None:
    """Make all measurements, print them, and write them to ``output``."""
    with console.status("end to end on one core"):
        # Take turns, and use the minimum of each: other load only adds time.
        ones, tens, floors, plain = [], [], [], []
        for _ in range(3):
            ones.append(end_to_end(count))
            tens.append(end_to_end(count, subscriptions=10))
            floors.append(wire_alone(10))
            plain.append(wire_alone(0))
    one, ten = (min(runs, key=lambda each: each["cpu_us"]) for runs in (ones, tens))
    alone = min(floors)
    domain = _DOMAIN | {"deduplicationTimeMs": window * 1000}
    program = str(HERE / "clients" / "measured_broker.py")
    with tempfile.TemporaryDirectory() as configuration:
        file = Path(configuration, "domains", f"{DOMAIN}.json")
        file.parent.mkdir()
        file.write_text(json.dumps({"definition": {"location": "local", "parameters": domain}}))
        with (
            started_broker(program, "--port", "0", "--config", configuration) as (uri, process),
            console.status("many queues") as status,
        ):
            outcome = bmq.run(many(uri, process, messages, window, status.update))
    table = Table(title="The embedded broker", show_header=False)
    for name, value in (
        ("end to end, one core, messages a second", f"{one['rate']:,.0f}"),
        ("its CPU time a message", f"{one['cpu_us']:.1f} us: {one['one_core']:,.0f} a second of one core"),
        ("with two properties and ten subscriptions", f"{ten['rate']:,.0f}"),
        ("its CPU time a message", f"{ten['cpu_us']:.1f} us: {ten['one_core']:,.0f} a second of one core"),
        ("decoding, encoding and evaluating alone", f"{alone:.1f} us"),
        (f"{CONNECTIONS} connections, {QUEUES} queues, messages", f"{outcome['posted']:,}"),
        ("posted a second", f"{outcome['post_rate']:,.0f}"),
        ("consumed a second", f"{outcome['consume_rate']:,.0f}"),
        ("lost, duplicated", f"{outcome['lost']:,}, {outcome['duplicated']:,}"),
        ("memory a stored message, above its payload", f"{stored_message(outcome):,.0f} bytes"),
        ("memory a queue and 0.4 connections", f"{one_queue(outcome) / 1000:,.1f} kB"),
        *(
            (f"memory {STAGES[when]}", f"{kept / 1e6:,.0f} MB, {used / 1e6:,.0f} MB in use")
            for when, (kept, used) in outcome["memory"].items()
        ),
    ):
        table.add_row(name, value)
    console.print(table)
    output.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": machine(),
        "end_to_end": one,
        "ten_subscriptions": ten,
        "wire_us": alone,
        "plain_wire_us": min(plain),
        "parts": parts_of_a_message(),
        "about": f"{messages:,} messages of {PAYLOAD} bytes stored, {count:,} end to end, three times",
        "many": outcome,
    }
    output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    if outcome["lost"] or outcome["duplicated"]:
        raise SystemExit("messages were lost or duplicated")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000, help=f"messages in the {QUEUES} queues")
    parser.add_argument("--count", type=int, default=END_TO_END, help="messages end to end")
    parser.add_argument("--window", type=int, default=WINDOW, help="seconds for which GUIDs are remembered")
    parser.add_argument("--output", type=Path, default=Path("build/broker"), metavar="NAME")
    options = parser.parse_args()
    run(Console(), options.messages, options.output, window=options.window, count=options.count)


if __name__ == "__main__":
    main()
