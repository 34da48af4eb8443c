# SPDX-License-Identifier: Apache-2.0
"""One measurement of the official client, in a separate process.

Takes a JSON object as its argument (see ``harness.Job``), and prints its result as a JSON object.
"""

from __future__ import annotations

import gc
import json
import queue as queues
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import blazingmq

PROPERTIES = {"CustomerId": 1234, "OrderType": "EXPRESS"}


class Meter:
    """Wall and CPU time (of all threads) since the creation of the object."""

    def __init__(self) -> None:
        gc.collect()
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def result(self, count: int, **more: Any) -> dict[str, Any]:
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        return {"rate": count / wall, "cpu": cpu, "cpu_us": cpu / count * 1e6, **more}


class Countdown:
    """An on_ack callback: counts, and signals the last acknowledgement."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.done = threading.Event()

    def __call__(self, ack: Any) -> None:
        self.left -= 1
        if not self.left:
            self.done.set()

    def wait(self) -> None:
        if not self.done.wait(120):
            raise SystemExit(f"{self.left} acknowledgements never came")


def post(session: Any, job: dict[str, Any]) -> dict[str, Any]:
    payload, count, uri = bytes(job["size"]), job["count"], job["queue"]
    acks = Countdown(count)
    meter = Meter()
    if job["properties"]:
        for _ in range(count):
            session.post(uri, payload, properties=PROPERTIES, on_ack=acks)
    else:
        for _ in range(count):
            session.post(uri, payload, on_ack=acks)
    acks.wait()
    return meter.result(count)


def ack_latency(session: Any, job: dict[str, Any]) -> dict[str, Any]:
    payload, uri, samples = bytes(job["size"]), job["queue"], []
    answers: queues.SimpleQueue[Any] = queues.SimpleQueue()
    clock = time.perf_counter_ns
    for _ in range(500):
        session.post(uri, payload, on_ack=answers.put)
        answers.get()
    meter = Meter()
    for _ in range(job["count"]):
        begin = clock()
        session.post(uri, payload, on_ack=answers.put)
        answers.get()
        samples.append(clock() - begin)
    return meter.result(job["count"], samples_us=[s / 1000 for s in samples])


def push_latency(session: Any, job: dict[str, Any]) -> dict[str, Any]:
    payload, uri, samples = bytes(job["size"]), job["queue"], []
    acks = Countdown(job["count"] + 500)
    clock = time.perf_counter_ns
    meter = Meter()
    for i in range(job["count"] + 500):
        begin = clock()
        session.post(uri, payload, on_ack=acks)
        message = received.get()
        if i >= 500:
            samples.append(clock() - begin)
        session.confirm(message)
    acks.wait()
    return meter.result(job["count"], samples_us=[s / 1000 for s in samples])


received: queues.SimpleQueue[Any] = queues.SimpleQueue()
CASES: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    f.__name__: f for f in (post, ack_latency, push_latency)
}


def consume(job: dict[str, Any]) -> dict[str, Any]:
    """Consume messages in the client's thread; the time starts when the queue is open."""
    left, size, with_properties = job["count"], job["size"], job["properties"]
    done = threading.Event()

    def on_message(message: Any, handle: Any) -> None:
        nonlocal left
        assert len(message.data) == size
        if with_properties:
            properties = message.properties
            assert properties["CustomerId"] == 1234
            assert properties["OrderType"] == "EXPRESS"
        handle.confirm()
        left -= 1
        if not left:
            done.set()

    session = open_session(job, on_message)
    meter = Meter()
    session.open_queue(job["queue"], read=True, options=_options(job))
    if not done.wait(120):
        raise SystemExit(f"{left} messages never came")
    result = meter.result(job["count"])
    session.stop()
    return result


def _options(job: dict[str, Any]) -> Any:
    return blazingmq.QueueOptions(max_unconfirmed_messages=job["unconfirmed"], max_unconfirmed_bytes=2**30)


def open_session(job: dict[str, Any], on_message: Any = None) -> Any:
    return blazingmq.Session(lambda _: None, on_message=on_message, broker=job["broker"])


def main(job: dict[str, Any]) -> dict[str, Any]:
    case = job["case"]
    if case == "consume":
        return consume(job)
    reads = case.startswith("push")
    session = open_session(job, (lambda message, handle: received.put(message)) if reads else None)
    session.open_queue(job["queue"], read=reads, write=True, options=_options(job))
    result = CASES[case](session, job)
    session.close_queue(job["queue"])
    session.stop()
    return result


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
