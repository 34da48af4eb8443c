# SPDX-License-Identifier: Apache-2.0
"""One measurement of this project's client, in a separate process.

Takes a JSON object as its argument (see ``harness.Job``), and prints its result as a JSON object.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

PROPERTIES = {"CustomerId": 1234, "OrderType": "EXPRESS"}
TASKS = 200
BURST = 500


class Meter:
    """Wall and CPU time since the creation of the object."""

    def __init__(self) -> None:
        gc.collect()
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def result(self, count: int, **more: Any) -> dict[str, Any]:
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        return {"rate": count / wall, "cpu": cpu, "cpu_us": cpu / count * 1e6, **more}


async def post_many(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    import bmq

    payload, count = bytes(job["size"]), job["count"]
    meter = Meter()
    if job["properties"]:
        report = await queue.post_many(bmq.PutMessage(payload, PROPERTIES) for _ in range(count))
    else:
        report = await queue.post_many(payload for _ in range(count))
    assert report.acknowledged == count, report
    return meter.result(count)


async def post_table(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Post ten thousand rows at a time, as Spark passes them."""
    import pyarrow as pa

    count = job["count"]
    columns: dict[str, Any] = {"value": [bytes(job["size"])] * 10_000}
    if job["properties"]:
        columns |= {name: [value] * 10_000 for name, value in PROPERTIES.items()}
    batch = pa.record_batch(columns)
    batches = (batch.slice(0, min(10_000, count - start)) for start in range(0, count, 10_000))
    table = pa.RecordBatchReader.from_batches(batch.schema, batches)
    names = [name for name in columns if name != "value"]
    warm = pa.record_batch({"value": ["warm"]})
    await queue.post_table(warm)  # exclude imports from the measurement
    meter = Meter()
    report = await queue.post_table(table, properties=names)
    assert report.acknowledged == count, report
    return meter.result(count)


