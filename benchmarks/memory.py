# SPDX-License-Identifier: Apache-2.0
"""Bytes of memory for each message that a client holds, beside the sum of its parts.

    python benchmarks/memory.py [--broker tcp://localhost:30114] [--messages 50000] [--size 256] [--rounds 3]

Each number comes from a new process, which holds messages in one state, or only builds the parts that every
client must hold (the floor): the bytes as transmitted, the GUID, one record of the fields, and a place in a
container. Each message has its own payload and two properties. *Objects* is counted by ``tracemalloc``,
*process* is the growth of the memory in use. Writes ``build/memory.json`` for ``benchmarks/page.py``.

Without ``--broker``, an embedded broker delivers. Posts go to an embedded broker that acknowledges nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import harness

KEYS = 1000
#: Seconds until delayed messages are due.
DELAY = 200.0
#: Messages that go through the client before the measurement, to load modules and caches. Before a count of
#: objects, the full number of messages is received, because buffers grow with the messages of a read.
FIRST = 200


def properties_of(number: int) -> dict[str, Any]:
    return {"number": number, "CustomerId": "a customer"}


class Memory:
    """The growth since the creation of the object: Python objects if traced, otherwise the process."""

    def __init__(self, traced: bool) -> None:
        self.traced = traced
        for _ in range(3):
            gc.collect()
        if traced:
            tracemalloc.start()
        self._start = self._now()

    def _now(self) -> int:
        if self.traced:
            return tracemalloc.get_traced_memory()[0]
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def grown(self) -> int:
        for _ in range(3):
            gc.collect()
        return self._now() - self._start


# The parts. A record has the fields that a client needs until the message leaves. For a received message, the
# fields include the qId and the subscription ids for the confirmation; for a post, all fields to send again.

Made = Iterator[tuple[bytes, bytes]]


class Record:
    """A message handed out: the fields, the consumer, and the values read by the application."""

    __slots__ = (
        "arrival",
        "compression",
        "confirmed",
        "consumer",
        "data",
        "flags",
        "guid",
        "payload",
        "properties",
        "schema_id",
        "sub_ids",
    )

    def __init__(self, guid: bytes, data: bytes) -> None:
        self.guid, self.data = guid, data
        self.arrival = self.consumer = self.confirmed = self.payload = self.properties = None
        self.flags = self.schema_id = self.compression = self.sub_ids = 1


def line(made: Made) -> Any:
    return deque((1, (1,), guid, 1, 1, 0, data) for guid, data in made)


def handed_out(made: Made) -> Any:
    return [Record(guid, data) for guid, data in made]


def window(made: Made) -> Any:
    return {guid: (guid, data, 1, 1, 0, 1) for guid, data in made}


def futures(made: Made) -> Any:
    loop = asyncio.get_running_loop()
    return {guid: (guid, data, 1, 1, 0, loop.create_future()) for guid, data in made}


def tasks(made: Made) -> Any:
    loop = asyncio.get_running_loop()

    async def wait(future: Any) -> None:
        await future

    held: dict[bytes, Any] = {}
    for guid, data in made:
        future = loop.create_future()
        held[guid] = guid, data, 1, 1, 0, future, loop.create_task(wait(future))
    return held


def lanes(made: Made) -> Any:
    """Messages by key, and by GUID to recognise a message delivered again."""
    by_key: dict[int, deque[Record]] = {}
    by_guid: dict[bytes, Record] = {}
    for number, (guid, data) in enumerate(made):
        record = by_guid[guid] = Record(guid, data)
        by_key.setdefault(number % KEYS, deque()).append(record)
    return by_key, by_guid


def delayed(made: Made) -> Any:
    """Messages by due time, and by GUID to recognise a message delivered again."""
    heap: list[tuple[float, Record]] = []
    by_guid: dict[bytes, Record] = {}
    for number, (guid, data) in enumerate(made):
        record = by_guid[guid] = Record(guid, data)
        heapq.heappush(heap, (number / 1000, record))
    return heap, by_guid


def several(made: Made) -> Any:
    """The same as handed out; a batch is a list."""
    return handed_out(made)


async def floor(build: Callable[[Made], Any], size: int, count: int, traced: bool) -> float:
    memory = Memory(traced)
    held = build((number.to_bytes(16, "big"), bytes(size)) for number in range(count))
    await asyncio.sleep(0)
    grown = memory.grown()
    del held
    return grown / count


# The states. Each function fills a state, and returns the objects that hold the messages, and a function to
# release the messages.

Filled = tuple[Any, Callable[[], Awaitable[None]]]


async def nothing() -> None:
    pass


async def received(queue: Any, count: int) -> Filled:
    consumer = queue.subscribe()
    await consumer.open()
    while consumer.buffered < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return consumer, nothing


async def iterated(queue: Any, count: int) -> Filled:
    held: list[Any] = []
    async for message in queue:
        held.append(message)
        if len(held) == count:
            break
    return held, nothing


async def batched(queue: Any, count: int) -> Filled:
    held: list[Any] = []
    async for batch in queue.batches():
        held += batch
        if len(held) >= count:
            break
    return held, nothing


async def in_lanes(queue: Any, count: int) -> Filled:
    import bmq

    release = asyncio.Event()

    async def handle(message: Any) -> None:
        await release.wait()

    numbers = itertools.count(1)
    placed = 0

    def key(message: Any) -> int:
        nonlocal placed
        placed = next(numbers)
        return placed % KEYS

    worker = asyncio.ensure_future(bmq.consume(queue, handle, concurrency=4, key=key))
    while placed < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)

    async def end() -> None:
        worker.cancel()
        release.set()
        await asyncio.wait([worker])

    return worker, end


async def due_later(queue: Any, count: int) -> Filled:
    import bmq.delays

    messages = bmq.delays.DueMessages(queue, lookahead=2 * DELAY, tick=2 * DELAY, max_held=4 * count)
    await messages.open()
    reader = asyncio.ensure_future(messages.batch())
    while messages.held < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)

    async def end() -> None:
        reader.cancel()
        await asyncio.wait([reader])
        await messages.close()

    return messages, end


async def posted_many(queue: Any, payloads: Iterator[bytes]) -> Any:
    import bmq

    numbered = enumerate(payloads)
    task = asyncio.ensure_future(
        queue.post_many(bmq.PutMessage(data, properties_of(number % 100)) for number, data in numbered)
    )
    await asyncio.sleep(0)
    return [task]


async def posted_nowait(queue: Any, payloads: Iterator[bytes]) -> Any:
    held: list[Any] = []
    for number, data in enumerate(payloads):
        held.append(queue.post_nowait(data, properties=properties_of(number % 100)))
        if not number % 500:
            await asyncio.sleep(0)
    return held


async def posted(queue: Any, payloads: Iterator[bytes]) -> Any:
    held: list[Any] = []
    for number, data in enumerate(payloads):
        held.append(asyncio.ensure_future(queue.post(data, properties=properties_of(number % 100))))
        if not number % 500:
            await asyncio.sleep(0)
    return held


#: Each state, with the function that fills the state, and the function that builds the floor.
RECEIVING: dict[str, tuple[Callable[[Any, int], Awaitable[Filled]], Callable[[Made], Any]]] = {
    "received, in the line of a consumer": (received, line),
    "unconfirmed, from async for": (iterated, handed_out),
    "unconfirmed, from batches": (batched, several),
    "in a lane, of 1,000 keys": (in_lanes, lanes),
    "delayed, held for the due time": (due_later, delayed),
}
POSTING: dict[str, tuple[Callable[[Any, Iterator[bytes]], Awaitable[Any]], Callable[[Made], Any]]] = {
    "unacknowledged, from post_many": (posted_many, window),
    "unacknowledged, from post_nowait": (posted_nowait, futures),
    "unacknowledged, from post in a task each": (posted, tasks),
}


async def consumed(broker: str, state: str, uri: str, count: int, traced: bool) -> float:
    import bmq

    fill = RECEIVING[state][0]
    limits = {"max_unconfirmed_messages": 4 * count, "max_unconfirmed_bytes": 2**32}
    async with bmq.connect(broker, max_buffered_messages=4 * count, max_buffered_bytes=2**32) as session:
        warm = await session.open_queue(uri + "-first", read=True, **limits)
        kept, end = await fill(warm, count if traced else FIRST)
        await end()
        del kept, end
        await warm.close()
        queue = await session.open_queue(uri, read=True, **limits)
        memory = Memory(traced)
        kept, end = await fill(queue, count)
        grown = memory.grown()
        await end()
        del kept
        return grown / count


async def produced(broker: str, state: str, uri: str, count: int, size: int, traced: bool) -> float:
    import bmq

    fill = POSTING[state][0]

    async def settled(held: list[Any], queue: Any, left: int) -> None:
        while queue.unacked < left or session.stats().write_buffer_bytes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async with bmq.connect(broker, max_unacked_messages=4 * count, max_unacked_bytes=2**32) as session:
        queue = await session.open_queue(uri, write=True)
        first = await fill(queue, (bytes(size) for _ in range(FIRST)))
        await settled(first, queue, FIRST)
        memory = Memory(traced)
        held = await fill(queue, (bytes(size) for _ in range(count)))
        await settled(held, queue, FIRST + count)
        grown = memory.grown()
        await session.close(timeout=0)
        await asyncio.gather(*first, *held, return_exceptions=True)
        return grown / count


async def prepare(broker: str, uri: str, count: int, size: int, delay: bool, traced: bool) -> None:
    """Post the messages for another process to receive."""
    import bmq

    async with bmq.connect(broker) as session:
        for suffix, some in (("-first", count if traced else FIRST), ("", count)):
            queue = await session.open_queue(uri + suffix, write=True, delay_queue_uri=uri + suffix)
            now = time.time()
            due = {"bmq_due": int((now + DELAY) * 1000)} if delay else {}
            report = await queue.post_many(
                bmq.PutMessage(bytes(size), properties_of(number % 100) | due) for number in range(some)
            )
            report.raise_for_failures()


def area(delay: bool) -> int:
    """Return the size of the properties as transmitted."""
    from bmq.wire.properties import encode_properties

    due = {"bmq_due": int(time.time() * 1000)} if delay else {}
    return len(encode_properties(properties_of(1) | due, new=True))


def child(job: dict[str, Any]) -> None:
    import bmq

    state, count, size, traced = job["state"], job["count"], job["size"], job["traced"]
    delay = state.startswith("delayed")
    work: Any
    if job["what"] == "prepare":
        work = prepare(job["broker"], job["uri"], count, size, delay, traced)
    elif job["what"] == "floor":
        build = (RECEIVING | POSTING)[state][1]  # type: ignore[operator]
        work = floor(build, size + area(delay), count, traced)
    elif state in RECEIVING:
        work = consumed(job["broker"], state, job["uri"], count, traced)
    else:
        work = produced(job["broker"], state, job["uri"], count, size, traced)
    print(json.dumps(bmq.run(work)))


def run(**job: Any) -> float:
    command = [sys.executable, __file__, "--child", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=harness.environment())
    if done.returncode:
        raise SystemExit(f"{job['state']} failed:\n{done.stderr}")
    return float(json.loads(done.stdout) or 0)


def measure(broker: str, mute: str, arguments: argparse.Namespace) -> list[list[str]]:
    rows: list[list[str]] = []
    for state in [*RECEIVING, *POSTING]:
        if arguments.only and arguments.only not in state:
            continue
        common = {"state": state, "count": arguments.messages, "size": arguments.size}
        found: dict[tuple[str, bool], float] = {}
        for traced in (True, False):
            for what in ("client", "floor"):
                numbers: list[float] = []
                for _ in range(1 if traced else arguments.rounds):
                    uri = f"bmq://{harness.DOMAIN}/memory-{uuid.uuid4().hex}"
                    where = {"broker": mute if state in POSTING else broker, "uri": uri, "traced": traced}
                    if what == "client" and state in RECEIVING:
                        run(what="prepare", **common, **where)
                    numbers.append(run(what=what, **common, **where))
                found[what, traced] = statistics.median(numbers)
        row = [state]
        for traced in (True, False):
            ours, parts = found["client", traced], found["floor", traced]
            row += [f"{ours:,.0f}", f"{parts:,.0f}", f"{ours / parts:.2f}"]
        rows.append(row)
        print("| " + " | ".join(rows[-1]) + " |", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", default="", help="address of a broker that delivers")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=256, help="bytes of a payload")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each number of memory in use")
    parser.add_argument("--only", default="", help="states with this text in their names")
    parser.add_argument("--output", type=Path, default=Path("build/memory"), metavar="NAME")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    columns = ["a message that is", "objects, bytes", "floor", "times", "process, bytes", "floor", "times"]
    for each in (columns, ["---"] * len(columns)):
        print("| " + " | ".join(each) + " |")
    mute_program = str(harness.HERE / "clients" / "mute.py")
    with harness.started_broker(mute_program) as mute:
        if arguments.broker:
            rows = measure(arguments.broker, mute, arguments)
        else:
            with harness.embedded_broker() as broker:
                rows = measure(broker, mute, arguments)
    if not arguments.only:
        what = harness.broker_name(arguments.broker) if arguments.broker else "embedded"
        about = f"broker: {what}; {arguments.messages:,} messages; median of {arguments.rounds} processes"
        harness.write_tables(arguments.output, {"memory": (columns, rows)}, about=about)


if __name__ == "__main__":
    main()
