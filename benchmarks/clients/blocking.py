# SPDX-License-Identifier: Apache-2.0
"""One measurement of ``bmq.blocking``, or of an alternative design, in a separate process.

Takes a JSON object as its argument (see ``harness.Job``), and prints its result as a JSON object.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ours import Meter

import bmq

EXAMPLES = Path(__file__).parents[2] / "examples"
WARM = 500


def timed(job: dict[str, Any], round_trip: Callable[[], object]) -> dict[str, Any]:
    clock, samples = time.perf_counter_ns, []
    for _ in range(WARM):
        round_trip()
    meter = Meter()
    for _ in range(job["count"]):
        begin = clock()
        round_trip()
        samples.append((clock() - begin) / 1000)
    return meter.result(job["count"], samples_us=samples)


def ack_latency(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    payload = bytes(job["size"])
    return timed(job, lambda: queue.post(payload))


def push_latency(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    payload = bytes(job["size"])

    def round_trip() -> None:
        queue.post_nowait(payload)
        queue.receive().confirm()

    return timed(job, round_trip)


def post_many(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    meter = Meter()
    report = queue.post_many(itertools.repeat(bytes(job["size"]), job["count"]))
    assert report.acknowledged == job["count"]
    return meter.result(job["count"])


def post_nowait(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    payload = bytes(job["size"])
    meter = Meter()
    pending = [queue.post_nowait(payload) for _ in range(job["count"])]
    queue.flush()
    result = meter.result(job["count"])
    assert all(each.result() for each in pending)
    return result


def consume(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    meter = Meter()
    for message in itertools.islice(queue, job["count"]):
        assert len(message.data) == job["size"]
        message.confirm()
    queue.stats()  # the thread has processed every confirmation
    return meter.result(job["count"])


def consume_batches(queue: Any, job: dict[str, Any]) -> dict[str, Any]:
    left = job["count"]
    meter = Meter()
    for batch in queue.batches():
        for message in batch:
            assert len(message.data) == job["size"]
        batch.confirm()
        left -= len(batch)
        if left <= 0:
            break
    queue.stats()
    return meter.result(job["count"])


CASES = {f.__name__: f for f in (ack_latency, push_latency, post_many, post_nowait, consume, consume_batches)}


def blocking(job: dict[str, Any]) -> dict[str, Any]:
    reading = job["case"] in ("push_latency", "consume", "consume_batches")
    with bmq.blocking.connect(job["broker"], max_unacked_messages=max(200_000, job["count"] * 2)) as session:
        queue = session.open_queue(
            job["queue"],
            read=reading,
            write=not job["case"].startswith("consume"),
            max_unconfirmed_messages=job["unconfirmed"],
            max_unconfirmed_bytes=2**30,
        )
        return CASES[job["case"]](queue, job)


def run_coroutine_threadsafe(job: dict[str, Any]) -> dict[str, Any]:
    """Use asyncio's own function for this purpose."""
    from bmq._loop import new_event_loop

    loop = new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    async def connect() -> Any:
        return await bmq.connect(job["broker"])

    session = run(connect())
    queue = run(session.open_queue(job["queue"], read=job["case"] == "push_latency", write=True))
    payload = bytes(job["size"])

    def round_trip() -> None:
        run(queue.post(payload))
        if job["case"] == "push_latency":
            loop.call_soon_threadsafe(run(queue.receive()).confirm)

    result = timed(job, round_trip)
    run(session.close())
    return result


def core(job: dict[str, Any]) -> dict[str, Any]:
    """Use the protocol's core over a blocking socket, as in ``examples/sans_io_client.py``.

    The client has no second thread and at most one subscription, does not reconnect, and sends no heartbeats
    between calls.
    """
    sys.path.insert(0, str(EXAMPLES))
    from sans_io_client import BlockingClient

    client = BlockingClient(job["broker"])
    pushes = job["case"] == "push_latency"
    queue = client.open(job["queue"], [""] if pushes else [])
    payload = bytes(job["size"])

    def round_trip() -> None:
        client.post(queue, payload)
        if pushes:
            client.confirm(*client.receive()[:2])

    result = timed(job, round_trip)
    client.close()
    return result


WAYS = {f.__name__: f for f in (blocking, run_coroutine_threadsafe, core)}

if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    print(json.dumps(WAYS[job["observed"] or "blocking"](job)))