async def post_nowait(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Create a future for each post; only the window limits the posts in flight."""
    payload, left = bytes(job["size"]), job["count"]
    properties = PROPERTIES if job["properties"] else None
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


async def post_tasks(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    payload, count = bytes(job["size"]), job["count"]

    async def worker(first: int) -> None:
        for _ in range(first, count, TASKS):
            await queue.post(payload)

    meter = Meter()
    await asyncio.gather(*(worker(first) for first in range(TASKS)))
    return meter.result(count)


async def consume(queue: Any, job: dict[str, Any], meter: Meter) -> dict[str, Any]:
    left, size = job["count"], job["size"]
    if job["properties"]:
        async for message in queue:
            properties = message.properties
            assert properties["CustomerId"] == 1234
            assert properties["OrderType"] == "EXPRESS"
            assert len(message.data) == size
            message.confirm()
            left -= 1
            if not left:
                break
    else:
        async for message in queue:
            assert len(message.data) == size
            message.confirm()
            left -= 1
            if not left:
                break
    await asyncio.sleep(0)
    return meter.result(job["count"])


async def consume_batches(queue: Any, job: dict[str, Any], meter: Meter) -> dict[str, Any]:
    left, size, with_properties = job["count"], job["size"], job["properties"]
    async for batch in queue.batches():
        for message in batch:
            assert len(message.data) == size
            if with_properties:
                properties = message.properties
                assert properties["CustomerId"] == 1234
                assert properties["OrderType"] == "EXPRESS"
        batch.confirm()
        left -= len(batch)
        if left <= 0:
            break
    await asyncio.sleep(0)
    return meter.result(job["count"])


async def consume_tables(queue: Any, job: dict[str, Any], meter: Meter) -> dict[str, Any]:
    """Consume the same messages as columns, including properties."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = {"CustomerId": pa.int64(), "OrderType": pa.string()} if job["properties"] else {}
    left = job["count"]
    tables = queue.tables(
        properties=kinds, max_unconfirmed_messages=job["unconfirmed"], max_unconfirmed_bytes=2**30
    )
    meter = Meter()  # no message has arrived yet, and imports are excluded from the measurement
    async for batch in tables:
        assert pc.min(pc.binary_length(batch["value"])).as_py() == job["size"]
        if kinds:
            assert pc.min(batch["CustomerId"]).as_py() == 1234
            assert pc.min(batch["OrderType"]).as_py() == "EXPRESS"
        tables.confirm()
        left -= batch.num_rows
        if left <= 0:
            break
    await asyncio.sleep(0)
    return meter.result(job["count"])


async def await_handler(queue: Any, job: dict[str, Any], meter: Meter) -> dict[str, Any]:
    """Await a handler for each message: the minimum of a worker."""
    left, size = job["count"], job["size"]

    async def handler(message: Any) -> None:
        nonlocal left
        assert len(message.data) == size
        left -= 1

    async for message in queue:
        await handler(message)
        message.confirm()
        if not left:
            break
    await asyncio.sleep(0)
    return meter.result(job["count"])


async def handle(queue: Any, job: dict[str, Any], meter: Meter) -> dict[str, Any]:
    """Use a worker with an empty handler."""
    import bmq

    left, size = job["count"], job["size"]
    done = asyncio.get_running_loop().create_future()

    async def handler(message: bmq.Message) -> None:
        nonlocal left
        assert len(message.data) == size
        left -= 1
        if not left:
            done.set_result(None)

    work = bmq.consume(queue, handler, concurrency=job["concurrency"], timeout=job["timeout"] or None)
    meter = Meter()  # no message has arrived yet, and imports are excluded from the measurement
    task = asyncio.ensure_future(work)
    await done
    result = meter.result(job["count"])
    task.cancel()
    await asyncio.wait([task])
    return result


async def ack_latency(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Measure one message at a time, from the post to its acknowledgement."""
    payload, samples = bytes(job["size"]), []
    for _ in range(500):
        await queue.post(payload)
    meter = Meter()
    clock = time.perf_counter_ns
    for _ in range(job["count"]):
        begin = clock()
        await queue.post(payload)
        samples.append(clock() - begin)
    return meter.result(job["count"], samples_us=[s / 1000 for s in samples])


async def push_latency(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Measure one message at a time, from the post to its delivery."""
    payload, samples = bytes(job["size"]), []
    meter = Meter()
    clock = time.perf_counter_ns
    for i in range(job["count"] + 500):
        begin = clock()
        queue.post_nowait(payload)
        message = await queue.receive()
        if i >= 500:
            samples.append(clock() - begin)
        message.confirm()
    await queue.flush()
    return meter.result(job["count"], samples_us=[s / 1000 for s in samples])


PRODUCERS: dict[str, Callable[[Any, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    f.__name__: f for f in (post_many, post_table, post_nowait, post_tasks, ack_latency, push_latency)
}
# Messages arrive once the queue is open: the time starts before that.
CONSUMERS: dict[str, Callable[[Any, dict[str, Any], Meter], Awaitable[dict[str, Any]]]] = {
    f.__name__: f
    for f in (
        consume,
        consume_batches,
        consume_tables,
        await_handler,
        handle,
    )
}


async def main(job: dict[str, Any]) -> dict[str, Any]:
    import bmq

    case = job["case"]
    limits = {"max_unconfirmed_messages": job["unconfirmed"], "max_unconfirmed_bytes": 2**30}
    async with bmq.connect(
        job["broker"],
        max_unacked_messages=max(200_000, job["count"]),
        busy_poll=0.001 if job["awake"] else 0.0,
    ) as session:
        if case in CONSUMERS:
            meter = Meter()
            queue = await session.open_queue(job["queue"], read=True, **limits)
            return await CONSUMERS[case](queue, job, meter)
        queue = await session.open_queue(job["queue"], read=case == "push_latency", write=True, **limits)
        return await PRODUCERS[case](queue, job)


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    if job["loop"] == "uvloop":
        from bmq import run
    else:
        from asyncio import run
    print(json.dumps(run(main(job))))
