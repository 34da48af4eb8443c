# SPDX-License-Identifier: Apache-2.0
"""One measurement of this project's client, in a separate process.

Takes a JSON object as its argument (see ``harness.Job``), and prints its result as a JSON object.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
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
    burst = job.get("burst") or BURST
    meter = Meter()
    futures: list[Any] = []
    while left:
        now = min(burst, left)
        futures += [queue.post_nowait(payload, properties=properties) for _ in range(now)]
        left -= now
        await asyncio.sleep(0)
    await queue.flush()
    result = meter.result(job["count"])
    assert all(f.result() for f in futures)
    return result


async def post_tasks(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    payload, each = bytes(job["size"]), job["count"] // TASKS

    async def worker() -> None:
        for _ in range(each):
            await queue.post(payload)

    meter = Meter()
    await asyncio.gather(*(worker() for _ in range(TASKS)))
    return meter.result(each * TASKS)


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


async def consume_tables(
    queue: Any, job: dict[str, Any], meter: Meter, *, in_the_end: bool = False, store: str = ""
) -> dict[str, Any]:
    """Consume the same messages as columns, including properties."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def saved(batch: Any) -> None:
        nonlocal writer
        if writer is None:
            writer = pa.ipc.new_file(file, batch.schema)
        writer.write(batch)

    kinds = {"CustomerId": pa.int64(), "OrderType": pa.string()} if job["properties"] else {}
    left = job["count"]
    writer: Any = None
    file: Any = open(store, "wb") if store else None  # noqa: ASYNC230, SIM115  closed below
    most, size = (job["count"], 2**40) if in_the_end else (job["unconfirmed"], 2**30)
    tables = queue.tables(properties=kinds, max_unconfirmed_messages=most, max_unconfirmed_bytes=size)
    meter = Meter()  # no message has arrived yet, and imports are excluded from the measurement
    async for batch in tables:
        assert pc.min(pc.binary_length(batch["value"])).as_py() == job["size"]
        if kinds:
            assert pc.min(batch["CustomerId"]).as_py() == 1234
            assert pc.min(batch["OrderType"]).as_py() == "EXPRESS"
        if store:
            saved(batch)
        if not in_the_end:
            tables.confirm()
        left -= batch.num_rows
        if left <= 0:
            break
    if store:
        writer.close()
        os.fsync(file.fileno())
        file.close()
    if in_the_end:
        tables.confirm()
        await queue.close()
    if store:
        with pa.memory_map(store) as stored:
            found = pa.ipc.open_file(stored)
            read = (found.get_batch(number) for number in range(found.num_record_batches))
            assert sum(len(each) for each in read if pc.min(pc.binary_length(each["value"]))) == job["count"]
    await asyncio.sleep(0)
    return meter.result(job["count"])


async def consume_tables_as_a_task(queue: Any, job: dict[str, Any], meter: Meter) -> dict[str, Any]:
    """Confirm after all messages have arrived, and wait for the broker, as a task that may fail must do."""
    return await consume_tables(queue, job, meter, in_the_end=True)


async def consume_tables_stored(queue: Any, job: dict[str, Any], meter: Meter) -> dict[str, Any]:
    """Store all messages in a file, synchronise the file, confirm, wait for the broker, and read the file."""
    with tempfile.TemporaryDirectory() as folder:
        return await consume_tables(queue, job, meter, in_the_end=True, store=f"{folder}/rows.arrow")


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


async def paced(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Post at a given rate; measure the time from each post to its acknowledgement."""
    payload, count, rate = bytes(job["size"]), job["count"], job["pace"]
    samples: list[float] = []
    clock = time.perf_counter
    meter = Meter()
    start = clock()
    done = 0
    while done < count:
        due = min(count, int((clock() - start) * rate) + 1)
        for _ in range(done, due):
            # Not the due time: the delay of timers in event loops and threads is a different subject.
            at = clock()
            queue.post_nowait(payload).add_done_callback(
                lambda _, at=at: samples.append((clock() - at) * 1e6)
            )
        done = due
        await asyncio.sleep(max(0.0, start + done / rate - clock()))
    await queue.flush()
    await asyncio.sleep(0)
    return meter.result(count, samples_us=samples)


PRODUCERS: dict[str, Callable[[Any, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    f.__name__: f for f in (post_many, post_table, post_nowait, post_tasks, ack_latency, push_latency, paced)
}
# Messages arrive once the queue is open: the time starts before that.
CONSUMERS: dict[str, Callable[[Any, dict[str, Any], Meter], Awaitable[dict[str, Any]]]] = {
    f.__name__: f
    for f in (
        consume,
        consume_batches,
        consume_tables,
        consume_tables_as_a_task,
        consume_tables_stored,
        await_handler,
        handle,
    )
}


def watching(how: str) -> dict[str, Any]:
    """Return the arguments of ``bmq.connect`` that observe the client."""
    if not how:
        return {}
    if how.startswith("otel"):
        return telemetry(sdk="sdk" in how, metrics="metrics" in how)
    import bmq

    class Nothing(bmq.Interceptor):
        def on_post(self, queue: Any, posts: Any) -> None: ...
        def on_ack(self, context: Any, outcome: Any) -> None: ...
        def on_receive(self, consumer: Any, messages: Any) -> None: ...
        def on_confirm(self, consumer: Any, messages: Any) -> None: ...

    return {"interceptors": [Nothing()]}


def telemetry(*, sdk: bool, metrics: bool) -> dict[str, Any]:
    """Set up OpenTelemetry; with the SDK, one trace in a hundred is sampled, and the exporter discards it."""
    from bmq.otel import OpenTelemetry

    if not sdk:
        return {"interceptors": [OpenTelemetry()]}
    from opentelemetry.metrics import NoOpMeterProvider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(0.01))
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    meters = MeterProvider([InMemoryMetricReader()]) if metrics else NoOpMeterProvider()
    return {"interceptors": [OpenTelemetry(tracer_provider=provider, meter_provider=meters)]}


async def main(job: dict[str, Any]) -> dict[str, Any]:
    import bmq

    case = job["case"]
    limits = {"max_unconfirmed_messages": job["unconfirmed"], "max_unconfirmed_bytes": 2**30}
    async with bmq.connect(
        job["broker"],
        max_unacked_messages=max(200_000, job["count"]),
        busy_poll=0.001 if job["awake"] else 0.0,
        **watching(job["observed"]),
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
