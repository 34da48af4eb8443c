# SPDX-License-Identifier: Apache-2.0
"""The official client: one case in a process, see ``common.py``."""

from __future__ import annotations

import os
import queue as queues
import sys
import threading
import time
from typing import Any

import blazingmq
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
    pacer,
    percentiles,
    since,
    ticks,
)


class Countdown:
    """A callback that counts, and signals the last call."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.done = threading.Event()

    def __call__(self, *_: Any) -> None:
        self.left -= 1
        if not self.left:
            self.done.set()

    def wait(self) -> None:
        if not self.done.wait(120):
            raise SystemExit(f"{self.left} answers never came")


def session(job: Job, on_message: Any = None, **options: Any) -> Any:
    return blazingmq.Session(lambda _: None, on_message=on_message, broker=job["broker"], **options)


def open_queue(session: Any, job: Job, **modes: bool) -> None:
    limits = blazingmq.QueueOptions(max_unconfirmed_messages=1_000_000, max_unconfirmed_bytes=2**30)
    session.open_queue(job["queue"], options=limits, **modes)


def post(job: Job) -> Result:
    payload, count, uri = bytes(job["size"]), job["count"], job["queue"]
    with session(job) as writer:
        open_queue(writer, job, write=True)
        acks = Countdown(count)
        meter = Meter()
        if job["properties"]:
            for _ in range(count):
                writer.post(uri, payload, properties=PROPERTIES, on_ack=acks)
        else:
            for _ in range(count):
                writer.post(uri, payload, on_ack=acks)
        acks.wait()
        result = meter.result(count)
        writer.close_queue(uri)
    return result


def consume(job: Job) -> Result:
    """Consume messages in the client's thread; the time starts before the queue is open."""
    size, with_properties = job["size"], job["properties"]
    messages = Countdown(job["count"])

    def on_message(message: Any, handle: Any) -> None:
        assert len(message.data) == size
        if with_properties:
            properties = message.properties
            assert properties["CustomerId"] == 1234
            assert properties["OrderType"] == "EXPRESS"
        handle.confirm()
        messages()

    reader = session(job, on_message)
    meter = Meter()
    open_queue(reader, job, read=True)
    messages.wait()
    result = meter.result(job["count"])
    reader.stop()
    return result


def ack(job: Job) -> Result:
    """Post one message at a time, from the post to its acknowledgement."""
    payload, uri, samples = bytes(job["size"]), job["queue"], []
    answers: queues.SimpleQueue[Any] = queues.SimpleQueue()
    with session(job) as writer:
        open_queue(writer, job, write=True)
        for _ in range(job["count"] + WARM):
            begin = clock()
            writer.post(uri, payload, on_ack=answers.put)
            answers.get()
            samples.append(clock() - begin)
        writer.close_queue(uri)
    return percentiles(samples[WARM:])


def own(job: Job) -> Result:
    """Post one message at a time, from the post to its delivery."""
    payload, uri, samples = bytes(job["size"]), job["queue"], []
    received: queues.SimpleQueue[Any] = queues.SimpleQueue()
    acks = Countdown(job["count"] + WARM)
    with session(job, lambda message, handle: received.put(message)) as both:
        open_queue(both, job, read=True, write=True)
        for _ in range(job["count"] + WARM):
            begin = clock()
            both.post(uri, payload, on_ack=acks)
            message = received.get()
            samples.append(clock() - begin)
            both.confirm(message)
        acks.wait()
        both.close_queue(uri)
    return percentiles(samples[WARM:])


def paced(job: Job) -> Result:
    """Post each tick: the time from the tick to the own message."""
    filler, count, uri = bytes(job["size"] - TICK), job["count"], job["queue"]
    samples: list[int] = []
    last = Countdown(count)

    def on_message(message: Any, handle: Any) -> None:
        samples.append(since(message.data))
        handle.confirm()
        last()

    with session(job, on_message) as both:
        open_queue(both, job, read=True, write=True)
        with pacer(job) as process:
            assert process.stdout is not None
            posted = 0
            while posted < count:
                for tick in ticks(process.stdout.read1(TICK * 512)):  # type: ignore[attr-defined]
                    both.post(uri, tick + filler)
                    posted += 1
            last.wait()
        both.close_queue(uri)
    return percentiles(samples[count // 20 :])


def first(job: Job) -> Result:
    """Return the processor time of this process until its first acknowledgement."""
    with session(job) as writer:
        open_queue(writer, job, write=True)
        acks = Countdown(1)
        writer.post(job["queue"], bytes(job["size"]), on_ack=acks)
        acks.wait()
        return {"CPU ms": time.process_time() * 1000}


def endure(job: Job) -> Result:
    """Post and receive while the broker fails, until a line arrives on the standard input."""
    books, ended, uri = Books(), threading.Event(), job["queue"]

    def on_message(message: Any, handle: Any) -> None:
        books.received[int(message.data)] += 1
        handle.confirm()

    def acked(ack: Any, number: int) -> None:
        if ack.status is blazingmq.AckStatus.SUCCESS:
            books.acknowledged(number)

    both = session(job, on_message, timeout=PATIENCE)
    open_queue(both, job, read=True, write=True)
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    print("ready", flush=True)
    while not ended.wait(1 / RATE):
        both.post(uri, b"%d" % books.posted, on_ack=lambda ack, number=books.posted: acked(ack, number))
        books.posted += 1
    end = time.monotonic() + PATIENCE
    while not books.complete() and time.monotonic() < end:
        time.sleep(0.05)
    return books.result()


if __name__ == "__main__":
    job = job()
    answer(globals()[job["case"]](job))
    os._exit(0)  # stopping a session may wait for a lost broker
