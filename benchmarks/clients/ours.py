# SPDX-License-Identifier: Apache-2.0
"""This project's client: one case in a process, see ``common.py``."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from common import (
    PATIENCE,
    PROPERTIES,
    RATE,
    TICK,
    WARM,
    Books,
    Job,
    Meter,
    Result,
    answer,
    clock,
    job,
    memory,
    pacer,
    percentiles,
    since,
    ticks,
)

import bmq

TASKS = 200
BURST = 500
LIMITS: Any = {"max_unconfirmed_messages": 1_000_000, "max_unconfirmed_bytes": 2**30}


def connect(job: Job) -> Any:
    poll = 0.001 if job.get("awake") else 0.0
    return bmq.connect(job["broker"], max_unacked_messages=1_000_000, busy_poll=poll)


@asynccontextmanager
async def opened(job: Job, *, read: bool = False, write: bool = False) -> AsyncIterator[Any]:
    """Connect, and open the queue of the job."""
    async with connect(job) as session:
        yield await session.open_queue(job["queue"], read=read, write=write, **LIMITS)


# posting


async def post_many(job: Job) -> Result:
    payload, count = bytes(job["size"]), job["count"]
    async with opened(job, write=True) as queue:
        meter = Meter()
        if job["properties"]:
            report = await queue.post_many(bmq.PutMessage(payload, PROPERTIES) for _ in range(count))
        else:
            report = await queue.post_many(payload for _ in range(count))
        assert report.acknowledged == count, report
        return meter.result(count)


async def post_nowait(job: Job) -> Result:
    """Create a future for each post; only the window limits the posts in flight."""
    payload, left = bytes(job["size"]), job["count"]
    properties = PROPERTIES if job["properties"] else None
    async with opened(job, write=True) as queue:
        meter = Meter()
        futures: list[Any] = []
        while left:
            now = min(BURST, left)
            futures += [queue.post_nowait(payload, properties=properties) for _ in range(now)]
            left -= now
            await asyncio.sleep(0)
        await queue.flush()
        result = meter.result(job["count"])
        assert all(f.result() for f in futures)
        return result


async def post_tasks(job: Job) -> Result:
    payload, count = bytes(job["size"]), job["count"]
    async with opened(job, write=True) as queue:

        async def worker(first: int) -> None:
            for _ in range(first, count, TASKS):
                await queue.post(payload)

        meter = Meter()
        await asyncio.gather(*(worker(first) for first in range(TASKS)))
        return meter.result(count)


# receiving: the time starts before the queue is open


async def consume(job: Job) -> Result:
    left, size, with_properties = job["count"], job["size"], job["properties"]
    async with connect(job) as session:
        meter = Meter()
        queue = await session.open_queue(job["queue"], read=True, **LIMITS)
        async for message in queue:
            if with_properties:
                properties = message.properties
                assert properties["CustomerId"] == 1234
                assert properties["OrderType"] == "EXPRESS"
            assert len(message.data) == size
            message.confirm()
            left -= 1
            if not left:
                break
        await asyncio.sleep(0)
        return meter.result(job["count"])


async def consume_batches(job: Job) -> Result:
    left, size = job["count"], job["size"]
    async with connect(job) as session:
        meter = Meter()
        queue = await session.open_queue(job["queue"], read=True, **LIMITS)
        async for batch in queue.batches():
            for message in batch:
                assert len(message.data) == size
            batch.confirm()
            left -= len(batch)
            if left <= 0:
                break
        await asyncio.sleep(0)
        return meter.result(job["count"])


async def handle(job: Job) -> Result:
    """Use a worker with an empty handler."""
    left, size = job["count"], job["size"]
    done = asyncio.get_running_loop().create_future()

    async def handler(message: Any) -> None:
        nonlocal left
        assert len(message.data) == size
        left -= 1
        if not left:
            done.set_result(None)

    consume = bmq.consume  # the first use loads the workers, which is no part of the measurement
    async with connect(job) as session:
        meter = Meter()
        queue = await session.open_queue(job["queue"], read=True, **LIMITS)
        task = asyncio.ensure_future(consume(queue, handler, concurrency=100))
        await done
        result = meter.result(job["count"])
        task.cancel()
        await asyncio.wait([task])
        return result


# one message at a time


async def ack(job: Job) -> Result:
    """Post one message at a time, from the post to its acknowledgement."""
    payload, samples = bytes(job["size"]), []
    async with opened(job, write=True) as queue:
        for _ in range(job["count"] + WARM):
            begin = clock()
            await queue.post(payload)
            samples.append(clock() - begin)
    return percentiles(samples[WARM:])


async def own(job: Job) -> Result:
    """Post one message at a time, from the post to its delivery."""
    payload, samples = bytes(job["size"]), []
    async with opened(job, read=True, write=True) as queue:
        for _ in range(job["count"] + WARM):
            begin = clock()
            queue.post_nowait(payload)
            message = await queue.receive()
            samples.append(clock() - begin)
            message.confirm()
        await queue.flush()
    return percentiles(samples[WARM:])


def blocking_ack(job: Job) -> Result:
    """Do the same without asyncio."""
    import bmq.blocking

    payload, samples = bytes(job["size"]), []
    with bmq.blocking.connect(job["broker"]) as session:
        queue = session.open_queue(job["queue"], write=True)
        for _ in range(job["count"] + WARM):
            begin = clock()
            queue.post(payload)
            samples.append(clock() - begin)
    return percentiles(samples[WARM:])


async def paced(job: Job) -> Result:
    """Post each tick: the time from the tick to the own message."""
    filler, count = bytes(job["size"] - TICK), job["count"]
    samples: list[int] = []
    loop = asyncio.get_running_loop()

    class Ticks(asyncio.Protocol):
        left = b""

        def data_received(self, data: bytes) -> None:
            data = self.left + data
            whole = len(data) // TICK * TICK
            self.left = data[whole:]
            for tick in ticks(data[:whole]):
                queue.post_nowait(tick + filler)

    async with opened(job, read=True, write=True) as queue:
        with pacer(job) as process:
            assert process.stdout is not None
            transport, _ = await loop.connect_read_pipe(Ticks, process.stdout)
            async for message in queue:
                samples.append(since(message.data))
                message.confirm()
                if len(samples) == count:
                    break
            transport.close()
    return percentiles(samples[count // 20 :])


async def first(job: Job) -> Result:
    """Return the processor time of this process until its first acknowledgement."""
    async with opened(job, write=True) as queue:
        await queue.post(bytes(job["size"]))
        return {"CPU ms": time.process_time() * 1000}


async def hold(job: Job) -> Result:
    """Receive messages without a confirmation: the growth of the memory in use, for each."""
    held: list[Any] = []
    async with connect(job) as session:
        first = await session.open_queue(job["queue"], read=True, max_unconfirmed_messages=1)
        await first.receive()  # loads what is loaded once
        await first.close()
        before = memory()
        queue = await session.open_queue(job["queue"], read=True, **LIMITS)
        while len(held) < job["count"]:
            held.append(await queue.receive())
        gc.collect()
        return {"bytes": (memory() - before) / len(held)}


# several consumers


async def numbered(job: Job) -> None:
    """Post numbered messages once a line arrives on the standard input."""
    count, consumers = job["count"], job["consumers"]
    async with opened(job, write=True) as queue:
        print("ready", flush=True)
        sys.stdin.readline()
        await queue.post_many(
            bmq.PutMessage(bytes(100), {"x": n, "own": n % consumers, "tenth": n % 10}) for n in range(count)
        )


async def share(job: Job) -> Result:
    """Let consumers, a session each, share the messages: from the first post to the last confirmation.

    The kind of consumers is "any", "all" or "tenth" (of the messages, by an expression), "own" (an expression
    for each consumer) or "group".
    """
    kind, number = job["kind"], job["consumers"]
    expressions = {"all": "x >= 0", "tenth": "tenth == 0"}
    left = job["count"] // (10 if kind == "tenth" else 1)
    done = asyncio.Event()

    async def take(source: Any) -> None:
        nonlocal left
        async for message in source:
            message.confirm()
            left -= 1
            if not left:
                done.set()

    sessions = [await bmq.connect(job["broker"]) for _ in range(number)]
    sources: list[Any] = []
    for at, session in enumerate(sessions):
        queue = await session.open_queue(job["queue"], read=True, default_subscription=False)
        if kind == "group":
            source: Any = queue.group("x", buckets=16, member=f"m{at}")
        else:
            expression = f"own == {at}" if kind == "own" else expressions.get(kind)
            source = queue.subscribe(expression, max_unconfirmed_messages=job["window"])
        await source.open()
        sources.append(source)
    while kind == "group" and sum(len(group.owned) for group in sources) < 16:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    tasks = [asyncio.create_task(take(source)) for source in sources]
    command = [sys.executable, __file__, json.dumps(job | {"case": "numbered"})]
    producer = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert producer.stdin is not None
    assert producer.stdout is not None
    await producer.stdout.readline()
    meter = Meter()
    producer.stdin.write(b"go\n")
    async with asyncio.timeout(PATIENCE):
        await done.wait()
    result = meter.result(job["count"])
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await producer.wait()
    await asyncio.gather(*(session.close() for session in sessions))
    return result


# while something fails


async def endure(job: Job) -> Result:
    """Post and receive while the broker fails, until a line arrives on the standard input."""
    books, loop = Books(), asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.readline)

    def acked(number: int) -> Callable[[asyncio.Future[Any]], None]:
        def done(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is None:
                books.acknowledged(number)

        return done

    async def receive() -> None:
        async for message in queue:
            books.received[int(message.data)] += 1
            message.confirm()

    async with opened(job, read=True, write=True) as queue:
        reader = asyncio.create_task(receive())
        print("ready", flush=True)
        while not ended.done():
            queue.post_nowait(b"%d" % books.posted).add_done_callback(acked(books.posted))
            books.posted += 1
            await asyncio.sleep(1 / RATE)
        end = loop.time() + PATIENCE
        while not books.complete() and loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        reader.cancel()
    return books.result()


if __name__ == "__main__":
    job = job()
    case = globals()[job["case"]]
    if not asyncio.iscoroutinefunction(case):
        answer(case(job))
    elif job["loop"] == "uvloop":
        answer(bmq.run(case(job)))
    else:
        answer(asyncio.run(case(job)))
